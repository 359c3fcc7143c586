//! [`ConsensusError`] ends a validator's work; [`ProposalError`] is why one message was refused; [`RecordError`] may be either.

use slipstream_executor::{BodyError, ExecuteError};
use slipstream_storage::StorageError;
use slipstream_types::{BatchNumber, CodecError, Digest, Epoch, PublicKey, certificate::CertificateError};

/// Why a validator cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ConsensusError {
    /// The key is not in the validator set.
    #[error(
        "key {key} is not one of the {validators} validators of epoch {epoch}: run this node as a fullnode, or with the key \
         of a validator that the genesis names"
    )]
    NotAValidator {
        /// The node's key.
        key: PublicKey,
        /// The epoch of the set.
        epoch: Epoch,
        /// Size of the set.
        validators: usize,
    },
    /// The store failed.
    #[error("the store failed: {0}")]
    Storage(#[from] StorageError),
    /// The vote record failed.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// The node's own batch could not be executed.
    #[error("batch {number} could not be made: {source}")]
    Execute {
        /// The batch.
        number: BatchNumber,
        /// Why.
        source: ExecuteError,
    },
    /// The node's own batch or message is over a limit.
    #[error("the next batch could not be encoded: {0}")]
    Codec(#[from] CodecError),
    /// This validator has signed another batch of that number, which is not in its store.
    #[error(
        "this validator voted up to batch {voted} and may not sign another batch {number}: its data directory is older than \
         its vote; restore it, or let it catch up through sync"
    )]
    AlreadyVoted {
        /// What was to be signed.
        number: BatchNumber,
        /// The last vote.
        voted: BatchNumber,
    },
    /// The batch that was proposed before a restart no longer gives what it gave.
    #[error("batch {number} was proposed before a restart and does not execute to the same again: {source}")]
    Repropose {
        /// The batch.
        number: BatchNumber,
        /// What differs.
        source: Box<ProposalError>,
    },
    /// A task of the validator panicked.
    #[error("the validator's task {task} ended unexpectedly: {reason}")]
    Task {
        /// Which.
        task: &'static str,
        /// The panic.
        reason: String,
    },
}

impl ConsensusError {
    /// Whether trying the same again may help.
    pub fn is_retryable(&self) -> bool {
        match self {
            ConsensusError::Storage(error) | ConsensusError::Record(RecordError::Storage(error)) => {
                error.is_retryable()
            }
            ConsensusError::Execute { source, .. } => source.is_retryable(),
            // Sync brings the batches that the vote was about.
            ConsensusError::AlreadyVoted { .. } => true,
            ConsensusError::Repropose { source, .. } => match &**source {
                // Sync was faster: by a batch, or by the epoch's last one.
                ProposalError::Overtaken { .. } | ProposalError::EpochOver { .. } => true,
                ProposalError::Storage(error) => error.is_retryable(),
                ProposalError::Execute { source, .. } => source.is_retryable(),
                _ => false,
            },
            _ => false,
        }
    }
}

/// The record of a validator's last vote could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The store failed.
    #[error("the vote record could not be read or written")]
    Storage(#[from] StorageError),
    /// The store holds something else under the record's name. Voting on would risk a second vote.
    #[error(
        "the vote record is unreadable: this validator must not vote until its data directory is restored"
    )]
    Unreadable(#[source] CodecError),
}

/// Why a proposal or a decision was refused. The text goes to whoever sent it.
#[derive(Debug, thiserror::Error)]
pub enum ProposalError {
    /// Not a consensus message.
    #[error("{0}")]
    Malformed(CodecError),
    /// Only the proposer proposes.
    #[error("peer {peer} is not the proposer of epoch {epoch}, which is {proposer}")]
    NotProposer {
        /// Who proposed.
        peer: PublicKey,
        /// The epoch.
        epoch: Epoch,
        /// Who may.
        proposer: PublicKey,
    },
    /// Only validators announce decisions.
    #[error("peer {peer} is not a validator of epoch {epoch}")]
    NotAValidator {
        /// Who sent it.
        peer: PublicKey,
        /// The epoch.
        epoch: Epoch,
    },
    /// Validators sign nothing after the last batch of their epoch.
    #[error("batch {number} is refused: epoch {epoch} is over")]
    EpochOver {
        /// What was proposed.
        number: BatchNumber,
        /// The epoch.
        epoch: Epoch,
    },
    /// Another batch of that number is committed.
    #[error("batch {number} is not next: batch {head} is committed here")]
    AlreadyCommitted {
        /// What was proposed.
        number: BatchNumber,
        /// This validator's head.
        head: BatchNumber,
    },
    /// It does not continue this ledger.
    #[error("batch {number} names the parent {found}, the batch before it is {expected}")]
    WrongParent {
        /// What was proposed.
        number: BatchNumber,
        /// Digest of the head.
        expected: Digest,
        /// What the header names.
        found: Digest,
    },
    /// Time must not go back.
    #[error(
        "batch {number} has the timestamp {timestamp_ms} ms, its parent {parent_ms} ms: time must not go back"
    )]
    BeforeParent {
        /// What was proposed.
        number: BatchNumber,
        /// Its timestamp.
        timestamp_ms: u64,
        /// Its parent's.
        parent_ms: u64,
    },
    /// Time must not run ahead.
    #[error(
        "batch {number} has the timestamp {timestamp_ms} ms, the clock here says {now_ms} ms: more than {max_ms} ahead"
    )]
    FromTheFuture {
        /// What was proposed.
        number: BatchNumber,
        /// Its timestamp.
        timestamp_ms: u64,
        /// This validator's clock.
        now_ms: u64,
        /// How far ahead a timestamp may be.
        max_ms: u64,
    },
    /// The body is not a body.
    #[error("the body of batch {number} is refused: {source}")]
    Body {
        /// What was proposed.
        number: BatchNumber,
        /// Why.
        source: CodecError,
    },
    /// A transaction in the body is invalid in itself.
    #[error("the body of batch {number} is refused: {source}")]
    Transactions {
        /// What was proposed.
        number: BatchNumber,
        /// Which, and why.
        source: BodyError,
    },
    /// The body does not execute.
    #[error("batch {number} does not execute: {source}")]
    Execute {
        /// What was proposed.
        number: BatchNumber,
        /// Why.
        source: ExecuteError,
    },
    /// Execution gives something else than the header says.
    #[error("batch {number} has {field} {found} in its header, executing it gives {expected}")]
    Differs {
        /// What was proposed.
        number: BatchNumber,
        /// The header's field.
        field: &'static str,
        /// What this validator found.
        expected: String,
        /// What the header says.
        found: String,
    },
    /// This validator signed another batch of that number or a later one.
    #[error("batch {number} is refused: this validator has voted for another batch {voted}")]
    AlreadyVoted {
        /// What was proposed.
        number: BatchNumber,
        /// The last vote.
        voted: BatchNumber,
    },
    /// The certificate is not one.
    #[error("{0}")]
    Certificate(#[from] CertificateError),
    /// The head moved while the batch was being executed.
    #[error(
        "batch {number} was overtaken: another batch was committed while it was being executed; ask again"
    )]
    Overtaken {
        /// What was proposed.
        number: BatchNumber,
    },
    /// The store failed.
    #[error("the store of this validator failed: {0}")]
    Storage(#[from] StorageError),
    /// The vote record failed.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// This validator is stopping: it was told to, or a vote panicked.
    #[error("this validator is stopping")]
    Stopping,
}
