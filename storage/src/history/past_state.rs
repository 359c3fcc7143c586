//! [`PastState`]: the rows that a view reads instead of its head's.

use std::sync::Arc;

use slipstream_types::{BatchHeader, BatchNumber, Path, StateValue};

use super::past_rows::PastRows;
use crate::{backend::Reader, error::StorageError, schema};

/// The past state that a view shows instead of the state that it reads.
pub(crate) struct PastState {
    pub(crate) header: BatchHeader,
    /// The batch of the later state, which has the rows that did not change since.
    up_to: BatchNumber,
    past_rows: Arc<PastRows>,
}

impl PastState {
    /// The state after the batch of `header`, for a reader of the state after the later batch `up_to`.
    pub(crate) fn new(header: BatchHeader, up_to: BatchNumber, past_rows: Arc<PastRows>) -> PastState {
        PastState { header, up_to, past_rows }
    }

    /// A reader of the store as it is now.
    pub(crate) fn lasting(&self) -> &dyn Reader {
        self.past_rows.reader()
    }

    /// Returns the rows of sorted paths after that batch. An outer `None` means that the later state has the row.
    pub(crate) fn rows(&self, paths: &[Path]) -> Result<Vec<Option<Option<StateValue>>>, StorageError> {
        let found = self.past_rows.before(paths, self.header.number, self.up_to)?;
        let decode = |row: Vec<u8>| -> Result<Option<StateValue>, StorageError> {
            let row = (!row.is_empty()).then(|| schema::decode_row(&row)).transpose()?;
            Ok(row.map(|(_, value)| value))
        };
        found.into_iter().map(|row| row.map(decode).transpose()).collect()
    }
}
