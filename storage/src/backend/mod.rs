//! The seam below the store: ordered columns of bytes, atomic writes, frozen reads. Two implementations behave the
//! same: [`rocks`] on disk, and [`memory`] for tests and simulation; [`faulty`] wraps either. Nothing above knows
//! which one it runs on.
//!
//! A [`Backend`] has three parts: a [`RowStore`] writes and freezes rows, [`Checkpoints`] outlive the process, and [`Upkeep`]
//! cares for the files on disk.

pub(crate) mod faulty;
pub(crate) mod memory;
mod options;
pub(crate) mod rocks;

use std::{ops::ControlFlow, sync::Arc};

use slipstream_types::{Path, state::ROW_BYTES_MAX};

pub(crate) use crate::column::Column;
use crate::error::StorageError;

/// One change of a [`WriteBatch`].
#[derive(Debug)]
pub(crate) enum Write {
    Put(Column, Vec<u8>, Vec<u8>),
    Delete(Column, Vec<u8>),
    /// Deletes every key of the column.
    Clear(Column),
    /// Deletes the keys from the first to the last, both included.
    ClearRange(Column, Vec<u8>, Vec<u8>),
    /// Many rows of a state column.
    Rows(Column, Rows),
}

/// Changed state rows, sorted by path. Their bytes follow each other in one buffer, so that a large batch allocates
/// little.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    bytes: Vec<u8>,
    /// The path, and where the row's bytes end; `None` deletes the row.
    ends: Vec<(Path, Option<usize>)>,
}

impl Rows {
    pub(crate) fn with_capacity(rows: usize) -> Rows {
        Rows { bytes: Vec::with_capacity(rows * ROW_BYTES_MAX), ends: Vec::with_capacity(rows) }
    }

    /// Bytes of all keys and rows.
    pub(crate) fn byte_len(&self) -> usize {
        self.bytes.len() + self.ends.len() * size_of::<Path>()
    }

    /// Appends a row: `write` appends its bytes, which are returned. `None` deletes the row.
    pub(crate) fn push(&mut self, path: Path, write: Option<impl FnOnce(&mut Vec<u8>)>) -> Option<&[u8]> {
        let start = self.bytes.len();
        let end = write.map(|write| {
            write(&mut self.bytes);
            self.bytes.len()
        });
        self.ends.push((path, end));
        end.map(|end| &self.bytes[start..end])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Path, Option<&[u8]>)> {
        let mut start = 0;
        self.ends.iter().map(move |(path, end)| {
            let row = end.map(|end| &self.bytes[std::mem::replace(&mut start, end)..end]);
            (path, row)
        })
    }
}

/// Ordered changes that happen together or not at all.
#[derive(Debug, Default)]
pub(crate) struct WriteBatch(pub(crate) Vec<Write>);

impl WriteBatch {
    pub(crate) fn put(&mut self, column: Column, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.0.push(Write::Put(column, key.into(), value.into()));
    }

    pub(crate) fn delete(&mut self, column: Column, key: impl Into<Vec<u8>>) {
        self.0.push(Write::Delete(column, key.into()));
    }

    pub(crate) fn rows(&mut self, column: Column, rows: Rows) {
        self.0.push(Write::Rows(column, rows));
    }

    pub(crate) fn clear(&mut self, column: Column) {
        self.0.push(Write::Clear(column));
    }

    pub(crate) fn clear_range(
        &mut self,
        column: Column,
        first: impl Into<Vec<u8>>,
        last: impl Into<Vec<u8>>,
    ) {
        self.0.push(Write::ClearRange(column, first.into(), last.into()));
    }

    /// Bytes of all keys and values.
    pub(crate) fn byte_len(&self) -> usize {
        let bytes = self.0.iter().map(|write| match write {
            Write::Put(_, key, value) => key.len() + value.len(),
            Write::Delete(_, key) => key.len(),
            Write::Rows(_, rows) => rows.byte_len(),
            Write::Clear(_) => 0,
            Write::ClearRange(_, first, last) => first.len() + last.len(),
        });
        bytes.sum()
    }
}

/// The direction of a scan, which includes its first key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// The callback of a scan, called for each row. The scan stops at `Break` or at an error.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StorageError> + 'a;

/// As [`Visit`], with the index of the range that the row is in.
pub(crate) type VisitRange<'a> = dyn FnMut(usize, &[u8], &[u8]) -> Result<ControlFlow<()>, StorageError> + 'a;

/// Reads. A backend itself shows the latest writes; its snapshots and checkpoints each show one moment.
pub(crate) trait Reader: Send + Sync {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;

    /// Returns the values of sorted keys, in the order of the keys.
    fn multi_get(&self, column: Column, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StorageError>;

    /// Visits the values of sorted keys, in the order of the keys: as [`Reader::multi_get`], without copying each.
    fn visit_many(
        &self,
        column: Column,
        keys: &[&[u8]],
        visit: &mut dyn FnMut(Option<&[u8]>),
    ) -> Result<(), StorageError> {
        self.multi_get(column, keys)?.iter().for_each(|value| visit(value.as_deref()));
        Ok(())
    }

    fn scan(
        &self,
        column: Column,
        from: &[u8],
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError>;

    /// Scans the rows from a key on that share its first `alike` bytes. `alike` is the length of the prefix that
    /// [`options`] sets for the column's lookups.
    fn scan_alike(
        &self,
        column: Column,
        from: &[u8],
        alike: usize,
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError> {
        self.scan(column, from, Direction::Up, &mut |key, row| match key.starts_with(&from[..alike]) {
            true => visit(key, row),
            false => Ok(ControlFlow::Break(())),
        })
    }

    /// Visits the rows of short ranges that ascend, both ends included. The same rows are soon read again by key. The
    /// visitor gets the range's index; its `Break` ends that range.
    fn ranges(
        &self,
        column: Column,
        ranges: &[(Path, Path)],
        visit: &mut VisitRange<'_>,
    ) -> Result<(), StorageError> {
        for (index, (first, last)) in ranges.iter().enumerate() {
            self.scan(column, &first.0, Direction::Up, &mut |key, row| match *key <= last.0[..] {
                true => visit(index, key, row),
                false => Ok(ControlFlow::Break(())),
            })?;
        }
        Ok(())
    }
}

/// A file of rows in ascending order of keys. It is written beside the column and then moved into the column in one
/// step, bypassing log, memtable and compaction. Dropping it discards its rows.
pub(crate) trait SortedFile: Send {
    /// Appends a row; its key must be above the one before.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StorageError>;

    /// Completes the file and makes its rows durable; they are not visible yet.
    fn seal(&mut self) -> Result<(), StorageError>;

    /// Makes the sealed rows visible, all of them or none.
    fn ingest(self: Box<Self>) -> Result<(), StorageError>;
}

/// A checkpoint with its number.
pub(crate) type NumberedReader = (u64, Arc<dyn Reader>);

/// Size of a column on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ColumnSize {
    /// An estimate: overwritten and deleted keys may still count.
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
}

/// The space that dropping files frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FreedSpace {
    pub(crate) bytes: u64,
    /// The part that checkpoints share; it is freed only with the last of them.
    pub(crate) bytes_in_snapshots: u64,
}

/// The disk work of the store since it was opened, over all columns and views.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoCounts {
    /// Keys that were looked up, whether they have a row or not.
    pub keys: u64,
    /// Data blocks that were not in the block cache: reads of the disk, or of the operating system's cache. Scans
    /// count here too.
    pub blocks: u64,
    /// Syncs of the log: each durable write waits for one.
    pub syncs: u64,
    /// Bytes written to the log, and to files of rows by flushes and compactions.
    pub bytes_written: u64,
}

/// Writes rows, and reads them as they are at one moment.
pub(crate) trait RowStore: Reader {
    /// Makes all changes or none. When a durable write returns, it and all writes before it have reached the disk.
    fn write(&self, batch: WriteBatch, durable: bool) -> Result<(), StorageError>;

    /// Begins a sorted file for a column.
    fn sorted_file(&self, column: Column) -> Result<Box<dyn SortedFile>, StorageError>;

    /// Minimum bytes of rows for which a sorted file is worth its syncs. `usual` is the minimum on a disk.
    fn file_bytes_min(&self, usual: usize) -> usize {
        usual
    }

    /// Returns a frozen view, which lasts at most as long as this process.
    fn snapshot(&self) -> Arc<dyn Reader>;

    /// Whether more than `_known` snapshots are held: the rows that they show stay on disk.
    fn has_readers_beyond(&self, _known: usize) -> bool {
        false
    }
}

/// Frozen views that have a number, and outlive the process if the backend does.
pub(crate) trait Checkpoints: Send + Sync {
    /// Starts in the background the work that would slow the next checkpoint down.
    fn prepare_checkpoint(&self) -> Result<(), StorageError>;

    /// Freezes the current content under a number.
    fn checkpoint(&self, number: u64) -> Result<Arc<dyn Reader>, StorageError>;

    /// Returns the checkpoints of earlier processes, by ascending number.
    fn checkpoints(&self) -> Result<Vec<NumberedReader>, StorageError>;

    /// Frees a checkpoint once its last reader is dropped.
    fn remove_checkpoint(&self, number: u64) -> Result<(), StorageError>;
}

/// Maintains the files and the cache behind the rows. The defaults are for a backend without files.
pub(crate) trait Upkeep: Send + Sync {
    /// Returns the size of a column.
    fn size(&self, _column: Column) -> Result<ColumnSize, StorageError> {
        Ok(ColumnSize::default())
    }

    /// Returns the disk work so far.
    fn io_counts(&self) -> IoCounts {
        IoCounts::default()
    }

    /// Empties the block cache.
    fn drop_cached(&self) {}

    /// Returns what [`Upkeep::drop_between`] would free now.
    fn droppable(&self, _column: Column, _from: &[u8], _below: &[u8]) -> Result<FreedSpace, StorageError> {
        Ok(FreedSpace::default())
    }

    /// Drops the files whose keys all lie in `from..below`. Some or all keys in that range are gone afterwards, for
    /// snapshots too. The caller ensures that nobody reads them any more.
    fn drop_between(&self, _column: Column, _from: &[u8], _below: &[u8]) -> Result<FreedSpace, StorageError> {
        Ok(FreedSpace::default())
    }

    /// Walks the files from the highest keys down until they take `_bytes` bytes, and returns their lowest key.
    /// Returns `None` if all files fit. The column's files must have disjoint ranges of keys. The first file counts
    /// whatever its size.
    fn key_within(&self, _column: Column, _bytes: u64) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(None)
    }

    /// Empties a column that nobody reads. Its space is free at once if at most `readers` snapshots are held, none of
    /// which may read the column.
    fn reclaim(&self, column: Column, readers: usize) -> Result<(), StorageError>;

    /// Frees the files of a cleared column that nobody reads, not even a snapshot, without waiting for a compaction.
    /// [`Upkeep::reclaim`] frees the rest.
    fn drop_files(&self, _column: Column) -> Result<(), StorageError> {
        Ok(())
    }

    /// Permits compaction to drop entries of [`Column::Transactions`] for batches below this one.
    fn forget_transactions_below(&self, _number: u64) {}

    /// Permits compaction to drop headers below this one, with their certificates, index entries, and the nodes that
    /// only they need.
    fn forget_headers_below(&self, _number: u64) {}

    /// Permits compaction to drop entries of [`Column::History`] for batches up to this one.
    fn forget_history_up_to(&self, _number: u64) {}
}

/// Everything that a store needs below it.
pub(crate) trait Backend: RowStore + Checkpoints + Upkeep {}

impl<T: RowStore + Checkpoints + Upkeep> Backend for T {}
