//! [`SyncConfig`].

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

/// How a fullnode follows the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A snapshot if the gap is wide, else deltas while far behind, else replay.
    #[default]
    Auto,
    /// Execute every batch, helped by hints.
    Replay,
    /// Apply certified deltas without executing.
    Delta,
    /// Begin from a snapshot if one is ahead, then as `auto` without further snapshots.
    Snapshot,
}

/// Tuning of the sync daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
    /// `auto`: a gap of more batches than this begins from a snapshot.
    pub snapshot_gap_batches: u64,
    /// `auto`: a gap of more batches than this is closed by deltas.
    pub delta_gap_batches: u64,
    /// MiB of answers kept for other peers that ask the same; 0 keeps none.
    pub serve_cache_mib: u32,
    /// MiB per second that one peer gets of this node; it may take those of two seconds at once.
    pub serve_peer_mib_per_second: NonZeroU32,
    /// Milliseconds of work per second that this node does for one peer, on as many threads as that takes.
    pub serve_peer_work_ms_per_second: NonZeroU32,
}

impl Default for SyncConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Auto,
            history: true,
            range_batches_max: NonZeroU32::new(256).expect("not zero"),
            range_bytes_max: NonZeroU32::new(4 << 20).expect("not zero"),
            request_deadline_ms: NonZeroU64::new(10_000).expect("not zero"),
            snapshot_gap_batches: 10_000,
            delta_gap_batches: 64,
            serve_cache_mib: 128,
            serve_peer_mib_per_second: NonZeroU32::new(256).expect("not zero"),
            serve_peer_work_ms_per_second: NonZeroU32::new(2_000).expect("not zero"),
        }
    }
}
