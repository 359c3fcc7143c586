//! [`StorageConfig`].

use serde::{Deserialize, Serialize};

/// How the store uses memory and disk. Nothing here changes what is stored or any root.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StorageConfig {
    /// Memory for blocks read from disk, shared by all columns and snapshots. Tuned for the working set of a devnet and of
    /// a machine with 2 GiB.
    pub block_cache_mib: u64,
    /// A snapshot that peers can restore from is made every so many batches; 0 makes none. One costs a flush of the
    /// memtables, so that rarer is cheaper and more often brings joining nodes closer to the head.
    pub snapshot_interval_batches: u64,
    /// Newest snapshots kept. Two let a peer finish its restore from one while the next is made.
    pub snapshots_kept: usize,
    /// Whether a commit waits until the disk has it. Without, a power cut (not a kill) may lose the last batches; they are
    /// then fetched again.
    pub fsync: bool,
    /// Whether transactions can be found by their hash; about 45 bytes a transaction.
    pub transaction_index: bool,
}

impl Default for StorageConfig {
    fn default() -> Self {
        Self {
            block_cache_mib: 256,
            snapshot_interval_batches: 100,
            snapshots_kept: 2,
            fsync: true,
            transaction_index: true,
        }
    }
}
