//! [`SyncConfig`].

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};
use slipstream_archive::Location;

/// How a fullnode follows the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Whatever takes the least time, by what peers deliver and by what this machine needs: see [`crate::plan`].
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
    /// As it is serialized.
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

/// What a node does whose state is found to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RepairMode {
    /// It compares its state with its peers' and fetches what differs, once for a batch: see [`crate::repair`].
    #[default]
    Auto,
    /// It stops, and an operator decides.
    Off,
}

/// Tuning of the sync daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SyncConfig {
    /// `auto` takes whatever takes the least time to the head, by the work ahead that headers tell, by what peers deliver and by what
    /// each stage costs here; `slipstream plan` shows what each way would take. Where peers keep different things, a share of the ranges of one gap is executed and the others are applied. At the head it executes. `replay`
    /// executes every batch. `delta` applies certified changes without executing. `snapshot` begins from a peer's snapshot if one
    /// is ahead of an empty store, then goes on as `auto`. `range_delta` applies the range delta up to a peer's snapshot ahead,
    /// then goes on as `auto`. The history behind both comes later, see `history`. Where no peer keeps the next batch any more, all
    /// but `replay` and `delta` begin from a snapshot; those two are stuck. A mode that cannot be used is named in the log and in
    /// `reason` of the status, with why.
    pub mode: Mode,
    /// Whether a node that applies deltas also keeps bodies, receipts and the hints that a validator signed, so that it answers for
    /// them by JSON-RPC and serves them. What a snapshot or a range delta passed over, and what deltas that came alone lack, it
    /// fetches afterwards, beside the head, as far as the windows of `storage.prune` reach
    /// ([operations.md](operations.md#history-behind-the-head)). Without it only mode `replay` is sure to have all of them. Other
    /// nodes, validators too, catch up by deltas at times: they answer for an unknown transaction with error 4444, because they may
    /// have taken its batch as a change.
    pub history: bool,
    /// Batches per request: bounds the work that one bad answer wastes. Requests end at multiples of it, so that peers with the
    /// same setting ask for the same ranges, and whom they ask answers all of them from its cache.
    pub range_batches_max: NonZeroU32,
    /// Bytes per request: keeps a link of 1 Gbit/s busy for one round trip of 30 ms.
    pub range_bytes_max: NonZeroU32,
    /// How long an answer may take before another peer is asked.
    pub request_deadline_ms: NonZeroU64,
    /// Seconds since the head's timestamp above which the node is not ready and says why ([operations.md](operations.md)): many
    /// times the second after which a proposer makes an empty batch. Where `consensus.empty_batch_interval_ms` is longer, or 0, set
    /// this on every node of the chain, well above the longest pause that is usual. 0 lets the head be of any age.
    pub head_age_max_s: u32,
    /// Certified batches ahead of the head above which the node is not ready and says why ([operations.md](operations.md)): one and a
    /// half seconds at ten batches a second. It is ready again at an eighth of that. More suits faster chains, and callers who can use
    /// an older state. 0 lets any number be ahead.
    pub head_lag_max_batches: u32,
    /// Modes that the choice leaves out, as in `[snapshot, range_delta]` for a node that must have followed every batch. `auto`
    /// cannot be forbidden, nor both `replay` and `delta` unless one of them is the `mode`: nothing else follows new batches.
    pub forbid: Vec<Mode>,
    /// Share, 0 to 1, of the batches applied by their deltas that are executed again in the background, drawn by a secret of this
    /// node. A certified batch that execution does not give raises an alarm ([operations.md](operations.md)). What an audit needs
    /// of history is fetched also with `history: false`.
    pub audit: f64,
    /// What happens when executing a certified batch gives another result, or the rows of the state are damaged. `auto`: the node
    /// starts anew within its process, compares its state with its peers' subtree by subtree, fetches the rows and the code that
    /// differ, and goes on; a second time at the same batch it stops, because then it is this program
    /// ([operations.md](operations.md)). `off`: it stops at once.
    pub repair: RepairMode,
    /// [Archives of snapshots](operations.md#snapshots-in-object-storage), as `["s3://BUCKET/PREFIX", "https://HOST/PATH",
    /// "file:///DIR"]`, at most 16: each is asked for snapshots, rows and code as a peer that has nothing else, while its newest
    /// snapshot is ahead. So nodes start without loading any other. Nothing in it is trusted: what it sends is proved against what
    /// validators signed, and one that lies is banned, over restarts too. Whoever reaches the API reads its URL. Credentials come from
    /// the environment, never from the URL.
    pub archives: Vec<Location>,
    /// MiB of ranges under way between the network and the commit: what a link of 1 Gbit/s brings in half a second. More helps only
    /// where links are longer or faster.
    pub buffer_mib: NonZeroU32,
    /// MiB of answers (ranges of batches, snapshot chunks, code, headers) kept for other peers that ask the same: about 30 full
    /// ranges, so that 20 peers a little apart read the disk once. 0 keeps none; peers that ask at the same time still share the
    /// work.
    pub serve_cache_mib: u32,
    /// MiB per second that one peer gets of this node, and twice as many at once. A peer above it waits up to a second, then is
    /// told when to come back: well above a link of 1 Gbit/s, so that only a peer that asks for the sake of asking meets it.
    pub serve_peer_mib_per_second: NonZeroU32,
    /// Milliseconds of work per second that this node does for one peer, over all its requests (2000 are two threads), and twice as
    /// many at once; a request is charged before it is worked on and corrected afterwards. What comes from the cache costs next to
    /// none. Short answers have an allowance of their own, a sixteenth of this, so that who took much may still ask where the head
    /// is.
    pub serve_peer_work_ms_per_second: NonZeroU32,
}

impl SyncConfig {
    /// Whether new batches are executed as they come, rather than fetched as deltas.
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
