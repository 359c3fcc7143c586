//! [`Past`]: what a view reads in place of its head's rows.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use slipstream_types::{BatchHeader, StateKey, StateValue};

use crate::{
    backend::{Column, Direction, Reader},
    error::StorageError,
    schema,
};

/// The past that a view shows in place of its head.
#[derive(Clone)]
pub(crate) struct Past {
    pub(crate) header: BatchHeader,
    floor: Arc<AtomicU64>,
}

impl Past {
    /// The state behind the batch with that header. The floor is that of the store, which moves on.
    pub(crate) fn new(header: BatchHeader, floor: Arc<AtomicU64>) -> Past {
        Past { header, floor }
    }

    /// The row of a key behind that batch; the outer none if it is the head's.
    pub(crate) fn row(
        &self,
        reader: &dyn Reader,
        of: &StateKey,
    ) -> Result<Option<Option<StateValue>>, StorageError> {
        let path = of.path();
        let mut found = None;
        reader.scan(
            Column::History,
            &schema::history_key(&path, self.header.number.next()),
            Direction::Up,
            &mut |key, row| {
                if key.starts_with(&path.0) {
                    let row = (!row.is_empty()).then(|| schema::decode_row(row)).transpose()?;
                    found = Some(row.map(|(_, value)| value));
                }
                Ok(ControlFlow::Break(()))
            },
        )?;
        // Asked afterwards: what was there when it was read may have been the second entry, the first being dropped.
        let number = self.header.number;
        match self.floor.load(Ordering::Acquire) <= number.get() {
            true => Ok(found),
            false => Err(StorageError::StateNotKept { number }),
        }
    }
}
