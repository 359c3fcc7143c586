//! [`Unserved`]: why a request gets no answer, and the refusal that its asker gets.

use std::time::Duration;

use slipstream_network::Refusal;
use slipstream_storage::StorageError;

/// Why a request was not served.
#[derive(Debug)]
pub(super) enum Unserved {
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

impl Unserved {
    pub(super) fn into_refusal(self) -> Refusal {
        match self {
            Unserved::Busy { retry_after, why } => Refusal::busy(retry_after, why),
            Unserved::Malformed(text) => Refusal::malformed(text),
            Unserved::NotKept(text) => Refusal::not_kept(text),
            Unserved::Failed(text) => Refusal::failed(text),
            Unserved::Refused(refusal) => refusal,
            Unserved::Storage(error) => {
                tracing::warn!(%error, "cannot serve a sync request");
                Refusal::failed("this node's store failed")
            }
        }
    }
}

impl From<StorageError> for Unserved {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::RangeDelta(error) => Unserved::NotKept(error.to_string()),
            error @ StorageError::StateNotKept { .. } => Unserved::NotKept(error.to_string()),
            StorageError::Repair(error) => Unserved::NotKept(error.to_string()),
            // A node that began from a snapshot lacks the headers before it; a peer may ask beyond the head.
            StorageError::Accumulator(error) => Unserved::NotKept(error.to_string()),
            error => Unserved::Storage(error),
        }
    }
}
