//! [`SyncConfig`].

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

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
    /// Apply the range delta up to a snapshot ahead, then as `auto`. The history in between is left out.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairMode {
    /// It compares its state with its peers' and fetches what differs, once for a batch: see [`crate::repair`].
    #[default]
    Auto,
    /// It stops, and an operator decides.
    Off,
}

/// Tuning of the sync daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SyncConfig {
    /// How to follow.
    pub mode: Mode,
    /// Whether a node that applies deltas also keeps bodies and receipts, so that it answers for them by RPC and serves them.
    pub history: bool,
    /// Batches per range request. Bounds the work that one bad answer wastes.
    pub range_batches_max: NonZeroU32,
    /// Bytes per range request. 4 MiB keep a link of 1 Gbit/s busy for one round trip of 30 ms.
    pub range_bytes_max: NonZeroU32,
    /// How long an answer may take before another peer is asked.
    pub request_deadline_ms: NonZeroU64,
    /// Seconds since the head's timestamp above which the node is not ready, and says why. 30 are many of the empty batches that a
    /// proposer makes each second by default. 0 lets the head be of any age, for chains that make batches only for transactions.
    pub head_age_max_s: u32,
    /// Modes that `auto` does not use.
    pub forbid: Vec<Mode>,
    /// Share of the batches applied by their deltas that are executed again in the background, 0 to 1. A batch whose execution
    /// does not give what is certified raises an alarm.
    pub audit: f64,
    /// What happens when executing a certified batch gives another result, or the state's rows are damaged.
    pub repair: RepairMode,
    /// MiB of ranges that are under way between the network and the commit.
    pub buffer_mib: NonZeroU32,
    /// MiB of answers kept for other peers that ask the same; 0 keeps none.
    pub serve_cache_mib: u32,
    /// MiB per second that one peer gets of this node; it may take those of two seconds at once.
    pub serve_peer_mib_per_second: NonZeroU32,
    /// Milliseconds of work per second that this node does for one peer, on as many threads as that takes.
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
            forbid: Vec::new(),
            audit: 0.0,
            repair: RepairMode::Auto,
            buffer_mib: NonZeroU32::new(64).expect("not zero"),
            serve_cache_mib: 128,
            serve_peer_mib_per_second: NonZeroU32::new(256).expect("not zero"),
            serve_peer_work_ms_per_second: NonZeroU32::new(2_000).expect("not zero"),
        }
    }
}
