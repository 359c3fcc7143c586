//! [`StorageConfig`], [`PruneConfig`] and [`StateHistory`].

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use slipstream_types::BatchNumber;

use crate::window::Window;

/// How the store uses memory and disk. Nothing here changes what is stored or any root.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StorageConfig {
    /// Memory for blocks read from disk: the working set of a devnet, on a machine with 2 GiB. Give a busy node more.
    pub block_cache_mib: u64,
    /// Memory for the state tree, about 125 bytes a key: 17 million keys. Above it, parts that were not used lately are dropped to
    /// hashes, about 3 bytes a key, and read again when they are touched. Trees that are remembered for proofs have what it leaves
    /// free. 0 sets no limit.
    pub tree_memory_mib: u64,
    /// A snapshot that peers can restore from is made every so many batches; 0 makes none. Rarer is cheaper, more often brings
    /// joining nodes closer to the head.
    pub snapshot_interval_batches: u64,
    /// Newest snapshots kept: a peer can finish its restore from one while the next is made.
    pub snapshots_kept: usize,
    /// Whether commits, and a validator's votes and outcomes, wait for the disk. Without, a power cut (not a kill) may lose the last
    /// batches, which are then fetched again. A validator must wait: it could lose its vote too, and sign two batches of one number.
    pub fsync: bool,
    /// Whether transactions can be found by their hash (`eth_getTransactionReceipt`); 17 bytes a transaction.
    pub transaction_index: bool,
    /// States of the past that balances, code, slots and calls can be asked of (`eth_call` and others by number or hash): how
    /// many batches back from the head they go, `all` from where they began to be kept, 0 for the head's alone. The default is five
    /// minutes at ten batches a second, which wallets and forks need, and half of that at twenty. The newest 256 of them are read as fast as the head, those
    /// before by a search first; after a restart all of them are searched for until what was kept is sorted, in the background, some
    /// seconds for 256 batches of 10,000 changes. Of every changed row the one before is written for it, once in the window and
    /// twice beyond 256 batches; and the disk keeps each row that was replaced in the last 256 batches until they are over: about
    /// 100 bytes a change for each of the two. Memory is 3 KB a batch, of 256 at most. Of batches that will be before the window
    /// when the node is at the head, nothing is written. The window begins anew after a snapshot or a range delta; with `sync.history`
    /// the states before come from peers that know them, also those of a wider window.
    pub state_history: StateHistory,
    /// How much of the ledger's blobs is kept.
    pub prune: PruneConfig,
    /// Below this much free space nothing is written any more and the node stops with a message, while everything is still whole.
    /// Asked before every write. Below twice as much the log warns, once. Leaves room for what RocksDB writes in the background. 0
    /// is no limit.
    pub disk_free_min_mib: u64,
    /// Whether files are read past the operating system's cache: for machines whose memory belongs to other programs.
    /// `block_cache_mib` is then all the cache there is.
    pub direct_reads: bool,
}

/// How much is kept of the newest batches, per kind; 0 keeps all. The state is never pruned, nor is the genesis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PruneConfig {
    /// How much of the newest transactions, receipts, state changes, hints is kept: a number of batches, an age by the batches'
    /// timestamps (`36h`, `7d`), or what they take on the disk (`50GiB`, by whole files); 0 or `all` keeps all. The state is never
    /// pruned. Peers that are further behind than your deltas must execute or begin from a snapshot, so keep more than
    /// `snapshot_interval_batches` × `snapshots_kept` of them. See [operations.md](operations.md).
    pub bodies: Window,
    /// The same for receipts.
    pub receipts: Window,
    /// The same for state changes.
    pub deltas: Window,
    /// The same for hints.
    pub hints: Window,
    /// The same for headers with their certificates, accumulator and index: some 500 bytes a batch. They stay as long as any blob
    /// of their batch, and 256 batches before the first state and the oldest snapshot that are kept, so it does nothing unless all
    /// four windows above are set.
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
    /// Keeps the states behind so many batches before the head; 0 keeps the head's alone.
    Batches(u64),
    /// All, from where it began to be kept.
    All,
}

impl Default for StateHistory {
    fn default() -> Self {
        // Five minutes at ten batches a second: wallets and forks pin a batch and ask for its state a while later.
        StateHistory::Batches(3_000)
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
