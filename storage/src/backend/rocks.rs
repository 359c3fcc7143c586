//! RocksDB: one column family per [`Column`], a write-ahead log that is synced per durable write, hard-linked checkpoints.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rocksdb::{
    Cache, ColumnFamily, CompactOptions, DB, FlushOptions, LiveFile, Options, WriteOptions,
    checkpoint::Checkpoint,
    statistics::{StatsLevel, Ticker},
};

use super::{
    Backend, Column, ColumnSize, Dropped, NumberedReader, ReadCounts, Reader, SortedRun, Write, WriteBatch,
    options::{Floors, Shape, column_options, columns, is_blobs},
};
use crate::{config::StorageConfig, error::StorageError};

mod read;
mod run;

use read::{OwnedSnapshot, Pinned, RocksCheckpoint};

/// Memory for rows not yet in a file, over all columns; a flush begins above it.
const WRITE_BUFFERS_BYTES_MAX: usize = 96 << 20;
/// Log kept before the columns that hold it up are flushed; bounds how long opening replays it.
const LOG_BYTES_MAX: u64 = 256 << 20;
/// Open files of the store: half of what the process may have, within these bounds. A file that has to be opened again
/// costs a read three more: of its footer, its index and its filter.
const OPEN_FILES_RANGE: (u64, u64) = (256, 32_768);
/// Blobs in memory below which they are not flushed before a checkpoint. Their files are never merged, so each flush leaves one
/// for good; what is not flushed is in the log that goes along, and costs the checkpoint's first reader that much to replay.
const BLOB_FLUSH_BYTES_MIN: u64 = 8 << 20;
/// A key above every key of any column: a path and a batch, the longest fixed ones, have 40 bytes. Records are never cleared.
const ABOVE_ALL_KEYS: [u8; 41] = [0xff; 41];

/// The store's database.
pub(crate) struct RocksBackend {
    db: Arc<DB>,
    cache: Cache,
    cache_bytes: usize,
    /// What the database was opened with; RocksDB counts its reads there.
    options: Options,
    files_dir: PathBuf,
    floors: Floors,
    checkpoints_dir: PathBuf,
    /// Checkpoints that have readers.
    open_checkpoints: Mutex<BTreeMap<u64, Weak<RocksCheckpoint>>>,
    /// Where sorted runs are written before they move into their column; emptied at every start.
    runs_dir: PathBuf,
    runs_made: AtomicU64,
    /// Shared by all live snapshots.
    live: Arc<()>,
}

fn remove_dir(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(dir = %dir.display(), %error, "an old snapshot could not be removed: remove it by hand");
    }
}

fn common_options(open_files_max: i32) -> Options {
    let mut options = Options::default();
    options.set_max_open_files(open_files_max);
    options.set_keep_log_file_num(4);
    options.set_max_log_file_size(4 << 20);
    options
}

/// A database exactly as a store would open it in `dir`, with no store above it: the floor that benchmarks compare with.
/// Its columns are those of docs/formats.md.
///
/// # Errors
/// [`StorageError::Locked`], or what the disk says.
pub fn plain_database(config: &StorageConfig, dir: &Path) -> Result<DB, StorageError> {
    open_database(&database_options(config), dir, &block_cache(config), &Floors::default())
}

/// The options of a state column's files, for [`plain_database`]'s callers that write some themselves.
pub fn plain_state_options(config: &StorageConfig) -> Options {
    let shape = Shape { cache: &block_cache(config), pin_indexes: true, floors: &Floors::default() };
    let mut options = column_options(Column::StateA, &shape);
    options.create_if_missing(true);
    options
}

fn block_cache(config: &StorageConfig) -> Cache {
    Cache::new_lru_cache(cache_bytes(config))
}

fn cache_bytes(config: &StorageConfig) -> usize {
    (config.block_cache_mib.max(1) << 20) as usize
}

fn database_options(config: &StorageConfig) -> Options {
    let mut options = common_options(open_files_max());
    // Counters alone, of each core by itself: timers and histograms would cost more than what they tell.
    options.enable_statistics();
    options.set_statistics_level(StatsLevel::ExceptHistogramOrTimers);
    options.set_use_direct_reads(config.direct_reads);
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_db_write_buffer_size(WRITE_BUFFERS_BYTES_MAX);
    options.set_max_total_wal_size(LOG_BYTES_MAX);
    options.set_bytes_per_sync(1 << 20);
    options
}

fn open_database(options: &Options, dir: &Path, cache: &Cache, floors: &Floors) -> Result<DB, StorageError> {
    let shape = Shape { cache, pin_indexes: true, floors };
    DB::open_cf_descriptors(options, dir.join("db"), columns(shape)).map_err(|error| {
        // RocksDB has no code of its own for this.
        let locked = ["While lock file", "lock hold by current process"];
        match locked.iter().any(|text| error.as_ref().contains(text)) {
            true => StorageError::Locked { dir: dir.to_owned() },
            false => error.into(),
        }
    })
}

/// Takes the history from a closed database, as if a release that had none had made it.
#[cfg(test)]
pub(crate) fn drop_history(dir: &Path) {
    let (config, floors) = (StorageConfig::default(), Floors::default());
    let mut db = open_database(&database_options(&config), dir, &block_cache(&config), &floors).unwrap();
    db.drop_cf(Column::History.name()).unwrap();
    db.delete(crate::schema::HISTORY_KEY).unwrap();
}

fn open_files_max() -> i32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    (limit / 2).clamp(OPEN_FILES_RANGE.0, OPEN_FILES_RANGE.1) as i32
}

impl RocksBackend {
    /// Opens the database in `dir`, which exists, or makes one there.
    pub(crate) fn open(config: &StorageConfig, dir: &Path) -> Result<RocksBackend, StorageError> {
        let cache = block_cache(config);
        let floors = Floors::default();
        let files_dir = dir.join("db");
        let options = database_options(config);
        let db = open_database(&options, dir, &cache, &floors)?;
        let checkpoints_dir = dir.join("snapshots");
        fs::create_dir_all(&checkpoints_dir).map_err(|e| StorageError::io("create", &checkpoints_dir, e))?;
        let runs_dir = dir.join("runs");
        remove_dir(&runs_dir);
        fs::create_dir_all(&runs_dir).map_err(|e| StorageError::io("create", &runs_dir, e))?;
        Ok(RocksBackend {
            db: Arc::new(db),
            cache,
            cache_bytes: cache_bytes(config),
            options,
            files_dir,
            floors,
            checkpoints_dir,
            open_checkpoints: Mutex::default(),
            runs_dir,
            runs_made: AtomicU64::new(0),
            live: Arc::default(),
        })
    }

    fn take_checkpoint(&self, number: u64) -> Arc<RocksCheckpoint> {
        let checkpoint = Arc::new(RocksCheckpoint {
            db: OnceLock::new(),
            opening: Mutex::default(),
            cache: self.cache.clone(),
            floors: self.floors.clone(),
            dir: self.checkpoints_dir.join(number.to_string()),
            remove_on_drop: AtomicBool::new(false),
        });
        self.open_checkpoints.lock().insert(number, Arc::downgrade(&checkpoint));
        checkpoint
    }
}

fn family(db: &DB, column: Column) -> &ColumnFamily {
    db.cf_handle(column.name()).expect("every column was opened with the database")
}

impl RocksBackend {
    /// The column's files that hold keys below this one alone.
    fn files_below(&self, column: Column, below: &[u8]) -> Result<Vec<LiveFile>, StorageError> {
        let mut files = self.db.live_files()?;
        files.retain(|file| {
            file.column_family_name == column.name() && file.end_key.as_deref().is_some_and(|key| key < below)
        });
        Ok(files)
    }

    fn sum(&self, files: &[LiveFile]) -> Dropped {
        let mut dropped = Dropped::default();
        for file in files {
            let path = self.files_dir.join(file.name.trim_start_matches('/'));
            // A file that is gone meanwhile is held by nobody.
            let held = fs::metadata(path).is_ok_and(|found| found.nlink() > 1);
            dropped.bytes += file.size as u64;
            dropped.bytes_in_snapshots += if held { file.size as u64 } else { 0 };
        }
        dropped
    }
}

impl Backend for RocksBackend {
    fn write(&self, batch: WriteBatch, durable: bool) -> Result<(), StorageError> {
        let mut writes = rocksdb::WriteBatch::default();
        for write in batch.0 {
            match write {
                Write::Put(column, key, value) => writes.put_cf(family(&self.db, column), key, value),
                Write::Delete(column, key) => writes.delete_cf(family(&self.db, column), key),
                Write::Rows(column, rows) => {
                    let family = family(&self.db, column);
                    for (path, row) in rows.iter() {
                        match row {
                            Some(row) => writes.put_cf(family, path.0, row),
                            None => writes.delete_cf(family, path.0),
                        }
                    }
                }
                Write::Clear(column) => {
                    writes.delete_range_cf(family(&self.db, column), &[][..], &ABOVE_ALL_KEYS[..]);
                }
                Write::ClearRange(column, first, mut end) => {
                    // The end is not included: the key right above the last is the last and a zero byte.
                    end.push(0);
                    writes.delete_range_cf(family(&self.db, column), first, end);
                }
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(durable);
        Ok(self.db.write_opt(writes, &options)?)
    }

    fn size(&self, column: Column) -> Result<ColumnSize, StorageError> {
        let family = family(&self.db, column);
        let property =
            |name: &str| Ok::<_, StorageError>(self.db.property_int_value_cf(family, name)?.unwrap_or(0));
        let bytes = property("rocksdb.live-sst-files-size")? + property("rocksdb.cur-size-all-mem-tables")?;
        Ok(ColumnSize { keys: property("rocksdb.estimate-num-keys")?, bytes })
    }

    fn read_counts(&self) -> ReadCounts {
        let count = |ticker| self.options.get_ticker_count(ticker);
        ReadCounts {
            keys: count(Ticker::NumberKeysRead) + count(Ticker::NumberMultigetKeysRead),
            blocks: count(Ticker::BlockCacheDataMiss),
        }
    }

    fn drop_cached(&self) {
        // What is in use, and so the pinned index and filter blocks, stays.
        let mut cache = self.cache.clone();
        cache.set_capacity(0);
        cache.set_capacity(self.cache_bytes);
    }

    fn droppable(&self, column: Column, below: &[u8]) -> Result<Dropped, StorageError> {
        Ok(self.sum(&self.files_below(column, below)?))
    }

    fn drop_below(&self, column: Column, below: &[u8]) -> Result<Dropped, StorageError> {
        let mut files = self.files_below(column, below)?;
        if files.iter().any(|file| file.level == 0) {
            // RocksDB drops no file of level 0. They do not overlap, so this moves them down as they are.
            let mut options = CompactOptions::default();
            options.set_exclusive_manual_compaction(false);
            let family = family(&self.db, column);
            self.db.compact_range_cf_opt(family, None::<&[u8]>, Some(below), &options);
            files = self.files_below(column, below)?;
            files.retain(|file| file.level > 0);
        }
        let Some(last) = files.iter().filter_map(|file| file.end_key.as_ref()).max() else {
            return Ok(Dropped::default());
        };
        let dropped = self.sum(&files);
        self.db.delete_file_in_range_cf(family(&self.db, column), &[][..], &last[..])?;
        Ok(dropped)
    }

    fn forget_transactions_below(&self, number: u64) {
        self.floors.index.store(number, Ordering::Relaxed);
    }

    fn forget_history_up_to(&self, number: u64) {
        self.floors.history.store(number, Ordering::Release);
    }

    fn snapshot(&self) -> Arc<dyn Reader> {
        let pinned = Pinned { db: Arc::clone(&self.db), _live: Arc::clone(&self.live) };
        Arc::new(OwnedSnapshot::new(pinned, |pinned| pinned.db.snapshot()))
    }

    fn has_older_readers(&self) -> bool {
        // One is this backend's own.
        Arc::strong_count(&self.live) > 2
    }

    fn prepare_checkpoint(&self) -> Result<(), StorageError> {
        let mut families = Vec::new();
        for column in Column::ALL {
            let family = family(&self.db, column);
            let in_memory = self.db.property_int_value_cf(family, "rocksdb.cur-size-active-mem-table")?;
            if !is_blobs(column) || in_memory.unwrap_or(0) >= BLOB_FLUSH_BYTES_MIN {
                families.push(family);
            }
        }
        let mut options = FlushOptions::default();
        options.set_wait(false);
        Ok(self.db.flush_cfs_opt(&families, &options)?)
    }

    fn sorted_run(&self, column: Column) -> Result<Box<dyn SortedRun>, StorageError> {
        let name = format!("{}.sst", self.runs_made.fetch_add(1, Ordering::Relaxed));
        // The rows must lie in their file as they would in any other of the column.
        let shape = Shape { cache: &self.cache, pin_indexes: true, floors: &self.floors };
        let options = column_options(column, &shape);
        run::begin(Arc::clone(&self.db), column, options, self.runs_dir.join(name))
    }

    fn reclaim(&self, column: Column) -> Result<(), StorageError> {
        let (family, all) = (family(&self.db, column), (&[][..], &ABOVE_ALL_KEYS[..]));
        // Dropping files takes them from older snapshots too. The head's own, which reads the other column, does not count.
        if !self.has_older_readers() {
            self.db.delete_file_in_range_cf(family, all.0, all.1)?;
        }
        let mut rest = self.db.raw_iterator_cf(family);
        rest.seek_to_first();
        let empty = !rest.valid();
        rest.status()?;
        drop(rest);
        if !empty {
            // What is not in a file of its own yet. The tombstone goes in the compaction, or every run that is
            // ingested later would have to stay above it.
            self.db.delete_range_cf(family, all.0, all.1)?;
        }
        self.db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
        Ok(())
    }

    fn checkpoint(&self, number: u64) -> Result<Arc<dyn Reader>, StorageError> {
        let dir = self.checkpoints_dir.join(number.to_string());
        // One that was above the head after a start: nothing of it is lost any more.
        remove_dir(&dir);
        // RocksDB makes it under another name and renames it, so that a directory with a plain number is whole. The
        // memtables are not flushed, which would take a quarter of a second: the log goes along instead.
        Checkpoint::new(&self.db)?.create_checkpoint_with_log_size(&dir, u64::MAX)?;
        Ok(self.take_checkpoint(number))
    }

    fn checkpoints(&self) -> Result<Vec<NumberedReader>, StorageError> {
        let dir = &self.checkpoints_dir;
        let mut found: Vec<NumberedReader> = Vec::new();
        for entry in fs::read_dir(dir).map_err(|e| StorageError::io("list", dir, e))? {
            let path = entry.map_err(|e| StorageError::io("list", dir, e))?.path();
            let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            match number {
                Some(number) => found.push((number, self.take_checkpoint(number))),
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
