//! [`ToCome`]: history that a backfill fetches and that is not here yet. Clients are told that, and not that it is gone.

use std::fmt;

use slipstream_storage::{Backlog, StorageError, Store};
use slipstream_types::BatchNumber;

/// The batches whose parts a backfill still fetches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToCome {
    /// From this batch on everything is here.
    lowest: BatchNumber,
    /// Down to this one it goes.
    wanted_from: BatchNumber,
}

impl ToCome {
    /// What a store lacks of its windows; `None` if nothing.
    pub(super) fn of(store: &Store) -> Result<Option<ToCome>, StorageError> {
        let missing = Backlog::missing(&store.backlog()?);
        Ok(missing.map(|(lowest, wanted_from)| ToCome { lowest, wanted_from }))
    }

    /// Whether a batch is among them.
    pub(super) fn has(&self, number: BatchNumber) -> bool {
        self.wanted_from <= number && number < self.lowest
    }
}

impl fmt::Display for ToCome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ToCome { lowest, wanted_from } = self;
        write!(
            f,
            "the backfill has all batches from {lowest} on, and fetches those down to {wanted_from}; ask again when it has it \
             (`sync.backfill` of the status), or ask a node that keeps it"
        )
    }
}
