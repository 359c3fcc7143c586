//! [`ArchiveError`].

use std::time::Duration;

use slipstream_storage::{LineageError, PieceError, StorageError};
use slipstream_types::BatchNumber;

use crate::location::{Location, LocationError};

/// Why an operation on an archive failed.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The text is not the URL of an archive.
    #[error(transparent)]
    Location(#[from] LocationError),
    /// The object store failed. Where retries can help, the request was retried several times.
    #[error("cannot {action} {name} in {location}: {source}")]
    Store {
        /// The operation that failed.
        action: &'static str,
        /// The object, or the prefix of its name.
        name: String,
        /// Location of the archive.
        location: Location,
        /// The object store's error.
        #[source]
        source: Box<object_store::Error>,
    },
    /// The archive cannot be opened at all.
    #[error("cannot open the archive {location}: {source}")]
    Open {
        /// Location of the archive.
        location: Location,
        /// The object store's error.
        #[source]
        source: object_store::Error,
    },
    /// The object is not what it should be.
    #[error("{name} in {location} is refused: {reason}; use another snapshot or another archive")]
    Damaged {
        /// Name of the object.
        name: String,
        /// Location of the archive.
        location: Location,
        /// The rule that the object breaks.
        reason: String,
    },
    /// The snapshot is of another ledger, or does not prove that it is of the trusted one.
    #[error("{name} in {location} does not belong to the trusted ledger: {error}")]
    Untrusted {
        /// Name of the manifest.
        name: String,
        /// Location of the archive.
        location: Location,
        /// The contradiction to the trusted ledger.
        error: LineageError,
    },
    /// The archive lists no such snapshot.
    #[error("{location} has no snapshot{}: `slipstream snapshot list {location}` shows the existing snapshots", of_batch(*number))]
    NoSnapshot {
        /// Location of the archive.
        location: Location,
        /// The batch, if one was requested.
        number: Option<BatchNumber>,
    },
    /// The store has no such snapshot.
    #[error(
        "the store has no snapshot of batch {number}: `slipstream snapshot list` shows the existing snapshots"
    )]
    NotInStore {
        /// Number of the snapshot's batch.
        number: BatchNumber,
    },
    /// The archive belongs to another ledger. Two ledgers in one archive would take each other's snapshots for old
    /// ones.
    #[error("{location} holds snapshots of another ledger ({name}): export to another prefix")]
    OtherLedger {
        /// Location of the archive.
        location: Location,
        /// Name of the genesis object that is there.
        name: String,
    },
    /// The archive is read by HTTP, and cannot be written.
    #[error("{location} can only be read: write to the bucket behind it, by its s3:// URL")]
    ReadOnly {
        /// Location of the archive.
        location: Location,
    },
    /// A listing has more objects than any archive of this program.
    #[error("{location} has more than {max} objects under {name}: this program did not write that archive")]
    TooMany {
        /// Location of the archive.
        location: Location,
        /// The common prefix of their names.
        name: &'static str,
        /// Maximum number of objects that may have that prefix.
        max: usize,
    },
    /// The export took too long: objects that it relied on may be gone.
    #[error(
        "the export took {} hours, but the limit is {} hours: run it again; it reuses the uploaded objects",
        hours(*took),
        hours(*max)
    )]
    TooSlow {
        /// How long it took.
        took: Duration,
        /// How long it may take.
        max: Duration,
    },
    /// An import needs an empty store.
    #[error("the store is already at batch {head}: import into an empty data directory")]
    NotFresh {
        /// Number of the store's head.
        head: BatchNumber,
    },
    /// The pieces do not make the state that was to be exported.
    #[error(
        "the snapshot's pieces do not add up to its state: {0}; run `slipstream db check` to check the rows"
    )]
    Pieces(#[from] PieceError),
    /// The store refuses the request.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The system provided no random number.
    #[error("the system provides no random number: {0}")]
    Random(String),
    /// A thread ended before its work was done.
    #[error("a thread of the archive ended early: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

impl ArchiveError {
    /// Whether an object was missing, for example because a prune removed it meanwhile.
    pub fn is_gone(&self) -> bool {
        let is_not_found =
            |error: &object_store::Error| matches!(error, object_store::Error::NotFound { .. });
        matches!(self, ArchiveError::Store { source, .. } if is_not_found(source))
    }
}

fn of_batch(number: Option<BatchNumber>) -> String {
    number.map_or_else(String::new, |number| format!(" of batch {number}"))
}

fn hours(time: Duration) -> u64 {
    time.as_secs().div_ceil(3_600)
}

impl From<slipstream_types::CodecError> for ArchiveError {
    fn from(error: slipstream_types::CodecError) -> ArchiveError {
        ArchiveError::Storage(error.into())
    }
}
