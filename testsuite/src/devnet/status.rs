//! [`Status`]: the part of `/v1/status` that is read here.

use alloy_primitives::B256;
use serde::Deserialize;
use serde_json::Value;

/// What a node says of itself at `/v1/status`; the rest of it is left out.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// The last batch that the node has committed.
    pub head: HeadStatus,
    /// The newest certificate as a waypoint.
    #[serde(default)]
    pub waypoint: Option<String>,
    /// Who certifies the batch after the head.
    #[serde(default)]
    pub epoch: EpochStatus,
    /// What it does as a validator; none while it only follows.
    #[serde(default)]
    pub consensus: Option<Value>,
    /// What the follower did.
    #[serde(default)]
    pub sync: SyncStatus,
    /// How new batches came to it.
    #[serde(default)]
    pub mesh: Value,
    /// Connected peers.
    #[serde(default)]
    pub peers: Vec<Value>,
}

/// The head in [`Status`].
#[derive(Clone, Debug, Deserialize)]
pub struct HeadStatus {
    /// Its number.
    pub number: u64,
    /// The state's root after it.
    pub state_root: B256,
}

/// The epoch in [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct EpochStatus {
    /// Its number.
    pub number: u64,
    /// The public keys of its validators, in the order in which they are primary.
    pub validators: Vec<String>,
}

/// The follower in [`Status`]. Counters start with the process.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SyncStatus {
    /// replay, delta or snapshot.
    pub mode: String,
    /// Batches that it stored.
    pub batches: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Bytes that it took from peers for them.
    pub bytes_received: u64,
    /// Of the batches, those that it executed itself.
    pub batches_replayed: u64,
    /// Those that came whole by the mesh.
    pub batches_announced: u64,
    /// The snapshot that it began with.
    pub snapshot: Option<SnapshotStatus>,
    /// The history behind the head that it still fetches.
    pub backfill: Option<Value>,
    /// What the last repair of its state did.
    pub repair: Option<Value>,
    /// Seconds in which it was catching up.
    pub active_seconds: f64,
}

/// The snapshot in [`SyncStatus`].
#[derive(Clone, Debug, Deserialize)]
pub struct SnapshotStatus {
    /// Its batch.
    pub number: u64,
    /// State rows that came with it.
    pub rows: u64,
}
