//! `slipnet up`: a devnet in the foreground, detached, or for another machine.

use std::{
    fmt::Write as _,
    fs::File,
    num::NonZeroU64,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::{Entry, Registry, control, logs};
use crate::{
    accounts::DEFAULT_SEED,
    devnet::{DevnetOptions, SyncMode},
    manifest::Manifest,
    output::{note, print, print_line},
    plan::Plan,
    progress::Progress,
    relay::{KIB_PER_SECOND_MAX, Limits, REGION_SOURCE, Region, region_table},
    signals::interrupted,
    target::{self, Target},
};

/// The default name of a detached devnet.
const DEFAULT_NAME: &str = "devnet";
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The interval at which a detached devnet is polled until it is ready.
const READY_POLL: Duration = Duration::from_millis(100);
/// The highest loss of a devnet's links, in percent. With more, handshakes fail and no devnet becomes ready.
const LOSS_PERCENT_MAX: f64 = 50.0;
/// The most lines of the keeper's log that an error quotes.
const LAST_WORDS_LINES: usize = 20;

/// The arguments of `slipnet up`.
#[derive(Args)]
pub struct Up {
    /// The number of validators.
    #[arg(short, long, default_value_t = 4)]
    validators: u32,
    /// The number of fullnodes.
    #[arg(short, long, default_value_t = 2)]
    fullnodes: u32,
    /// The number of funded accounts.
    #[arg(long, default_value_t = 1_000)]
    accounts: u32,
    /// Starts without the contracts that Ethereum's tools expect: a CREATE2 deployer, Multicall3, and that of EIP-4788.
    #[arg(long)]
    no_predeploys: bool,
    /// Refuses transactions without a chain id (from before EIP-155), as chains do by default.
    #[arg(long)]
    no_unprotected_transactions: bool,
    /// The seed of all keys.
    #[arg(long, default_value = DEFAULT_SEED)]
    seed: String,
    /// Keeps running after the command ends, under this name; `down`, `status`, `logs`, `stop`, `start` and `clean`
    /// find it by the name.
    #[arg(short, long, value_name = "NAME", num_args = 0..=1, default_missing_value = DEFAULT_NAME)]
    detach: Option<String>,
    /// Puts the nodes into these regions in turn, validators first, with relays between them.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "REGIONS")]
    latency: Vec<Region>,
    /// Drops this percentage of the datagrams between nodes, at most 50: 0.5 is one in 200.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    loss: Option<f64>,
    /// Limits the bandwidth between two nodes to this many KiB per second, in each direction.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=KIB_PER_SECOND_MAX))]
    kib_per_second: Option<u64>,
    /// Writes files for other machines into --dir, and starts nothing.
    #[arg(long, value_enum, requires = "dir", conflicts_with = "detach")]
    target: Option<Target>,
    /// The directory of the files, which is kept. Without it: a temporary directory, removed at the end, or with
    /// --detach by `clean`.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Keeps the temporary directory.
    #[arg(long, conflicts_with = "detach")]
    keep: bool,
    /// The first port; each node has two. Without it, nodes keep the ports of their configuration in --dir, and new
    /// nodes get free ones.
    #[arg(long)]
    base_port: Option<u16>,
    /// The sync mode of the fullnodes.
    #[arg(long, value_enum, default_value_t = SyncMode::Auto)]
    sync_mode: SyncMode,
    /// The number of batches between two snapshots.
    #[arg(long, default_value_t = 100)]
    snapshot_interval: u64,
    /// The number of past states that nodes serve: at ten batches per second, the default covers five minutes of forks,
    /// wallets and debuggers.
    #[arg(long, default_value_t = 3_000)]
    state_history: u64,
    /// The log filter of the nodes.
    #[arg(long, default_value = "info")]
    log: String,
    /// Prints the manifest as JSON once the devnet is ready.
    #[arg(long)]
    json: bool,
}

impl Up {
    /// Runs the command.
    ///
    /// # Errors
    /// If the devnet does not start, a node stops badly, or files cannot be written.
    pub async fn run(self) -> Result<()> {
        let json = self.json;
        let limits = self.limits();
        let plan = Plan {
            regions: self.latency,
            limits,
            devnet: DevnetOptions {
                validators: self.validators,
                fullnodes: self.fullnodes,
                accounts: self.accounts,
                predeploys: !self.no_predeploys,
                unprotected_transactions: !self.no_unprotected_transactions,
                seed: self.seed,
                base_port: self.base_port,
                dir: self.dir,
                keep: self.keep,
                snapshot_interval_batches: self.snapshot_interval,
                state_history: Some(self.state_history),
                sync_mode: self.sync_mode,
                log_filter: self.log,
                ..DevnetOptions::default()
            },
        };
        if let Some(target) = self.target {
            return print(&target::write(target, &plan)?);
        }
        let progress = Progress::detect();
        let DevnetOptions { validators, fullnodes, .. } = plan.devnet;
        progress.step(&format!("starting {validators} validators and {fullnodes} fullnodes"));
        if !plan.regions.is_empty() {
            note(&format!(
                "{}  source: {REGION_SOURCE}; within a region and as jitter: assumed",
                region_table(&plan.regions)
            ));
        }
        if !limits.is_none() {
            note(&format!("each link, in each direction: {limits}"));
        }
        match self.detach {
            Some(name) => detach(&name, plan, json, progress).await,
            None => stay(&plan, json, progress).await,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            loss: self.loss.unwrap_or(0.0) / 100.0,
            kib_per_second: self.kib_per_second.and_then(NonZeroU64::new),
        }
    }
}

/// Parses a loss in percent.
fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=LOSS_PERCENT_MAX).contains(&percent) => Ok(percent),
        _ => Err(format!("{text}: expected percent from 0 to {LOSS_PERCENT_MAX}, such as 0.5")),
    }
}

/// Keeps the devnet until ctrl-c.
async fn stay(plan: &Plan, json: bool, progress: Progress) -> Result<()> {
    // One listener is used throughout: a signal between two listeners would be lost.
    let mut stop = std::pin::pin!(interrupted());
    let (mut devnet, links) = tokio::select! {
        started = plan.start() => started?,
        () = &mut stop => bail!("interrupted while starting"),
    };
    show(&devnet.manifest().await?, json, "stop: ctrl-c")?;
    let mut check = tokio::time::interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = check.tick() => {
                for end in devnet.take_ended()? {
                    progress.step(&end.to_string());
                }
            }
        }
    }
    progress.step("stopping");
    if let Some(links) = &links {
        progress.step(&format!("relays: {}", serde_json::to_string(&links.stats())?));
    }
    for name in devnet.started_by_hand() {
        let dir = devnet.keep_directory();
        progress.step(&format!(
            "{name} was started by hand and keeps running; the files stay in {}",
            dir.display()
        ));
    }
    devnet.stop().await
}

/// Starts a keeper, and waits until its devnet is ready.
async fn detach(name: &str, mut plan: Plan, json: bool, progress: Progress) -> Result<()> {
    let entry = Registry::of_user()?.entry(name)?;
    ensure!(
        !entry.is_running()?,
        "the devnet {name} is already running: `slipnet status --devnet {name}` shows it"
    );
    entry.make()?;
    // If two commands start one devnet, only one writes its plan and its log. The keeper waits until the lock is free
    // again.
    let lock = entry.lock().await?;
    ensure!(lock.is_some(), "the devnet {name} is being started by another command");
    let dir = plan.devnet.dir.take().unwrap_or_else(|| entry.net());
    let dir = std::path::absolute(&dir).with_context(|| format!("{} is not a path", dir.display()))?;
    plan.devnet.dir = Some(dir);
    entry.write_plan(&plan)?;
    let mut keeper = Starting { child: start_keeper(&entry)?, is_ready: false };
    drop(lock);
    let mut stop = std::pin::pin!(interrupted());
    let state = loop {
        tokio::select! {
            () = tokio::time::sleep(READY_POLL) => {}
            () = &mut stop => bail!("interrupted while starting"),
        }
        if let Some(status) = keeper.child.try_wait()? {
            let words = logs::last_lines(&entry.log(), LAST_WORDS_LINES)?;
            bail!("the devnet {name} did not start ({status}); its keeper said:\n{words}");
        }
        // The keeper listens once all nodes are ready.
        if entry.socket().exists()
            && entry.is_running()?
            && let Ok(state) = control::state(&entry).await
        {
            break state;
        }
    };
    keeper.is_ready = true;
    progress.step(&format!("{name} is ready and keeps running"));
    show(&Manifest::load(&state.manifest)?, json, &format!("stop: slipnet down --devnet {name}"))
}

/// A keeper that ends with this command, including its nodes, unless its devnet became ready.
struct Starting {
    child: Child,
    is_ready: bool,
}

impl Drop for Starting {
    fn drop(&mut self) {
        if !self.is_ready {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn start_keeper(entry: &Entry) -> Result<Child> {
    let program = std::env::current_exe().context("this program's path is unknown")?;
    let log = File::options().create(true).truncate(true).write(true).open(entry.log());
    let log = log.with_context(|| format!("cannot open {}", entry.log().display()))?;
    let mut command = Command::new(&program);
    command.args(["keep", entry.name()]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot start {}", program.display()))
}

fn show(manifest: &Manifest, json: bool, how_to_stop: &str) -> Result<()> {
    if json {
        return print_line(&serde_json::to_string_pretty(manifest)?);
    }
    print(&described(manifest, how_to_stop)?)
}

/// Describes the manifest in words.
fn described(manifest: &Manifest, how_to_stop: &str) -> Result<String> {
    let dir = manifest.genesis_file.parent().unwrap_or(Path::new("."));
    let mut text = format!("chain id {}, files in {}\n\n", manifest.chain_id, dir.display());
    writeln!(text, "accounts (the keys are public: never use them elsewhere)")?;
    for account in manifest.accounts.iter().take(10) {
        writeln!(text, "  {}  {}", account.address, account.key)?;
    }
    if manifest.accounts.len() > 10 {
        writeln!(text, "  and {} more in manifest.json", manifest.accounts.len() - 10)?;
    }
    writeln!(text, "\nnodes")?;
    for node in &manifest.nodes {
        let (name, api, network) = (&node.name, &node.api, &node.network);
        writeln!(
            text,
            "  {name:<12} api {api}  network {network}  pid {}  {}",
            node.pid,
            node.dir.display()
        )?;
    }
    let path = dir.join(crate::manifest::FILE);
    writeln!(text, "\nready: slipnet load --manifest {}   {how_to_stop}", path.display())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    fn parse(line: &str) -> Result<Up, clap::Error> {
        let command = Up::augment_args(Command::new("up").no_binary_name(true));
        Up::from_arg_matches(&command.try_get_matches_from(line.split(' '))?)
    }

    /// Goal: loss and bandwidth are bounded, and the error for a wrong value says what to write.
    #[test]
    fn links_lose_and_hold_up_as_they_are_told() {
        let up = parse("--loss 0.5 --kib-per-second 4096").unwrap();
        let limits = Limits { loss: 0.005, kib_per_second: NonZeroU64::new(4_096) };
        assert_eq!((up.limits(), parse("-v 1").unwrap().limits()), (limits, Limits::default()));
        let refused = |line: &str| match parse(line) {
            Ok(_) => panic!("accepted: {line}"),
            Err(error) => error.to_string(),
        };
        for line in ["--loss 51", "--loss=-1", "--loss NaN", "--loss much"] {
            assert!(refused(line).contains("expected percent from 0 to 50, such as 0.5"), "{line}");
        }
        for line in ["--kib-per-second 0", "--kib-per-second 104857601", "--kib-per-second fast"] {
            assert!(refused(line).contains("--kib-per-second"), "{line}");
        }
    }
}
