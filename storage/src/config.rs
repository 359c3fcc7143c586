//! [`StorageConfig`], [`PruneConfig`] and [`StateHistory`].

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use slipstream_types::BatchNumber;

use crate::{tuning::Tuning, window::Window};

/// How the store uses memory and disk. Nothing here changes what is stored or any root.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StorageConfig {
    /// Memory for blocks read from disk. The default suits the working set of a devnet, on a machine with 2 GiB. Give
    /// a busy node more.
    pub block_cache_mib: u64,
    /// Memory for the state tree, about 125 bytes a key; the default holds 17 million keys. Above it, parts that were
    /// not used lately are reduced to hashes, about 3 bytes a key, and read again when they are touched. Trees that
    /// are kept for proofs use what this leaves free. 0 sets no limit.
    pub tree_memory_mib: u64,
    /// Batches from one snapshot that peers can restore from to the next; 0 makes none. A larger number is cheaper; a
    /// smaller one brings joining nodes closer to the head.
    pub snapshot_interval_batches: u64,
    /// Number of newest snapshots that are kept, so that a peer can finish its restore from one while the next is
    /// made.
    pub snapshots_kept: usize,
    /// Whether commits, and a validator's votes and outcomes, wait for the disk. If not, a power cut (not a kill) may
    /// lose the last batches, which are then fetched again. A validator must wait: it could lose its vote too, and
    /// sign two batches of one number.
    pub fsync: bool,
    /// Whether transactions can be found by their hash (`eth_getTransactionReceipt`). This takes 17 bytes a
    /// transaction.
    pub transaction_index: bool,
    /// Past states that balances, code, slots and calls can be queried at (`eth_call` and others by number or hash).
    /// The value says how many batches back from the head they go: a number, `all` for every state since the history
    /// began, or 0 for the head's alone. The default is five minutes at ten batches a second, which wallets and forks
    /// need, and half of that at twenty. The newest 256 states are read as fast as the head's, older ones after a
    /// search. After a restart, all of them are searched for until the stored history is sorted, in the background;
    /// that takes some seconds for 256 batches of 10,000 changes. For every changed row the previous row is written,
    /// once within 256 batches and a second time after them. The disk also keeps each row that was replaced in the
    /// last 256 batches until they are over. Each of the two takes about 100 bytes a change. Memory is 3 KB a batch,
    /// for at most 256 batches. Nothing is written for batches that will be before the window when the node is at the
    /// head. The window restarts after a snapshot or a range delta. With `sync.history`, the states before come from
    /// peers that know them, also those of a wider window.
    pub state_history: StateHistory,
    /// How much of the ledger's blobs is kept.
    pub prune: PruneConfig,
    /// Minimum free disk space. Below it nothing is written any more, and the node stops with a message while
    /// everything is still whole. It is checked before every write. Below twice as much the log warns, once. It
    /// leaves room for what RocksDB writes in the background. 0 sets no limit.
    pub disk_free_min_mib: u64,
    /// Whether file reads bypass the operating system's cache, for machines whose memory belongs to other programs.
    /// `block_cache_mib` is then the only cache.
    pub direct_reads: bool,
    /// Sizes that no operator sets.
    #[doc(hidden)]
    #[serde(skip)]
    pub tuning: Tuning,
}

/// How much of the newest batches is kept, per kind; 0 keeps all. The state is never pruned, nor is the genesis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PruneConfig {
    /// How much of the newest transactions, receipts, state changes and hints is kept: a number of batches, an age by
    /// the batches' timestamps (`36h`, `7d`), or a size on disk (`50GiB`, by whole files); 0 or `all` keeps all. The
    /// state is never pruned. Peers that are further behind than your deltas must execute or begin from a snapshot.
    /// So keep more deltas than `snapshot_interval_batches` × `snapshots_kept`. See [operations.md](operations.md).
    pub bodies: Window,
    /// The same for receipts.
    pub receipts: Window,
    /// The same for state changes.
    pub deltas: Window,
    /// The same for hints.
    pub hints: Window,
    /// The same for headers with their certificates, accumulator and index: some 500 bytes a batch. Headers stay as
    /// long as any blob of their batch. The 256 headers before the first kept state and before the oldest kept
    /// snapshot stay too. So this does nothing unless all four windows above are set.
    pub headers: Window,
}

impl PruneConfig {
    /// Keeps these numbers of batches for bodies, receipts, deltas and hints, where 0 keeps all, and all headers.
    pub fn of_batches(blobs: [u64; 4]) -> PruneConfig {
        let [bodies, receipts, deltas, hints] = blobs.map(Window::from);
        PruneConfig { bodies, receipts, deltas, hints, headers: Window::All }
    }

    /// Returns the windows of blobs, in the order of the kinds.
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
            tuning: Tuning::default(),
        }
    }
}

/// How many past states are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateHistory {
    /// Keeps the states after this number of batches before the head; 0 keeps the head's alone.
    Batches(u64),
    /// Keeps all, from where the history began.
    All,
}

impl Default for StateHistory {
    fn default() -> Self {
        // Five minutes at ten batches a second: wallets and forks pin a batch and ask for its state a while later.
        StateHistory::Batches(3_000)
    }
}

impl StateHistory {
    /// Returns the first state in the window of a head.
    pub(crate) fn first(self, head: BatchNumber) -> BatchNumber {
        match self {
            StateHistory::Batches(batches) => head.before(batches),
            StateHistory::All => BatchNumber::GENESIS,
        }
    }
}

impl JsonSchema for StateHistory {
    fn schema_name() -> Cow<'static, str> {
        "StateHistory".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string", "pattern": "^(all|[0-9]+)$" }] })
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
