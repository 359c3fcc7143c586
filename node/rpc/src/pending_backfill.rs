//! [`PendingBackfill`]: history that a backfill has yet to fetch. The errors for it differ from those for pruned history.

use std::fmt;

use slipstream_storage::{Backlog, StorageError, Store};
use slipstream_types::BatchNumber;

/// The batches whose parts a backfill still fetches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingBackfill {
    /// Everything from this batch on is stored.
    lowest: BatchNumber,
    /// The backfill goes down to this batch.
    wanted_from: BatchNumber,
}

impl PendingBackfill {
    /// The part of a store's windows that is still missing; `None` if nothing is.
    pub(super) fn of(store: &Store) -> Result<Option<PendingBackfill>, StorageError> {
        let missing = Backlog::missing(&store.backlog()?);
        Ok(missing.map(|(lowest, wanted_from)| PendingBackfill { lowest, wanted_from }))
    }

    /// Whether a batch is still to be fetched.
    pub(super) fn has(&self, number: BatchNumber) -> bool {
        self.wanted_from <= number && number < self.lowest
    }
}

impl fmt::Display for PendingBackfill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PendingBackfill { lowest, wanted_from } = self;
        write!(
            f,
            "the backfill has all batches from {lowest} on, and fetches the earlier ones down to {wanted_from}; ask again later \
             (`sync.backfill` of the status shows how far it is), or ask a node that keeps it"
        )
    }
}
