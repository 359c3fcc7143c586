//! Tracks which writes of the in-memory twin have reached its imagined disk.

use std::collections::{BTreeSet, VecDeque};

/// Maximum number of writes that wait to be synced. Older writes count as on the disk, because a system writes back by
/// itself. Bounds the versions that are kept for a crash.
pub(super) const UNSYNCED_MAX: usize = 256;

/// The writes that survive a crash, by sequence number.
#[derive(Default)]
pub(super) struct DurableWrites {
    /// Everything up to this sequence number is durable.
    synced: u64,
    /// Later writes in the log, in order.
    unsynced: VecDeque<u64>,
    /// Later writes that bypass the log, and are durable at once.
    beside: BTreeSet<u64>,
}

/// How a write reaches the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WritePath {
    Log,
    /// A synced write to the log, with everything before it.
    SyncedLog,
    /// A file that is linked in: it is durable by itself, but the writes before it are not.
    Beside,
}

impl DurableWrites {
    pub(super) fn write(&mut self, sequence: u64, way: WritePath) {
        match way {
            WritePath::Log => self.unsynced.push_back(sequence),
            WritePath::SyncedLog => self.synced = sequence,
            WritePath::Beside => _ = self.beside.insert(sequence),
        }
        if self.unsynced.len() > UNSYNCED_MAX {
            self.synced = self.unsynced.pop_front().unwrap_or(self.synced);
        }
        self.unsynced.retain(|at| *at > self.synced);
        self.beside = self.beside.split_off(&self.synced);
    }

    /// The sequence number up to which everything has reached the disk.
    pub(super) fn synced(&self) -> u64 {
        self.synced
    }

    /// Number of writes that a crash may lose.
    pub(super) fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// Whether write `at` survives a crash that leaves the first `kept` unsynced writes.
    pub(super) fn survives(&self, at: u64, kept: usize) -> bool {
        let kept = self.unsynced.partition_point(|other| *other <= at) <= kept;
        at <= self.synced || self.beside.contains(&at) || kept
    }
}
