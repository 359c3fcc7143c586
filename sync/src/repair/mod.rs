//! Repairs a state of which some rows are wrong: compares subtrees with peers, and fetches only what differs.
//!
//! ```text
//!  storage::Repair ─ Wanted ─▶ Question ─▶ any peer ─▶ Subtrees ─▶ proved by their hashes ─▶ Repair ─▶ one write
//!                                 ▲                        └─ false: its sender is banned, another one is asked ─┐
//!                                 └──────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The repair runs while the node starts, before anything else uses the store. The node does not serve or follow
//! meanwhile, so no cache holds rows of the wrong state. [`RepairRecord`] gives the reason, and ensures that a batch is
//! repaired once: a second difference is this program's fault.

mod peers;
mod question;
mod record;
mod session;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipstream_network::Transport;
use slipstream_storage::{Repair, RepairSummary};
use tokio::time::Instant;

pub use self::record::{REPAIR_RECORD, RepairCause, RepairRecord, RepairReport};
use self::session::RepairSession;
use crate::SyncError;

/// How long a repair waits for peers that can answer.
pub const REPAIR_PATIENCE: Duration = Duration::from_secs(120);

/// Repairs the rows of an opened store with the help of a transport's peers, as long as one of them answers within
/// `patience`. Bans peers that lie. The same write notes the repair in the store's record. Otherwise the note could be
/// lost alone, and the next incident at the same batch would look like the first.
///
/// # Errors
/// [`SyncError::Unrepaired`] if no peer answered for that long. [`SyncError::Storage`] if the store fails or too much
/// is wrong. The store is unchanged then.
pub async fn repair(
    repair: Repair,
    transport: &dyn Transport,
    patience: Duration,
    record: RepairRecord,
) -> Result<RepairReport, SyncError> {
    let began = Instant::now();
    let (number, root) = (repair.header().number, repair.header().state_root);
    let session = Arc::new(Mutex::new(repair));
    let moved = RepairSession::new(transport, number, root, Arc::clone(&session), patience).run().await?;
    let repair = Arc::into_inner(session).map(Mutex::into_inner);
    let repair = repair.ok_or_else(|| SyncError::Worker("a repair is still at work".into()))?;
    let report = move |repaired: &RepairSummary| RepairReport {
        number,
        rows_put: repaired.rows_put,
        rows_removed: repaired.rows_removed,
        codes: repaired.codes,
        keys: repaired.keys.clone(),
        bytes: moved.bytes,
        questions: moved.questions,
        took_ms: began.elapsed().as_millis() as u64,
    };
    let report = blocking(move || {
        let mut done = None;
        repair.finish_with(|repaired| {
            let report = done.insert(report(repaired)).clone();
            Ok::<_, SyncError>(Some((REPAIR_RECORD, record.done(report).encode()?)))
        })?;
        done.ok_or_else(|| SyncError::Worker("a repair ended without a report".into()))
    });
    let report = report.await?;
    tracing::info!(
        batch = %number,
        rows_put = report.rows_put,
        rows_removed = report.rows_removed,
        codes = report.codes,
        bytes = report.bytes,
        took_ms = report.took_ms,
        keys = ?report.keys,
        "compared the state with peers: it is right now"
    );
    Ok(report)
}

/// Runs work that waits for the disk on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SyncError> + Send + 'static,
) -> Result<T, SyncError> {
    let worked = tokio::task::spawn_blocking(work).await;
    worked.map_err(|error| SyncError::Worker(error.to_string()))?
}
