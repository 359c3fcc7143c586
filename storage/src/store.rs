//! [`Store`]: the handle. [`crate::open`] opens and closes it.

use std::{
    collections::BTreeSet,
    fmt,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
};

use slipstream_types::{BatchNumber, BlobKind, Digest, Epoch};
use tokio::sync::watch;

use crate::{
    backend::{Backend, Column, WriteBatch},
    disk::DiskRoom,
    error::StorageError,
    schema,
    shared::{Head, HeadState, Shared},
};

/// The store. A clone is another handle to the same store. All methods may be called from any thread, and block.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<Shared>);

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Store at batch {:?}",
            self.0.current.read().as_ref().map(|current| current.record.number.get())
        )
    }
}

impl Store {
    /// Whether the store has a genesis.
    pub fn is_initialized(&self) -> bool {
        self.0.current.read().is_some()
    }

    /// The last committed batch.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn head(&self) -> Result<Head, StorageError> {
        Ok(self.current()?.head.clone())
    }

    /// Returns a receiver that sees the head's number after every change; 0 before genesis.
    pub fn watch_head(&self) -> watch::Receiver<BatchNumber> {
        self.0.head_sender.subscribe()
    }

    /// Returns how much room the store's file system has; `None` for a store in memory.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn disk_room(&self) -> Result<Option<DiskRoom>, StorageError> {
        self.0.disk.as_ref().map(|disk| disk.room()).transpose()
    }

    /// Directory of the frontier files, which hold the upper parts of trees; `None` for a store in memory.
    pub(crate) fn frontiers_dir(&self) -> Option<PathBuf> {
        self.0.frontiers.as_ref().map(|frontiers| frontiers.dir().to_owned())
    }

    /// Whether some rows were not compared with the tree since the store was opened.
    pub fn is_unread(&self) -> bool {
        self.0.unread.load(Ordering::Acquire)
    }

    /// Returns the last epoch whose validators are known: that of the genesis, or the one after the last stored epoch
    /// end.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.0.epoch.load(Ordering::Acquire))
    }

    /// Returns the batch below which no blob of the kind is served, because it was pruned; 0 before anything was.
    pub fn floor(&self, kind: BlobKind) -> BatchNumber {
        schema::kind_index(kind).map_or(BatchNumber::GENESIS, |index| self.0.floors.get(index))
    }

    /// Returns the batch below which no header is served except that of the genesis, because it was pruned; 0 before
    /// any was.
    pub fn headers_floor(&self) -> BatchNumber {
        self.0.floors.headers()
    }

    pub(crate) fn is_pruned(&self, kind: BlobKind, number: BatchNumber) -> bool {
        number < self.floor(kind)
    }

    /// Whether code with this Keccak-256 is stored.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn has_code(&self, hash: &Digest) -> Result<bool, StorageError> {
        Ok(self.0.backend.get(Column::Codes, &hash.0)?.is_some())
    }

    pub(crate) fn current(&self) -> Result<Arc<HeadState>, StorageError> {
        self.0.current.read().clone().ok_or(StorageError::NotInitialized)
    }

    /// Returns the version number for a new state.
    pub(crate) fn new_version(&self) -> u64 {
        self.0.versions.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn check_poison(&self) -> Result<(), StorageError> {
        if self.0.poisoned.load(Ordering::Acquire) { Err(StorageError::Poisoned) } else { Ok(()) }
    }

    /// Runs `work`, which writes without [`Store::write`]. A failure also poisons the store.
    pub(crate) fn guard<T>(
        &self,
        work: impl FnOnce(&dyn Backend) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.check_poison()?;
        work(&*self.0.backend).inspect_err(|error| {
            self.0.poisoned.store(true, Ordering::Release);
            tracing::error!(%error, "a write to the store failed: it refuses further work");
        })
    }

    /// Checks that the disk has room for `bytes` that are about to be written outside the store's own writes.
    ///
    /// # Errors
    /// [`StorageError::DiskLow`], [`StorageError::InodesLow`], or those of the file system.
    pub fn check_room(&self, bytes: u64) -> Result<(), StorageError> {
        self.0.disk.as_ref().map_or(Ok(()), |disk| disk.check_bytes(bytes))
    }

    /// Returns those of `hashes` whose code is not stored.
    pub(crate) fn unknown_codes(&self, hashes: &BTreeSet<Digest>) -> Result<Vec<Digest>, StorageError> {
        let keys: Vec<&[u8]> = hashes.iter().map(|hash| &hash.0[..]).collect();
        let stored = self.0.backend.multi_get(Column::Codes, &keys)?;
        let unknown = hashes.iter().zip(stored).filter(|(_, code)| code.is_none());
        Ok(unknown.map(|(hash, _)| *hash).collect())
    }

    /// Writes a batch; refuses it on a nearly full disk. A failed write poisons the store, because nobody knows how
    /// much of it arrived.
    pub(crate) fn write(&self, batch: WriteBatch, durable: bool) -> Result<(), StorageError> {
        self.check_poison()?;
        if let Some(disk) = &self.0.disk {
            disk.check_bytes(batch.byte_len() as u64)?;
        }
        self.write_unguarded(batch, durable && self.0.config.fsync)
    }

    /// As [`Store::write`], but also on a nearly full disk, and synced on request whatever the configuration says.
    pub(crate) fn write_unguarded(&self, batch: WriteBatch, sync: bool) -> Result<(), StorageError> {
        self.check_poison()?;
        if let Some(frontiers) = &self.0.frontiers {
            frontiers.note(&batch);
        }
        self.0.backend.write(batch, sync).inspect_err(|error| {
            self.0.poisoned.store(true, Ordering::Release);
            tracing::error!(%error, "a write to the store failed: it refuses further work");
        })
    }
}
