//! [`SyncConfig`].

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};
use slipstream_archive::Location;

/// How a fullnode follows the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The way that takes the least time, given what peers deliver and what work costs on this machine: see
    /// [`crate::plan`].
    #[default]
    Auto,
    /// Execute every batch, helped by hints.
    Replay,
    /// Apply certified deltas without executing.
    Delta,
    /// Begin from a snapshot if one is ahead, then as `auto`.
    Snapshot,
    /// Apply the range delta up to a snapshot ahead, then as `auto`. The history in between comes later.
    RangeDelta,
}

impl Mode {
    /// The mode's serialized name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Replay => "replay",
            Mode::Delta => "delta",
            Mode::Snapshot => "snapshot",
            Mode::RangeDelta => "range_delta",
        }
    }
}

/// What a node does if its state is found to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RepairMode {
    /// It compares its state with its peers' states and fetches what differs, once for each batch: see
    /// [`crate::repair`].
    #[default]
    Auto,
    /// It stops, and an operator decides.
    Off,
}

/// Tuning of the sync daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SyncConfig {
    /// `auto` takes the way that needs the least time to the head, by the work ahead that headers show, by what peers
    /// deliver and by what each stage costs here; `slipstream plan` shows what each way would take. Where peers keep
    /// different things, a share of the ranges of one gap is executed and the others are applied. At the head it
    /// executes. `replay` executes every batch. `delta` applies certified changes without executing. `snapshot` begins
    /// from a peer's snapshot if one is ahead of an empty store, then goes on as `auto`. `range_delta` applies the
    /// range delta up to a peer's snapshot ahead, then goes on as `auto`. The history behind both comes later, see
    /// `history`. Where no peer keeps the next batch any more, all modes but `replay` and `delta` begin from a
    /// snapshot; those two are stuck. If a mode cannot be used, the log and `reason` of the status name it and say why.
    pub mode: Mode,
    /// Whether a node that applies deltas also keeps bodies, receipts and the hints that a validator signed, so that it
    /// answers JSON-RPC requests about them and serves them to peers. Snapshots and range deltas skip history, and some
    /// deltas come without it. The node fetches that history afterwards, beside the head, as far as the windows of
    /// `storage.prune` reach ([operations.md](operations.md#history-behind-the-head)). Without `history`, only mode
    /// `replay` is sure to have all of it. Other nodes, validators too, catch up by deltas at times. They answer for an
    /// unknown transaction with error 4444, because they may have applied its batch as a change.
    pub history: bool,
    /// Batches per request: bounds the work that one bad answer wastes. Requests end at multiples of it. So peers with
    /// the same setting ask for the same ranges, and the peer that they ask answers all of them from its cache.
    pub range_batches_max: NonZeroU32,
    /// Bytes per request: keeps a link of 1 Gbit/s busy for one round trip of 30 ms.
    pub range_bytes_max: NonZeroU32,
    /// How long an answer may take before another peer is asked.
    pub request_deadline_ms: NonZeroU64,
    /// Age of the head's timestamp in seconds above which the node is not ready and says why
    /// ([operations.md](operations.md)). The default is many times the second after which a proposer makes an empty
    /// batch. Where `consensus.empty_batch_interval_ms` is longer, or 0, set this on every node of the chain, well
    /// above the longest usual pause. 0 allows a head of any age.
    pub head_age_max_s: u32,
    /// Certified batches ahead of the head above which the node is not ready and says why
    /// ([operations.md](operations.md)). The default is one and a half seconds at ten batches a second. The node is
    /// ready again at an eighth of that. More suits faster chains, and callers that can use an older state. 0 allows
    /// any number.
    pub head_lag_max_batches: u32,
    /// Modes that the node never chooses, as in `[snapshot, range_delta]` for a node that must have followed every
    /// batch. `auto` cannot be forbidden, nor can both `replay` and `delta` unless one of them is the `mode`: nothing
    /// else follows new batches.
    pub forbid: Vec<Mode>,
    /// Share, 0 to 1, of the batches applied by their deltas that are executed again in the background. A secret of
    /// this node draws them. A certified batch that execution does not reproduce raises an alarm
    /// ([operations.md](operations.md)). The history that an audit needs is fetched even with `history: false`.
    pub audit: f64,
    /// What happens if executing a certified batch gives another result, or if rows of the state are damaged. `auto`:
    /// the node restarts within its process, compares its state with its peers' states subtree by subtree, fetches the
    /// rows and the code that differ, and goes on. A second time at the same batch it stops, because then this program
    /// is at fault ([operations.md](operations.md)). `off`: it stops at once.
    pub repair: RepairMode,
    /// [Archives of snapshots](operations.md#snapshots-in-object-storage), as `["s3://BUCKET/PREFIX",
    /// "https://HOST/PATH", "file:///DIR"]`, at most 16. Each is asked for snapshots, rows and code like a peer that
    /// has nothing else, while its newest snapshot is ahead. So nodes start without loading any other node. Nothing in
    /// an archive is trusted: what it sends is proved against what validators signed, and an archive that lies is
    /// banned, across restarts too. Anyone who reaches the API can read its URL. Credentials come from the environment,
    /// never from the URL.
    pub archives: Vec<Location>,
    /// MiB of ranges in flight between the network and the commit. The default is what a link of 1 Gbit/s brings in
    /// half a second. More helps only where links are longer or faster.
    pub buffer_mib: NonZeroU32,
    /// MiB of answers (ranges of batches, snapshot chunks, code, headers) cached for other peers that ask the same. The
    /// default holds about 30 full ranges, so that 20 peers a little apart read the disk once. 0 caches none; peers
    /// that ask at the same time still share the work.
    pub serve_cache_mib: u32,
    /// MiB per second that one peer gets from this node, and twice as many at once. A peer above it waits up to a
    /// second, and is then told when to retry. The default is well above a link of 1 Gbit/s, so only a peer that
    /// asks for the sake of asking reaches it.
    pub serve_peer_mib_per_second: NonZeroU32,
    /// Milliseconds of work per second that this node does for one peer, over all its requests (2000 are two threads),
    /// and twice as many at once. A request is charged before it is worked on, and the charge is corrected afterwards.
    /// Answers from the cache cost next to nothing. Short answers have an allowance of their own, a sixteenth of this,
    /// so that a peer that took much may still ask where the head is.
    pub serve_peer_work_ms_per_second: NonZeroU32,
}

impl SyncConfig {
    /// Whether the node executes new batches as they come, rather than fetching their deltas.
    pub fn executes_head(&self) -> bool {
        match self.mode {
            Mode::Replay => true,
            Mode::Delta => false,
            _ => !self.forbid.contains(&Mode::Replay),
        }
    }
}

impl Default for SyncConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Auto,
            history: true,
            range_batches_max: NonZeroU32::new(256).expect("not zero"),
            range_bytes_max: NonZeroU32::new(4 << 20).expect("not zero"),
            request_deadline_ms: NonZeroU64::new(10_000).expect("not zero"),
            head_age_max_s: 30,
            head_lag_max_batches: 15,
            forbid: Vec::new(),
            audit: 0.0,
            repair: RepairMode::Auto,
            archives: Vec::new(),
            buffer_mib: NonZeroU32::new(64).expect("not zero"),
            serve_cache_mib: 128,
            serve_peer_mib_per_second: NonZeroU32::new(256).expect("not zero"),
            serve_peer_work_ms_per_second: NonZeroU32::new(2_000).expect("not zero"),
        }
    }
}
