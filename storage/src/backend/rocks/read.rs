//! Reading: the database as it is now, one moment of it ([`OwnedSnapshot`]), and a checkpoint on disk
//! ([`RocksCheckpoint`]).

use std::{
    fs, io,
    path::{Path as FilePath, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use rocksdb::{Cache, DB, ReadOptions};
use slipstream_types::Path;

use super::{RocksBackend, common_options, family, refusal, remove_checkpoint, upkeep::size_of};
use crate::{
    backend::{
        Column, ColumnSize, Direction, Reader, Visit, VisitRange,
        options::{Floors, Shape, columns, is_blobs},
    },
    directory::Mark,
    error::StorageError,
    open_files::OpenFilesShare,
};

/// Opens all files together with the database.
pub(super) const ALL_FILES: i32 = -1;
/// Readahead for scans of blobs, which are served by ranges. A much larger one reads beyond the range's end for
/// nothing.
const BLOB_READAHEAD_BYTES: usize = 256 << 10;

type SnapshotOf<'a> = rocksdb::Snapshot<'a>;

/// The handles that a snapshot keeps open.
pub(super) struct Pinned {
    pub(super) db: Arc<DB>,
    /// Counts the snapshots: see `RocksBackend::reclaim`.
    pub(super) _live: Arc<()>,
}

self_cell::self_cell!(
    /// A snapshot with the database that it keeps open.
    pub(super) struct OwnedSnapshot {
        owner: Pinned,
        #[covariant]
        dependent: SnapshotOf,
    }
);

/// A checkpoint, opened by its first reader: opening costs as much as a thousand commits, and many checkpoints are
/// never read.
pub(crate) struct RocksCheckpoint {
    pub(super) db: OnceLock<DB>,
    pub(super) opening: Mutex<()>,
    pub(super) cache: Cache,
    pub(super) floors: Floors,
    pub(super) dir: PathBuf,
    pub(super) remove_on_drop: AtomicBool,
}

impl Drop for RocksCheckpoint {
    fn drop(&mut self) {
        drop(self.db.take());
        if self.remove_on_drop.load(Ordering::Acquire) {
            remove_checkpoint(&self.dir);
        }
    }
}

fn get(db: &DB, column: Column, key: &[u8], options: &ReadOptions) -> Result<Option<Vec<u8>>, StorageError> {
    Ok(db.get_cf_opt(family(db, column), key, options)?)
}

fn multi_get(
    db: &DB,
    column: Column,
    keys: &[&[u8]],
    options: &ReadOptions,
) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
    let values = db.batched_multi_get_cf_opt(family(db, column), keys.iter().copied(), true, options);
    values.into_iter().map(|value| Ok(value?.map(|slice| slice.to_vec()))).collect()
}

fn visit_many(
    db: &DB,
    column: Column,
    keys: &[&[u8]],
    options: &ReadOptions,
    visit: &mut dyn FnMut(Option<&[u8]>),
) -> Result<(), StorageError> {
    let values = db.batched_multi_get_cf_opt(family(db, column), keys.iter().copied(), true, options);
    for value in values {
        visit(value?.as_deref());
    }
    Ok(())
}

fn scan(
    db: &DB,
    column: Column,
    from: &[u8],
    direction: Direction,
    mut options: ReadOptions,
    visit: &mut Visit<'_>,
) -> Result<(), StorageError> {
    // A scan of the state passes every row once: it must not evict what execution reads.
    options.fill_cache(!matches!(column, Column::StateA | Column::StateB) && !is_blobs(column));
    // Otherwise a column with a filter over key prefixes would only show keys that begin as `from` does.
    options.set_total_order_seek(true);
    if is_blobs(column) {
        options.set_readahead_size(BLOB_READAHEAD_BYTES);
    }
    let mut rows = db.raw_iterator_cf_opt(family(db, column), options);
    match direction {
        Direction::Up => rows.seek(from),
        Direction::Down => rows.seek_for_prev(from),
    }
    while let Some((key, value)) = rows.item() {
        if visit(key, value)?.is_break() {
            return Ok(());
        }
        match direction {
            Direction::Up => rows.next(),
            Direction::Down => rows.prev(),
        }
    }
    Ok(rows.status()?)
}

/// Looks the key's prefix up in the filters of the column's files, and skips the files without a match.
fn scan_alike(
    db: &DB,
    column: Column,
    from: &[u8],
    alike: usize,
    mut options: ReadOptions,
    visit: &mut Visit<'_>,
) -> Result<(), StorageError> {
    options.set_prefix_same_as_start(true);
    let mut rows = db.raw_iterator_cf_opt(family(db, column), options);
    rows.seek(from);
    while let Some((key, row)) = rows.item().filter(|(key, _)| key.starts_with(&from[..alike])) {
        if visit(key, row)?.is_break() {
            return Ok(());
        }
        rows.next();
    }
    Ok(rows.status()?)
}

/// Uses one iterator for all ranges: making one costs as much as a search.
fn ranges(
    db: &DB,
    column: Column,
    ranges: &[(Path, Path)],
    options: ReadOptions,
    visit: &mut VisitRange<'_>,
) -> Result<(), StorageError> {
    let mut rows = db.raw_iterator_cf_opt(family(db, column), options);
    for (index, (first, last)) in ranges.iter().enumerate() {
        rows.seek(first.0);
        while let Some((key, row)) = rows.item().filter(|(key, _)| **key <= last.0[..]) {
            if visit(index, key, row)?.is_break() {
                break;
            }
            rows.next();
        }
        rows.status()?;
    }
    Ok(())
}

/// Implements [`Reader`] by the functions above, for a type with a database and options to read it with.
macro_rules! reader {
    ($type:ty) => {
        impl Reader for $type {
            fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
                get(self.db()?, column, key, &self.read_options())
            }

            fn multi_get(
                &self,
                column: Column,
                keys: &[&[u8]],
            ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
                multi_get(self.db()?, column, keys, &self.read_options())
            }

            fn visit_many(
                &self,
                column: Column,
                keys: &[&[u8]],
                visit: &mut dyn FnMut(Option<&[u8]>),
            ) -> Result<(), StorageError> {
                visit_many(self.db()?, column, keys, &self.read_options(), visit)
            }

            fn scan(
                &self,
                column: Column,
                from: &[u8],
                direction: Direction,
                visit: &mut Visit<'_>,
            ) -> Result<(), StorageError> {
                scan(self.db()?, column, from, direction, self.read_options(), visit)
            }

            fn scan_alike(
                &self,
                column: Column,
                from: &[u8],
                alike: usize,
                visit: &mut Visit<'_>,
            ) -> Result<(), StorageError> {
                scan_alike(self.db()?, column, from, alike, self.read_options(), visit)
            }

            fn ranges(
                &self,
                column: Column,
                some: &[(Path, Path)],
                visit: &mut VisitRange<'_>,
            ) -> Result<(), StorageError> {
                ranges(self.db()?, column, some, self.read_options(), visit)
            }
        }
    };
}

reader!(RocksBackend);
reader!(OwnedSnapshot);
reader!(RocksCheckpoint);

impl RocksBackend {
    fn db(&self) -> Result<&DB, StorageError> {
        Ok(&self.db)
    }

    fn read_options(&self) -> ReadOptions {
        ReadOptions::default()
    }
}

impl OwnedSnapshot {
    fn db(&self) -> Result<&DB, StorageError> {
        Ok(&self.borrow_owner().db)
    }

    fn read_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_snapshot(self.borrow_dependent());
        options
    }
}

impl RocksCheckpoint {
    fn db(&self) -> Result<&DB, StorageError> {
        if let Some(db) = self.db.get() {
            return Ok(db);
        }
        let _opening = self.opening.lock();
        if let Some(db) = self.db.get() {
            return Ok(db);
        }
        let db = self.open(OpenFilesShare::of_process().of_checkpoint as i32)?;
        Ok(self.db.get_or_init(|| db))
    }

    /// Refuses the database of the store in `dir` if it ends before what was acknowledged, or lacks a table or a part
    /// of one. RocksDB opens only some tables at a start, and continues without the others.
    pub(crate) fn check(&self, dir: &FilePath, mark: &Mark) -> Result<(), StorageError> {
        let db = self.db()?;
        for file in db.live_files()? {
            let name = file.name.trim_start_matches('/');
            let path = self.dir.join(name);
            match fs::metadata(&path) {
                Ok(found) if found.len() == file.size as u64 => {}
                Ok(found) => {
                    let what = format!("db/{name} has {} bytes of {}", found.len(), file.size);
                    return Err(StorageError::cut(dir, &what));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(StorageError::incomplete(dir, &format!("db/{name}")));
                }
                Err(error) => return Err(StorageError::io("look at", &path, error)),
            }
        }
        self.check_change(dir, mark)
    }

    /// Refuses the database of the store in `dir` if it ends, with its log, before what was acknowledged.
    pub(crate) fn check_change(&self, dir: &FilePath, mark: &Mark) -> Result<(), StorageError> {
        mark.check_change(dir, self.db()?.latest_sequence_number())
    }

    /// Bytes and keys of a column; 0 for a column that an earlier release did not have.
    pub(crate) fn size(&self, column: Column) -> Result<ColumnSize, StorageError> {
        let db = self.db()?;
        match db.cf_handle(column.name()) {
            Some(family) => size_of(db, family),
            None => Ok(ColumnSize { keys: 0, bytes: 0 }),
        }
    }

    /// Opens another process's database at once. It is never removed.
    pub(super) fn open_at(
        dir: PathBuf,
        cache: Cache,
        open_files_max: i32,
    ) -> Result<RocksCheckpoint, StorageError> {
        let checkpoint = RocksCheckpoint {
            db: OnceLock::new(),
            opening: Mutex::default(),
            cache,
            floors: Floors::default(),
            dir,
            remove_on_drop: AtomicBool::new(false),
        };
        let db = checkpoint.open(open_files_max)?;
        checkpoint.db.get_or_init(|| db);
        Ok(checkpoint)
    }

    fn open(&self, open_files_max: i32) -> Result<DB, StorageError> {
        let options = common_options(open_files_max);
        let shape = Shape { cache: &self.cache, pin_indexes: false, floors: &self.floors };
        // A checkpoint of an earlier release may have fewer columns.
        let refused = |error| refusal(error, &self.dir);
        let known = DB::list_cf(&options, &self.dir).map_err(refused)?;
        let columns = columns(shape).filter(|column| known.iter().any(|name| name == column.name()));
        DB::open_cf_descriptors_read_only(&options, &self.dir, columns, false).map_err(refused)
    }

    fn read_options(&self) -> ReadOptions {
        ReadOptions::default()
    }
}
