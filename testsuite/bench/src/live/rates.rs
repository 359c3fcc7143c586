//! Four validators and a fullnode at shares of their sustained rate, and the cost for a node that replays their chain.

use std::{
    ops::RangeInclusive,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::{BatchNumber, BlobKind};

use super::{
    IDLE_TPS, Plan, flood, floor,
    generator::{ARRAY, Offer, Outcome, Pace, offer},
    subject::{ResourceUse, Shape, Subject},
};
use crate::{
    Figure,
    harness::{
        node::{NodeOptions, NodeProcess, database},
        ratios,
    },
};
use slipnet::{accounts::node_key, progress::Progress};

/// Shares of a flood's rate, tried in turn until one is sustained.
const SHARES: [f64; 6] = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4];
/// The most loads that are tried until one fits within the term of a primary.
const TERMS_MAX: usize = 4;
const FOLLOWER_SEED: &str = "slipnet-bench-live";
const REPLAY_POLL: Duration = Duration::from_millis(20);
const REPLAY_DEADLINE: Duration = Duration::from_secs(300);

/// The cost of a load.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    pub(super) outcome: Outcome,
    transfers: f64,
    /// Batches that the chain made, including empty ones.
    pub(super) batches: f64,
    /// The first and the last of these batches.
    range: RangeInclusive<u64>,
    /// The cost for the primary, which accepts and orders the transfers; for the other validators, on average; and for
    /// the fullnode.
    pub(super) primary: ResourceUse,
    validator: ResourceUse,
    pub(super) follower: ResourceUse,
}

/// All measurements.
#[derive(Default)]
struct Measured {
    sustained_tps: f64,
    idle: Vec<Loaded>,
    third: Vec<Loaded>,
    half: Vec<Loaded>,
    nine_tenths: Vec<Loaded>,
    /// Bytes of bodies, receipts and deltas of each load of `nine_tenths`.
    content_bytes: Vec<f64>,
    /// Microseconds of CPU per transfer.
    replay_us: Vec<f64>,
    floor_us: Vec<f64>,
}

pub(super) async fn run(plan: &Plan, dir: &Path, progress: Progress) -> Result<Vec<Figure>> {
    progress.step("starting four validators and a fullnode");
    let subject = Subject::devnet(Shape::default(), &dir.join("rates")).await?;
    tokio::time::sleep(plan.warm).await;
    let mut measured =
        Measured { sustained_tps: sustained_tps(&subject, plan, progress).await?, ..Measured::default() };
    let sustained = measured.sustained_tps;
    for run in 1..=plan.runs {
        progress.step(&format!("rates, run {run} of {}", plan.runs));
        measured.idle.push(load(&subject, IDLE_TPS, 1, plan).await?);
        measured.third.push(load(&subject, sustained / 3.0, ARRAY, plan).await?);
        measured.half.push(load(&subject, sustained / 2.0, ARRAY, plan).await?);
        measured.nine_tenths.push(load(&subject, 0.9 * sustained, ARRAY, plan).await?);
    }
    for run in 1..=plan.runs {
        progress.step(&format!("replaying, run {run} of {}", plan.runs));
        let dir_of_run = dir.join(format!("replay-{run}"));
        measured.replay_us.push(replay_us(&subject, &dir_of_run, run as u32).await?);
        if run == 1 {
            let ranges = measured.nine_tenths.iter().map(|loaded| loaded.range.clone());
            measured.content_bytes = content_bytes(&database(&dir_of_run), ranges)?;
        }
        measured.floor_us.push(floor::cpu_us(&dir.join(format!("floor-{run}")))?);
    }
    subject.stop().await?;
    Ok(measured.figures())
}

/// Returns the highest share of a flood's rate that is sustained.
async fn sustained_tps(subject: &Subject, plan: &Plan, progress: Progress) -> Result<f64> {
    let peak = flood(subject, plan).await?;
    for share in SHARES {
        let tps = share * peak;
        progress.step(&format!("trying {tps:.0} transfers/s"));
        if load(subject, tps, ARRAY, plan).await?.outcome.is_sustained() {
            return Ok(tps);
        }
    }
    bail!("the chain sustains no rate: p99 is above a second at all of them")
}

/// Offers transfers to the primary at a rate; repeats this if another node is the primary at the end.
pub(super) async fn load(subject: &Subject, per_second: f64, array: usize, plan: &Plan) -> Result<Loaded> {
    for _ in 0..TERMS_MAX {
        let primary = subject.primary().await?;
        let loaded = load_at(subject, primary, per_second, array, plan).await?;
        if subject.primary().await? == primary {
            return Ok(loaded);
        }
    }
    bail!("no validator stayed primary for {} s", plan.seconds)
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
    let spent: Vec<ResourceUse> =
        after.iter().zip(&before).map(|(after, before)| after.since(before)).collect();
    let validators = spent.len() - 1;
    let others: Vec<ResourceUse> =
        (0..validators).filter(|index| *index != primary).map(|index| spent[index]).collect();
    Ok(Loaded {
        outcome,
        transfers: transfers as f64,
        batches: (last - head) as f64,
        range: head + 1..=last,
        primary: spent[primary],
        validator: ResourceUse::mean(&others),
        follower: spent[validators],
    })
}

/// Returns the CPU microseconds per transfer at a node that executes the whole chain as fast as it can.
async fn replay_us(subject: &Subject, dir: &Path, run: u32) -> Result<f64> {
    let head = subject.chain.head().await?;
    let peers = subject.nodes().iter().map(|node| node.peer_address()).collect();
    let options = NodeOptions { mode: "replay", peers, snapshot_interval: 100, ..NodeOptions::default() };
    let key = node_key(FOLLOWER_SEED, run);
    let node = NodeProcess::start(dir, &subject.genesis()?, &key, &options).await?;
    let until = Instant::now() + REPLAY_DEADLINE;
    while node.head().await? < head {
        ensure!(
            Instant::now() < until,
            "the replaying node reached only batch {} of {head} in time",
            node.head().await?
        );
        tokio::time::sleep(REPLAY_POLL).await;
    }
    let cpu_s = node.cpu_s()?;
    let transactions = node.status().await?["sync"]["transactions"]
        .as_u64()
        .context("the status has no count of transactions")?;
    node.stop().await?;
    Ok(1e6 * cpu_s / transactions as f64)
}

/// Returns the stored bytes of bodies, receipts and deltas in each range of batches.
fn content_bytes(dir: &Path, ranges: impl Iterator<Item = RangeInclusive<u64>>) -> Result<Vec<f64>> {
    let store = Store::open(&StorageConfig::default(), dir)?;
    let of_batch = |number| -> Result<f64> {
        let number = BatchNumber::new(number);
        let mut bytes = 0;
        for kind in [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta] {
            let blob = store.blob(kind, number)?;
            bytes += blob
                .with_context(|| format!("the node that replayed has no {kind:?} of batch {number}"))?
                .len();
        }
        Ok(bytes as f64)
    };
    let sums = ranges.map(|range| range.map(of_batch).sum()).collect();
    store.close();
    sums
}

impl Measured {
    fn figures(&self) -> Vec<Figure> {
        let mut figures = vec![
            Figure::new("sustained_tps.4v", "1/s", vec![self.sustained_tps]),
            Figure::new("floor_cpu_us", "us", self.floor_us.clone()),
            Figure::new("replay_cpu_us", "us", self.replay_us.clone()),
        ];
        type Part = fn(&Loaded) -> f64;
        let roles: [(&str, Part); 3] = [
            ("validator", |loaded| 1e6 * loaded.validator.cpu_s / loaded.transfers),
            ("primary", |loaded| 1e6 * loaded.primary.cpu_s / loaded.transfers),
            ("follower", |loaded| 1e6 * loaded.follower.cpu_s / loaded.transfers),
        ];
        for (role, cpu_us) in roles {
            let cpu_us: Vec<f64> = self.half.iter().map(cpu_us).collect();
            let cost = ratios(&cpu_us, &self.replay_us);
            figures.push(Figure::new(format!("cpu_vs_replay.{role}"), "ratio", cost));
            figures.push(Figure::new(format!("cpu_us.{role}"), "us", cpu_us));
        }
        let loads = [
            ("idle", &self.idle),
            ("third", &self.third),
            ("half", &self.half),
            ("nine_tenths", &self.nine_tenths),
        ];
        for (name, loads) in loads {
            let mut add = |what: &str, unit, of: Part| {
                figures.push(Figure::new(format!("{what}.{name}"), unit, loads.iter().map(of).collect()));
            };
            add("p50_ms", "ms", |loaded| loaded.outcome.quantile_ms(0.5));
            add("p99_ms", "ms", |loaded| loaded.outcome.quantile_ms(0.99));
            add("transfers_per_batch", "1", |loaded| loaded.transfers / loaded.outcome.batches as f64);
        }
        let of = |loads: &[Loaded], part: Part| loads.iter().map(part).collect::<Vec<f64>>();
        let mut add = |name: &str, unit, samples| figures.push(Figure::new(name, unit, samples));
        add("batch_cpu_ms", "ms", of(&self.idle, |it| 1e3 * it.validator.cpu_s / it.batches));
        add("batch_bytes_written", "bytes", of(&self.idle, |it| it.validator.bytes_written / it.batches));
        let busy = &self.nine_tenths;
        add("syncs_per_batch", "1", of(busy, |it| it.validator.syncs / it.batches));
        add("bytes_sent.validator", "bytes", of(busy, |it| it.validator.bytes_sent / it.transfers));
        add("bytes_sent.primary", "bytes", of(busy, |it| it.primary.bytes_sent / it.transfers));
        let written = of(busy, |it| it.validator.stored_bytes);
        add("bytes_written_vs_body", "ratio", ratios(&written, &self.content_bytes));
        figures
    }
}
