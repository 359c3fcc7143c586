//! [`MemoryDisk`]: the part of a store in memory that outlives its process, so that a simulator can crash and restart
//! it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    backend::{faulty::FaultyBackend, memory::MemoryBackend},
    config::StorageConfig,
    crash::{CrashPoint, Faults, WriteStep},
    error::StorageError,
    store::Store,
};

/// A disk in memory, for one store at a time. A clone is the same disk.
#[derive(Clone)]
pub struct MemoryDisk(Arc<Mutex<MemoryBackend>>);

impl Default for MemoryDisk {
    fn default() -> Self {
        MemoryDisk(Arc::new(Mutex::new(MemoryBackend::with_crashes())))
    }
}

impl MemoryDisk {
    /// Number of writes that were not synced, and that a power cut may lose.
    pub fn unsynced(&self) -> usize {
        self.0.lock().unsynced()
    }

    /// Kills the process on this disk, and cuts the power. Of the unsynced writes the first `kept` survive; `usize::MAX`
    /// means a kill, which loses none. Older handles no longer affect the disk, and may be dropped later.
    pub fn crash(&self, kept: usize) {
        let mut backend = self.0.lock();
        *backend = backend.after_crash(kept);
    }
}

impl Store {
    /// As [`Store::open_with`], on a disk in memory, with the data left there.
    ///
    /// # Errors
    /// Those of [`Store::open_with`], except for directories and locks.
    #[doc(hidden)]
    pub fn memory_on(
        disk: &MemoryDisk,
        config: &StorageConfig,
        faults: &Faults,
    ) -> Result<Store, StorageError> {
        faults.pass(CrashPoint::Before(WriteStep::Open))?;
        let backend = Arc::new(disk.0.lock().clone());
        let store = Self::with_backend(config, FaultyBackend::wrap(backend, faults))?;
        faults.pass(CrashPoint::After(WriteStep::Open))?;
        Ok(store)
    }
}
