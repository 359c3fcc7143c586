//! Point reads a few batches before the head, as by wallets and `eth_call`.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use slipstream_storage::{StateHistory, StorageConfig, View};
use slipstream_types::StateKey;

use super::read::{Read, time};
use crate::{
    Figure,
    harness::{
        kept::{WorkDir, clone_store},
        ratios,
    },
    state::{Choice, OwnStore, SizeDir, Way, config, measure as commit},
};
use slipnet::progress::Progress;

/// The distance from the head, in batches.
pub(super) const BEHIND: u64 = 200;
/// Batches that are committed: more than the default window, so that the window has moved.
const BATCHES: usize = 300;
/// Batches per call of the workload.
const ROUND_BATCHES: usize = 20;

pub(super) struct Plan {
    pub(super) keys: u64,
    /// The updates of each batch.
    pub(super) updates: usize,
    /// The reads of each round.
    pub(super) reads: usize,
}

/// Commits with the default window on a copy of the filled store, then reads alternately.
pub(super) fn measure(
    plan: &Plan,
    rounds: usize,
    place: &WorkDir,
    progress: Progress,
) -> Result<Vec<Figure>> {
    let size_dir = SizeDir::open(place.dir(), plan.keys)?;
    let store = size_dir.filled_store(progress)?;
    let copy = tempfile::tempdir_in(place.dir())?;
    clone_store(&store, copy.path())?;
    let config = StorageConfig { fsync: false, state_history: StateHistory::default(), ..config(false) };
    let ours = OwnStore::open(&config, copy.path())?;
    let mut workload = size_dir.take(BATCHES as u64)?;
    progress.step(&format!("committing {BATCHES} batches"));
    let mut changed = BTreeSet::new();
    for round in 0..BATCHES / ROUND_BATCHES {
        let batches = workload.round(ROUND_BATCHES, plan.updates, Choice::Uniform)?;
        commit(&mut ours.by(Way::Given), &batches)?;
        if (round + 1) * ROUND_BATCHES > BATCHES - BEHIND as usize {
            let entries = batches.batches.iter().flat_map(|delta| delta.entries().iter());
            changed.extend(entries.map(|entry| entry.key));
        }
    }
    let changed: Vec<StateKey> = changed.into_iter().collect();
    let head = ours.store().view()?;
    let number = head.head().number.before(BEHIND);
    let past = ours.store().view_of(number)?.context("a state in the window is missing")?;
    let newest = workload.version();
    let mut samples = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for round in 0..=rounds {
        progress.step(&format!("reading {BEHIND} batches behind the head, round {round} of {rounds}"));
        let uniform: Vec<StateKey> = (0..plan.reads).map(|_| workload.key()).collect();
        // Takes keys spread over all changed ones, and different keys in each round.
        let step = (changed.len() / plan.reads).max(1);
        let changed: Vec<StateKey> =
            changed.iter().skip(round % step).step_by(step).take(plan.reads).copied().collect();
        let turn = |keys: &[StateKey]| in_turn(keys, (&head, newest), (&past, newest - BEHIND), round);
        let [uniform, changed] = [turn(&uniform)?, turn(&changed)?];
        // The first round warms up.
        if round > 0 {
            let found = [uniform, changed].concat();
            samples.iter_mut().zip(found).for_each(|(samples, ns)| samples.push(ns));
        }
    }
    ours.store().close();
    let [head_ns, recent_ns, head_changed_ns, changed_ns] = samples;
    Ok(vec![
        Figure::new("head_read_ns.recent", "ns", head_ns.clone()),
        Figure::new("read_ns.recent", "ns", recent_ns.clone()),
        Figure::new("read_vs_head.recent", "ratio", ratios(&recent_ns, &head_ns)),
        Figure::new("read_ns.recent_changed", "ns", changed_ns.clone()),
        Figure::new("read_vs_head.recent_changed", "ratio", ratios(&changed_ns, &head_changed_ns)),
    ])
}

/// Returns the nanoseconds per read of the head and of a past state. Both are read once first, so that neither warms up
/// the other.
fn in_turn(
    keys: &[StateKey],
    (head, newest): (&View, u64),
    (past, version_max): (&View, u64),
    round: usize,
) -> Result<[f64; 2]> {
    let reads = |view, version_max| -> Vec<Read<'_>> {
        keys.iter().map(|key| Read { view, key: *key, version_max }).collect()
    };
    let sides = [reads(head, newest), reads(past, version_max)];
    for side in &sides {
        time(side)?;
    }
    let mut ns = [0.0; 2];
    for place in [round % 2, (round + 1) % 2] {
        ns[place] = time(&sides[place])?;
    }
    Ok(ns)
}
