//! RocksDB: one column family per [`Column`], a write-ahead log that is synced per durable write, hard-linked checkpoints.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use rocksdb::{Cache, ColumnFamily, DB, Options, WriteOptions, statistics::StatsLevel};

use super::{
    Column, Reader, RowStore, SortedFile, Write, WriteBatch,
    options::{Floors, Shape, column_options, columns},
};
use crate::{
    config::{StateHistory, StorageConfig},
    directory::{DATABASE_DIR, DirectoryContent, Mark, MarkFile, SNAPSHOTS_DIR, format},
    error::StorageError,
    open_files::OpenFilesShare,
};

mod checkpoints;
mod read;
mod sorted_file;
mod upkeep;

pub(crate) use read::RocksCheckpoint;
use read::{ALL_FILES, OwnedSnapshot, Pinned};

/// Memory for rows not yet in a file, over all columns; above it a flush begins.
const WRITE_BUFFERS_BYTES_MAX: usize = 96 << 20;
/// Log bytes above which the columns that need the oldest log are flushed; bounds how long opening replays the log.
const LOG_BYTES_MAX: u64 = 256 << 20;
/// Seconds that RocksDB waits before it rewrites a lowest-level file. It rewrites a file once the snapshots that were
/// open when the file was made are gone, to free their old rows. The history holds a series of snapshots, so such a
/// rewrite would follow every compaction. The next compaction frees most of these rows anyway.
const BOTTOM_DELAY: (&str, &str) = ("bottommost_file_compaction_delay", "3600");
/// File extension of a checkpoint that is being removed.
const REMOVING: &str = "gone";
/// A key above every key of any column: the longest fixed keys, a path and a batch, have 40 bytes. Records are never
/// cleared.
const ABOVE_ALL_KEYS: [u8; 41] = [0xff; 41];

/// The store's database.
pub(crate) struct RocksBackend {
    db: Arc<DB>,
    cache: Cache,
    cache_bytes: usize,
    /// The options that the database was opened with; RocksDB counts reads there.
    options: Options,
    files_dir: PathBuf,
    floors: Floors,
    checkpoints_dir: PathBuf,
    /// Checkpoints that have readers.
    open_checkpoints: Mutex<BTreeMap<u64, Weak<RocksCheckpoint>>>,
    /// Counts the flushes before checkpoints, to select the column whose turn it is.
    flush_turn: AtomicUsize,
    /// Where sorted files are written before they move into their column; emptied at every start.
    sorted_files_dir: PathBuf,
    sorted_files_made: AtomicU64,
    /// Shared by all live snapshots. Its reference count is one more than their number.
    live: Arc<()>,
    /// `None` without `fsync`: a power cut may then take what was acknowledged.
    acknowledged: Option<MarkFile>,
}

impl Drop for RocksBackend {
    fn drop(&mut self) {
        if let Some(acknowledged) = &self.acknowledged {
            // The list of files may change until here.
            self.db.cancel_all_background_work(true);
            acknowledged.note(0);
        }
    }
}

fn remove_dir(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(dir = %dir.display(), %error, "cannot remove an old snapshot: remove it by hand");
    }
}

/// Removes a checkpoint. Renames it first, so that another process that opens it finds all of it or nothing.
fn remove_checkpoint(dir: &Path) {
    let aside = dir.with_extension(REMOVING);
    remove_dir(&aside);
    match dir.is_dir() && fs::rename(dir, &aside).is_ok() {
        true => remove_beside(aside),
        // Removes `dir` if it is not a directory or could not be renamed, or reports why it stays.
        false => remove_dir(dir),
    }
}

/// Removes a directory on a separate thread: a checkpoint has hundreds of files, and the caller commits batches. If
/// no thread starts, the directory stays until the next start.
fn remove_beside(dir: PathBuf) {
    let removed = std::thread::Builder::new().name("snapshots".into()).spawn(move || remove_dir(&dir));
    if let Err(error) = removed {
        tracing::warn!(%error, "cannot remove an old snapshot now: the next start removes it");
    }
}

fn common_options(open_files_max: i32) -> Options {
    let mut options = Options::default();
    options.set_max_open_files(open_files_max);
    options.set_keep_log_file_num(4);
    options.set_max_log_file_size(4 << 20);
    // The manifest lists closed logs with their lengths, so that a missing one is noticed. Read-only opens need the
    // option too, or RocksDB crashes over this list.
    options.set_track_and_verify_wals_in_manifest(true);
    options
}

/// A database exactly as a store would open it in `dir`, with no store above it: the baseline of benchmarks. Its
/// columns are those of docs/formats.md.
///
/// # Errors
/// [`StorageError::Locked`], or errors of the disk.
pub fn plain_database(config: &StorageConfig, dir: &Path) -> Result<DB, StorageError> {
    let options = database_options(config, DirectoryContent::Nothing);
    open_database(&options, dir, &block_cache(config), &Floors::default())
}

/// The options of a state column's files, for callers of [`plain_database`] that write some themselves.
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

/// Lets RocksDB create only what may be missing. If a manifest were lost, RocksDB would otherwise make a new database
/// and remove the old tables.
fn database_options(config: &StorageConfig, content: DirectoryContent) -> Options {
    let mut options = common_options(OpenFilesShare::of_process().tables as i32);
    // Counters alone, kept per core: timers and histograms would cost more than they are worth.
    options.enable_statistics();
    options.set_statistics_level(StatsLevel::ExceptHistogramOrTimers);
    options.set_use_direct_reads(config.direct_reads);
    options.create_if_missing(matches!(content, DirectoryContent::Nothing | DirectoryContent::Begun));
    options.create_missing_column_families(content != DirectoryContent::Store);
    options.set_db_write_buffer_size(WRITE_BUFFERS_BYTES_MAX);
    options.set_max_total_wal_size(LOG_BYTES_MAX);
    options.set_bytes_per_sync(1 << 20);
    options
}

fn open_database(options: &Options, dir: &Path, cache: &Cache, floors: &Floors) -> Result<DB, StorageError> {
    let shape = Shape { cache, pin_indexes: true, floors };
    let dir_of_db = dir.join(DATABASE_DIR);
    DB::open_cf_descriptors(options, dir_of_db, columns(shape)).map_err(|error| refusal(error, dir))
}

/// Returns the reason why a database did not open.
fn refusal(error: rocksdb::Error, dir: &Path) -> StorageError {
    // A closed log is gone or shorter. RocksDB gives its number, but not the file's name.
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
    let log =
        error.as_ref().split_once("log number: ").and_then(|(_, rest)| digits(rest).parse::<u64>().ok());
    if let Some(number) = log {
        return StorageError::cut(
            dir,
            &format!("{number:06}.log is missing or was changed ({})", error.as_ref()),
        );
    }
    // RocksDB has no error code for this.
    let locked = ["While lock file", "lock hold by current process"];
    match locked.iter().any(|text| error.as_ref().contains(text)) {
        true => StorageError::Locked { dir: dir.to_owned() },
        // A file that the manifest lists is missing.
        false if error.as_ref().contains("No such file or directory") => {
            StorageError::incomplete(dir, &format!("a file ({})", error.as_ref()))
        }
        // A manifest whose end is lost may lack columns; one of this release's format has them all.
        false if error.kind() == rocksdb::ErrorKind::InvalidArgument => {
            StorageError::corrupt(format!("{}: {}", dir.display(), error.as_ref()))
        }
        false => error.into(),
    }
}

impl RocksBackend {
    /// Opens the database in the existing directory `dir`, or creates one if `dir` has no part of a store.
    pub(crate) fn open(
        config: &StorageConfig,
        dir: &Path,
        content: DirectoryContent,
    ) -> Result<RocksBackend, StorageError> {
        Self::open_with(database_options(config, content), config, dir, content)
    }

    /// As [`RocksBackend::open`], but leaves the logs' content in the logs: a full disk has no room for tables.
    pub(crate) fn open_unflushed(
        config: &StorageConfig,
        dir: &Path,
        content: DirectoryContent,
    ) -> Result<RocksBackend, StorageError> {
        let options =
            database_options(config, content).get_options_from_string("avoid_flush_during_recovery=true")?;
        Self::open_with(options, config, dir, content)
    }

    fn open_with(
        options: Options,
        config: &StorageConfig,
        dir: &Path,
        content: DirectoryContent,
    ) -> Result<RocksBackend, StorageError> {
        let cache = block_cache(config);
        let floors = Floors::default();
        let files_dir = dir.join(DATABASE_DIR);
        let mark = match content {
            DirectoryContent::Store => {
                let mark = Mark::read(dir)?;
                // If opened for writing, RocksDB would remove the rest of a log that lost its end.
                open_files_of(config, &files_dir)?.check(dir, &mark)?;
                mark
            }
            DirectoryContent::Nothing | DirectoryContent::Begun => Mark::default(),
        };
        let db = open_database(&options, dir, &cache, &floors)?;
        if config.state_history != StateHistory::Batches(0) {
            for column in [Column::StateA, Column::StateB, Column::History] {
                db.set_options_cf(family(&db, column), &[BOTTOM_DELAY])?;
            }
        }
        let checkpoints_dir = dir.join(SNAPSHOTS_DIR);
        fs::create_dir_all(&checkpoints_dir).map_err(|e| StorageError::io("create", &checkpoints_dir, e))?;
        let sorted_files_dir = dir.join("runs");
        remove_dir(&sorted_files_dir);
        fs::create_dir_all(&sorted_files_dir)
            .map_err(|e| StorageError::io("create", &sorted_files_dir, e))?;
        format::mark(dir)?;
        let acknowledged = config.fsync.then(|| MarkFile::open(dir, mark)).transpose()?;
        Ok(RocksBackend {
            db: Arc::new(db),
            cache,
            cache_bytes: cache_bytes(config),
            options,
            files_dir,
            floors,
            checkpoints_dir,
            open_checkpoints: Mutex::default(),
            flush_turn: AtomicUsize::new(0),
            sorted_files_dir,
            sorted_files_made: AtomicU64::new(0),
            live: Arc::default(),
            acknowledged,
        })
    }
}

/// Opens one moment of a database that another process has open, by its directory. It opens all files at once,
/// because that process may remove them at any time.
pub(crate) fn open_read_only(
    config: &StorageConfig,
    files: &Path,
) -> Result<Arc<RocksCheckpoint>, StorageError> {
    RocksCheckpoint::open_at(files.to_owned(), block_cache(config), ALL_FILES).map(Arc::new)
}

/// Opens a database read-only, with few of its files open at a time. Writes nothing.
pub(crate) fn open_files_of(config: &StorageConfig, files: &Path) -> Result<RocksCheckpoint, StorageError> {
    let open_files = OpenFilesShare::of_process().of_checkpoint as i32;
    RocksCheckpoint::open_at(files.to_owned(), block_cache(config), open_files)
}

fn family(db: &DB, column: Column) -> &ColumnFamily {
    db.cf_handle(column.name()).expect("every column was opened with the database")
}

impl RowStore for RocksBackend {
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
                    // The end is excluded. The key right above the last one is the last one with a zero byte.
                    end.push(0);
                    writes.delete_range_cf(family(&self.db, column), first, end);
                }
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(durable);
        // The log is synced with everything before this write. An empty write adds nothing to it.
        let change = match writes.len() as u64 {
            0 => 0,
            changes => self.db.latest_sequence_number() + changes,
        };
        self.db.write_opt(writes, &options)?;
        if let Some(acknowledged) = self.acknowledged.as_ref().filter(|_| durable) {
            acknowledged.note(change);
        }
        Ok(())
    }

    fn sorted_file(&self, column: Column) -> Result<Box<dyn SortedFile>, StorageError> {
        let name = format!("{}.sst", self.sorted_files_made.fetch_add(1, Ordering::Relaxed));
        // The file must be laid out like any other of the column.
        let shape = Shape { cache: &self.cache, pin_indexes: true, floors: &self.floors };
        let options = column_options(column, &shape);
        sorted_file::begin(Arc::clone(&self.db), column, options, self.sorted_files_dir.join(name))
    }

    fn snapshot(&self) -> Arc<dyn Reader> {
        let pinned = Pinned { db: Arc::clone(&self.db), _live: Arc::clone(&self.live) };
        Arc::new(OwnedSnapshot::new(pinned, |pinned| pinned.db.snapshot()))
    }

    fn has_readers_beyond(&self, known: usize) -> bool {
        // One reference is this backend's own.
        Arc::strong_count(&self.live) > 1 + known
    }
}
