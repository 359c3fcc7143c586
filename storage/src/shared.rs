//! [`Shared`]: the common part of a store's handles; [`HeadState`]: the part that belongs to one head.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

use parking_lot::{Mutex, RwLock};
use slipstream_types::{
    BatchHeader, BatchNumber, ChainConfig, Digest, RulesId, Schedule, ScheduledFork, ValidatorSet, Waypoint,
    accumulator::{Accumulator, NodePosition},
};
use tokio::sync::watch;

use crate::{
    backend::{Backend, Column, Reader},
    config::StorageConfig,
    disk::DiskGuard,
    error::StorageError,
    floors::Floors,
    frontier::{Frontiers, TreeId},
    history::{held_states::HeldStates, past_rows::PastRows, seal::Sealer},
    nodes::{load_accumulator, read_node},
    schema::{self, HEAD_KEY, HeadRecord},
    snapshot::Snapshot,
    state::{
        Tree,
        load::{ColumnRows, load_tree},
    },
    trees::RecentTrees,
};

/// The last committed batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its header.
    pub header: BatchHeader,
    /// The header's digest.
    pub digest: Digest,
    /// The accumulator over the headers 0 to this one.
    pub accumulator: Accumulator,
}

/// The part that all handles of a store share.
pub(crate) struct Shared {
    /// `None` for a store in memory, and if the directory for trees is unusable. Dropped before the backend releases
    /// its directory.
    pub(crate) frontiers: Option<Frontiers>,
    /// Whether rows of the head's state were not compared with its tree since the store was opened: see [`crate::scrub`].
    pub(crate) unread: AtomicBool,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) config: StorageConfig,
    /// `None` before there is a genesis.
    pub(crate) current: RwLock<Option<Arc<HeadState>>>,
    /// Locked by [`crate::writer`] alone.
    pub(crate) writer: Mutex<()>,
    pub(crate) poisoned: Arc<AtomicBool>,
    pub(crate) disk: Option<Arc<DiskGuard>>,
    /// The batches below which blobs are not served: see [`crate::floors`].
    pub(crate) floors: Floors,
    pub(crate) head_sender: watch::Sender<BatchNumber>,
    /// Oldest first.
    pub(crate) snapshots: Mutex<Vec<Arc<Snapshot>>>,
    /// Counts the states so far: see [`HeadState::version`].
    pub(crate) versions: AtomicU64,
    /// See [`crate::Store::epoch`].
    pub(crate) epoch: AtomicU64,
    /// The last answer of [`crate::Store::next_set`]. It is cached because the set of epoch 0 is in the genesis, which
    /// may have millions of accounts.
    pub(crate) next_set: Mutex<Option<Arc<ValidatorSet>>>,
    /// Raised by every new restore, so that the handle of an earlier one notices.
    pub(crate) restore_generation: AtomicU64,
    /// Set once, by the caller that knows the configuration.
    pub(crate) waypoint: OnceLock<Waypoint>,
    /// The chain's rules, and peers' claims about them.
    pub(crate) rulebook: Rulebook,
    pub(crate) history: History,
    /// Trees of recent states, for proofs of their rows.
    pub(crate) trees: Mutex<RecentTrees>,
}

/// Everything that belongs to one head. It never changes: a commit replaces it.
pub(crate) struct HeadState {
    pub(crate) head: Head,
    pub(crate) record: HeadRecord,
    /// A number of this process that identifies the state, so that a speculation knows its base.
    pub(crate) version: u64,
    /// The head's tree, until the next commit takes it.
    pub(crate) tree: Mutex<Option<Tree>>,
    /// The backend as it was right after the head's write.
    pub(crate) reader: Arc<dyn Reader>,
    /// The floor below which the reader may lack headers. It is shared with the store, and moves up.
    pub(crate) headers_floor: Arc<AtomicU64>,
}

/// The rules that the chain follows, and peers' claims about them: see [`crate::rules`].
#[derive(Debug, Default)]
pub(crate) struct Rulebook {
    /// The schedule, if it was given before there is a genesis.
    pub(crate) schedule: RwLock<Schedule>,
    /// `None` until it is needed, because the genesis is read for it.
    pub(crate) chain: RwLock<Option<Arc<ChainConfig>>>,
    /// Forks that peers announced, by the id of the rules that each begins.
    pub(crate) heard: Mutex<BTreeMap<RulesId, ScheduledFork>>,
}

/// Past states: see [`crate::history`].
pub(crate) struct History {
    /// Batches up to this one are not recorded.
    pub(crate) behind: AtomicU64,
    /// The head when the store was opened. The store seals the log up to there at once.
    pub(crate) start: BatchNumber,
    /// Held states up to the head's. Their trees are not kept.
    pub(crate) held: Mutex<HeldStates<Arc<HeadState>>>,
    pub(crate) past_rows: Arc<PastRows>,
    /// Dropped before the parts that it works on.
    pub(crate) sealer: Sealer,
}

impl Head {
    /// Reads the head, and checks that accumulator and header belong together. It does not look at the state's rows.
    pub(crate) fn load(reader: &dyn Reader) -> Result<Option<(HeadRecord, Head)>, StorageError> {
        let Some(bytes) = reader.get(Column::Meta, HEAD_KEY)? else { return Ok(None) };
        let record: HeadRecord = schema::decode("head record", &bytes)?;
        let number = record.number;
        let header = reader.get(Column::Headers, &schema::number_key(number))?.ok_or_else(|| {
            StorageError::corrupt(format!("the header of the head, batch {number}, is missing"))
        })?;
        let header: BatchHeader = schema::decode("header", &header)?;
        let digest = header.digest();
        if read_node(reader, NodePosition { level: 0, index: number.get() })? != Some(digest) {
            return Err(StorageError::corrupt(format!(
                "the header of batch {number} differs from the one in the accumulator"
            )));
        }
        let accumulator = load_accumulator(reader, number)?.ok_or_else(|| {
            StorageError::corrupt(format!("accumulator nodes of batch {number} are missing"))
        })?;
        Ok(Some((record, Head { header, digest, accumulator })))
    }
}

impl HeadState {
    /// Reads the head, and checks that rows, accumulator and header belong together. Without frontiers, it reads all
    /// rows. Returns whether it did.
    pub(crate) fn load(
        reader: Arc<dyn Reader>,
        tree_memory_mib: u64,
        frontiers: Option<&Frontiers>,
    ) -> Result<Option<(HeadState, bool)>, StorageError> {
        let Some((record, head)) = Head::load(&*reader)? else { return Ok(None) };
        let headers_floor = Arc::default();
        let current = HeadState { head, record, version: 0, tree: Mutex::default(), reader, headers_floor };
        let (tree, is_read) = current.load_tree(tree_memory_mib, frontiers)?;
        *current.tree.lock() = Some(tree);
        Ok(Some((current, is_read)))
    }

    /// Loads the head's tree from a frontier, or from all its rows. Returns whether it read those.
    pub(crate) fn load_tree(
        &self,
        tree_memory_mib: u64,
        frontiers: Option<&Frontiers>,
    ) -> Result<(Tree, bool), StorageError> {
        let HeadState { head, record, .. } = self;
        let resident_max = Tree::resident_max(tree_memory_mib);
        let wanted =
            TreeId { number: record.number, column: record.active, state_root: head.header.state_root };
        let found = frontiers.and_then(|frontiers| frontiers.load(&wanted, self.rows(), resident_max));
        if let Some(tree) = found {
            return Ok((tree, false));
        }
        let tree = load_tree(&self.reader, record.active.column(), tree_memory_mib)?;
        if tree.root() == head.header.state_root {
            return Ok((tree, true));
        }
        Err(StorageError::corrupt(format!(
            "the state rows have the root {}, but the header of batch {} says {}",
            tree.root(),
            record.number,
            head.header.state_root
        )))
    }

    /// The rows that its tree reads.
    pub(crate) fn rows(&self) -> Arc<ColumnRows> {
        ColumnRows::new(Arc::clone(&self.reader), self.record.active.column())
    }
}
