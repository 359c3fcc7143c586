//! [`Facts`]: the rows before batches, wherever they stand.
//!
//! The rows before a batch are facts. They stand first in the log, then in log and history, then in the history alone, and are the same in
//! each. So a reader uses the newest moment, and two things can go wrong. The log was sealed meanwhile: the log then has a gap, and the
//! reader looks again. Or the rows are gone, which floor and record tell.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use slipstream_types::{BatchNumber, Path};

use super::log::LogValue;
use crate::{
    backend::{Column, Direction, Reader},
    error::StorageError,
    schema::{self, HISTORY_KEY, SEALED_KEY},
};

/// A row that was found: empty if it was not there.
pub(crate) type Before = Option<Vec<u8>>;

/// Tracks where the rows before the head's are known.
pub(crate) struct Facts {
    reader: Arc<dyn Reader>,
    /// The batch up to which they stand in the history.
    sealed: AtomicU64,
    /// Those of batches up to this one may be gone.
    floor: AtomicU64,
    /// Held while `sealed` and its record move.
    recording: Mutex<()>,
}

/// The first batch behind which the state is known; none if that is the head alone.
pub(crate) fn recorded_from(reader: &(impl Reader + ?Sized)) -> Result<Option<BatchNumber>, StorageError> {
    reader.get(Column::Meta, HISTORY_KEY)?.map(|bytes| schema::decode("history record", &bytes)).transpose()
}

/// The batch up to which the history has the rows before; `None` if no record says so yet.
pub(crate) fn recorded_sealed(reader: &(impl Reader + ?Sized)) -> Result<Option<BatchNumber>, StorageError> {
    reader.get(Column::Meta, SEALED_KEY)?.map(|bytes| schema::decode("record of the log", &bytes)).transpose()
}

impl Facts {
    /// Loads the facts of a store at a head. If there is no record, the store never had a log, and the history has
    /// everything.
    pub(crate) fn load(reader: Arc<dyn Reader>, head: BatchNumber) -> Result<Facts, StorageError> {
        let sealed = recorded_sealed(&*reader)?.unwrap_or(head).min(head);
        Ok(Facts {
            reader,
            sealed: AtomicU64::new(sealed.get()),
            floor: AtomicU64::new(0),
            recording: Mutex::default(),
        })
    }

    /// The store as it is now.
    pub(crate) fn reader(&self) -> &dyn Reader {
        &*self.reader
    }

    /// The batch up to which the rows before stand in the history.
    pub(crate) fn sealed(&self) -> BatchNumber {
        BatchNumber::new(self.sealed.load(Ordering::Acquire))
    }

    /// Has a write record that the rows before batches up to this one stand in the history. From then on readers find them there.
    /// Nobody else records it meanwhile, so that it never moves back.
    pub(crate) fn seal(
        &self,
        to: BatchNumber,
        write: impl FnOnce(Option<BatchNumber>) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let _recording = self.recording.lock();
        write(Some(to).filter(|to| *to > self.sealed()))?;
        self.sealed.fetch_max(to.get(), Ordering::AcqRel);
        Ok(())
    }

    /// Raises the floor, before any row below it goes.
    pub(crate) fn raise_floor(&self, to: BatchNumber) {
        self.floor.fetch_max(to.get(), Ordering::AcqRel);
    }

    /// Those of batches up to this one may be gone.
    pub(crate) fn floor(&self) -> BatchNumber {
        BatchNumber::new(self.floor.load(Ordering::Acquire))
    }

    /// Lowers the floor, after rows of batches above it came back.
    pub(crate) fn lower_floor(&self, to: BatchNumber) {
        self.floor.fetch_min(to.get(), Ordering::AcqRel);
    }

    /// Raises the floor to where the log begins, if what is sealed ends before that: no known state needs the batches between.
    pub(crate) fn skip_to(&self, first: BatchNumber) {
        let _recording = self.recording.lock();
        if first > self.sealed() {
            self.raise_floor(first);
        }
    }

    /// Of sorted paths the rows before the first batch that changed them, of those after one and up to another.
    ///
    /// # Errors
    /// [`StorageError::StateNotKept`] if they are not all known any more; [`StorageError::Corrupt`] if they should be.
    pub(crate) fn before(
        &self,
        paths: &[Path],
        after: BatchNumber,
        up_to: BatchNumber,
    ) -> Result<Vec<Before>, StorageError> {
        self.check_floor(after)?;
        let found = loop {
            let sealed = self.sealed();
            let mut found = self.in_history(paths, after, sealed.min(up_to))?;
            let from = after.max(sealed);
            if from >= up_to || self.find_in_log(paths, from, up_to, &mut found)? {
                break found;
            }
            if self.sealed() == sealed {
                return Err(self.gap(after)?);
            }
        };
        // Afterwards too: if the first entry went meanwhile, the read found the second one.
        self.check_floor(after)?;
        Ok(found)
    }

    fn check_floor(&self, after: BatchNumber) -> Result<(), StorageError> {
        match self.floor() <= after {
            true => Ok(()),
            false => Err(StorageError::StateNotKept { number: after }),
        }
    }

    /// The rows that the history has for these paths, after one batch and up to another. The history is complete up to the
    /// latter.
    fn in_history(
        &self,
        paths: &[Path],
        after: BatchNumber,
        up_to: BatchNumber,
    ) -> Result<Vec<Before>, StorageError> {
        let mut found = vec![None; paths.len()];
        if after >= up_to {
            return Ok(found);
        }
        for (path, found) in paths.iter().zip(&mut found) {
            let from = schema::history_key(path, after.next());
            self.reader.scan_alike(Column::History, &from, path.0.len(), &mut |key, row| {
                let batch = schema::history_batch(key);
                if batch.is_some_and(|batch| batch <= up_to.get()) {
                    *found = Some(row.to_vec());
                }
                Ok(ControlFlow::Break(()))
            })?;
        }
        Ok(found)
    }

    /// Adds what the log has of batches after one and up to another, the last of a value. Tells whether all of them are there, or as many as
    /// it takes.
    fn find_in_log(
        &self,
        paths: &[Path],
        after: BatchNumber,
        up_to: BatchNumber,
        found: &mut [Before],
    ) -> Result<bool, StorageError> {
        let (mut left, mut known) = (found.iter().filter(|found| found.is_none()).count(), after);
        if left == 0 {
            return Ok(true);
        }
        self.log(after, |key, value| {
            let value = LogValue::parse(key, value)?;
            // Of the first value a part may be of before.
            if value.first > known.next() {
                return Ok(ControlFlow::Break(()));
            }
            for (path, found) in paths.iter().zip(&mut *found).filter(|(_, found)| found.is_none()) {
                if let Some(row) = value.find(path, after)? {
                    *found = Some(row.to_vec());
                    left -= 1;
                }
            }
            known = value.last;
            Ok(if left == 0 || known >= up_to { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(left == 0 || known >= up_to)
    }

    /// Visits the log in order, from the value that has the batch after this one.
    pub(crate) fn log(
        &self,
        after: BatchNumber,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StorageError>,
    ) -> Result<(), StorageError> {
        let from = schema::number_key(after.next());
        self.reader.scan(Column::HistoryLog, &from, Direction::Up, &mut visit)
    }

    /// Returns the error that explains why the log lacks batches behind a state.
    pub(crate) fn gap(&self, after: BatchNumber) -> Result<StorageError, StorageError> {
        let known = recorded_from(&*self.reader)?.is_some_and(|first| first <= after);
        Ok(match known && self.floor.load(Ordering::Acquire) <= after.get() {
            true => {
                StorageError::corrupt(format!("the history lacks rows of before the batches after {after}"))
            }
            false => StorageError::StateNotKept { number: after },
        })
    }
}
