//! `slipnet bench live`: the chain itself, from a wallet's array to the certificate, beside geth under the same load.
//!
//! ```text
//!  generator (signed transfers) ──▶ geth --dev │ one validator │ four validators and a fullnode      floods, in turns, each chain alone
//!                               └─▶ four validators and a fullnode: a rate that is sustained, shares of it, and a few a second
//!                                              └──▶ a node that replays that chain: what a transfer costs without agreement
//! ```

mod figures;
mod generator;
mod subject;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use slipnet::{accounts::node_key, progress::Progress};

use self::{
    generator::{ARRAY, Offer, Outcome, Pace, offer},
    subject::{Spent, Subject},
};
use super::{
    BenchOptions, Report,
    harness::node::{NodeOptions, NodeProcess},
};

/// Transfers that a flood leaves uncommitted.
const OUTSTANDING_MAX: usize = 5_000;
/// Shares of a flood's rate that are tried in turn until one is sustained.
const SHARES: [f64; 6] = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4];
/// Loads that are tried until one lies within the term of a primary.
const TERMS_MAX: usize = 4;
/// A load at which a batch has one or two transfers.
const IDLE_TPS: f64 = 100.0;
const FOLLOWER_SEED: &str = "slipnet-bench-live";
const REPLAY_POLL: Duration = Duration::from_millis(20);
const REPLAY_DEADLINE: Duration = Duration::from_secs(300);

struct Plan {
    runs: usize,
    /// From a chain's start to its load: nodes measure their machine in the first minute.
    flood_warm: Duration,
    warm: Duration,
    flood: usize,
    seconds: f64,
}

const FULL: Plan = Plan {
    runs: 3,
    flood_warm: Duration::from_secs(20),
    warm: Duration::from_secs(70),
    flood: 40_000,
    seconds: 12.0,
};
const QUICK: Plan =
    Plan { runs: 1, flood_warm: Duration::ZERO, warm: Duration::ZERO, flood: 8_000, seconds: 4.0 };

/// A chain that is flooded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Geth,
    Validators { validators: u32, fullnodes: u32 },
}

const KINDS: [(&str, Kind); 3] = [
    ("geth", Kind::Geth),
    ("1v", Kind::Validators { validators: 1, fullnodes: 0 }),
    ("4v", Kind::Validators { validators: 4, fullnodes: 1 }),
];

/// What a load cost, at a chain of four validators and a fullnode.
#[derive(Clone, Debug)]
struct Loaded {
    outcome: Outcome,
    transfers: f64,
    /// Batches that the chain made, empty ones too.
    batches: f64,
    /// Of the node that takes the transfers and orders them; of the validators that do neither, on average; of the fullnode.
    primary: Spent,
    validator: Spent,
    follower: Spent,
}

/// All that was measured.
#[derive(Default)]
struct Measured {
    /// Of each of [`KINDS`], run by run; none of geth if it is not installed.
    floods: [Vec<f64>; KINDS.len()],
    sustained_tps: Option<f64>,
    idle: Vec<Loaded>,
    third: Vec<Loaded>,
    half: Vec<Loaded>,
    nine_tenths: Vec<Loaded>,
    /// Microseconds of CPU a transfer.
    replay_us: Vec<f64>,
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let plan = if options.quick { QUICK } else { FULL };
    let dir = options.temporary_dir()?;
    let measured = tokio::runtime::Handle::current().block_on(measure(&plan, dir.path(), progress))?;
    Ok(Report {
        bench: "live",
        runs: plan.runs,
        figures: figures::figures(&measured),
        notes: figures::notes(&measured, options.quick),
    })
}

async fn measure(plan: &Plan, dir: &Path, progress: Progress) -> Result<Measured> {
    let mut measured = Measured::default();
    for run in 1..=plan.runs {
        for ((name, kind), floods) in KINDS.iter().zip(&mut measured.floods) {
            let dir = dir.join(format!("{name}-{run}"));
            progress.step(&format!("flooding {name}, run {run} of {}", plan.runs));
            let subject = match *kind {
                Kind::Geth => Subject::geth(&dir).await?,
                Kind::Validators { validators, fullnodes } => {
                    Some(Subject::devnet(validators, fullnodes, &dir).await?)
                }
            };
            let Some(subject) = subject else { continue };
            tokio::time::sleep(plan.flood_warm).await;
            floods.push(flood(&subject, plan).await?);
            subject.stop().await?;
        }
    }
    progress.step("starting four validators and a fullnode");
    let subject = Subject::devnet(4, 1, &dir.join("rates")).await?;
    tokio::time::sleep(plan.warm).await;
    let peak = flood(&subject, plan).await?;
    for share in SHARES {
        let tps = share * peak;
        progress.step(&format!("trying {tps:.0} transfers/s"));
        if load(&subject, tps, ARRAY, plan).await?.outcome.is_sustained() {
            measured.sustained_tps = Some(tps);
            break;
        }
    }
    let sustained =
        measured.sustained_tps.context("no rate is sustained: p99 is above a second at all of them")?;
    for run in 1..=plan.runs {
        progress.step(&format!("rates, run {run} of {}", plan.runs));
        measured.idle.push(load(&subject, IDLE_TPS, 1, plan).await?);
        measured.third.push(load(&subject, sustained / 3.0, ARRAY, plan).await?);
        measured.half.push(load(&subject, sustained / 2.0, ARRAY, plan).await?);
        measured.nine_tenths.push(load(&subject, 0.9 * sustained, ARRAY, plan).await?);
    }
    for run in 1..=plan.runs {
        progress.step(&format!("replaying, run {run} of {}", plan.runs));
        measured.replay_us.push(replay_us(&subject, &dir.join(format!("replay-{run}")), run as u32).await?);
    }
    subject.stop().await?;
    Ok(measured)
}

async fn flood(subject: &Subject, plan: &Plan) -> Result<f64> {
    let pace = Pace::Flood { outstanding_max: OUTSTANDING_MAX };
    let flood = Offer { transfers: plan.flood, array: ARRAY, pace };
    Ok(offer(&subject.chain, &subject.accounts, flood).await?.tps)
}

/// Offers transfers to the primary at a rate; once more if it was no longer the primary at the end.
async fn load(subject: &Subject, per_second: f64, array: usize, plan: &Plan) -> Result<Loaded> {
    for _ in 0..TERMS_MAX {
        let primary = subject.primary().await?;
        let loaded = load_at(subject, primary, per_second, array, plan).await?;
        if subject.primary().await? == primary {
            return Ok(loaded);
        }
    }
    bail!("no validator stayed the primary for {} s", plan.seconds)
}

async fn load_at(
    subject: &Subject,
    primary: usize,
    per_second: f64,
    array: usize,
    plan: &Plan,
) -> Result<Loaded> {
    let transfers = (per_second * plan.seconds) as usize;
    let chain = subject.through(primary).await?;
    let (before, head) = (subject.spent().await?, chain.head().await?);
    let pace = Pace::Rate { per_second };
    let outcome = offer(&chain, &subject.accounts, Offer { transfers, array, pace }).await?;
    let (after, last) = (subject.spent().await?, chain.head().await?);
    let spent: Vec<Spent> = after.iter().zip(&before).map(|(after, before)| after.since(before)).collect();
    let validators = spent.len() - 1;
    let others = (0..validators).filter(|index| *index != primary).map(|index| spent[index]);
    Ok(Loaded {
        outcome,
        transfers: transfers as f64,
        batches: (last - head) as f64,
        primary: spent[primary],
        validator: Spent::mean(others),
        follower: spent[validators],
    })
}

/// Microseconds of CPU a transfer at a node that executes the whole chain as fast as it can.
async fn replay_us(subject: &Subject, dir: &Path, run: u32) -> Result<f64> {
    let head = subject.chain.head().await?;
    let peers = subject.nodes().iter().map(|node| node.peer_address()).collect();
    let options = NodeOptions { mode: "replay", peers, snapshot_interval: 100, ..NodeOptions::default() };
    let key = node_key(FOLLOWER_SEED, run);
    let node = NodeProcess::start(dir, &subject.genesis()?, &key, &options).await?;
    let until = Instant::now() + REPLAY_DEADLINE;
    while node.head().await? < head {
        ensure!(Instant::now() < until, "the node that replays is at {} of {head}", node.head().await?);
        tokio::time::sleep(REPLAY_POLL).await;
    }
    let cpu_s = node.cpu_s()?;
    let transactions = node.status().await?["sync"]["transactions"].as_u64().context("its transactions")?;
    node.stop().await?;
    Ok(1e6 * cpu_s / transactions as f64)
}
