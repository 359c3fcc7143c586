//! [`ConsensusError`] ends a validator's work. [`ProposalError`] says why one message was refused. [`RecordError`] may
//! do either.

use slipstream_executor::{BodyError, ExecuteError};
use slipstream_storage::StorageError;
use slipstream_types::{BatchNumber, CodecError, Epoch, PublicKey};

/// Why a validator cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum ConsensusError {
    /// The key is not in the validator set.
    #[error(
        "key {key} is not one of the {validators} validators of epoch {epoch}: run this node as a fullnode, or with \
        the key of a validator in the genesis"
    )]
    NotAValidator {
        /// The node's public key.
        key: PublicKey,
        /// The epoch of the set.
        epoch: Epoch,
        /// Size of the set.
        validators: usize,
    },
    /// The store refuses the request.
    #[error("the store failed: {0}")]
    Storage(#[from] StorageError),
    /// The vote record failed.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// The node's own batch could not be executed.
    #[error("cannot make batch {number}: {source}")]
    Execute {
        /// Number of the batch.
        number: BatchNumber,
        /// The executor's error.
        source: ExecuteError,
    },
    /// The node's own batch or message is over a limit.
    #[error("cannot encode the next batch: {0}")]
    Codec(#[from] CodecError),
    /// A task of the validator panicked.
    #[error("the validator's task {task} ended unexpectedly: {reason}")]
    Task {
        /// Name of the task.
        task: &'static str,
        /// The panic's message.
        reason: String,
    },
}

impl ConsensusError {
    /// Whether a retry may help.
    pub fn is_retryable(&self) -> bool {
        match self {
            ConsensusError::Storage(error) | ConsensusError::Record(RecordError::Storage(error)) => {
                error.is_retryable()
            }
            ConsensusError::Execute { source, .. } => source.is_retryable(),
            _ => false,
        }
    }
}

/// The record of a validator's last vote could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The store refuses the request.
    #[error("cannot read or write the vote record")]
    Storage(#[from] StorageError),
    /// The store holds something else under the record's name. To go on voting would risk a second vote.
    #[error(
        "the vote record is unreadable: this validator must not vote until its data directory is restored"
    )]
    Unreadable(#[source] CodecError),
}

/// Why a message, an ordered batch or a shown outcome was refused. If it concerns a message, the text goes to the
/// sender.
#[derive(Debug, thiserror::Error)]
pub enum ProposalError {
    /// The bytes are no consensus message.
    #[error("{0}")]
    Malformed(CodecError),
    /// The sender is not a validator of this epoch.
    #[error("peer {peer} is not a validator of epoch {epoch}")]
    NotAValidator {
        /// The peer that sent it.
        peer: PublicKey,
        /// The epoch that this node is in.
        epoch: Epoch,
    },
    /// The sender is in another epoch.
    #[error("this validator is in epoch {epoch}, but the message belongs to epoch {found}")]
    OtherEpoch {
        /// The epoch that the message names.
        found: Epoch,
        /// The epoch that this node is in.
        epoch: Epoch,
    },
    /// Validators sign nothing after the last batch of their epoch.
    #[error("batch {number} is refused: epoch {epoch} is over")]
    EpochOver {
        /// Number of the batch.
        number: BatchNumber,
        /// The epoch that this node is in.
        epoch: Epoch,
    },
    /// The batch's time is before its parent's.
    #[error(
        "batch {number} has the timestamp {timestamp_ms} ms, but its parent has {parent_ms} ms: time must not go back"
    )]
    BeforeParent {
        /// Number of the batch.
        number: BatchNumber,
        /// Timestamp of the batch, in milliseconds since 1970.
        timestamp_ms: u64,
        /// Timestamp of its parent, in milliseconds since 1970.
        parent_ms: u64,
    },
    /// The batch's time is too far ahead of this validator's clock.
    #[error(
        "batch {number} has the timestamp {timestamp_ms} ms, but the clock here says {now_ms} ms: the batch is more than {max_ms} ms ahead"
    )]
    FromTheFuture {
        /// Number of the batch.
        number: BatchNumber,
        /// Timestamp of the batch, in milliseconds since 1970.
        timestamp_ms: u64,
        /// This validator's clock, in milliseconds since 1970.
        now_ms: u64,
        /// How far ahead a timestamp may be.
        max_ms: u64,
    },
    /// The batch's time is too far behind this validator's clock.
    #[error(
        "batch {number} has the timestamp {timestamp_ms} ms, but the clock here says {now_ms} ms: the batch is more than {max_ms} ms behind"
    )]
    FromThePast {
        /// Number of the batch.
        number: BatchNumber,
        /// Timestamp of the batch, in milliseconds since 1970.
        timestamp_ms: u64,
        /// This validator's clock, in milliseconds since 1970.
        now_ms: u64,
        /// How far behind a timestamp may be.
        max_ms: u64,
    },
    /// The body is malformed.
    #[error("the body of batch {number} is refused: {source}")]
    Body {
        /// Number of the batch.
        number: BatchNumber,
        /// The decoder's error.
        source: CodecError,
    },
    /// A transaction in the body is invalid, whatever the state.
    #[error("the body of batch {number} is refused: {source}")]
    Transactions {
        /// Number of the batch.
        number: BatchNumber,
        /// The refused transaction, and the reason.
        source: BodyError,
    },
    /// The batch cannot be executed.
    #[error("batch {number} does not execute: {source}")]
    Execute {
        /// Number of the batch.
        number: BatchNumber,
        /// The executor's error.
        source: ExecuteError,
    },
    /// A peer showed an outcome other than the batch's own.
    #[error("the outcome shown for batch {number} is wrong: {field} does not match")]
    NotTheOutcome {
        /// Number of the batch.
        number: BatchNumber,
        /// The header field, or other part, that does not fit.
        field: &'static str,
    },
    /// Too many bytes of ordered batches wait for execution.
    #[error("too many ordered batches already wait for execution here")]
    Busy,
    /// This validator is stopping, by request or because its work panicked.
    #[error("this validator is stopping")]
    Stopping,
}
