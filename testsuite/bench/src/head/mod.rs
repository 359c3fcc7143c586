//! `slipnet bench head`: a fullnode's lag behind its validator at the head, with a round trip of 150 ms in between.
//!
//! One validator and one fullnode are real processes; the load goes to the validator. A watcher with its own thread
//! polls both heads every two milliseconds and notes when it first saw each batch.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use slipstream_network::PeerAddress;

use super::{
    Aim, BenchOptions, Figure, Report,
    harness::{
        ONE_WAY,
        node::{NodeOptions, NodeProcess},
        relay::Relay,
        watch::Watcher,
    },
};
use slipnet::{
    accounts::node_key,
    devnet::{Devnet, DevnetOptions},
    load::{self, LoadOptions, Rate, Workload},
    progress::Progress,
    quantiles::quantile,
};

/// Rates that are tried in turn until one is not sustained. The full load is the last one that is also sustained in the
/// measured runs.
const RAMP: [u32; 9] = [1_000, 2_000, 4_000, 5_000, 6_500, 8_000, 10_000, 12_500, 15_000];
/// Long enough for a growing queue to show.
const RAMP_SECONDS: u64 = 10;
/// A load is sustained if nearly all of it is committed at the rate at which it came, and soon.
const SUSTAINED_SHARE: f64 = 0.95;
const SUSTAINED_P99_MS: f64 = 500.0;
/// The full load of a quick run, which has no time for a ramp.
const QUICK_TPS: u32 = 1_000;
const ACCOUNTS: u32 = 400;
const FULLNODE_SEED: &str = "slipnet-bench-follower";

struct Plan {
    runs: usize,
    seconds: u64,
}

const FULL: Plan = Plan { runs: 5, seconds: 16 };
const QUICK: Plan = Plan { runs: 1, seconds: 8 };

/// One run at one rate.
struct Run {
    /// Sorted lags in milliseconds, one for each batch.
    lags: Vec<f64>,
    committed_tps: f64,
    commit_p50_ms: f64,
    sustained: bool,
    validator_cpu: f64,
    fullnode_cpu: f64,
}

impl Run {
    fn quantile(&self, share: f64) -> f64 {
        quantile(&self.lags, share).expect("a run without a batch is an error")
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let plan = if options.quick { QUICK } else { FULL };
    let dir = options.temporary_dir()?;
    tokio::runtime::Handle::current().block_on(async {
        progress.step("starting a validator, and a fullnode behind the relay");
        let devnet = Devnet::start(DevnetOptions {
            validators: 1,
            accounts: ACCOUNTS,
            dir: Some(dir.path().join("devnet")),
            ..DevnetOptions::default()
        })
        .await?;
        let validator: PeerAddress = devnet.proposer().peer_address().parse()?;
        let relay = Relay::start(validator.address, ONE_WAY)?;
        let dialled = PeerAddress { address: relay.address(), ..validator };
        let node_options =
            NodeOptions { mode: "auto", peers: vec![dialled.to_string()], ..Default::default() };
        let key = node_key(FULLNODE_SEED, 0);
        let fullnode =
            NodeProcess::start(&dir.path().join("fullnode"), &devnet.genesis_file(), &key, &node_options)
                .await?;
        let bench = Bench { devnet: &devnet, fullnode: &fullnode, progress };
        let mut rates = if options.quick { vec![QUICK_TPS] } else { bench.ramp().await? };
        let (full, at_half, at_full) = loop {
            let full = rates
                .pop()
                .with_context(|| format!("this machine does not sustain even {} transactions/s", RAMP[0]))?;
            let (at_half, at_full) = bench.half_and_full(full, &plan).await?;
            let sustained = at_full.iter().filter(|run| run.sustained).count();
            if options.quick || 2 * sustained > plan.runs {
                break (full, at_half, at_full);
            }
            progress.step(&format!("longer runs do not sustain {full} transactions/s"));
        };
        ensure!(relay.dropped() == 0, "the relay dropped datagrams");
        fullnode.stop().await?;
        devnet.stop().await?;
        Ok(Report {
            bench: "head",
            runs: plan.runs,
            figures: figures(full, &at_half, &at_full),
            notes: notes(options.quick),
        })
    })
}

struct Bench<'a> {
    devnet: &'a Devnet,
    fullnode: &'a NodeProcess,
    progress: Progress,
}

impl Bench<'_> {
    async fn load(&self, tps: u32, seconds: u64) -> Result<load::LoadSummary> {
        let options = LoadOptions {
            workload: Workload::Transfers.into(),
            rate: Rate::constant(tps),
            duration: Duration::from_secs(seconds),
            accounts: self.devnet.accounts().to_vec(),
            submit: vec![self.devnet.proposer().rpc().clone()],
            ..LoadOptions::default()
        };
        load::run(&options, Progress::Quiet).await
    }

    /// Returns the rates that validator, fullnode and load together sustain for a short time on this machine, in
    /// increasing order.
    async fn ramp(&self) -> Result<Vec<u32>> {
        let mut rates = Vec::new();
        for tps in RAMP {
            self.progress.step(&format!("trying {tps} transactions/s"));
            if !is_sustained(tps, &self.load(tps, RAMP_SECONDS).await?) {
                break;
            }
            rates.push(tps);
        }
        Ok(rates)
    }

    /// Runs at half of a rate and at the full rate, alternately.
    async fn half_and_full(&self, full: u32, plan: &Plan) -> Result<(Vec<Run>, Vec<Run>)> {
        let (mut at_half, mut at_full) = (Vec::new(), Vec::new());
        for run in 1..=plan.runs {
            for (tps, runs) in [(full / 2, &mut at_half), (full, &mut at_full)] {
                self.progress.step(&format!("{tps} transactions/s, run {run} of {}", plan.runs));
                runs.push(self.run(tps, plan.seconds).await?);
            }
        }
        Ok((at_half, at_full))
    }

    async fn run(&self, tps: u32, seconds: u64) -> Result<Run> {
        let watcher = Watcher::start(self.devnet.proposer().rpc().url(), self.fullnode.url())?;
        let validator = self.devnet.proposer().pid().unwrap_or_default();
        let cpu = || anyhow::Ok((slipnet::cpu::of_process(validator)?, self.fullnode.cpu_s()?));
        let before = cpu()?;
        let begin = std::time::Instant::now();
        let report = self.load(tps, seconds).await?;
        let (took, after) = (begin.elapsed().as_secs_f64(), cpu()?);
        let lags = watcher.finish(report.head).await?;
        ensure!(!lags.is_empty(), "no batch was seen");
        Ok(Run {
            lags,
            committed_tps: report.achieved_per_second,
            commit_p50_ms: report.commit_ms.as_ref().map_or(0.0, |latency| latency.p50),
            sustained: is_sustained(tps, &report),
            validator_cpu: (after.0 - before.0) / took,
            fullnode_cpu: (after.1 - before.1) / took,
        })
    }
}

fn is_sustained(tps: u32, report: &load::LoadSummary) -> bool {
    let soon = report.commit_ms.as_ref().is_some_and(|latency| latency.p99 <= SUSTAINED_P99_MS);
    soon && report.achieved_per_second >= SUSTAINED_SHARE * f64::from(tps)
}

/// The aims of this bench; other figures have none.
fn aimed(figure: Figure) -> Figure {
    match figure.name() {
        "lag_p50_over_one_way_ms" => figure.aim(Aim::AtMost(50.0)),
        _ => figure,
    }
}

fn figures(full: u32, at_half: &[Run], at_full: &[Run]) -> Vec<Figure> {
    let of = |runs: &[Run], value: &dyn Fn(&Run) -> f64| runs.iter().map(value).collect::<Vec<_>>();
    let over = |run: &Run| run.quantile(0.5) - ONE_WAY.as_secs_f64() * 1e3;
    let mut figures = vec![
        Figure::new("lag_p50_over_one_way_ms", "ms", of(at_full, &over)),
        Figure::new("full_load_tps", "1/s", vec![f64::from(full)]),
    ];
    for (label, runs) in [("half", at_half), ("full", at_full)] {
        for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
            let lags = of(runs, &|run| run.quantile(share));
            figures.push(Figure::new(format!("lag_{name}_ms.{label}"), "ms", lags));
        }
        let mut add = |name: &str, unit, value: &dyn Fn(&Run) -> f64| {
            figures.push(Figure::new(format!("{name}.{label}"), unit, of(runs, value)));
        };
        add("batches", "1", &|run| run.lags.len() as f64);
        add("committed_tps", "1/s", &|run| run.committed_tps);
        add("commit_p50_ms", "ms", &|run| run.commit_p50_ms);
        add("validator_cpu", "cores", &|run| run.validator_cpu);
        add("fullnode_cpu", "cores", &|run| run.fullnode_cpu);
    }
    figures.into_iter().map(aimed).collect()
}

fn notes(quick: bool) -> Vec<String> {
    let mut notes = vec![
        "lag: from the moment at which the validator was first seen with a batch until the fullnode was, both asked for their head \
         (eth_blockNumber) every 2 ms by one thread; batches of the whole run, empty ones too"
            .to_owned(),
        format!(
            "load: plain transfers by slipnet's own load, on the same machine; the full load is the last of {RAMP:?} that validator, \
             fullnode and load together sustain for {RAMP_SECONDS} s and in most of the runs ({} % committed as it comes, p99 of committing at most {SUSTAINED_P99_MS} ms)",
            100.0 * SUSTAINED_SHARE
        ),
    ];
    if quick {
        notes.push(format!("--quick: a look; {QUICK_TPS}/s stands for the full load"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_aim_is_about_the_median_at_full_load() {
        let run = |lag: f64| Run {
            lags: (0..101).map(|step| lag + f64::from(step)).collect(),
            committed_tps: 1.0,
            commit_p50_ms: 1.0,
            sustained: true,
            validator_cpu: 0.1,
            fullnode_cpu: 0.1,
        };
        let figures = figures(1_000, &[run(75.0)], &[run(100.0)]);
        let value = |name: &str| figures.iter().find(|figure| figure.name() == name).map(Figure::value);
        assert_eq!(value("lag_p50_over_one_way_ms"), Some(75.0));
        assert_eq!((value("lag_p50_ms.half"), value("lag_p99_ms.full")), (Some(125.0), Some(199.0)));
    }
}
