//! [`RollbackError`].

use slipstream_types::BatchNumber;

/// Why a store was not rolled back. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RollbackError {
    /// There is nothing to roll back.
    #[error("the head is batch {head}: a rollback to batch {to} would drop nothing")]
    NotBelow {
        /// Where the head should be.
        to: BatchNumber,
        /// Number of the store's head.
        head: BatchNumber,
    },
    /// The state behind the batch is not kept.
    #[error(
        "the state behind batch {to} is not kept: a rollback can go to batch {first} and no further (storage.state_history); for a batch before, \
         restore a snapshot into an empty directory"
    )]
    BeyondWindow {
        /// Where the head should be.
        to: BatchNumber,
        /// The first that is kept.
        first: BatchNumber,
    },
    /// A restore is under way.
    #[error(
        "the state of batch {restoring} is being restored: let the node finish that, or begin in an empty directory"
    )]
    Restoring {
        /// Number of the batch that is being restored.
        restoring: BatchNumber,
    },
    /// Its header, or one before it that BLOCKHASH can ask for, is not stored.
    #[error(
        "the header of batch {to}, or of one of the 255 before it, is not stored here, and the next batch may ask for it: roll back to a later \
         batch"
    )]
    NoLedger {
        /// Where the head should be.
        to: BatchNumber,
    },
    /// More than is held in memory at once.
    #[error(
        "behind batch {to} more changed than one rollback takes, which is {rows_max} rows, {entries_max} changes of rows and {entries_max} \
         transactions: roll back to a later batch first, and from there on"
    )]
    TooMuch {
        /// Where the head should be.
        to: BatchNumber,
        /// As many rows may change in one rollback.
        rows_max: usize,
        /// As many changes of rows, and as many transactions, may be dropped in one.
        entries_max: usize,
    },
}
