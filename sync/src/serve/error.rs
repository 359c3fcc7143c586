//! [`ServeError`]: why a request gets no answer, and the refusal that its asker gets.

use std::time::Duration;

use slipstream_network::Refusal;
use slipstream_storage::StorageError;

/// Why a request was not served.
#[derive(Debug)]
pub(super) enum ServeError {
    /// The asker should retry after `retry_after`.
    Busy {
        retry_after: Duration,
        why: &'static str,
    },
    Malformed(String),
    NotKept(String),
    Failed(&'static str),
    /// The refusal that another asker of the same got.
    Refused(Refusal),
    Storage(StorageError),
}

impl ServeError {
    pub(super) fn into_refusal(self) -> Refusal {
        match self {
            ServeError::Busy { retry_after, why } => Refusal::busy(retry_after, why),
            ServeError::Malformed(text) => Refusal::malformed(text),
            ServeError::NotKept(text) => Refusal::not_kept(text),
            ServeError::Failed(text) => Refusal::failed(text),
            ServeError::Refused(refusal) => refusal,
            ServeError::Storage(error) => {
                tracing::warn!(%error, "cannot serve a sync request");
                Refusal::failed("this node's store failed")
            }
        }
    }
}

impl From<StorageError> for ServeError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::RangeDelta(error) => ServeError::NotKept(error.to_string()),
            error @ StorageError::StateNotKept { .. } => ServeError::NotKept(error.to_string()),
            StorageError::Repair(error) => ServeError::NotKept(error.to_string()),
            // A node that began from a snapshot lacks the headers before it; a peer may ask beyond the head.
            StorageError::Accumulator(error) => ServeError::NotKept(error.to_string()),
            error => ServeError::Storage(error),
        }
    }
}
