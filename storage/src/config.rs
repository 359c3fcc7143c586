//! [`StorageConfig`], [`PruneConfig`] and [`StateHistory`].

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use slipstream_types::BatchNumber;

use crate::window::Window;

/// How the store uses memory and disk. Nothing here changes what is stored or any root.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StorageConfig {
    /// Memory for blocks read from disk, shared by all columns and snapshots. Tuned for the working set of a devnet and of
    /// a machine with 2 GiB.
    pub block_cache_mib: u64,
    /// Memory for the state tree, about 125 bytes a key; 0 sets no limit. Above it, parts that were not used lately are
    /// dropped and rebuilt from their rows when they are touched, which costs such an update some tens of microseconds.
    /// The default holds 17 million keys.
    pub tree_memory_mib: u64,
    /// A snapshot that peers can restore from is made every so many batches; 0 makes none. One costs a flush of the
    /// memtables, so that rarer is cheaper and more often brings joining nodes closer to the head.
    pub snapshot_interval_batches: u64,
    /// Newest snapshots kept. Two let a peer finish its restore from one while the next is made.
    pub snapshots_kept: usize,
    /// Whether a commit waits until the disk has it. Without, a power cut (not a kill) may lose the last batches; they are
    /// then fetched again.
    pub fsync: bool,
    /// Whether transactions can be found by their hash; 17 bytes a transaction.
    pub transaction_index: bool,
    /// How many states of the past are kept, for who asks for balances, code or calls behind an earlier batch. The newest 256 are held as they
    /// are, which keeps what was replaced since on the disk; each changed row is also written once more for a restart, and again, in bulk, if
    /// more than those are kept.
    pub state_history: StateHistory,
    /// How much of the ledger's blobs is kept.
    pub prune: PruneConfig,
    /// Nothing is written while the file system has less than this free: a store that runs into a full disk has to be
    /// restarted, one that stops before does not. Leaves room for what RocksDB writes in the background. 0 asks nothing.
    pub disk_free_min_mib: u64,
    /// Whether files are read past the operating system's cache. For machines whose memory belongs to other programs, and
    /// for measuring the disk; `block_cache_mib` is then all the cache there is.
    pub direct_reads: bool,
}

/// How much is kept of the newest batches, per kind; 0 keeps all. The state is never pruned, nor is the genesis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PruneConfig {
    /// Transactions. Also those that can be found by their hash.
    pub bodies: Window,
    /// Receipts.
    pub receipts: Window,
    /// State changes; peers that are further behind must execute, or begin from a snapshot.
    pub deltas: Window,
    /// Hints.
    pub hints: Window,
    /// Headers, with their certificates, their part of the accumulator and their index. They stay at least as long as a blob of their batch,
    /// the states of the past that need them, and the oldest snapshot.
    pub headers: Window,
}

impl PruneConfig {
    /// So many batches of bodies, receipts, deltas and hints, where 0 keeps all, and all headers.
    pub fn of_batches(blobs: [u64; 4]) -> PruneConfig {
        let [bodies, receipts, deltas, hints] = blobs.map(Window::from);
        PruneConfig { bodies, receipts, deltas, hints, headers: Window::All }
    }

    /// The windows of blobs, in the order of the kinds.
    pub(crate) fn blobs(&self) -> [Window; 4] {
        [self.bodies, self.receipts, self.deltas, self.hints]
    }
}

impl Default for StorageConfig {
    fn default() -> Self {
        Self {
            block_cache_mib: 256,
            tree_memory_mib: 2_048,
            snapshot_interval_batches: 100,
            snapshots_kept: 2,
            fsync: true,
            transaction_index: true,
            state_history: StateHistory::default(),
            prune: PruneConfig::default(),
            disk_free_min_mib: 512,
            direct_reads: false,
        }
    }
}

/// How many states of the past are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateHistory {
    /// Those behind so many batches before the head; 0 keeps the head's alone.
    Batches(u64),
    /// All, from where it began to be kept.
    All,
}

impl Default for StateHistory {
    fn default() -> Self {
        StateHistory::Batches(256)
    }
}

impl StateHistory {
    /// The first state in the window behind a head.
    pub(crate) fn first(self, head: BatchNumber) -> BatchNumber {
        match self {
            StateHistory::Batches(batches) => head.before(batches),
            StateHistory::All => BatchNumber::GENESIS,
        }
    }
}

impl Serialize for StateHistory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            StateHistory::Batches(batches) => serializer.serialize_u64(*batches),
            StateHistory::All => serializer.serialize_str("all"),
        }
    }
}

impl<'de> Deserialize<'de> for StateHistory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = StateHistory;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of batches, or `all`")
            }

            fn visit_u64<E: de::Error>(self, batches: u64) -> Result<StateHistory, E> {
                Ok(StateHistory::Batches(batches))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<StateHistory, E> {
                match text.parse() {
                    Ok(batches) => Ok(StateHistory::Batches(batches)),
                    Err(_) if text == "all" => Ok(StateHistory::All),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
