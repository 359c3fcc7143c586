//! [`Status`]: the part of `/v1/status` that slipnet reads.

use alloy_primitives::B256;
use serde::Deserialize;
use serde_json::Value;

/// The part of a node's `/v1/status` that slipnet reads.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// The last batch that the node has committed.
    pub head: HeadStatus,
    /// The newest certificate as a waypoint.
    #[serde(default)]
    pub waypoint: Option<String>,
    /// The epoch of the batch after the head, with its validators.
    #[serde(default)]
    pub epoch: EpochStatus,
    /// Its state as a validator; `None` while it only follows.
    #[serde(default)]
    pub consensus: Option<Value>,
    /// Counters of its follower.
    #[serde(default)]
    pub sync: SyncStatus,
    /// How new batches reached it.
    #[serde(default)]
    pub mesh: Value,
    /// Its connected peers.
    #[serde(default)]
    pub peers: Vec<Value>,
}

/// The head in [`Status`].
#[derive(Clone, Debug, Deserialize)]
pub struct HeadStatus {
    /// The batch's number.
    pub number: u64,
    /// The state root after the batch.
    pub state_root: B256,
}

/// The epoch in [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct EpochStatus {
    /// The epoch's number.
    pub number: u64,
    /// The public keys of its validators, in the order in which they become primary.
    pub validators: Vec<String>,
}

/// The follower in [`Status`]. Counters start at 0 with each process.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SyncStatus {
    /// `replay`, `delta` or `snapshot`.
    pub mode: String,
    /// Batches that it has stored.
    pub batches: u64,
    /// Transactions in these batches.
    pub transactions: u64,
    /// Bytes received from peers for these batches.
    pub bytes_received: u64,
    /// The batches among them that it executed itself.
    pub batches_replayed: u64,
    /// The batches among them that arrived whole through the mesh.
    pub batches_announced: u64,
    /// The snapshot from which it started.
    pub snapshot: Option<SnapshotStatus>,
    /// The history before its start that it still downloads.
    pub backfill: Option<Value>,
    /// The result of its last state repair.
    pub repair: Option<Value>,
    /// Seconds spent catching up.
    pub active_seconds: f64,
}

/// The snapshot in [`SyncStatus`].
#[derive(Clone, Debug, Deserialize)]
pub struct SnapshotStatus {
    /// The number of the snapshot's batch.
    pub number: u64,
    /// State rows downloaded with it.
    pub rows: u64,
}
