//! [`Maintenance`]: a store that no node runs on. It opens without its tree: at once, and even if the state is
//! damaged.

use std::path::{Path, PathBuf};

use slipstream_types::BatchNumber;

use crate::{
    backend::{
        Column, ColumnSize, Reader, RowStore as _, Upkeep as _, WriteBatch,
        rocks::{RocksBackend, open_files_of},
    },
    check::{self, CheckProgress, CheckReport},
    config::{PruneConfig, StorageConfig},
    directory::{self, DATABASE_DIR, Mark},
    error::StorageError,
    floors::{KeptRange, kept_ranges, read_headers_floor, read_record},
    prune::{self, PruneReport, drop_files},
    reserve::Reserve,
    schema::{self, HEAD_KEY, HeadRecord, RESTORE_KEY, RestoreRecord},
    store::Store,
};

/// An opened directory. Only one process can have it open: stop the node first.
pub struct Maintenance {
    pub(crate) backend: RocksBackend,
    pub(crate) config: StorageConfig,
    pub(crate) dir: PathBuf,
    /// Dropped last: the reserve is made again once the database is closed.
    _reserve: Reserve,
}

/// Counts what a store holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreStats {
    /// The last committed batch, or `None` without a genesis.
    pub head: Option<BatchNumber>,
    /// The batch whose state is being restored.
    pub restoring: Option<BatchNumber>,
    /// The blobs that are kept and served, per kind.
    pub kept: Vec<KeptRange>,
    /// The batch below which headers were pruned; 0 if none was.
    pub headers_floor: BatchNumber,
    /// The size of each column.
    pub columns: Vec<ColumnStats>,
}

/// Counts the rows and bytes of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnStats {
    /// The column's name, as docs/formats.md lists it.
    pub name: &'static str,
    /// An estimate: overwritten or deleted rows may still count.
    pub keys: u64,
    /// Bytes in files and in memory.
    pub bytes: u64,
}

impl Maintenance {
    /// Opens the store in a directory, which must have one.
    ///
    /// # Errors
    /// As [`crate::Store::open`], except for damage that shows only in the state.
    pub fn open(config: &StorageConfig, dir: &Path) -> Result<Maintenance, StorageError> {
        let content = directory::expect(dir)?;
        let reserve = Reserve::lend(dir);
        let backend = RocksBackend::open_unflushed(config, dir, content)?;
        Ok(Maintenance { backend, config: config.clone(), dir: dir.to_owned(), _reserve: reserve })
    }

    /// Counts what the store holds. Cheap: RocksDB keeps these sizes.
    pub fn stats(&self) -> Result<StoreStats, StorageError> {
        stats(&self.backend, |column| self.backend.size(column))
    }

    /// Reads everything, so RocksDB verifies its checksums, and compares parts that must match. It checks headers with
    /// their accumulator and certificates, blobs against headers, rows against the state root, and that all code is
    /// there.
    ///
    /// # Errors
    /// If the check itself cannot continue; the report has the damage.
    pub fn check(&self, progress: &mut dyn FnMut(CheckProgress)) -> Result<CheckReport, StorageError> {
        check::check(&self.backend, self.config.tree_memory_mib, progress)
    }

    /// Applies the windows of blobs now, or with `dry_run` only reports what that would drop. Only a running store
    /// prunes headers, because it knows who needs them.
    pub fn prune(&self, windows: &PruneConfig, dry_run: bool) -> Result<Vec<PruneReport>, StorageError> {
        let head = self.head()?.ok_or(StorageError::NotInitialized)?;
        let pruned = read_record(&self.backend)?;
        let target = prune::target(&self.backend, &head, &pruned, windows)?;
        if !dry_run && target != pruned {
            self.backend.write(prune::record_write(&target), true)?;
        }
        drop_files(&self.backend, &target, dry_run)
    }

    /// Returns a small named record of another crate, as [`crate::Store::record`] does.
    pub fn record(&self, key: &str) -> Result<Option<Vec<u8>>, StorageError> {
        self.backend.get(Column::Records, key.as_bytes())
    }

    /// Sets a named record. It is in the log on disk when this returns.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn put_record(&self, key: &str, value: &[u8]) -> Result<(), StorageError> {
        let mut writes = WriteBatch::default();
        writes.put(Column::Records, key, value);
        self.backend.write(writes, true)
    }

    /// Removes a named record. The removal is in the log on disk when this returns.
    pub fn remove_record(&self, key: &str) -> Result<(), StorageError> {
        let mut writes = WriteBatch::default();
        writes.delete(Column::Records, key);
        self.backend.write(writes, true)
    }

    fn head(&self) -> Result<Option<HeadRecord>, StorageError> {
        head(&self.backend)
    }
}

/// Counts what the store in a directory holds. It writes nothing, so it also works on a full disk.
///
/// # Errors
/// As [`Maintenance::open`].
pub fn stats_of(config: &StorageConfig, dir: &Path) -> Result<StoreStats, StorageError> {
    directory::expect(dir)?;
    let mark = Mark::read(dir)?;
    let reader = open_files_of(config, &dir.join(DATABASE_DIR))?;
    reader.check(dir, &mark)?;
    stats(&reader, |column| reader.size(column))
}

impl Store {
    /// Counts what the store holds while a node runs on it. It takes RocksDB's lock for each column while it walks the file
    /// names: milliseconds on a large store. So call it rarely.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn stats(&self) -> Result<StoreStats, StorageError> {
        stats(&*self.0.backend, |column| self.0.backend.size(column))
    }
}

fn stats(
    reader: &dyn Reader,
    size: impl Fn(Column) -> Result<ColumnSize, StorageError>,
) -> Result<StoreStats, StorageError> {
    let head = head(reader)?;
    let pruned = read_record(reader)?;
    let restore = reader.get(Column::Meta, RESTORE_KEY)?;
    let restore =
        restore.map(|bytes| schema::decode::<RestoreRecord>("restore record", &bytes)).transpose()?;
    let columns = Column::ALL.iter().copied().map(|column| {
        let size = size(column)?;
        Ok(ColumnStats { name: column.name(), keys: size.keys, bytes: size.bytes })
    });
    Ok(StoreStats {
        head: head.map(|head| head.number),
        restoring: restore.map(|record| record.header.number),
        headers_floor: read_headers_floor(reader)?,
        kept: head.map(|head| kept_ranges(&head, &pruned)).unwrap_or_default(),
        columns: columns.collect::<Result<_, StorageError>>()?,
    })
}

fn head(reader: &dyn Reader) -> Result<Option<HeadRecord>, StorageError> {
    let bytes = reader.get(Column::Meta, HEAD_KEY)?;
    bytes.map(|bytes| schema::decode("head record", &bytes)).transpose()
}
