//! [`DiskGuard`]: stops writing while there is still room. A store whose disk runs full has to be restarted, because nobody
//! knows how much of a failed write arrived; one that stops before goes on when there is room again.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    backend::{Write, WriteBatch},
    config::StorageConfig,
    error::StorageError,
};

/// The file system is asked again after this many bytes: rarely enough to cost nothing beside a commit's sync, and far less
/// than what is kept free.
const CHECK_BYTES: u64 = 8 << 20;
/// What a write counts for at least, so that small ones get their turn.
const WRITE_BYTES_MIN: u64 = 128 << 10;

/// Tells the bytes that are free.
type FreeBytes = dyn Fn() -> io::Result<u64> + Send + Sync;

/// Asks how much is free, now and then.
pub(crate) struct DiskGuard {
    dir: PathBuf,
    min_bytes: u64,
    free_bytes: Box<FreeBytes>,
    /// Written since the file system was asked.
    unchecked_bytes: AtomicU64,
}

impl fmt::Debug for DiskGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskGuard of {}", self.dir.display())
    }
}

impl DiskGuard {
    /// A guard over the file system of a directory, none if none is wanted.
    pub(crate) fn of_directory(config: &StorageConfig, dir: &Path) -> Option<DiskGuard> {
        let asked = dir.to_owned();
        let free_bytes = move || {
            let found = rustix::fs::statvfs(&asked)?;
            Ok(found.f_bavail.saturating_mul(found.f_frsize))
        };
        (config.disk_free_min_mib > 0).then(|| Self::new(dir, config.disk_free_min_mib, free_bytes))
    }

    pub(crate) fn new(
        dir: &Path,
        min_mib: u64,
        free_bytes: impl Fn() -> io::Result<u64> + Send + Sync + 'static,
    ) -> DiskGuard {
        DiskGuard {
            dir: dir.to_owned(),
            min_bytes: min_mib.saturating_mul(1 << 20),
            free_bytes: Box::new(free_bytes),
            unchecked_bytes: AtomicU64::new(CHECK_BYTES),
        }
    }

    /// Refuses a write while too little is free. After a refusal every write asks, so that the first one after there is
    /// room goes through.
    pub(crate) fn check(&self, batch: &WriteBatch) -> Result<(), StorageError> {
        self.check_bytes(batch_bytes(batch))
    }

    /// As [`DiskGuard::check`], for what is written past a batch.
    pub(crate) fn check_bytes(&self, bytes: u64) -> Result<(), StorageError> {
        let bytes = bytes.max(WRITE_BYTES_MIN);
        if self.unchecked_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes < CHECK_BYTES {
            return Ok(());
        }
        let free = (self.free_bytes)()
            .map_err(|error| StorageError::io("ask for the free space of", &self.dir, error))?;
        if free.saturating_sub(bytes) < self.min_bytes {
            self.unchecked_bytes.store(CHECK_BYTES, Ordering::Relaxed);
            let (free_mib, min_mib) = (free >> 20, self.min_bytes >> 20);
            return Err(StorageError::DiskLow { free_mib, min_mib, dir: self.dir.clone() });
        }
        self.unchecked_bytes.store(0, Ordering::Relaxed);
        Ok(())
    }
}

fn batch_bytes(batch: &WriteBatch) -> u64 {
    let bytes = batch.0.iter().map(|write| match write {
        Write::Put(_, key, value) => key.len() + value.len(),
        Write::Delete(_, key) => key.len(),
        Write::Rows(_, rows) => rows.byte_len(),
        Write::Clear(_) => 0,
        Write::ClearRange(_, first, last) => first.len() + last.len(),
    });
    bytes.sum::<usize>() as u64
}
