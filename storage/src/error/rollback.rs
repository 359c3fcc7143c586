//! [`RollbackError`].

use slipstream_types::BatchNumber;

/// Why a store was not rolled back. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RollbackError {
    /// There is nothing to roll back.
    #[error("the head is batch {head}: a rollback to batch {to} would drop nothing")]
    NotBelow {
        /// The batch to roll back to.
        to: BatchNumber,
        /// Number of the store's head.
        head: BatchNumber,
    },
    /// The state after the batch is not kept.
    #[error(
        "the state after batch {to} is not kept: a rollback can go back to batch {first} at most \
        (storage.state_history); for an earlier batch, restore a snapshot into an empty directory"
    )]
    BeyondWindow {
        /// The batch to roll back to.
        to: BatchNumber,
        /// The first batch whose state is kept.
        first: BatchNumber,
    },
    /// A restore is in progress.
    #[error(
        "the state of batch {restoring} is being restored: let the node finish the restore, or begin in an empty directory"
    )]
    Restoring {
        /// Number of the batch that is being restored.
        restoring: BatchNumber,
    },
    /// The batch's header, or one before it that BLOCKHASH can ask for, is not stored.
    #[error(
        "the store lacks the header of batch {to}, or of one of the 255 batches before it, and the next batch may need it: roll back to a later batch"
    )]
    NoLedger {
        /// The batch to roll back to.
        to: BatchNumber,
    },
    /// The rollback needs more than is held in memory at once.
    #[error(
        "the batches after {to} exceed what one rollback can drop ({rows_max} rows, {entries_max} changes of rows \
        and {entries_max} transactions): roll back to a later batch first, then on from there"
    )]
    TooMuch {
        /// The batch to roll back to.
        to: BatchNumber,
        /// Maximum number of rows that one rollback may change.
        rows_max: usize,
        /// Maximum number of changes of rows, and most transactions, that one rollback may drop.
        entries_max: usize,
    },
}
