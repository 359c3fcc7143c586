//! [`PastRows`]: the rows before batches, wherever they are stored.
//!
//! The rows before a batch are facts. They are first in the log, then in log and history, then in the history alone,
//! and never change. So a reader uses the newest data, and two things can go wrong. If the log was sealed meanwhile,
//! it has a gap, and the reader looks again. If the rows are gone, floor and record show it.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use slipstream_types::{BatchNumber, Path};

use crate::{
    backend::{Column, Direction, Reader},
    error::StorageError,
    history_log::LogValue,
    schema::{self, HISTORY_KEY, SEALED_KEY},
};

/// A row, if one was found; empty if the key did not exist.
pub(crate) type PreviousRow = Option<Vec<u8>>;

/// Tracks where the rows of states before the head's are stored.
pub(crate) struct PastRows {
    reader: Arc<dyn Reader>,
    /// The batch up to which the history has the rows.
    sealed: AtomicU64,
    /// The rows before batches up to this one may be gone.
    floor: AtomicU64,
    /// Held while `sealed` and its record move.
    recording: Mutex<()>,
}

/// Returns the first batch after which the state is known; `None` if only the head's is.
pub(crate) fn recorded_from(reader: &(impl Reader + ?Sized)) -> Result<Option<BatchNumber>, StorageError> {
    reader.get(Column::Meta, HISTORY_KEY)?.map(|bytes| schema::decode("history record", &bytes)).transpose()
}

/// Returns the batch up to which the history has the rows; `None` if there is no record yet.
pub(crate) fn recorded_sealed(reader: &(impl Reader + ?Sized)) -> Result<Option<BatchNumber>, StorageError> {
    reader.get(Column::Meta, SEALED_KEY)?.map(|bytes| schema::decode("record of the log", &bytes)).transpose()
}

impl PastRows {
    /// Loads the past rows of a store at a head. If there is no record, the store never had a log, and the history has
    /// everything.
    pub(crate) fn load(reader: Arc<dyn Reader>, head: BatchNumber) -> Result<PastRows, StorageError> {
        let sealed = recorded_sealed(&*reader)?.unwrap_or(head).min(head);
        Ok(PastRows {
            reader,
            sealed: AtomicU64::new(sealed.get()),
            floor: AtomicU64::new(0),
            recording: Mutex::default(),
        })
    }

    /// A reader of the store as it is now.
    pub(crate) fn reader(&self) -> &dyn Reader {
        &*self.reader
    }

    /// Returns the batch up to which the history has the rows.
    pub(crate) fn sealed(&self) -> BatchNumber {
        BatchNumber::new(self.sealed.load(Ordering::Acquire))
    }

    /// Has `write` record that the history has the rows before batches up to `to`; readers then find them there. A
    /// lock keeps others from recording meanwhile, so the record never moves back.
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

    /// Raises the floor. Must happen before any row below it is deleted.
    pub(crate) fn raise_floor(&self, to: BatchNumber) {
        self.floor.fetch_max(to.get(), Ordering::AcqRel);
    }

    /// The rows before batches up to this one may be gone.
    pub(crate) fn floor(&self) -> BatchNumber {
        BatchNumber::new(self.floor.load(Ordering::Acquire))
    }

    /// Lowers the floor. Must happen after rows of batches above it are back.
    pub(crate) fn lower_floor(&self, to: BatchNumber) {
        self.floor.fetch_min(to.get(), Ordering::AcqRel);
    }

    /// Raises the floor to `first`, where the log begins, if the sealed batches end before that: no known state needs
    /// the batches between.
    pub(crate) fn skip_to(&self, first: BatchNumber) {
        let _recording = self.recording.lock();
        if first > self.sealed() {
            self.raise_floor(first);
        }
    }

    /// Returns, for each of some sorted paths, the row before the first batch after `after` and up to `up_to` that
    /// changed it.
    ///
    /// # Errors
    /// [`StorageError::StateNotKept`] if some of these rows are gone; [`StorageError::Corrupt`] if they should be
    /// there.
    pub(crate) fn before(
        &self,
        paths: &[Path],
        after: BatchNumber,
        up_to: BatchNumber,
    ) -> Result<Vec<PreviousRow>, StorageError> {
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
        // Checked again: if the first entry was deleted meanwhile, the read found the second one.
        self.check_floor(after)?;
        Ok(found)
    }

    fn check_floor(&self, after: BatchNumber) -> Result<(), StorageError> {
        match self.floor() <= after {
            true => Ok(()),
            false => Err(StorageError::StateNotKept { number: after }),
        }
    }

    /// Returns the rows that the history has for these paths, from batches after `after` and up to `up_to`. The
    /// history is complete up to there.
    fn in_history(
        &self,
        paths: &[Path],
        after: BatchNumber,
        up_to: BatchNumber,
    ) -> Result<Vec<PreviousRow>, StorageError> {
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

    /// Adds what the log has of batches after `after` and up to `up_to`, which is the last batch of a value. Returns
    /// whether the log has all these batches, or enough of them to find every path.
    fn find_in_log(
        &self,
        paths: &[Path],
        after: BatchNumber,
        up_to: BatchNumber,
        found: &mut [PreviousRow],
    ) -> Result<bool, StorageError> {
        let (mut left, mut known) = (found.iter().filter(|found| found.is_none()).count(), after);
        if left == 0 {
            return Ok(true);
        }
        self.log(after, |key, value| {
            let value = LogValue::parse(key, value)?;
            // The first value may begin before `after`.
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

    /// Visits the log in order, from the value that contains the batch after `after`.
    pub(crate) fn log(
        &self,
        after: BatchNumber,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StorageError>,
    ) -> Result<(), StorageError> {
        let from = schema::number_key(after.next());
        self.reader.scan(Column::HistoryLog, &from, Direction::Up, &mut visit)
    }

    /// Returns the error that explains why the log lacks batches after a state.
    pub(crate) fn gap(&self, after: BatchNumber) -> Result<StorageError, StorageError> {
        let known = recorded_from(&*self.reader)?.is_some_and(|first| first <= after);
        Ok(match known && self.floor.load(Ordering::Acquire) <= after.get() {
            true => {
                StorageError::corrupt(format!("the history lacks the old rows of the batches after {after}"))
            }
            false => StorageError::StateNotKept { number: after },
        })
    }
}
