//! The executor alone, without replication and in this process. The sweeps show the gain of a second thread by
//! execution time, object size and the mixer's errors (figures 5 to 7 of the Eve paper).

use std::time::Instant;

use anyhow::{Result, ensure};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use slipstream_executor::{Eager, Transaction, Workers, execute, execute_parallel};
use slipstream_types::Conflicts;

use super::{Weight, local::Local, object::Request};
use crate::Figure;

/// Transactions of a batch with falsified conflicts, as in the paper.
const BATCH: u32 = 100;
/// The probability that two transactions conflict, in percent; each changes one of 100 / percent objects.
const CONFLICT_PERCENT: [u64; 3] = [1, 5, 20];
/// Shares of falsified pairs, in percent.
const WRONG_PERCENT: [u32; 3] = [0, 1, 10];
/// Hashes that are timed to find the time of one.
const CALIBRATION_HASHES: u64 = 2_000;

/// Returns the EVM's time here for a hash of 1 KiB, in nanoseconds: the fastest of some tries.
///
/// # Errors
/// If the batch cannot be executed.
pub(super) fn hash_ns() -> Result<f64> {
    let local = Local::new(8)?;
    let batch = local.batch(Request { hashes: CALIBRATION_HASHES, slots: 1 }, 0, |sender| sender)?;
    let mut least = f64::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        let outcome = local.execute(&batch)?;
        least = least.min(begun.elapsed().as_nanos() as f64);
        ensure!(outcome.receipts.receipts.iter().all(|receipt| receipt.success), "a transaction failed");
    }
    Ok(least / (CALIBRATION_HASHES * batch.len() as u64) as f64)
}

/// Runs all sweeps.
///
/// # Errors
/// If a batch cannot be executed.
pub(super) fn run(weights: &[Weight], runs: usize) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for weight in weights {
        figures.extend(unreplicated(weight, runs)?);
    }
    let middle = weights.iter().find(|weight| weight.name == Weight::MIDDLE).unwrap_or(&weights[0]);
    figures.extend(mixers(middle.request, runs)?);
    Ok(figures)
}

/// Measures the transactions per second on one thread and on two, for one weight, alternately.
///
/// # Errors
/// If a batch cannot be executed.
fn unreplicated(weight: &Weight, runs: usize) -> Result<Vec<Figure>> {
    let local = Local::new(weight.batch)?;
    let batch = local.batch(weight.request, 0, |sender| sender)?;
    let conflicts = local.execute(&batch)?.conflicts();
    let workers = Workers::new(2)?;
    let (mut one, mut two, mut gain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let one_s = seconds(|| Ok(execute(&local.state, &local.env, &batch)?))?;
        let two_s =
            seconds(|| Ok(execute_parallel(&local.state, &local.env, &batch, &conflicts, &workers)?))?;
        one.push(batch.len() as f64 / one_s);
        two.push(batch.len() as f64 / two_s);
        gain.push(one_s / two_s);
    }
    let name = |what: &str| format!("executor.{what}.{}", weight.name);
    Ok(vec![
        Figure::new(name("sequential"), "1/s", one),
        Figure::new(name("parallel"), "1/s", two),
        Figure::new(name("parallel_gain"), "ratio", gain),
    ])
}

/// Measures the gain from two threads if the mixer misses conflicts, or invents some.
///
/// # Errors
/// If a batch cannot be executed.
fn mixers(request: Request, runs: usize) -> Result<Vec<Figure>> {
    let local = Local::new(BATCH)?;
    let workers = Workers::new(2)?.eager(Eager::Ahead);
    let mut figures = Vec::new();
    for percent in CONFLICT_PERCENT {
        let mut random = SmallRng::seed_from_u64(percent);
        let objects: Vec<u64> = (0..BATCH).map(|_| random.random_range(0..100 / percent)).collect();
        let batch = local.batch(request, 0, |sender| objects[sender as usize])?;
        let exact = local.execute(&batch)?.conflicts();
        for wrong in WRONG_PERCENT {
            let graphs =
                [("false_negatives", missing(&exact, wrong)), ("false_positives", surplus(&exact, wrong))];
            for (what, graph) in graphs {
                let gains =
                    (0..runs).map(|_| gain(&local, &batch, &graph, &workers)).collect::<Result<_>>()?;
                let name = format!("mixer.{what}_{wrong}.conflict_{percent}");
                figures.push(Figure::new(name, "ratio", gains));
            }
        }
    }
    Ok(figures)
}

fn gain(local: &Local, batch: &[Transaction], graph: &Conflicts, workers: &Workers) -> Result<f64> {
    let one_s = seconds(|| Ok(execute(&local.state, &local.env, batch)?))?;
    let two_s = seconds(|| Ok(execute_parallel(&local.state, &local.env, batch, graph, workers)?))?;
    Ok(one_s / two_s)
}

fn seconds<T>(work: impl FnOnce() -> Result<T>) -> Result<f64> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Returns the conflicts without some of them.
fn missing(exact: &Conflicts, percent: u32) -> Conflicts {
    let mut random = SmallRng::seed_from_u64(percent.into());
    let mut graph = exact.clone();
    for predecessors in &mut graph.predecessors {
        predecessors.retain(|_| random.random_range(0..100) >= percent);
    }
    graph
}

/// Returns the conflicts, and some false ones.
fn surplus(exact: &Conflicts, percent: u32) -> Conflicts {
    let mut random = SmallRng::seed_from_u64(percent.into());
    let mut graph = exact.clone();
    for (index, predecessors) in graph.predecessors.iter_mut().enumerate() {
        let others = (0..index as u32).filter(|_| random.random_range(0..100) < percent);
        predecessors.extend(others);
        predecessors.sort_unstable();
        predecessors.dedup();
    }
    graph
}
