//! The seam below the store: ordered columns of bytes, atomic writes, frozen reads. Two implementations, one behaviour:
//! [`rocks`] on disk and [`memory`] for tests and simulation; [`faulty`] wraps either. Nothing above knows which one it
//! runs on.
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

/// Changed state rows, sorted by path: their bytes one after the other, so that a batch of many allocates little.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    bytes: Vec<u8>,
    /// Path, and where the row's bytes end; none deletes it.
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

    /// Appends a row, which `write` appends to the bytes, and returns those. None deletes the row.
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

/// Changes that happen together or not at all, in order.
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

/// Reads. A backend itself shows the latest writes, its snapshots and checkpoints one moment.
pub(crate) trait Reader: Send + Sync {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;

    /// The values of keys that are sorted, in their order.
    fn multi_get(&self, column: Column, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StorageError>;

    /// Visits the values of keys that are sorted, in their order: as [`Reader::multi_get`], without a copy of each.
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

    /// Scans the rows from a key on that share its first bytes: as many bytes as [`options`] sets as the column's prefix for lookups.
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

    /// The rows of short ranges that ascend, both ends included, which are read soon again by key. The visit is told the range's index; its
    /// `Break` ends that range.
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

/// A file of rows in ascending order of keys, written beside the column and moved into it at once, past log, memtable and
/// compaction. Dropping it discards its rows.
pub(crate) trait SortedFile: Send {
    /// The next row; its key is above the one before.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StorageError>;

    /// Ends the rows and makes them durable; they are not visible yet.
    fn seal(&mut self) -> Result<(), StorageError>;

    /// Makes the sealed rows visible, all of them or none.
    fn ingest(self: Box<Self>) -> Result<(), StorageError>;
}

/// A checkpoint under its number.
pub(crate) type NumberedReader = (u64, Arc<dyn Reader>);

/// Size of a column on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ColumnSize {
    /// An estimate: overwritten and deleted keys may still count.
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
}

/// The files that a drop frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Dropped {
    pub(crate) bytes: u64,
    /// The part that checkpoints share, and that is freed only with the last of them.
    pub(crate) bytes_in_snapshots: u64,
}

/// What the store cost its disk since it was opened, over all columns and views.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoCounts {
    /// Keys that were asked for, whether they have a row or not.
    pub keys: u64,
    /// Data blocks that were not in the block cache: reads of the disk, or of the operating system's cache. A scan counts
    /// here too.
    pub blocks: u64,
    /// Times that the log was synced: each durable write waits for one.
    pub syncs: u64,
    /// Bytes written to the log, and to files of rows by flushes and compactions.
    pub bytes_written: u64,
}

/// Rows: written, and read as they are at one moment.
pub(crate) trait RowStore: Reader {
    /// Makes all changes or none. A durable write has reached the disk when this returns, and so have all before it.
    fn write(&self, batch: WriteBatch, durable: bool) -> Result<(), StorageError>;

    /// Begins a sorted file of a column.
    fn sorted_file(&self, column: Column) -> Result<Box<dyn SortedFile>, StorageError>;

    /// Bytes of rows from which on a sorted file is worth its syncs.
    fn file_bytes_min(&self) -> usize {
        if cfg!(test) { 256 } else { 128 << 10 }
    }

    /// A frozen view, as long as this process lives.
    fn snapshot(&self) -> Arc<dyn Reader>;

    /// Whether more than so many snapshots are held: the rows that they show stay on disk.
    fn has_readers_beyond(&self, _known: usize) -> bool {
        false
    }
}

/// Frozen views that have a number, and outlive the process if the backend itself does.
pub(crate) trait Checkpoints: Send + Sync {
    /// Begins in the background what would make the next checkpoint slow.
    fn prepare_checkpoint(&self) -> Result<(), StorageError>;

    /// Freezes what is written under a number.
    fn checkpoint(&self, number: u64) -> Result<Arc<dyn Reader>, StorageError>;

    /// The checkpoints of earlier processes, by ascending number.
    fn checkpoints(&self) -> Result<Vec<NumberedReader>, StorageError>;

    /// Frees a checkpoint once its last reader is dropped.
    fn remove_checkpoint(&self, number: u64) -> Result<(), StorageError>;
}

/// Care of the files and the cache that rows lie in. A backend that has none has little to say and to do.
pub(crate) trait Upkeep: Send + Sync {
    /// Returns the size of a column.
    fn size(&self, _column: Column) -> Result<ColumnSize, StorageError> {
        Ok(ColumnSize::default())
    }

    /// Returns what the disk was asked for so far.
    fn io_counts(&self) -> IoCounts {
        IoCounts::default()
    }

    /// Empties the block cache.
    fn drop_cached(&self) {}

    /// Returns what [`Upkeep::drop_between`] would free now.
    fn droppable(&self, _column: Column, _from: &[u8], _below: &[u8]) -> Result<Dropped, StorageError> {
        Ok(Dropped::default())
    }

    /// Drops the files whose keys lie in `from..below`. Some or all of these keys are gone afterwards, for snapshots too. The
    /// caller ensures that nobody reads them any more.
    fn drop_between(&self, _column: Column, _from: &[u8], _below: &[u8]) -> Result<Dropped, StorageError> {
        Ok(Dropped::default())
    }

    /// Walks the files from the highest keys down until they take so many bytes, and returns their lowest key. Returns `None` if all
    /// files fit. The column's files must have disjoint ranges of keys. The first file counts whatever its size.
    fn key_within(&self, _column: Column, _bytes: u64) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(None)
    }

    /// Empties a column that nobody reads. Its space is free at once while at most `readers` snapshots are held; those do not read the
    /// column.
    fn reclaim(&self, column: Column, readers: usize) -> Result<(), StorageError>;

    /// Frees the files of a column that was cleared and that nobody reads, snapshots neither, as far as that needs no wait for a compaction.
    /// [`Upkeep::reclaim`] frees the rest.
    fn drop_files(&self, _column: Column) -> Result<(), StorageError> {
        Ok(())
    }

    /// Lets entries of [`Column::Transactions`] that name a batch below this one go, sooner or later.
    fn forget_transactions_below(&self, _number: u64) {}

    /// Lets headers below this one go, sooner or later, with certificates, entries of the index, and nodes that only they need.
    fn forget_headers_below(&self, _number: u64) {}

    /// Lets entries of [`Column::History`] of batches up to this one go, sooner or later.
    fn forget_history_up_to(&self, _number: u64) {}
}

/// All that a store needs below it.
pub(crate) trait Backend: RowStore + Checkpoints + Upkeep {}

impl<T: RowStore + Checkpoints + Upkeep> Backend for T {}
