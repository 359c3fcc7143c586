//! Point reads at random depths of a long history, as in an archive node: cold, and bypassing the operating system's
//! cache.

use std::{num::NonZeroUsize, path::Path, time::Instant};

use anyhow::{Context, Result};
use rand::{Rng, SeedableRng, rngs::StdRng};
use slipstream_storage::{CommitBatch, StateHistory, StorageConfig, Store, View};
use slipstream_types::{BatchHeader, Delta, StateKey};

use super::read::{Read, check, time, version};
use crate::{
    Figure,
    harness::{
        files::wait_until_quiet,
        kept::{WorkDir, once},
        ratios,
    },
    size::short,
    state::{Choice, Initial, OwnStore, Workload, config, next_header},
};
use slipnet::progress::Progress;

/// Batches per write while the history is made.
const GROUP_BATCHES: usize = 100;
/// The part of the block cache for rows; it holds index and filters as well.
const CACHED_DATA_MIB: u64 = 16;
/// Size of index and filters per row, in sixteenths of a byte.
const INDEX_SIXTEENTHS: u64 = 40;
/// Memory for the tree, which is not used.
const TREE_MIB: u64 = 64;

pub(super) struct Plan {
    pub(super) keys: u64,
    pub(super) batches: u64,
    /// The updates of each batch.
    pub(super) updates: usize,
    /// The reads of each round.
    pub(super) reads: usize,
}

impl Plan {
    fn config(&self) -> StorageConfig {
        let rows = self.keys + self.batches * self.updates as u64;
        StorageConfig {
            block_cache_mib: CACHED_DATA_MIB + ((rows * INDEX_SIXTEENTHS) >> 24),
            tree_memory_mib: TREE_MIB,
            state_history: StateHistory::All,
            direct_reads: true,
            ..config(false)
        }
    }

    /// Returns the name of the history's directory, which depends on the rows.
    fn name(&self) -> String {
        let fingerprint = &Workload::fingerprint(self.keys).to_string()[..16];
        let (keys, batches) = (short(self.keys), short(self.batches));
        format!("slipnet-history-{keys}-{batches}-{}-{fingerprint}", self.updates)
    }

    /// Returns the version of the last batch, as the workload writes it.
    fn newest(&self) -> u64 {
        Workload::after(self.keys, self.batches).version()
    }
}

pub(super) fn measure(
    plan: &Plan,
    rounds: usize,
    place: &WorkDir,
    progress: Progress,
) -> Result<Vec<Figure>> {
    let dir = place.dir().join(plan.name());
    once(&dir, |dir| fill(plan, dir, progress))?;
    let ours = OwnStore::open(&plan.config(), &dir)?;
    // A start seals the rows in the history's log.
    wait_until_quiet()?;
    let store = ours.store();
    let head = store.view()?;
    let mut random = StdRng::from_os_rng();
    let mut samples = <[Vec<f64>; 3]>::default();
    let mut blocks = <[Vec<f64>; 3]>::default();
    for round in 0..rounds {
        progress.step(&format!("reading {} batches deep, round {} of {rounds}", plan.batches, round + 1));
        let mut workload = Workload::after(plan.keys, u64::from(random.random::<u32>()));
        let points: Vec<(StateKey, u64)> =
            (0..plan.reads).map(|_| (workload.key(), random.random_range(0..plan.batches))).collect();
        let bench = Deep { plan, store, head: &head, points: &points };
        // The order rotates, because the first side reads blocks that are new to the disk.
        for turn in 0..samples.len() {
            let side = (turn + round) % samples.len();
            let (ns, blocks_read) = bench.read(side)?;
            samples[side].push(ns);
            blocks[side].push(blocks_read);
        }
    }
    store.close();
    let [head_ns, deep_ns, with_view_ns] = samples;
    let [head_blocks, deep_blocks, with_view_blocks] = blocks;
    Ok(vec![
        Figure::new("head_read_ns.deep", "ns", head_ns.clone()),
        Figure::new("read_ns.deep", "ns", deep_ns.clone()),
        Figure::new("read_vs_head.deep", "ratio", ratios(&deep_ns, &head_ns)),
        Figure::new("read_vs_head.deep_with_view", "ratio", ratios(&with_view_ns, &head_ns)),
        Figure::new("head_block_reads.deep", "", head_blocks),
        Figure::new("block_reads.deep", "", deep_blocks),
        Figure::new("block_reads.deep_with_view", "", with_view_blocks),
    ])
}

/// Keys and depths of one round.
struct Deep<'a> {
    plan: &'a Plan,
    store: &'a Store,
    head: &'a View,
    points: &'a [(StateKey, u64)],
}

impl Deep<'_> {
    /// Returns nanoseconds and blocks per read: of the head (0), of past states (1), or of past states including the
    /// time to make their view (2).
    fn read(&self, side: usize) -> Result<(f64, f64)> {
        let newest = self.plan.newest();
        let views = match side {
            1 => self.points.iter().map(|(_, depth)| self.view(*depth)).collect::<Result<Vec<_>>>()?,
            _ => Vec::new(),
        };
        let reads: Vec<Read<'_>> = match side {
            0 => self
                .points
                .iter()
                .map(|(key, _)| Read { view: self.head, key: *key, version_max: newest })
                .collect(),
            _ => self
                .points
                .iter()
                .zip(&views)
                .map(|((key, depth), view)| Read { view, key: *key, version_max: newest - depth })
                .collect(),
        };
        self.store.drop_cached();
        let before = self.store.io_counts().blocks;
        let ns = match side {
            0 | 1 => time(&reads)?,
            _ => self.time_with_view(newest)?,
        };
        let blocks = (self.store.io_counts().blocks - before) as f64;
        Ok((ns, blocks / self.points.len() as f64))
    }

    fn time_with_view(&self, newest: u64) -> Result<f64> {
        let start = Instant::now();
        for (key, depth) in self.points {
            check(version(&self.view(*depth)?, key)?, newest - depth)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / self.points.len() as f64)
    }

    fn view(&self, depth: u64) -> Result<View> {
        let number = self.head.head().number.before(depth);
        self.store.view_of(number)?.with_context(|| format!("the state of batch {number} is not kept"))
    }
}

/// Makes the history. Each group of batches is hashed and written once, as by a node that catches up.
fn fill(plan: &Plan, dir: &Path, progress: Progress) -> Result<()> {
    progress.step(&format!("filling a store with {} keys", short(plan.keys)));
    OwnStore::fill(dir, &Initial::new(plan.keys), progress)?;
    let config = StorageConfig { fsync: false, direct_reads: false, tree_memory_mib: 0, ..plan.config() };
    let ours = OwnStore::open(&config, dir)?;
    let store = ours.store();
    let mut workload = Workload::after(plan.keys, 0);
    let mut task = progress.task("batches", plan.batches);
    let mut made = 0;
    while made < plan.batches {
        let batches = GROUP_BATCHES.min((plan.batches - made) as usize);
        let round = workload.round(batches, plan.updates, Choice::Uniform)?;
        let deltas: Vec<&Delta> = round.batches.iter().collect();
        // Only the last root of a group is checked.
        let root = store.speculate_run(&deltas)?;
        let mut headers: Vec<BatchHeader> = Vec::new();
        for _ in &deltas {
            let parent = headers.last().cloned().map_or_else(|| store.head().map(|head| head.header), Ok)?;
            headers.push(next_header(&parent, root));
        }
        let batches: Vec<_> = headers
            .iter()
            .zip(&round.batches)
            .map(|(header, delta)| CommitBatch::new(header, delta))
            .collect();
        store.commit_run(&batches, NonZeroUsize::new(batches.len()).unwrap_or(NonZeroUsize::MIN))?;
        made += batches.len() as u64;
        task.update(made, "");
    }
    wait_until_quiet()?;
    store.close();
    Ok(())
}
