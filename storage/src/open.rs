//! Opens a store, from a directory or in memory, gives it a genesis, and closes it.

use std::{
    fs,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

use parking_lot::{Mutex, RwLock};
use slipstream_types::{Blob, BlobKind, Genesis, Receipts};
use tokio::sync::watch;

use crate::{
    backend::{Backend, WriteBatch, faulty::FaultyBackend, memory::MemoryBackend, rocks::RocksBackend},
    batch::CommitBatch,
    changes::NextState,
    config::StorageConfig,
    crash::{CrashPoint, Faults, WriteStep},
    directory::{self, DirectoryContent, format},
    disk::DiskGuard,
    epochs::load_epoch,
    error::StorageError,
    floors::Floors,
    frontier::Frontiers,
    history::{held_states::HeldStates, past_rows::PastRows, seal::Sealer},
    shared::{HeadState, History, Rulebook, Shared},
    state::Tree,
    store::Store,
};

impl Store {
    /// Opens the store in a directory, or creates an empty one where there is none. Reads the state tree's upper part
    /// if it is there, otherwise all rows, and checks the root against the head.
    ///
    /// # Errors
    /// [`StorageError::NewerFormat`], [`StorageError::OtherFormat`], [`StorageError::Locked`],
    /// [`StorageError::Corrupt`], or errors of the disk.
    pub fn open(config: &StorageConfig, dir: &std::path::Path) -> Result<Store, StorageError> {
        Self::open_with(config, dir, &Faults::none())
    }

    /// As [`Store::open`], with a planned fault: for tests and campaigns, which look at what a crash leaves.
    ///
    /// # Errors
    /// Those of [`Store::open`], and the planned one.
    #[doc(hidden)]
    pub fn open_with(
        config: &StorageConfig,
        dir: &std::path::Path,
        faults: &Faults,
    ) -> Result<Store, StorageError> {
        fs::create_dir_all(dir).map_err(|error| StorageError::io("create", dir, error))?;
        let content = directory::look(dir)?;
        if content == DirectoryContent::Nothing {
            format::begin(dir)?;
        }
        faults.pass(CrashPoint::Before(WriteStep::Open))?;
        let backend = Arc::new(RocksBackend::open(config, dir, content)?);
        let disk = DiskGuard::of_directory(config, dir);
        let frontiers = Frontiers::open(dir, config, faults);
        let backend = FaultyBackend::wrap(backend, faults);
        let store = Self::with_parts(config, backend, Some(disk), frontiers)?;
        faults.pass(CrashPoint::After(WriteStep::Open))?;
        Ok(store)
    }

    /// Creates an empty store in memory: the same code over another backend.
    pub fn memory(config: &StorageConfig) -> Store {
        Self::with_backend(config, Arc::new(MemoryBackend::default()))
            .expect("an empty memory backend holds nothing wrong")
    }

    pub(crate) fn with_backend(
        config: &StorageConfig,
        backend: Arc<dyn Backend>,
    ) -> Result<Store, StorageError> {
        Self::with_parts(config, backend, None, None)
    }

    pub(crate) fn with_parts(
        config: &StorageConfig,
        backend: Arc<dyn Backend>,
        disk: Option<DiskGuard>,
        frontiers: Option<Frontiers>,
    ) -> Result<Store, StorageError> {
        let floors = Floors::load(&*backend)?;
        let epoch = load_epoch(&*backend)?;
        let loaded = HeadState::load(backend.snapshot(), config.tree_memory_mib, frontiers.as_ref())?;
        let headers_floor = floors.of_headers();
        let (current, is_read) = loaded.map_or((None, true), |(current, is_read)| {
            (Some(HeadState { headers_floor, ..current }), is_read)
        });
        let head = current.as_ref().map(|current| current.record.number);
        let past_rows = Arc::new(PastRows::load(backend.clone(), head.unwrap_or_default())?);
        let (disk, poisoned) = (disk.map(Arc::new), Arc::new(AtomicBool::new(false)));
        let history = History {
            behind: AtomicU64::new(0),
            start: head.unwrap_or_default(),
            held: Mutex::new(HeldStates::new(config.tuning)),
            sealer: Sealer::new(
                Arc::clone(&past_rows),
                Arc::clone(&backend),
                disk.clone(),
                Arc::clone(&poisoned),
                config.tuning,
            ),
            past_rows,
        };
        let store = Store(Arc::new(Shared {
            backend,
            config: config.clone(),
            current: RwLock::new(current.map(Arc::new)),
            writer: Mutex::default(),
            poisoned,
            disk,
            floors,
            head_sender: watch::Sender::new(head.unwrap_or_default()),
            snapshots: Mutex::default(),
            versions: AtomicU64::new(1),
            epoch: AtomicU64::new(epoch.0),
            next_set: Mutex::default(),
            restore_generation: AtomicU64::new(0),
            waypoint: OnceLock::new(),
            rulebook: Rulebook::default(),
            history,
            trees: Mutex::default(),
            frontiers,
            unread: AtomicBool::new(!is_read),
        }));
        store.load_snapshots(head)?;
        let writer = store.writer();
        if let Ok(current) = store.current() {
            writer.hold(&current);
            writer.begin_frontiers(&current);
        }
        writer.discard_overtaken_restore()?;
        drop(writer);
        Ok(store)
    }

    /// Writes the genesis as batch 0 into an empty store. Does nothing if it is already there.
    ///
    /// # Errors
    /// [`StorageError::WrongGenesis`] if the store has another one.
    pub fn initialize(&self, genesis: &Genesis) -> Result<(), StorageError> {
        genesis.check()?;
        let header = genesis.header()?;
        let writer = self.writer();
        if self.is_initialized() {
            let stored = self.genesis_digest()?;
            let given = header.digest();
            return if stored == given { Ok(()) } else { Err(StorageError::WrongGenesis { stored, given }) };
        }
        let delta = genesis.delta()?;
        let body = Blob::compress(BlobKind::Genesis, &genesis.content()?)?;
        let receipts = Blob::seal(BlobKind::Receipts, &Receipts::default())?;
        let delta_blob = Blob::seal(BlobKind::Delta, &delta)?;
        let batch = CommitBatch {
            body: Some(&body),
            receipts: Some(&receipts),
            delta_blob: Some(&delta_blob),
            ..CommitBatch::new(&header, &delta)
        };
        match writer.stage(None, &[batch], NextState::of(Tree::default(), &[&delta])?) {
            Ok(staged) => writer.persist(None, &[batch], staged, self.new_version(), true),
            Err(refused) => Err(refused.error),
        }
    }

    /// Waits until all writes are on disk, even without `fsync`, and writes what makes the next start fast. The last
    /// handle closes the files.
    pub fn close(&self) {
        if let Some(frontiers) = self.0.frontiers.as_ref().filter(|_| self.check_poison().is_ok()) {
            frontiers.finish();
            let writer = self.writer();
            if let (true, Ok(current)) = (frontiers.is_behind(), self.current()) {
                writer.save_frontier(&current);
                frontiers.finish();
            }
        }
        if self.check_poison().is_ok()
            && let Err(error) = self.0.backend.write(WriteBatch::default(), true)
        {
            tracing::error!(%error, "the last write of the store may not have reached the disk");
        }
    }
}
