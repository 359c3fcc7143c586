//! Builds the log's part of a write: the old values of the rows that its batches change, and the first state that is
//! known afterwards.

use std::sync::atomic::Ordering;

use rayon::prelude::*;
use slipstream_types::{BatchNumber, delta::DeltaEntry, state::ROW_BYTES_MAX};

use crate::{
    backend::{Column, WriteBatch},
    batch::CommitBatch,
    changes::RowChange,
    config::StateHistory,
    error::StorageError,
    history::past_rows::{recorded_from, recorded_sealed},
    history_log::{self, LogRows},
    schema::{self, HISTORY_KEY, SEALED_KEY},
    shared::HeadState,
    store::Store,
    writer::Writer,
};

/// Rows that one thread reads at a time; fewer are not worth another thread.
const READ_ROWS: usize = 256;

impl Store {
    /// Skips the history of batches that will have left the window once the head reaches `head_to_come`.
    pub fn keep_history(&self, head_to_come: BatchNumber) {
        let first = self.0.config.state_history.first(head_to_come);
        self.0.history.behind.store(first.get(), Ordering::Relaxed);
    }
}

/// Restarts the history: old rows that were logged before this write cannot be applied to the state after it.
pub(crate) fn forget(writes: &mut WriteBatch, head: BatchNumber) {
    writes.delete(Column::Meta, HISTORY_KEY);
    writes.clear_range(Column::HistoryLog, schema::number_key(BatchNumber::new(0)), schema::number_key(head));
}

impl Writer<'_> {
    /// Adds to a write the old values of the rows that its batches change (`touched`), and the first batch whose state
    /// is known afterwards. Call it right before the write, on the head that the write extends.
    pub(crate) fn put_history(
        &self,
        current: Option<&HeadState>,
        batches: &[CommitBatch<'_>],
        touched: &[RowChange],
        writes: &mut WriteBatch,
    ) -> Result<(), StorageError> {
        let Some(current) = current else { return Ok(()) };
        let (config, history) = (&self.store.0.config, &self.store.0.history);
        let (before, recorded) = (current.record.number, recorded_from(&*current.reader)?);
        history.held.lock().log_bytes = 0;
        if config.state_history == StateHistory::Batches(0) {
            if recorded.is_some() {
                forget(writes, before);
                writes.delete(Column::Meta, SEALED_KEY);
            }
            return Ok(());
        }
        let behind = BatchNumber::new(history.behind.load(Ordering::Relaxed));
        let passed = batches.partition_point(|batch| batch.header.number <= behind);
        let number = |index: usize| batches[index].header.number;
        let known = passed.checked_sub(1).map(number).or(recorded).unwrap_or(before);
        let head = batches.last().map_or(before, |batch| batch.header.number);
        let first = known.max(config.state_history.first(head));
        if recorded != Some(first) {
            writes.put(Column::Meta, HISTORY_KEY, schema::encode(&first));
        }
        if recorded_sealed(&*current.reader)?.is_none() {
            // The store had no log up to here.
            writes.put(Column::Meta, SEALED_KEY, schema::encode(&before));
        }
        if passed < batches.len() {
            let parts = rows_before(current, batches, passed, touched)?;
            let value = history_log::encode(number(passed), &parts)?;
            history.held.lock().log_bytes = value.len() as u64;
            writes.put(Column::HistoryLog, schema::number_key(head), value);
        }
        Ok(())
    }
}

/// Returns, for each batch after the first `passed`, the values that its changed rows had before it. Several threads
/// share the work if there is enough of it.
fn rows_before(
    current: &HeadState,
    batches: &[CommitBatch<'_>],
    passed: usize,
    touched: &[RowChange],
) -> Result<Vec<LogRows>, StorageError> {
    let read = |part: &[&[RowChange]]| part_before(current, batches, passed, part);
    let rows: Vec<&[RowChange]> = touched.chunk_by(|a, b| a.path == b.path).collect();
    match rows.len() > READ_ROWS {
        true => rows.par_chunks(READ_ROWS).map(read).collect(),
        false => Ok(vec![read(&rows)?]),
    }
}

/// As [`rows_before`], for the changes of some rows.
fn part_before(
    current: &HeadState,
    batches: &[CommitBatch<'_>],
    passed: usize,
    rows: &[&[RowChange]],
) -> Result<LogRows, StorageError> {
    let paths: Vec<&[u8]> = rows.iter().map(|changes| &changes[0].path.0[..]).collect();
    let mut before = LogRows::with_capacity(rows.iter().map(|changes| changes.len()).sum(), ROW_BYTES_MAX);
    let (mut rows, mut changed) = (rows.iter(), Vec::new());
    current.reader.visit_many(current.record.active.column(), &paths, &mut |row| {
        let mut earlier = None;
        for change in rows.next().into_iter().copied().flatten() {
            let delta = change.delta as usize;
            let row = match earlier {
                None => row.unwrap_or_default(),
                Some(entry) => row_of(entry, &mut changed),
            };
            if delta >= passed {
                before.push(change.path, (delta - passed) as u32, row);
            }
            earlier = Some(change.entry(|delta| batches[delta].delta));
        }
    })?;
    Ok(before)
}

/// Returns the row that an entry leaves; empty if it leaves none.
pub(crate) fn row_of<'a>(entry: &DeltaEntry, row: &'a mut Vec<u8>) -> &'a [u8] {
    row.clear();
    if let Some(value) = entry.value {
        value.append_row(&entry.key, row);
    }
    row
}
