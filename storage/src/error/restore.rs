//! [`RestoreError`] and [`ChunkError`].

use slipstream_types::{BatchNumber, CodecError, Digest, Path, tree::StateRangeError};

use super::StorageError;

/// Why a restore was refused or cannot continue. Nothing that was refused is stored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A restore moves the head forward only.
    #[error("cannot restore batch {target}: the store's head is already at batch {head}")]
    NotAhead {
        /// Number of the store's head.
        head: BatchNumber,
        /// Number of the restore's target batch.
        target: BatchNumber,
    },
    /// A later [`crate::Store::restore`] took over.
    #[error("a later restore replaced this restore of batch {target}")]
    Superseded {
        /// Number of this restore's target batch.
        target: BatchNumber,
    },
    /// The chunk does not begin where a requested range begins.
    #[error(
        "the state chunk that starts at path {found:?} was not requested; the first missing chunk starts at {expected:?}"
    )]
    WrongStart {
        /// Where the first missing chunk starts; `None` if no row is missing.
        expected: Option<Path>,
        /// Where the given chunk starts.
        found: Path,
    },
    /// The chunk is of another state than the target's.
    #[error("the chunk was checked against the state root {found}, but the restore's target has {expected}")]
    OtherRoot {
        /// The state root of the target.
        expected: Digest,
        /// The root that the chunk gives.
        found: Digest,
    },
    /// Rows that were stored for a target were damaged on disk since. The restore was abandoned with all its rows, so
    /// that the next one begins anew.
    #[error(
        "the rows restored for batch {target} are damaged: {what}. The node drops them and fetches them again; check the disk"
    )]
    DamagedRows {
        /// Number of the target batch.
        target: BatchNumber,
        /// The damage, and where it is.
        what: String,
    },
    /// The range has no rows that wait to be checked.
    #[error("the rows from path {first:?} on are not waiting to be checked against batch {target}")]
    NotUnchecked {
        /// Number of the target batch.
        target: BatchNumber,
        /// Where the range starts.
        first: Path,
    },
    /// The chunk does not match the target's state.
    #[error("state chunk refused: {0}")]
    Chunk(#[from] ChunkError),
    /// The code is not needed: no restored account has it, or the store has it already.
    #[error("code {hash} is not needed")]
    UnwantedCode {
        /// Keccak-256 of the code.
        hash: Digest,
    },
    /// Finished too early: rows are missing.
    #[error("the restore of batch {target} is incomplete: rows from path {next:?} on are missing")]
    RowsMissing {
        /// Number of the target batch.
        target: BatchNumber,
        /// Where the first missing range starts.
        next: Path,
    },
    /// Finished too early: code is missing.
    #[error("the restore of batch {target} is incomplete: code {hash} is missing")]
    CodeMissing {
        /// Number of the target batch.
        target: BatchNumber,
        /// One of the missing hashes.
        hash: Digest,
    },
    /// The headers that come with the state were refused.
    #[error("the headers up to batch {target} were refused: {reason}")]
    BadHeaders {
        /// Number of the target batch.
        target: BatchNumber,
        /// The rule that the headers break.
        reason: &'static str,
    },
}

/// Why a [`crate::StateChunk`] was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// A value that its key cannot have.
    #[error("row {index} has an empty value, or a value of another type than its key")]
    BadValue {
        /// Position of the row.
        index: usize,
    },
    /// The bytes do not encode a chunk.
    #[error("the chunk is malformed: {reason}")]
    Malformed {
        /// The rule that its bytes break.
        reason: &'static str,
    },
    /// The proof does not decode.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The rows do not match the root.
    #[error(transparent)]
    Range(#[from] StateRangeError),
}

impl From<ChunkError> for StorageError {
    fn from(error: ChunkError) -> Self {
        StorageError::Restore(RestoreError::Chunk(error))
    }
}
