//! [`Store`]: the handle, and how it comes up.

use std::{
    fmt, fs,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, BlobKind, Digest, Genesis, Receipts, Waypoint,
    accumulator::{Accumulator, NodePosition},
};
use tokio::sync::watch;

use crate::{
    backend::{
        Backend, Column, Reader, WriteBatch, faulty::FaultyBackend, memory::MemoryBackend,
        rocks::RocksBackend,
    },
    commit::CommitBatch,
    config::StorageConfig,
    crash::{CrashPoint, Faults, Step},
    disk::{DiskGuard, DiskRoom},
    epochs::load_epoch,
    error::StorageError,
    format,
    history::History,
    prune::Floors,
    rules::Rulebook,
    schema::{self, HEAD_KEY, HeadRecord},
    snapshot::Snapshot,
    stage::Next,
    state::{
        Tree,
        load::{ColumnRows, load_tree},
    },
    view::View,
};

/// The last committed batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its header.
    pub header: BatchHeader,
    /// The header's digest.
    pub digest: Digest,
    /// Over the headers 0 to this one.
    pub accumulator: Accumulator,
}

/// The store. A clone is another handle to the same one; all methods may be called from any thread, and block.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) config: StorageConfig,
    /// None before there is a genesis.
    pub(crate) current: RwLock<Option<Arc<Current>>>,
    /// Taken by [`Store::writer`] alone.
    pub(crate) writer: Mutex<()>,
    poisoned: AtomicBool,
    disk: Option<DiskGuard>,
    /// Blobs below are not served: see [`crate::prune`].
    pub(crate) floors: Floors,
    pub(crate) head_sender: watch::Sender<BatchNumber>,
    /// Oldest first.
    pub(crate) snapshots: Mutex<Vec<Arc<Snapshot>>>,
    /// States that there were: see [`Current::version`].
    versions: AtomicU64,
    /// See [`Store::epoch`].
    pub(crate) epoch: AtomicU64,
    /// Raised by every new restore, so that the handle of an earlier one finds out.
    pub(crate) restore_generation: AtomicU64,
    /// Set once, by who knows the configuration.
    pub(crate) waypoint: OnceLock<Waypoint>,
    /// The chain's rules, and what is told of them.
    pub(crate) rulebook: Rulebook,
    pub(crate) history: History,
}

/// Everything that belongs to one head. Never changed: a commit puts another one in its place.
pub(crate) struct Current {
    pub(crate) head: Head,
    pub(crate) record: HeadRecord,
    /// Which state it is: a number of this process, so that a speculation knows what it stands on.
    pub(crate) version: u64,
    /// Of this head, until a commit takes it to make the next head's of it.
    pub(crate) tree: Mutex<Option<Tree>>,
    /// The backend as it was right after the head's write.
    pub(crate) reader: Arc<dyn Reader>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Store at batch {:?}",
            self.0.current.read().as_ref().map(|current| current.record.number.0)
        )
    }
}

impl Store {
    /// Opens the store in a directory, or makes an empty one there. Rebuilds the state tree from the rows and checks its
    /// root against the head.
    ///
    /// # Errors
    /// [`StorageError::NewerFormat`], [`StorageError::OtherFormat`], [`StorageError::Locked`], [`StorageError::Corrupt`], or what the disk says.
    pub fn open(config: &StorageConfig, dir: &std::path::Path) -> Result<Store, StorageError> {
        Self::open_with(config, dir, &Faults::none())
    }

    /// As [`Store::open`], with a fault to come: for tests and campaigns, which look at what a crash leaves.
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
        format::check(dir)?;
        faults.pass(CrashPoint::Before(Step::Open))?;
        let backend = Arc::new(RocksBackend::open(config, dir)?);
        format::mark(dir)?;
        let disk = DiskGuard::of_directory(config, dir);
        let store = Self::with_backend_and_disk(config, FaultyBackend::wrap(backend, faults), Some(disk))?;
        faults.pass(CrashPoint::After(Step::Open))?;
        Ok(store)
    }

    /// An empty store in memory: the same code over another backend.
    pub fn memory(config: &StorageConfig) -> Store {
        Self::with_backend(config, Arc::new(MemoryBackend::default()))
            .expect("an empty memory backend holds nothing wrong")
    }

    pub(crate) fn with_backend(
        config: &StorageConfig,
        backend: Arc<dyn Backend>,
    ) -> Result<Store, StorageError> {
        Self::with_backend_and_disk(config, backend, None)
    }

    pub(crate) fn with_backend_and_disk(
        config: &StorageConfig,
        backend: Arc<dyn Backend>,
        disk: Option<DiskGuard>,
    ) -> Result<Store, StorageError> {
        let floors = Floors::load(&*backend)?;
        let epoch = load_epoch(&*backend)?;
        let current = load_current(backend.snapshot(), config.tree_memory_mib)?;
        let head = current.as_ref().map(|current| current.record.number);
        let store = Store(Arc::new(Shared {
            backend,
            config: config.clone(),
            current: RwLock::new(current.map(Arc::new)),
            writer: Mutex::default(),
            poisoned: AtomicBool::new(false),
            disk,
            floors,
            head_sender: watch::Sender::new(head.unwrap_or_default()),
            snapshots: Mutex::default(),
            versions: AtomicU64::new(1),
            epoch: AtomicU64::new(epoch.0),
            restore_generation: AtomicU64::new(0),
            waypoint: OnceLock::new(),
            rulebook: Rulebook::default(),
            history: History::default(),
        }));
        if let Ok(current) = store.current() {
            store.forget_history(&current);
        }
        store.load_snapshots(head)?;
        store.writer().discard_overtaken_restore()?;
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
        match writer.stage(None, &[batch], Next::of(Tree::default(), &[&delta])?) {
            Ok(staged) => writer.persist(None, &[batch], staged, self.new_version()),
            Err(refused) => Err(refused.error),
        }
    }

    /// Whether there is a genesis.
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

    /// Tells the head's number after every change; 0 before there is a genesis.
    pub fn watch_head(&self) -> watch::Receiver<BatchNumber> {
        self.0.head_sender.subscribe()
    }

    /// The state at the head. It stays as it is when the head moves on.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn view(&self) -> Result<View, StorageError> {
        Ok(View::new(self.current()?))
    }

    /// How much room the store's file system has; none for a store in memory.
    ///
    /// # Errors
    /// What the file system says.
    pub fn disk_room(&self) -> Result<Option<DiskRoom>, StorageError> {
        self.0.disk.as_ref().map(DiskGuard::room).transpose()
    }

    /// Waits until everything written has reached the disk, even without `fsync`. The last handle closes the files.
    pub fn close(&self) {
        if self.check_poison().is_ok()
            && let Err(error) = self.0.backend.write(WriteBatch::default(), true)
        {
            tracing::error!(%error, "the last write of the store may not have reached the disk");
        }
    }

    pub(crate) fn has_code(&self, hash: &Digest) -> Result<bool, StorageError> {
        Ok(self.0.backend.get(Column::Codes, &hash.0)?.is_some())
    }

    pub(crate) fn current(&self) -> Result<Arc<Current>, StorageError> {
        self.0.current.read().clone().ok_or(StorageError::NotInitialized)
    }

    /// The head with a copy of its tree. Waits for a commit that is on its way.
    pub(crate) fn current_with_tree(&self) -> Result<(Arc<Current>, Tree), StorageError> {
        let writer = self.writer();
        let current = self.current()?;
        let tree = writer.copy_tree(&current)?;
        Ok((current, tree))
    }

    /// The number of a new state.
    pub(crate) fn new_version(&self) -> u64 {
        self.0.versions.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn check_poison(&self) -> Result<(), StorageError> {
        if self.0.poisoned.load(Ordering::Acquire) { Err(StorageError::Poisoned) } else { Ok(()) }
    }

    /// Runs what writes past [`Store::write`]; a failure ends the store in the same way.
    pub(crate) fn guard<T>(
        &self,
        work: impl FnOnce(&dyn Backend) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.check_poison()?;
        work(&*self.0.backend).inspect_err(|error| {
            self.0.poisoned.store(true, Ordering::Release);
            tracing::error!(%error, "a write to the store failed; it refuses further work");
        })
    }

    /// Refuses what is about to be written past [`Store::write`] while too little of the disk is free.
    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), StorageError> {
        self.0.disk.as_ref().map_or(Ok(()), |disk| disk.check_bytes(bytes))
    }

    /// The one way to the disk. A failure ends the store: nobody knows how much of it arrived.
    pub(crate) fn write(&self, batch: WriteBatch, durable: bool) -> Result<(), StorageError> {
        self.check_poison()?;
        if let Some(disk) = &self.0.disk {
            disk.check(&batch)?;
        }
        self.write_unguarded(batch, durable && self.0.config.fsync)
    }

    /// As [`Store::write`], but on a disk that is nearly full too, and synced if asked for whatever the configuration says.
    pub(crate) fn write_unguarded(&self, batch: WriteBatch, sync: bool) -> Result<(), StorageError> {
        self.check_poison()?;
        self.0.backend.write(batch, sync).inspect_err(|error| {
            self.0.poisoned.store(true, Ordering::Release);
            tracing::error!(%error, "a write to the store failed; it refuses further work");
        })
    }
}

impl Current {
    /// What its tree stands on.
    pub(crate) fn rows(&self) -> Arc<ColumnRows> {
        ColumnRows::new(Arc::clone(&self.reader), self.record.active.column())
    }
}

/// Reads the head and checks that rows, accumulator and header belong together.
pub(crate) fn load_current(
    reader: Arc<dyn Reader>,
    tree_memory_mib: u64,
) -> Result<Option<Current>, StorageError> {
    let Some((record, head)) = load_head(&*reader)? else { return Ok(None) };
    let tree = Mutex::new(Some(checked_tree(&reader, &record, &head.header, tree_memory_mib)?));
    Ok(Some(Current { head, record, version: 0, tree, reader }))
}

/// Reads the head and checks that accumulator and header belong together; the state's rows are not looked at.
pub(crate) fn load_head(reader: &dyn Reader) -> Result<Option<(HeadRecord, Head)>, StorageError> {
    let Some(bytes) = reader.get(Column::Meta, HEAD_KEY)? else { return Ok(None) };
    let record: HeadRecord = schema::decode("head record", &bytes)?;
    let number = record.number;
    let header = reader.get(Column::Headers, &schema::number_key(number))?.ok_or_else(|| {
        StorageError::corrupt(format!("the header of the head, batch {number}, is missing"))
    })?;
    let header: BatchHeader = schema::decode("header", &header)?;
    let digest = header.digest();
    if read_node(reader, NodePosition { level: 0, index: number.0 })? != Some(digest) {
        return Err(StorageError::corrupt(format!(
            "the header of batch {number} is not the one in the accumulator"
        )));
    }
    let accumulator = load_accumulator(reader, number)?
        .ok_or_else(|| StorageError::corrupt(format!("accumulator nodes of batch {number} are missing")))?;
    Ok(Some((record, Head { header, digest, accumulator })))
}

/// Rebuilds the tree of a head from its rows.
pub(crate) fn checked_tree(
    reader: &Arc<dyn Reader>,
    record: &HeadRecord,
    header: &BatchHeader,
    tree_memory_mib: u64,
) -> Result<Tree, StorageError> {
    let tree = load_tree(reader, record.active.column(), tree_memory_mib)?;
    if tree.root() == header.state_root {
        return Ok(tree);
    }
    Err(StorageError::corrupt(format!(
        "the state rows have the root {}, the header of batch {} says {}",
        tree.root(),
        header.number,
        header.state_root
    )))
}

pub(crate) fn read_node(reader: &dyn Reader, position: NodePosition) -> Result<Option<Digest>, StorageError> {
    reader
        .get(Column::Nodes, &schema::node_key(position))?
        .map(|bytes| schema::decode_digest(&bytes))
        .transpose()
}

/// Runs a computation over accumulator nodes, whose lookup cannot fail, with one that can.
pub(crate) fn with_nodes<T>(
    reader: &dyn Reader,
    compute: impl FnOnce(&dyn Fn(NodePosition) -> Option<Digest>) -> T,
) -> Result<T, StorageError> {
    let failure = std::cell::RefCell::new(None);
    let result = compute(&|position| {
        read_node(reader, position).unwrap_or_else(|error| {
            failure.replace(Some(error));
            None
        })
    });
    failure.into_inner().map_or(Ok(result), Err)
}

/// The accumulator over the headers 0 to `number`, none if nodes of it are missing.
pub(crate) fn load_accumulator(
    reader: &dyn Reader,
    number: BatchNumber,
) -> Result<Option<Accumulator>, StorageError> {
    with_nodes(reader, |node| Accumulator::load(number.0 + 1, node))
}
