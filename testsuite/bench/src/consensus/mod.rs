//! `slipnet bench consensus`: the evaluation of the Eve paper, for this system. It measures the cost of replication and
//! the effect of latency between validators. It also measures the time to recover from a primary's death, and the share
//! of concurrency bugs that replicas mask.
//!
//! | part | measured or simulated |
//! |---|---|
//! | `delays`, `failover` | real validator processes on this machine's cores, each behind a relay |
//! | `replay` | real cores in virtual time, on recorded costs, with separate CPU cores for each validator |
//! | `bugs` | the real executor with injected bugs, and real cores in virtual time |

mod bugs;
mod cluster;
mod delays;
mod drive;
mod failover;
mod local;
mod masked;
mod object;
mod pages;
mod replay;
mod ways;
mod world;

use std::path::Path;

use anyhow::Result;
use drive::Pressure;
use object::Request;

use super::{Aim, BenchOptions, Figure, Report, harness::ratios};
use slipnet::progress::Progress;

/// The parts, as `--only` names them.
const PARTS: [&str; 3] = ["replay", "delays", "bugs"];

/// The size of the measurements.
#[derive(Clone, Copy, Debug)]
struct Plan {
    runs: usize,
    /// Seconds of load in each run.
    seconds: f64,
    /// Seconds of light load in each run.
    light_seconds: u64,
    /// Batches of each setting of figure 9.
    bug_batches: u64,
    is_quick: bool,
}

const FULL: Plan = Plan { runs: 3, seconds: 5.0, light_seconds: 8, bug_batches: 60, is_quick: false };
const QUICK: Plan = Plan { runs: 1, seconds: 3.5, light_seconds: 4, bug_batches: 20, is_quick: true };

/// The weight of a request: execution time and size of its object.
#[derive(Clone, Debug)]
struct Weight {
    name: &'static str,
    request: Request,
    /// Transactions of a batch made in this process.
    batch: u32,
    execute_ms: f64,
}

impl Weight {
    /// Names, milliseconds, slots, and transactions of a batch. The aims are for [`Weight::MIDDLE`].
    const ALL: [(&'static str, f64, u64, u32); 5] = [
        ("0.1ms.10b", 0.1, 1, 400),
        ("1ms.10b", 1.0, 1, 150),
        ("10ms.10b", 10.0, 1, 30),
        ("1ms.1kb", 1.0, 32, 100),
        ("1ms.10kb", 1.0, 320, 40),
    ];
    const MIDDLE: &'static str = "1ms.10b";

    fn all(hash_ns: f64) -> Vec<Weight> {
        let weight = |(name, execute_ms, slots, batch): (&'static str, f64, u64, u32)| {
            let request = Request { hashes: (execute_ms * 1e6 / hash_ns) as u64, slots };
            Weight { name, request, batch, execute_ms }
        };
        Weight::ALL.map(weight).to_vec()
    }

    /// Returns the load that keeps validators busy.
    fn pressure(&self, seconds: f64) -> Pressure {
        // Two cores cannot do more.
        let tps_max = (2_500.0 / self.execute_ms).min(4_000.0);
        let most = (tps_max * (seconds + 1.0)) as usize;
        Pressure { window: 6 * self.batch as usize, most, seconds }
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let plan = if options.quick { QUICK } else { FULL };
    let dir = options.temporary_dir()?;
    run_in(&plan, &options.only, dir.path(), progress).map_err(|error| {
        let dir = dir.keep();
        error.context(format!("the bench failed; the nodes' files and logs are in {}", dir.display()))
    })
}

fn run_in(plan: &Plan, only: &[String], dir: &Path, progress: Progress) -> Result<Report> {
    progress.step("timing a hash");
    let hash_ns = local::hash_ns()?;
    let is_chosen = |weight: &Weight| !plan.is_quick || weight.name == Weight::MIDDLE;
    let weights: Vec<Weight> = Weight::all(hash_ns).into_iter().filter(is_chosen).collect();
    let mut figures = vec![Figure::new("hash_ns", "ns", vec![hash_ns])];
    let is_named = |part: &&str| only.is_empty() || only.iter().any(|named| named == part);
    for part in PARTS.into_iter().filter(is_named) {
        progress.step(&format!("part {part}"));
        figures.extend(run_part(part, &weights, plan, dir, progress)?);
    }
    let figures = figures.into_iter().map(aimed).collect();
    Ok(Report { bench: "consensus", runs: plan.runs, figures, notes: notes(plan) })
}

fn run_part(
    part: &str,
    weights: &[Weight],
    plan: &Plan,
    dir: &Path,
    progress: Progress,
) -> Result<Vec<Figure>> {
    let runtime = tokio::runtime::Handle::current();
    match part {
        "replay" => replication(weights, plan, dir, progress),
        "delays" => runtime.block_on(delays::run(&weights[0], plan, dir, progress)),
        _ => masked::run(plan, progress),
    }
}

/// Simulates replication with separate cores for each validator: the rate of several validators over the rate of one.
fn replication(weights: &[Weight], plan: &Plan, dir: &Path, progress: Progress) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for weight in weights {
        progress.step(&format!("recording batches of {}", weight.name));
        let (mut alone, mut four, mut seven) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..plan.runs {
            let stages =
                replay::Stages::record(weight, &dir.join(format!("recorded-{}-{run}", weight.name)))?;
            let tps = |validators| -> Result<f64> {
                Ok(replay::batches_per_s(validators, &stages, None)? * f64::from(weight.batch))
            };
            alone.push(tps(1)?);
            four.push(tps(4)?);
            seven.push(tps(7)?);
        }
        let share = ratios(&four, &alone);
        if weight.name == Weight::MIDDLE {
            figures.push(Figure::new("replication_share", "ratio", share.clone()));
        }
        let mut add = |what: &str, unit, samples| {
            figures.push(Figure::new(format!("simulated.{what}.{}", weight.name), unit, samples));
        };
        add("replication_share", "ratio", share);
        add("replication_share_7", "ratio", ratios(&seven, &alone));
        add("tps_1", "1/s", alone);
        add("tps_4", "1/s", four);
    }
    Ok(figures)
}

/// The aims of this bench; other figures have none.
fn aimed(figure: Figure) -> Figure {
    match figure.name() {
        "replication_share" => figure.aim(Aim::AtLeast(0.85)),
        "throughput_at_50ms" => figure.aim(Aim::AtLeast(0.9)),
        "commit_one_ways_p50" => figure.aim(Aim::AtMost(4.5)),
        "failover_s" => figure.aim(Aim::AtMost(3.0)),
        "masked_unmixed" => figure.aim(Aim::AtLeast(0.8)),
        "masked_mixed" => figure.aim(Aim::AtLeast(1.0)),
        "bytes_vs_state_shipping" => figure.aim(Aim::AtMost(0.5)),
        _ => figure,
    }
}

fn notes(plan: &Plan) -> Vec<String> {
    let mut notes = vec![
        "requests: hashes of 1 KiB for about so long, then one is added to every slot of an object (10 B: 1 slot, 1 KB: 32, 10 KB: 320), of the \
         sender's own, so that nothing conflicts"
            .to_owned(),
        "simulated: replication_share and simulated.*: the stages of batches recorded on this disk (signatures, execution on one thread, root and seal, \
         durable outcome, vote, commit), replayed over the real cores of 1, 4 and 7 validators in virtual time, 2 cores for each validator, 0.25 ms one \
         way; over a validator that is alone (the same node, no votes)"
            .to_owned(),
        "measured, real processes, each validator behind a relay: throughput_at_50ms, far.*, failover_s; far.*.tps with 0.1 ms, batches of at most 800, 6,000 in flight; commit_one_ways_p50 is from a batch's \
         time (its primary begins to make it) to its certificate at the primary (its log), by transactions, under light load, over 50 ms"
            .to_owned(),
        "bytes_vs_state_shipping: bytes of all datagrams between validators over 4 KiB for every page that a batch changes, to each of the others; \
         pages hold nothing but rows, packed; .one_backup ships to one only"
            .to_owned(),
        "masked_*: figure 9: 4 replicas of the real executor, bugs injected where conflicting transactions ran side by side, in 1 of 20 by chance; off_alike: the same transactions at every replica; agreed upon by real \
         cores in virtual time; all is masked where nothing is manifested"
            .to_owned(),
        "not built, so not measured: primary and backup in pairs; repair_bytes_share is in `slipnet bench repair`".to_owned(),
    ];
    if plan.is_quick {
        notes.push("--quick: a look; one weight, one run of each".to_owned());
    }
    notes
}
