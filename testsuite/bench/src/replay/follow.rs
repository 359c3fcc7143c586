//! [`Followed`]: one follower's cost, on its own state.

use std::{path::Path, time::Duration};

use anyhow::Result;
use serde_json::Value;

use super::chain::Chain;
use crate::harness::{
    follower::{CaughtUp, Goal, SurroundingCpu},
    node::{NodeOptions, NodeProcess},
};

/// Far above the time of any row.
const DEADLINE: Duration = Duration::from_secs(600);

/// The state's location when it is read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Memory {
    /// On disk: reads bypass the operating system's cache, and the node's block cache holds only index and filters plus
    /// 64 MiB.
    Cold,
    /// In memory: all of it was read before, and is in the operating system's cache.
    Warm,
}

impl Memory {
    pub(super) fn name(self) -> &'static str {
        match self {
            Memory::Cold => "cold",
            Memory::Warm => "warm",
        }
    }
}

/// A follower's configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Row {
    pub(super) memory: Memory,
    /// `executor.hints`.
    pub(super) hints: &'static str,
    /// `executor.predict`.
    pub(super) predict: &'static str,
}

impl Row {
    /// Returns the configuration's name in figures.
    pub(super) fn name(&self) -> String {
        format!("{}.{}_{}", self.memory.name(), self.hints, self.predict)
    }

    /// Returns the lines of the section `executor`.
    pub(super) fn executor(&self) -> String {
        // The setting that a node with more cores chooses by itself.
        let threads = if matches!(self.hints, "conflicts" | "values") { "  threads: 2\n" } else { "" };
        format!("  hints: {}\n  predict: {}\n{threads}", self.hints, self.predict)
    }
}

/// Cache for data blocks, beside index and filters.
const CACHED_DATA_MIB: u64 = 64;
/// Size of index and filters per row, in sixteenths of a byte.
const INDEX_SIXTEENTHS: u64 = 40;
/// 0 keeps the whole tree in memory, so that only reading rows is measured.
const TREE_MIB: u64 = 0;

/// Returns the lines of the section `storage`, for a state of `rows` rows.
pub(super) fn storage(memory: Memory, rows: u64) -> String {
    let direct = memory == Memory::Cold;
    format!(
        "  direct_reads: {direct}\n  block_cache_mib: {}\n  tree_memory_mib: {TREE_MIB}\n",
        cache_mib(rows)
    )
}

/// Returns `storage.block_cache_mib` for a node that reads a state of `rows` rows.
pub(super) fn cache_mib(rows: u64) -> u64 {
    CACHED_DATA_MIB + ((rows * INDEX_SIXTEENTHS) >> 24)
}

/// The cost of a run.
#[derive(Clone, Debug)]
pub(super) struct Followed {
    /// From the first summary of its peer to the head.
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
    /// Seconds in which execution was busy.
    pub(super) executing_s: f64,
    /// Of these, seconds in which it waited for reads.
    pub(super) stalled_s: f64,
    pub(super) stalls: f64,
    /// Bytes that the follower received.
    pub(super) bytes: f64,
    /// Bytes that it read from the disk.
    pub(super) disk_bytes: f64,
}

impl Followed {
    /// Returns the share of execution that waited for reads.
    pub(super) fn stall_share(&self) -> f64 {
        self.stalled_s / self.executing_s.max(f64::MIN_POSITIVE)
    }
}

/// Follows a chain with a fresh process on the state in `dir`.
///
/// # Errors
/// If the follower exits, is late, or reaches another state root.
pub(super) async fn follow(
    chain: &Chain,
    server: &NodeProcess,
    row: &Row,
    rows: u64,
    dir: &Path,
) -> Result<Followed> {
    let options = NodeOptions {
        mode: "replay",
        executor: row.executor(),
        storage: storage(row.memory, rows),
        peers: vec![server.peer_at(server.address())],
        ..NodeOptions::default()
    };
    let Chain { base: from, head, state_root, .. } = *chain;
    let goal = Goal { from, head, state_root, deadline: DEADLINE };
    let caught_up = goal.reach(dir, &chain.genesis, &options, || Ok(SurroundingCpu::default())).await?;
    let CaughtUp { seconds, cpu_s, disk_bytes, stages, status, .. } = caught_up;
    let execute = stages.into_iter().find(|(stage, _)| stage == "execute");
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    Ok(Followed {
        seconds,
        cpu_s,
        executing_s: execute.map_or(0.0, |(_, busy_s)| busy_s),
        stalled_s: number(&status["stalls"]["seconds"]),
        stalls: number(&status["stalls"]["stalls"]),
        bytes: number(&status["sync"]["bytes_received"]),
        disk_bytes,
    })
}
