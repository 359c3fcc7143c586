//! Scores across restarts. They are advice: what goes wrong here is logged and stops nothing.

use std::time::Duration;

use slipstream_network::PeerId;
use slipstream_storage::Store;
use slipstream_types::Digest;
use tokio::time::Instant;

use super::Follower;
use crate::{
    SyncError,
    peers::{KEY, PeerBook},
};

/// How often changed scores are written: a crash costs at most what was learned since.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// The book of a node, with the scores of its last run.
pub(super) fn restored_book(store: &Store, local: PeerId) -> Result<PeerBook, SyncError> {
    let seed = Digest::tagged("slipstream/exploration/1", &local.0).0;
    let mut book =
        PeerBook::new(seed.iter().fold(0, |seed, byte| u64::rotate_left(seed, 8) ^ u64::from(*byte)));
    if let Some(record) = store.record(KEY)?
        && let Err(error) = book.restore(Instant::now(), &record)
    {
        tracing::warn!(%error, "the stored peer scores are damaged and were dropped; peers are measured anew");
    }
    Ok(book)
}

impl Follower {
    /// Writes the scores from time to time.
    pub(super) async fn keep_scores(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(SAVE_EVERY).await;
            self.save_scores().await;
        }
    }

    /// Writes the scores if they changed.
    pub(super) async fn save_scores(&self) {
        let Some(record) = self.state.lock().book.save(Instant::now()) else { return };
        let store = self.store.clone();
        let written = tokio::task::spawn_blocking(move || -> Result<(), SyncError> {
            Ok(store.put_record(KEY, &record.map_err(|error| SyncError::Worker(error.to_string()))?)?)
        });
        let written = written.await.unwrap_or_else(|error| Err(SyncError::Worker(error.to_string())));
        if let Err(error) = written {
            tracing::warn!(%error, "peer scores were not written; a restart measures peers anew");
        }
    }
}
