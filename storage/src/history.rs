//! States of the past: what the rows were before the last batches changed them.
//!
//! ```text
//!  history   path [32] │ batch u64, big-endian ─▶ the row before that batch; empty: there was none
//!  state n:  of a path the entry of the first batch after n; without one, the row at the head
//! ```
//! So a state of the past costs nothing that grows with its age: one seek a read, and the head's row where nothing changed since. The entries are
//! written with the batch that makes them, by whichever way it came, so that a kill leaves no gap. What is beyond the window goes when RocksDB
//! compacts its file, without a write of its own.
//!
//! Of batches that lie before the window of the head that somebody is on the way to nothing is recorded ([`Store::keep_history`]): nobody could
//! ask for those states when it is there. After a state that came by another way than by batches the window begins anew.
//!
//! The first state that is known is a record, written with the commit that moves it up. Entries are dropped by that record, never by the
//! configuration: so a wider window shows no more than what is there.

use std::sync::{Arc, atomic::Ordering};

use rayon::prelude::*;
use slipstream_types::{BatchNumber, Path, delta::DeltaEntry};

use crate::{
    backend::{Column, Reader, WriteBatch},
    batch::CommitBatch,
    changes::with_paths,
    config::StateHistory,
    error::StorageError,
    past::Past,
    schema::{self, HISTORY_KEY},
    shared::Current,
    store::Store,
    view::View,
    writer::Writer,
};

/// Entries are left on the disk for so many batches before the first known state: somebody may still be reading what was known a moment ago.
const SLACK: u64 = if cfg!(test) { 16 } else { 1_024 };
/// Rows that one thread reads at a time; fewer are not worth another thread.
const READ_ROWS: usize = 256;

impl Store {
    /// Records only what will be in the window of a head that is on its way.
    pub fn keep_history(&self, head_to_come: BatchNumber) {
        let first = self.0.config.state_history.first(head_to_come);
        self.0.history.behind.store(first.get(), Ordering::Relaxed);
    }

    /// The state behind a batch; none if it is not known, or not any more.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`], or what the disk says.
    pub fn view_of(&self, number: BatchNumber) -> Result<Option<View>, StorageError> {
        let current = self.current()?;
        if number == current.record.number {
            return Ok(Some(View::new(current)));
        }
        if number > current.record.number || number < self.first_state(&current)? {
            return Ok(None);
        }
        let header = current.reader.get(Column::Headers, &schema::number_key(number))?;
        let header = header.map(|header| schema::decode("header", &header)).transpose()?;
        let floor = Arc::clone(&self.0.history.floor);
        Ok(header.map(|header| View::of_past(current, Past::new(header, floor))))
    }

    /// The first batch behind which the state is known; all from there on are, up to the head.
    ///
    /// # Errors
    /// As [`Store::view_of`].
    pub fn states_from(&self) -> Result<BatchNumber, StorageError> {
        self.first_state(&*self.current()?)
    }

    pub(crate) fn first_state(&self, current: &Current) -> Result<BatchNumber, StorageError> {
        let head = current.record.number;
        let recorded = recorded_from(&*current.reader)?.unwrap_or(head);
        Ok(recorded.max(self.0.config.state_history.first(head)))
    }

    /// Lets go what leads to no state that is known at a head.
    pub(crate) fn forget_history(&self, current: &Current) {
        // A record that cannot be read fails whoever asks for a state, and lets nothing go.
        let Ok(recorded) = recorded_from(&*current.reader) else { return };
        let floor = recorded.map_or(current.record.number, |first| first.before(SLACK)).get();
        self.0.history.floor.store(floor, Ordering::Release);
        self.0.backend.forget_history_up_to(floor);
    }
}

impl Writer<'_> {
    /// Adds to a write what was before the batches in it, and the first state that is known then. To be called right before the write, on the
    /// head that it stands on.
    pub(crate) fn put_history(
        &self,
        current: Option<&Current>,
        batches: &[CommitBatch<'_>],
        writes: &mut WriteBatch,
    ) -> Result<(), StorageError> {
        let Some(current) = current else { return Ok(()) };
        let recorded = recorded_from(&*current.reader)?;
        if self.store.0.config.state_history == StateHistory::Batches(0) {
            if recorded.is_some() {
                writes.delete(Column::Meta, HISTORY_KEY);
            }
            return Ok(());
        }
        let behind = BatchNumber::new(self.store.0.history.behind.load(Ordering::Relaxed));
        let passed = batches.partition_point(|batch| batch.header.number <= behind);
        let (passed, batches) = batches.split_at(passed);
        let last = |batches: &[CommitBatch<'_>]| batches.last().map(|batch| batch.header.number);
        let known = last(passed).or(recorded).unwrap_or(current.record.number);
        let head = last(batches).or(last(passed)).unwrap_or(current.record.number);
        let first = known.max(self.store.0.config.state_history.first(head));
        if recorded != Some(first) {
            writes.put(Column::Meta, HISTORY_KEY, schema::encode(&first));
        }
        let mut changes: Vec<(Path, BatchNumber, &DeltaEntry)> = batches
            .iter()
            .flat_map(|batch| {
                let number = batch.header.number;
                with_paths(batch.delta.entries()).map(move |(path, entry)| (path, number, entry))
            })
            .collect();
        changes.sort_unstable_by_key(|(path, number, _)| (*path, *number));
        let of_path = || changes.chunk_by(|a, b| a.0 == b.0);
        let paths: Vec<&[u8]> = of_path().map(|changes| &changes[0].0.0[..]).collect();
        let rows = self.rows_before(current, passed, &paths)?;
        for (changes, row) in of_path().zip(rows) {
            let mut before = row.unwrap_or_default();
            for (path, number, DeltaEntry { key: of, value }) in changes {
                let after = value.map(|value| schema::encode_row(of, &value)).unwrap_or_default();
                writes.put(
                    Column::History,
                    schema::history_key(path, *number),
                    std::mem::replace(&mut before, after),
                );
            }
        }
        Ok(())
    }

    /// The rows of sorted paths at the head, or behind batches that are written with those that are recorded.
    fn rows_before(
        &self,
        current: &Current,
        passed: &[CommitBatch<'_>],
        paths: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        let column = current.record.active.column();
        let read = |paths: &[&[u8]]| current.reader.multi_get(column, paths);
        let mut rows = match paths.len() > READ_ROWS {
            true => paths.par_chunks(READ_ROWS).map(read).collect::<Result<Vec<_>, _>>()?.concat(),
            false => read(paths)?,
        };
        for (path, entry) in passed.iter().flat_map(|batch| with_paths(batch.delta.entries())) {
            if let Ok(at) = paths.binary_search(&&path.0[..]) {
                rows[at] = entry.value.map(|value| schema::encode_row(&entry.key, &value));
            }
        }
        Ok(rows)
    }
}

fn recorded_from(reader: &dyn Reader) -> Result<Option<BatchNumber>, StorageError> {
    reader.get(Column::Meta, HISTORY_KEY)?.map(|bytes| schema::decode("history record", &bytes)).transpose()
}
