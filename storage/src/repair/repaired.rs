//! [`RepairSummary`]: the record of a repair, and the removal of data made from wrong rows.

use slipstream_types::{BatchNumber, StateKey};

use super::Change;
use crate::backend::Checkpoints;

/// Maximum number of keys that a repair names. It only counts the others.
pub const KEYS_LISTED_MAX: usize = 16;

/// Counts what a repair changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairSummary {
    /// Rows that were missing or had another value.
    pub rows_put: u64,
    /// Rows that should not have been there.
    pub rows_removed: u64,
    /// Codes that were missing or damaged.
    pub codes: u64,
    /// The first [`KEYS_LISTED_MAX`] keys of these rows, by path.
    pub keys: Vec<String>,
}

impl RepairSummary {
    /// Whether there was nothing to change.
    pub fn is_nothing(&self) -> bool {
        self.rows_put == 0 && self.rows_removed == 0 && self.codes == 0
    }

    pub(super) fn with(mut self, change: &Change) -> RepairSummary {
        match change.row {
            Some(_) => self.rows_put += 1,
            None => self.rows_removed += 1,
        }
        if self.keys.len() < KEYS_LISTED_MAX {
            self.keys.push(match change.key {
                Some(StateKey::Account(address)) => format!("account {address}"),
                Some(StateKey::Slot(address, slot)) => format!("slot {slot} of {address}"),
                None => "a row without a key".to_owned(),
            });
        }
        self
    }
}

/// Drops the checkpoints up to a batch. A checkpoint with wrong rows that cannot be dropped only takes space: its root
/// mismatches, so it is never served. A checkpoint above the head may be the last copy of some batches, so it stays.
pub(super) fn drop_snapshots(backend: &dyn Checkpoints, head: BatchNumber) {
    let dropped = backend.checkpoints().and_then(|checkpoints| {
        let numbers: Vec<u64> = checkpoints.into_iter().map(|(number, _)| number).collect();
        numbers
            .into_iter()
            .filter(|number| *number <= head.get())
            .try_for_each(|number| backend.remove_checkpoint(number))
    });
    if let Err(error) = dropped {
        tracing::warn!(%error, "cannot remove the snapshots from before the repair");
    }
}
