//! [`Violation`].

use slipstream_storage::ChunkError;
use slipstream_types::{
    BatchNumber, CodecError, Digest, Epoch, accumulator::AccumulatorError, certificate::CertificateError,
    tree::StateRangeError,
};

/// A rule that an answer broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// No quorum signed the certificate.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The headers are not in the certified ledger.
    #[error(transparent)]
    Accumulator(#[from] AccumulatorError),
    /// The rows are not in the certified state.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// Siblings are at places where the range has none.
    #[error(transparent)]
    Range(#[from] StateRangeError),
    /// Siblings that the certified state does not have; a chunk of the same range shows it.
    #[error("the siblings of a range do not match the certified state")]
    WrongSiblings,
    /// A blob cannot be opened.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A blob's content is not what its header commits to.
    #[error("the {part} of batch {number} has digest {found}, but its header says {expected}")]
    WrongDigest {
        /// The kind of blob.
        part: &'static str,
        /// Number of the batch.
        number: BatchNumber,
        /// The digest of the blob.
        found: Digest,
        /// The digest in the header.
        expected: Digest,
    },
    /// A part that was asked for and promised is missing.
    #[error("the {part} of batch {number} is missing")]
    MissingPart {
        /// The kind of blob.
        part: &'static str,
        /// Number of the batch.
        number: BatchNumber,
    },
    /// The answer ends before its limits and before the peer's head.
    #[error("the range is too short: it has {found} batches from {first} on, but {wanted} were due")]
    ShortRange {
        /// Number of the range's first batch.
        first: BatchNumber,
        /// Number of batches that were sent.
        found: usize,
        /// Number of batches that were due.
        wanted: usize,
    },
    /// The batches are not the requested ones, or out of order.
    #[error("batch {found} is in the place of batch {expected}")]
    WrongNumber {
        /// The number that was due.
        expected: BatchNumber,
        /// The number that came.
        found: BatchNumber,
    },
    /// A header does not continue the one before it.
    #[error("batch {number} does not continue batch {} of this ledger", number.before(1))]
    WrongParent {
        /// Number of the batch.
        number: BatchNumber,
    },
    /// A header and its certificate disagree.
    #[error("the certificate of batch {number} and its header disagree on the {field}")]
    Disagreement {
        /// Number of the batch.
        number: BatchNumber,
        /// The field in which the header and the certificate differ.
        field: &'static str,
    },
    /// The peer belongs to another chain.
    #[error("the peer's chain is {found}, but this node's is {expected}")]
    WrongChain {
        /// Digest of the peer's genesis.
        found: Digest,
        /// Digest of this node's genesis.
        expected: Digest,
    },
    /// The validators of an epoch signed a batch that does not belong to that epoch.
    #[error("batch {number} is not in epoch {epoch}, whose validators signed its certificate")]
    OutsideEpoch {
        /// Number of the batch.
        number: BatchNumber,
        /// The epoch that the certificate names.
        epoch: Epoch,
    },
    /// The certificate ends no epoch, or another epoch than is due.
    #[error("the certificate of batch {number} is refused as the end of epoch {epoch}: {reason}")]
    WrongEpochEnd {
        /// Number of the certified batch.
        number: BatchNumber,
        /// The epoch that the certificate names.
        epoch: Epoch,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// An answer of the right form that does not answer the question.
    #[error("the answer does not fit the request: {0}")]
    Unrelated(&'static str),
}
