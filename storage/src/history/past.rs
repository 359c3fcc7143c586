//! [`Past`]: the rows that a view reads in place of its head's.

use std::sync::Arc;

use slipstream_types::{BatchHeader, BatchNumber, Path, StateValue};

use super::facts::Facts;
use crate::{backend::Reader, error::StorageError, schema};

/// The past that a view shows in place of the state that it reads.
pub(crate) struct Past {
    pub(crate) header: BatchHeader,
    /// The batch behind which the rows stand that were not changed since.
    up_to: BatchNumber,
    facts: Arc<Facts>,
}

impl Past {
    /// The state behind the batch with that header, for who can read the one behind a later batch.
    pub(crate) fn new(header: BatchHeader, up_to: BatchNumber, facts: Arc<Facts>) -> Past {
        Past { header, up_to, facts }
    }

    /// The store as it is now.
    pub(crate) fn lasting(&self) -> &dyn Reader {
        self.facts.reader()
    }

    /// The rows of sorted paths behind that batch; the outer none where it is the later state's.
    pub(crate) fn rows(&self, paths: &[Path]) -> Result<Vec<Option<Option<StateValue>>>, StorageError> {
        let found = self.facts.before(paths, self.header.number, self.up_to)?;
        let decode = |row: Vec<u8>| -> Result<Option<StateValue>, StorageError> {
            let row = (!row.is_empty()).then(|| schema::decode_row(&row)).transpose()?;
            Ok(row.map(|(_, value)| value))
        };
        found.into_iter().map(|row| row.map(decode).transpose()).collect()
    }
}
