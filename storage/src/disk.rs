//! [`DiskGuard`]: stops writing while there is still room. After a write fails on a full disk, the store must
//! restart, because nobody knows how much of it arrived. A store that stops earlier continues once there is room
//! again.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{config::StorageConfig, error::StorageError};

/// Below this multiple of the minimum the operator is warned; on a small disk that is hours before the node stops.
const WARN_FACTOR: u64 = 2;
/// Above this multiple of the minimum the warning is over, and another may come. It is higher than [`WARN_FACTOR`],
/// so that a disk at the edge does not warn at every file that comes and goes.
const CALM_FACTOR: u64 = 3;

/// Below the first number of free inodes nothing is written: a flush, a compaction and a snapshot make some dozens of
/// files. Below the second number the operator is warned.
const INODES_MIN: u64 = 128;
const INODES_WARN: u64 = 1_024;

/// Returns the number of free bytes.
type FreeBytes = dyn Fn() -> io::Result<u64> + Send + Sync;

/// The free space on a store's file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskRoom {
    /// Bytes that are free for this program now.
    pub free_bytes: u64,
    /// Below this many free bytes nothing is written: `storage.disk_free_min_mib`. 0 sets no limit.
    pub min_bytes: u64,
    /// Files that can still be created; `None` if the file system does not count them.
    pub free_inodes: Option<u64>,
}

/// Checks how much is free before every write. A check takes about a microsecond, while a commit waits milliseconds
/// for the disk. Others write to the same file system, so the store's own counts could not tell when to check.
pub(crate) struct DiskGuard {
    dir: PathBuf,
    min_bytes: u64,
    free_bytes: Box<FreeBytes>,
    /// Whether the directory's file system can be queried for its inodes.
    counts_inodes: bool,
    warned: AtomicBool,
    warned_of_inodes: AtomicBool,
}

impl fmt::Debug for DiskGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskGuard of {}", self.dir.display())
    }
}

impl DiskGuard {
    /// Creates a guard over the file system of a directory.
    pub(crate) fn of_directory(config: &StorageConfig, dir: &Path) -> DiskGuard {
        let asked = dir.to_owned();
        let free_bytes = move || {
            let found = rustix::fs::statvfs(&asked)?;
            Ok(found.f_bavail.saturating_mul(found.f_frsize))
        };
        DiskGuard { counts_inodes: true, ..Self::new(dir, config.disk_free_min_mib, free_bytes) }
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
            counts_inodes: false,
            warned: AtomicBool::new(false),
            warned_of_inodes: AtomicBool::new(false),
        }
    }

    /// The store's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Queries the file system.
    pub(crate) fn room(&self) -> Result<DiskRoom, StorageError> {
        let free_bytes = (self.free_bytes)()
            .map_err(|error| StorageError::io("ask for the free space of", &self.dir, error))?;
        Ok(DiskRoom { free_bytes, min_bytes: self.min_bytes, free_inodes: self.free_inodes()? })
    }

    fn free_inodes(&self) -> Result<Option<u64>, StorageError> {
        if !self.counts_inodes {
            return Ok(None);
        }
        let found = rustix::fs::statvfs(&self.dir)
            .map_err(|error| StorageError::io("ask for the free inodes of", &self.dir, error.into()))?;
        // Some file systems create inodes as they are needed, and report that they have none.
        Ok((found.f_files > 0).then_some(found.f_favail))
    }

    /// Refuses a write while too few files can be created.
    fn check_inodes(&self, free: Option<u64>) -> Result<(), StorageError> {
        let Some(free) = free else { return Ok(()) };
        if free < INODES_MIN {
            return Err(StorageError::InodesLow { free, min: INODES_MIN, dir: self.dir.clone() });
        }
        if free >= INODES_WARN {
            self.warned_of_inodes.store(false, Ordering::Relaxed);
        } else if !self.warned_of_inodes.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                free,
                min = INODES_MIN,
                dir = %self.dir.display(),
                "the file system is running out of inodes: the node stops below the minimum; remove files (`df -i` shows the inodes)"
            );
        }
        Ok(())
    }

    /// Refuses to write these bytes while too little space is free.
    pub(crate) fn check_bytes(&self, bytes: u64) -> Result<(), StorageError> {
        if self.min_bytes == 0 {
            return self.check_inodes(self.free_inodes()?);
        }
        let DiskRoom { free_bytes, min_bytes, free_inodes } = self.room()?;
        self.check_inodes(free_inodes)?;
        let (free_mib, min_mib) = (free_bytes >> 20, min_bytes >> 20);
        if free_bytes.saturating_sub(bytes) < min_bytes {
            return Err(StorageError::DiskLow { free_mib, min_mib, dir: self.dir.clone() });
        }
        if free_bytes < min_bytes.saturating_mul(WARN_FACTOR) {
            if !self.warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    free_mib,
                    min_mib,
                    dir = %self.dir.display(),
                    "the disk is filling up: the node stops when free space falls below storage.disk_free_min_mib; make room, or prune"
                );
            }
        } else if free_bytes >= min_bytes.saturating_mul(CALM_FACTOR) {
            self.warned.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}
