//! Checkpoints: directories of hard links beside the database.

use std::{
    fs,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use rocksdb::{FlushOptions, checkpoint::Checkpoint};

use super::{REMOVING, RocksBackend, family, read::RocksCheckpoint, remove_checkpoint, remove_dir};
use crate::{
    backend::{Checkpoints, Column, NumberedReader, Reader, options::is_blobs},
    error::StorageError,
};

/// Before a checkpoint, each column with at least this many bytes in memory is flushed, and one smaller column in
/// turn. Flushing all columns, and compacting the resulting files, took a tenth of a validator's CPU at ten
/// transactions a batch. The checkpoint's first reader replays the other columns' rows from the log.
const ROW_FLUSH_BYTES_MIN: u64 = 2 << 20;
/// The same for columns of blobs. Their files are never merged, so each flush leaves one for good.
const BLOB_FLUSH_BYTES_MIN: u64 = 8 << 20;
/// What RocksDB appends to the name of an unfinished checkpoint.
const MAKING: &str = "tmp";

/// Whether a directory has the name of a checkpoint that is being made or removed.
fn is_unfinished(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == MAKING || extension == REMOVING)
}

impl RocksBackend {
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

impl Checkpoints for RocksBackend {
    fn prepare_checkpoint(&self) -> Result<(), StorageError> {
        let mut families = Vec::new();
        let mut small = Vec::new();
        for &column in Column::ALL {
            let family = family(&self.db, column);
            let property = |name| self.db.property_int_value_cf(family, name);
            let bytes_min = if is_blobs(column) { BLOB_FLUSH_BYTES_MIN } else { ROW_FLUSH_BYTES_MIN };
            if property("rocksdb.cur-size-active-mem-table")?.unwrap_or(0) >= bytes_min {
                families.push(family);
            } else if !is_blobs(column) && property("rocksdb.num-entries-active-mem-table")? > Some(0) {
                small.push(family);
            }
        }
        // Each flush starts a new log file. The checkpoint links the older log files and copies only the newest.
        let turn = self.flush_turn.fetch_add(1, Ordering::Relaxed);
        families.extend(small.get(turn % small.len().max(1)));
        let mut options = FlushOptions::default();
        options.set_wait(false);
        Ok(self.db.flush_cfs_opt(&families, &options)?)
    }

    fn checkpoint(&self, number: u64) -> Result<Arc<dyn Reader>, StorageError> {
        let dir = self.checkpoints_dir.join(number.to_string());
        // A checkpoint that was above the head at a start may remain. The store has committed its batches again since.
        remove_checkpoint(&dir);
        // RocksDB makes it under another name and renames it, so that a directory with a plain number is complete.
        // The memtables are not flushed, which would take a quarter of a second: the log is copied along instead.
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
                // Left by a kill in the middle of making or removing it. What an operator put here stays.
                None if is_unfinished(&path) => remove_dir(&path),
                None => {}
            }
        }
        found.sort_unstable_by_key(|(number, _)| *number);
        Ok(found)
    }

    fn remove_checkpoint(&self, number: u64) -> Result<(), StorageError> {
        let open = self.open_checkpoints.lock().remove(&number).and_then(|weak| weak.upgrade());
        match open {
            Some(checkpoint) => checkpoint.remove_on_drop.store(true, Ordering::Release),
            None => remove_checkpoint(&self.checkpoints_dir.join(number.to_string())),
        }
        Ok(())
    }
}
