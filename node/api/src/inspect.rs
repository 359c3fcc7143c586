//! `GET /v1/db` and `GET /v1/snapshots`: `slipstream db stats` and `slipstream snapshot list` for a running node, whose
//! directory those commands cannot open.

use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json,
    extract::{ConnectInfo, State},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use slipstream_storage::{SnapshotInfo, StoreStats};
use slipstream_types::{BatchNumber, Digest, Waypoint};
use tokio::sync::Mutex;

use super::{Api, listener::Seat};

/// How long statistics are cached, however many callers ask: reading them takes RocksDB's lock for each column.
const STATS_AGE_MAX: Duration = Duration::from_secs(1);

/// The latest statistics, and when they were read.
pub(crate) type CachedStats = Mutex<Option<(Instant, Arc<DbStats>)>>;

/// The content of a database.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DbStats {
    /// The last committed batch; null without a genesis.
    pub head: Option<BatchNumber>,
    /// The batch whose state is being restored.
    pub restoring: Option<BatchNumber>,
    /// For each kind of blob, what is kept and served.
    pub kept: Vec<Kept>,
    /// The batch below which headers were pruned; 0 if none was.
    #[serde(default)]
    pub headers_floor: BatchNumber,
    /// The size of each column.
    pub columns: Vec<Column>,
}

/// For one kind of blob, the batches that this node has without a gap: from `lowest` to the head.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Kept {
    /// Its name.
    pub kind: String,
    /// The first such batch, not counting the genesis; null if even the head's blob is missing.
    pub lowest: Option<BatchNumber>,
}

/// The size of a column.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// An estimate: overwritten and deleted keys may still count.
    pub keys: u64,
    /// In files and in memory.
    pub bytes: u64,
}

impl From<StoreStats> for DbStats {
    fn from(stats: StoreStats) -> DbStats {
        let kept = stats.kept.iter();
        let columns = stats.columns.iter();
        DbStats {
            head: stats.head,
            restoring: stats.restoring,
            kept: kept
                .map(|range| Kept { kind: range.kind.name().to_owned(), lowest: range.lowest })
                .collect(),
            headers_floor: stats.headers_floor,
            columns: columns
                .map(|column| Column { name: column.name.to_owned(), keys: column.keys, bytes: column.bytes })
                .collect(),
        }
    }
}

/// One snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SnapshotEntry {
    /// The snapshot's batch.
    pub batch: BatchNumber,
    /// The root of the snapshot's state.
    pub state_root: Digest,
    /// The waypoint that its certificate proves, for another node's `waypoint`.
    pub waypoint: Waypoint,
}

impl SnapshotEntry {
    /// The entry of this snapshot.
    pub fn of(info: &SnapshotInfo) -> SnapshotEntry {
        let waypoint = Waypoint::of(&info.certificate.info);
        SnapshotEntry { batch: info.number, state_root: info.state_root, waypoint }
    }
}

impl fmt::Display for SnapshotEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SnapshotEntry { batch, state_root, waypoint } = self;
        write!(f, "batch {batch}  state root {state_root}  waypoint {waypoint}")
    }
}

pub(super) async fn db(State(api): State<Arc<Api>>, ConnectInfo(seat): ConnectInfo<Seat>) -> Response {
    // Held while the statistics are read: concurrent requests get the same ones.
    let mut cached = api.stats.lock().await;
    if let Some((_, stats)) = cached.as_ref().filter(|(read, _)| read.elapsed() < STATS_AGE_MAX) {
        return Json(&**stats).into_response();
    }
    match api.read(seat.origin(), |api| api.status.store.stats()).await {
        Ok(stats) => {
            let stats = Arc::new(DbStats::from(stats));
            *cached = Some((Instant::now(), stats.clone()));
            Json(&*stats).into_response()
        }
        Err(failure) => failure,
    }
}

/// Returns at most `storage.snapshots_kept` entries, which are in memory.
pub(super) async fn snapshots(State(api): State<Arc<Api>>, ConnectInfo(seat): ConnectInfo<Seat>) -> Response {
    match api.read(seat.origin(), |api| Ok::<_, Infallible>(api.status.store.snapshots())).await {
        Ok(snapshots) => Json(snapshots.iter().map(SnapshotEntry::of).collect::<Vec<_>>()).into_response(),
        Err(failure) => failure,
    }
}
