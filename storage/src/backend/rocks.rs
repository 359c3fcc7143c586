//! RocksDB: one column family per [`Column`], a write-ahead log that is synced per durable write, hard-linked checkpoints.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, Options,
    ReadOptions, WriteOptions, checkpoint::Checkpoint,
};

use super::{Backend, Column, Direction, NumberedReader, Reader, Visit, Write, WriteBatch};
use crate::{config::StorageConfig, error::StorageError};

/// Memory for rows not yet in a file, over all columns; a flush begins above it.
const WRITE_BUFFERS_BYTES_MAX: usize = 96 << 20;
/// One column's share before it is flushed.
const WRITE_BUFFER_BYTES_MAX: usize = 32 << 20;
/// Log kept before the columns that hold it up are flushed; bounds how long opening replays it.
const LOG_BYTES_MAX: u64 = 256 << 20;
/// Open files of the store, and of one checkpoint: below the usual limit of 1,024 a process.
const OPEN_FILES_MAX: i32 = 512;
const CHECKPOINT_OPEN_FILES_MAX: i32 = 64;
/// A key above every key of any column: paths and hashes, the longest fixed ones, have 32 bytes. Records are never cleared.
const ABOVE_ALL_KEYS: [u8; 33] = [0xff; 33];

/// The store's database.
pub(crate) struct RocksBackend {
    db: Arc<DB>,
    cache: Cache,
    checkpoints_dir: PathBuf,
    /// Checkpoints that have readers.
    open_checkpoints: Mutex<BTreeMap<u64, Weak<RocksCheckpoint>>>,
}

type SnapshotOf<'a> = rocksdb::Snapshot<'a>;

self_cell::self_cell!(
    /// A snapshot with the database that it keeps open.
    struct OwnedSnapshot {
        owner: Arc<DB>,
        #[covariant]
        dependent: SnapshotOf,
    }
);

struct RocksCheckpoint {
    /// None only while it is dropped.
    db: Option<DB>,
    dir: PathBuf,
    remove_on_drop: AtomicBool,
}

impl Drop for RocksCheckpoint {
    fn drop(&mut self) {
        drop(self.db.take());
        if self.remove_on_drop.load(Ordering::Acquire) {
            remove_dir(&self.dir);
        }
    }
}

fn remove_dir(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(dir = %dir.display(), %error, "an old snapshot could not be removed: remove it by hand");
    }
}

fn table_options(cache: &Cache) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    // Index and filters count against the cache too, or memory would grow with the table.
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table
}

fn column_options(column: Column, cache: &Cache) -> Options {
    let mut options = Options::default();
    let mut table = table_options(cache);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES_MAX);
    options.set_max_write_buffer_number(3);
    options.set_compression_type(DBCompressionType::Lz4);
    match column {
        // Already compressed by whoever made them.
        Column::Bodies | Column::Receipts | Column::Deltas | Column::Hints => {
            options.set_compression_type(DBCompressionType::None);
        }
        // Point reads, many of them of absent keys.
        Column::StateA | Column::StateB | Column::Codes | Column::TransactionIndex | Column::HeaderIndex => {
            table.set_bloom_filter(10.0, false);
        }
        _ => {}
    }
    options.set_block_based_table_factory(&table);
    options
}

fn columns(cache: &Cache) -> impl Iterator<Item = ColumnFamilyDescriptor> + '_ {
    Column::ALL
        .into_iter()
        .map(|column| ColumnFamilyDescriptor::new(column.name(), column_options(column, cache)))
}

fn database_options(open_files_max: i32) -> Options {
    let mut options = Options::default();
    options.set_max_open_files(open_files_max);
    options.set_keep_log_file_num(4);
    options.set_max_log_file_size(4 << 20);
    options
}

impl RocksBackend {
    /// Opens the database in `dir`, which exists, or makes one there.
    pub(crate) fn open(config: &StorageConfig, dir: &Path) -> Result<RocksBackend, StorageError> {
        let cache = Cache::new_lru_cache((config.block_cache_mib.max(1) << 20) as usize);
        let mut options = database_options(OPEN_FILES_MAX);
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_db_write_buffer_size(WRITE_BUFFERS_BYTES_MAX);
        options.set_max_total_wal_size(LOG_BYTES_MAX);
        options.set_bytes_per_sync(1 << 20);
        let db = DB::open_cf_descriptors(&options, dir.join("db"), columns(&cache)).map_err(|error| {
            // RocksDB has no code of its own for this.
            let locked = ["While lock file", "lock hold by current process"];
            match locked.iter().any(|text| error.as_ref().contains(text)) {
                true => StorageError::Locked { dir: dir.to_owned() },
                false => error.into(),
            }
        })?;
        let checkpoints_dir = dir.join("snapshots");
        fs::create_dir_all(&checkpoints_dir).map_err(|e| StorageError::io("create", &checkpoints_dir, e))?;
        Ok(RocksBackend { db: Arc::new(db), cache, checkpoints_dir, open_checkpoints: Mutex::default() })
    }

    fn open_checkpoint(&self, number: u64) -> Result<Arc<RocksCheckpoint>, StorageError> {
        let dir = self.checkpoints_dir.join(number.to_string());
        let options = database_options(CHECKPOINT_OPEN_FILES_MAX);
        let db = DB::open_cf_descriptors_read_only(&options, &dir, columns(&self.cache), false)?;
        let checkpoint = RocksCheckpoint { db: Some(db), dir, remove_on_drop: AtomicBool::new(false) };
        let checkpoint = Arc::new(checkpoint);
        self.open_checkpoints.lock().insert(number, Arc::downgrade(&checkpoint));
        Ok(checkpoint)
    }
}

fn family(db: &DB, column: Column) -> &ColumnFamily {
    db.cf_handle(column.name()).expect("every column was opened with the database")
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

fn scan(
    db: &DB,
    column: Column,
    from: &[u8],
    direction: Direction,
    mut options: ReadOptions,
    visit: &mut Visit<'_>,
) -> Result<(), StorageError> {
    // A scan of the state passes every row once: it must not push what execution reads out of the cache.
    options.fill_cache(!matches!(column, Column::StateA | Column::StateB));
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

/// Implements [`Reader`] by the functions above, for what has a database and the options to read it with.
macro_rules! reader {
    ($type:ty) => {
        impl Reader for $type {
            fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
                get(self.db(), column, key, &self.read_options())
            }

            fn multi_get(
                &self,
                column: Column,
                keys: &[&[u8]],
            ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
                multi_get(self.db(), column, keys, &self.read_options())
            }

            fn scan(
                &self,
                column: Column,
                from: &[u8],
                direction: Direction,
                visit: &mut Visit<'_>,
            ) -> Result<(), StorageError> {
                scan(self.db(), column, from, direction, self.read_options(), visit)
            }
        }
    };
}

reader!(RocksBackend);
reader!(OwnedSnapshot);
reader!(RocksCheckpoint);

impl RocksBackend {
    fn db(&self) -> &DB {
        &self.db
    }

    fn read_options(&self) -> ReadOptions {
        ReadOptions::default()
    }
}

impl OwnedSnapshot {
    fn db(&self) -> &DB {
        self.borrow_owner()
    }

    fn read_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_snapshot(self.borrow_dependent());
        options
    }
}

impl RocksCheckpoint {
    fn db(&self) -> &DB {
        self.db.as_ref().expect("taken by drop alone")
    }

    fn read_options(&self) -> ReadOptions {
        ReadOptions::default()
    }
}

impl Backend for RocksBackend {
    fn write(&self, batch: WriteBatch, durable: bool) -> Result<(), StorageError> {
        let mut writes = rocksdb::WriteBatch::default();
        for write in batch.0 {
            match write {
                Write::Put(column, key, value) => writes.put_cf(family(&self.db, column), key, value),
                Write::Delete(column, key) => writes.delete_cf(family(&self.db, column), key),
                Write::Clear(column) => {
                    writes.delete_range_cf(family(&self.db, column), &[][..], &ABOVE_ALL_KEYS[..]);
                }
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(durable);
        Ok(self.db.write_opt(writes, &options)?)
    }

    fn snapshot(&self) -> Arc<dyn Reader> {
        Arc::new(OwnedSnapshot::new(Arc::clone(&self.db), |db| db.snapshot()))
    }

    fn checkpoint(&self, number: u64) -> Result<Arc<dyn Reader>, StorageError> {
        let dir = self.checkpoints_dir.join(number.to_string());
        // RocksDB makes it under another name and renames it, so that a directory with a plain number is whole.
        Checkpoint::new(&self.db)?.create_checkpoint(&dir)?;
        Ok(self.open_checkpoint(number)?)
    }

    fn checkpoints(&self) -> Result<Vec<NumberedReader>, StorageError> {
        let dir = &self.checkpoints_dir;
        let mut found: Vec<NumberedReader> = Vec::new();
        for entry in fs::read_dir(dir).map_err(|e| StorageError::io("list", dir, e))? {
            let path = entry.map_err(|e| StorageError::io("list", dir, e))?.path();
            let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            match number.map(|number| (number, self.open_checkpoint(number))) {
                Some((number, Ok(reader))) => found.push((number, reader)),
                Some((number, Err(error))) => {
                    tracing::warn!(number, %error, "a snapshot cannot be opened and is removed");
                    remove_dir(&path);
                }
                // Left by a kill in the middle of making it.
                None => remove_dir(&path),
            }
        }
        found.sort_unstable_by_key(|(number, _)| *number);
        Ok(found)
    }

    fn remove_checkpoint(&self, number: u64) -> Result<(), StorageError> {
        let open = self.open_checkpoints.lock().remove(&number).and_then(|weak| weak.upgrade());
        match open {
            Some(checkpoint) => checkpoint.remove_on_drop.store(true, Ordering::Release),
            None => remove_dir(&self.checkpoints_dir.join(number.to_string())),
        }
        Ok(())
    }
}
