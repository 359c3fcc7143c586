//! `slipnet bench serve`: one real node serves 20, then 60 clients that catch up from genesis, with a short time
//! between their starts. The floor beside it: the same answers, from memory, over the same transport.
//!
//! Server, clients and floor are separate processes, so that the measured CPU is the server's alone. A server starts
//! each run with an empty cache, and the ledger is larger than the cache.

mod clients;
mod sender;
mod source;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use self::clients::ClientsReport;
use super::{
    Aim, BenchOptions, Figure, Report,
    harness::{
        node::{NodeOptions, NodeProcess, database},
        ratios,
    },
};
pub(super) use clients::{ClientsOptions, run as run_clients};
pub(super) use sender::{SenderOptions, run as run_sender};
use slipnet::{accounts::node_key, cpu, devnet::Process, progress::Progress};

/// The numbers of clients.
const FEW: u32 = 20;
const MANY: u32 = 60;
/// Without outbound connections: a node reserves nine of its 64 connection slots for peers of its own choice, so
/// clients would displace each other.
const PLACES: &str = "  outbound: 0\n";
const GAP: Duration = Duration::from_millis(50);
const SERVER_SEED: &str = "slipnet-bench-server";
const CACHE_POLL: Duration = Duration::from_millis(100);
const SENDER_POLL: Duration = Duration::from_millis(10);
const SENDER_DEADLINE: Duration = Duration::from_secs(120);
const GB: f64 = 1e9;
const MIB: f64 = (1 << 20) as f64;

/// Batches of about 120 KiB, and the number of runs.
const FULL: (u64, usize) = (2_500, 3);
const QUICK: (u64, usize) = (400, 1);

/// The cost of a server for some clients.
#[derive(Clone, Debug)]
struct Served {
    clients: ClientsReport,
    cpu_s: f64,
    /// The server's cache; `None` for the floor.
    cache: Option<Cache>,
}

#[derive(Clone, Copy, Debug)]
struct Cache {
    hit_rate: f64,
    /// The cache's largest size.
    mib: f64,
    /// The process' peak memory.
    peak_mib: f64,
}

impl Served {
    fn cpu_s_per_gb(&self) -> f64 {
        self.cpu_s / (self.clients.bytes as f64 / GB)
    }

    fn cache(&self, value: impl Fn(&Cache) -> f64) -> f64 {
        self.cache.as_ref().map_or(0.0, value)
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let (batches, runs) = if options.quick { QUICK } else { FULL };
    let dir = options.temporary_dir()?;
    let bench = Bench { source: dir.path().join("source"), genesis: dir.path().join("genesis.json") };
    progress.step(&format!("making a ledger of {batches} batches of 120 KiB"));
    source::make(&database(&bench.source), &bench.genesis, batches, progress)?;
    let (mut few, mut floors, mut many) = (Vec::new(), Vec::new(), Vec::new());
    tokio::runtime::Handle::current().block_on(async {
        for run in 1..=runs {
            progress.step(&format!("{FEW} clients, run {run} of {runs}"));
            few.push(bench.serve(FEW).await?);
            progress.step(&format!("{FEW} clients of the transport alone, run {run} of {runs}"));
            floors.push(bench.floor(FEW).await?);
            progress.step(&format!("{MANY} clients, run {run} of {runs}"));
            many.push(bench.serve(MANY).await?);
        }
        anyhow::Ok(())
    })?;
    Ok(Report { bench: "serve", runs, figures: figures(&few, &floors, &many), notes: notes(batches) })
}

struct Bench {
    source: PathBuf,
    genesis: PathBuf,
}

impl Bench {
    async fn serve(&self, count: u32) -> Result<Served> {
        let options = NodeOptions { mode: "auto", network: PLACES, ..NodeOptions::default() };
        let server =
            NodeProcess::start(&self.source, &self.genesis, &node_key(SERVER_SEED, 0), &options).await?;
        let cpu_before = server.cpu_s()?;
        let mut most = 0.0f64;
        let clients = {
            let peer = server.peer_at(server.address());
            let mut clients = std::pin::pin!(clients(&peer, count));
            loop {
                tokio::select! {
                    report = &mut clients => break report?,
                    () = tokio::time::sleep(CACHE_POLL) => most = most.max(cache_bytes(&server.status().await?)),
                }
            }
        };
        let cpu_s = server.cpu_s()? - cpu_before;
        let status = server.status().await?;
        let count = |name: &str| status["serve"][name].as_f64().unwrap_or_default();
        let (hits, misses) = (count("cache_hits"), count("cache_misses"));
        let cache = Cache {
            hit_rate: hits / (hits + misses),
            mib: most.max(cache_bytes(&status)) / MIB,
            peak_mib: server.peak_mib()?,
        };
        server.stop().await?;
        Ok(Served { clients, cpu_s, cache: Some(cache) })
    }

    async fn floor(&self, count: u32) -> Result<Served> {
        let log = self.source.join("sender.log");
        fs::write(&log, "")?;
        let program = std::env::current_exe()?;
        let database = database(&self.source);
        let database = database.to_str().context("the directory's name is not valid UTF-8")?;
        let arguments = ["child", "sender", "--database", database];
        let mut process = Process::spawn(&program, &arguments, log.clone())?;
        let peer = sender_peer(&mut process, &log).await?;
        let cpu_before = cpu::of_process(process.pid())?;
        let clients = clients(&peer, count).await?;
        let cpu_s = cpu::of_process(process.pid())? - cpu_before;
        Ok(Served { clients, cpu_s, cache: None })
    }
}

/// Waits until the sender prints its address.
async fn sender_peer(process: &mut Process, log: &Path) -> Result<String> {
    let begin = Instant::now();
    loop {
        process.check_alive()?;
        let text = fs::read_to_string(log)?;
        let whole =
            text.lines().find(|line| text.contains(&format!("{line}\n")) && line.starts_with(sender::READY));
        if let Some(peer) = whole.and_then(|line| line.strip_prefix(sender::READY)) {
            return Ok(peer.to_owned());
        }
        ensure!(begin.elapsed() < SENDER_DEADLINE, "the sender was not ready in time");
        tokio::time::sleep(SENDER_POLL).await;
    }
}

fn cache_bytes(status: &Value) -> f64 {
    status["serve"]["cache_bytes"].as_f64().unwrap_or_default()
}

/// Runs the clients in their own process.
async fn clients(peer: &str, count: u32) -> Result<ClientsReport> {
    let mut command = tokio::process::Command::new(std::env::current_exe()?);
    command.args(["child", "clients", "--peer", peer, "--count", &count.to_string()]);
    command.args(["--gap-ms", &GAP.as_millis().to_string()]);
    let output = command.kill_on_drop(true).output().await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the clients failed: {}: {said}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The aims of this bench; other figures have none.
fn aimed(figure: Figure) -> Figure {
    let aim = match figure.name() {
        "cache_hit_rate.20" => Aim::AtLeast(0.9),
        "cache_hit_rate.60" => Aim::AtLeast(0.98),
        "cache_mib" => Aim::AtMost(150.0),
        "cpu_per_gb_vs_transport" => Aim::AtMost(2.0),
        _ => return figure,
    };
    figure.aim(aim)
}

fn figures(few: &[Served], floors: &[Served], many: &[Served]) -> Vec<Figure> {
    let of = |runs: &[Served], value: &dyn Fn(&Served) -> f64| runs.iter().map(value).collect::<Vec<_>>();
    let cpu = |runs| of(runs, &Served::cpu_s_per_gb);
    let both = few.iter().zip(many);
    let most = both.map(|(few, many)| few.cache(|it| it.mib).max(many.cache(|it| it.mib))).collect();
    let mut figures = vec![
        Figure::new("cache_hit_rate.20", "ratio", of(few, &|run| run.cache(|it| it.hit_rate))),
        Figure::new("cache_hit_rate.60", "ratio", of(many, &|run| run.cache(|it| it.hit_rate))),
        Figure::new("cache_mib", "MiB", most),
        Figure::new("cpu_per_gb_vs_transport", "ratio", ratios(&cpu(few), &cpu(floors))),
    ];
    for (label, runs) in [("20", few), ("60", many), ("floor", floors)] {
        let mut add = |name: &str, unit, value: &dyn Fn(&Served) -> f64| {
            figures.push(Figure::new(format!("{name}.{label}"), unit, of(runs, value)));
        };
        add("cpu_s_per_gb", "s", &Served::cpu_s_per_gb);
        add("mb_per_s", "MB/s", &|run| run.clients.bytes as f64 / 1e6 / run.clients.seconds);
        add("client_cpu_s_per_gb", "s", &|run| run.clients.cpu_s / (run.clients.bytes as f64 / GB));
        if runs.iter().all(|run| run.cache.is_some()) {
            add("refused", "1", &|run| run.clients.refused as f64);
            add("server_peak_mib", "MiB", &|run| run.cache(|it| it.peak_mib));
        }
    }
    figures.into_iter().map(aimed).collect()
}

fn notes(batches: u64) -> Vec<String> {
    vec![
        format!(
            "server: a real fullnode with its defaults on a ledger of {batches} batches of 120 KiB, a fresh process for each run; clients: in one \
             process, each with its own key and connection, {} ms apart; they ask for bodies, receipts and deltas in the ranges of \
             a default follower, one at a time, and check order and form only",
            GAP.as_millis()
        ),
        "floor: the same answers to 20 clients by a handler that copies them from memory; CPU: user and system time of the serving \
         process while clients run, over the bytes of the answers"
            .to_owned(),
        "cache_mib: the most that serve.cache_bytes of the status showed, of both runs; server_peak_mib: the peak of the \
         whole process, block cache and all"
            .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_aim_has_its_figure() {
        let served = |cpu_s, hit_rate, mib| Served {
            clients: ClientsReport { seconds: 1.0, bytes: 2_000_000_000, refused: 0, cpu_s: 1.0 },
            cpu_s,
            cache: Some(Cache { hit_rate, mib, peak_mib: 1.0 }),
        };
        let floor = Served { cache: None, ..served(2.0, 0.0, 0.0) };
        let figures = figures(&[served(3.0, 0.95, 10.0)], &[floor], &[served(9.0, 0.98, 20.0)]);
        let value = |name: &str| figures.iter().find(|figure| figure.name() == name).map(Figure::value);
        assert_eq!((value("cache_hit_rate.20"), value("cache_hit_rate.60")), (Some(0.95), Some(0.98)));
        assert_eq!((value("cache_mib"), value("cpu_per_gb_vs_transport")), (Some(20.0), Some(1.5)));
        assert_eq!(value("cpu_s_per_gb.floor"), Some(1.0));
    }
}
