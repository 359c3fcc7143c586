//! [`StateAt`]: the state after one earlier batch, for comparing it subtree by subtree.
//!
//! A [`StateAt`] is a snapshot's tree with the later batches applied, so its cost depends on their changes. It exists
//! for every batch from the oldest snapshot to the head, while the deltas in between are kept. For earlier batches the
//! genesis replaces the snapshot.

use std::{fmt, sync::Arc};

use slipstream_types::{
    BatchNumber, BlobKind, Bytes, Digest, Path, StateKey, StateValue, delta::DeltaEntry, tree::Subtree,
};

use super::{LEVELS_MAX, OpenedSubtree, SubtreePart};
use crate::{
    changes::{prepare, with_paths},
    error::{RangeDeltaError, RepairError, StorageError},
    place::PathPrefix,
    schema,
    snapshot::Snapshot,
    state::{Shape, Tree},
    store::Store,
};

/// Bytes of memory per change.
const ENTRY_BYTES: usize = size_of::<(Path, DeltaEntry)>();

/// The state after one batch.
pub struct StateAt {
    number: BatchNumber,
    tree: Tree,
    /// `None` if the changes alone make the state.
    below: Option<Arc<Snapshot>>,
    /// Changes since the snapshot, sorted by path.
    changes: Vec<(Path, DeltaEntry)>,
    store: Store,
}

impl fmt::Debug for StateAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State after batch {}, {} changes after a snapshot", self.number, self.changes.len())
    }
}

impl Store {
    /// Returns the snapshot that [`Store::state_at`] begins with: the last one up to a batch. `None` if it begins
    /// with the genesis.
    pub fn snapshot_below(&self, number: BatchNumber) -> Option<BatchNumber> {
        self.snapshots().iter().map(|info| info.number).filter(|snapshot| *snapshot <= number).max()
    }

    /// Returns the state after a batch up to the head. The changes since the snapshot before it take at most
    /// `bytes_max` bytes, and up to four times that while the state is built. Without a snapshot the changes count
    /// from the genesis.
    ///
    /// # Errors
    /// [`RepairError::NotKept`] for a batch above the head; [`crate::RangeDeltaError::NotKept`] and [`crate::RangeDeltaError::TooLarge`].
    /// [`StorageError::Corrupt`] if snapshot and deltas contradict the batch's header. Otherwise errors of the disk.
    pub fn state_at(&self, number: BatchNumber, bytes_max: u64) -> Result<StateAt, StorageError> {
        let header = self.header(number)?;
        let header = header.ok_or(RepairError::NotKept { number, reason: "the store lacks its header" })?;
        let from = self.snapshot_below(number);
        let below = from.map(|from| self.snapshot(from)).transpose()?.flatten();
        let (base, begins, genesis) = match &below {
            Some(snapshot) => (snapshot.tree()?.clone(), snapshot.info().number, Vec::new()),
            None => {
                let genesis = self.genesis_entries(number, bytes_max)?;
                (genesis_tree(&genesis)?, BatchNumber::GENESIS, genesis)
            }
        };
        let rest = bytes_max - (genesis.len() * ENTRY_BYTES) as u64;
        let mut changes = match begins < number {
            true => self.range_delta(begins, number, rest)?.into_changes(),
            false => Vec::new(),
        };
        let updates: Vec<_> =
            changes.iter().map(|(path, it)| (*path, it.value.map(|value| value.hash(&it.key)))).collect();
        let tree = base.apply(&updates);
        let tree = match &below {
            Some(snapshot) => snapshot.own(tree)?,
            None => tree?,
        };
        if tree.root() != header.state_root {
            let text =
                format!("batch {begins} and the deltas after it do not give the state of batch {number}");
            return Err(StorageError::corrupt(text));
        }
        if below.is_none() {
            changes = with_genesis(genesis, changes);
        }
        Ok(StateAt { number, tree, below, changes, store: self.clone() })
    }

    /// Returns the entries of the genesis, sorted by path, if they take at most `bytes_max` bytes.
    fn genesis_entries(
        &self,
        number: BatchNumber,
        bytes_max: u64,
    ) -> Result<Vec<(Path, DeltaEntry)>, StorageError> {
        let begins = BatchNumber::GENESIS;
        let too_large = RangeDeltaError::TooLarge {
            from: begins,
            to: number,
            max: bytes_max,
            of: "bytes including the genesis",
        };
        let blob = self.blob(BlobKind::Genesis, begins)?.ok_or(StorageError::NotInitialized)?;
        // The decoded size is known before decoding: a stored entry is smaller.
        if blob.content_len(BlobKind::Genesis)? as u64 > bytes_max {
            return Err(too_large.into());
        }
        let delta = self.genesis()?.delta()?;
        if (delta.entries().len() * ENTRY_BYTES) as u64 > bytes_max {
            return Err(too_large.into());
        }
        let mut entries: Vec<_> = with_paths(delta.entries()).map(|(path, entry)| (path, *entry)).collect();
        entries.sort_unstable_by_key(|(path, _)| *path);
        Ok(entries)
    }
}

fn genesis_tree(entries: &[(Path, DeltaEntry)]) -> Result<Tree, StorageError> {
    Tree::default().apply(&prepare(entries.iter().map(|(path, entry)| (*path, entry))).1)
}

/// Adds the genesis to changes that begin there: its rows count unless a batch changed them.
fn with_genesis(
    genesis: Vec<(Path, DeltaEntry)>,
    changes: Vec<(Path, DeltaEntry)>,
) -> Vec<(Path, DeltaEntry)> {
    let mut all: Vec<_> = changes.into_iter().chain(genesis).collect();
    // The stable sort leaves the later change of a key before the genesis'.
    all.sort_by_key(|(path, _)| *path);
    all.dedup_by_key(|(path, _)| *path);
    all
}

impl StateAt {
    /// Number of the batch whose state this is.
    pub fn number(&self) -> BatchNumber {
        self.number
    }

    /// The state root in that batch's header.
    pub fn root(&self) -> Digest {
        self.tree.root()
    }

    /// Estimates the bytes of memory that it takes beside the snapshot.
    pub fn bytes(&self) -> u64 {
        let updates = self.changes.len() as u64;
        updates * size_of::<(Path, DeltaEntry)>() as u64
            + self.tree.bytes_beside(self.tree.resident(), updates)
    }

    /// Opens the subtree at a place by up to `levels` levels, at most [`LEVELS_MAX`].
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn open(&self, place: &PathPrefix, levels: u8) -> Result<OpenedSubtree, StorageError> {
        let mut parts = Vec::new();
        match self.tree.shape(place.path(), place.bits())? {
            Shape::Empty => {}
            Shape::Leaf(leaf) => {
                let (key, value) = self.row(&leaf.path)?;
                parts.push(SubtreePart::Row(key, value));
            }
            fork @ Shape::Fork { .. } => self.fork(place, fork, levels.clamp(1, LEVELS_MAX), &mut parts)?,
        }
        Ok(OpenedSubtree::new(parts)?)
    }

    /// Returns contract code by its Keccak-256.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.store.view()?.code(hash)
    }

    fn fork(
        &self,
        place: &PathPrefix,
        shape: Shape,
        levels: u8,
        parts: &mut Vec<SubtreePart>,
    ) -> Result<(), StorageError> {
        let Shape::Fork { path, bit, left, right } = shape else { return Ok(()) };
        let at = PathPrefix::new(&path, bit);
        parts.push(match bit == place.bits() {
            true => SubtreePart::Fork,
            false => SubtreePart::Run { path: *at.path(), bit: bit as u8 },
        });
        for (is_right, subtree) in [(false, left), (true, right)] {
            match subtree {
                Subtree::Inner(_) if levels > 1 => {
                    let side = at.child(is_right);
                    let shape = self.tree.shape(side.path(), side.bits())?;
                    self.fork(&side, shape, levels - 1, parts)?;
                }
                subtree => parts.push(SubtreePart::Hash(subtree.hash())),
            }
        }
        Ok(())
    }

    fn row(&self, path: &Path) -> Result<(StateKey, StateValue), StorageError> {
        let changed = self.changes.binary_search_by_key(path, |(path, _)| *path);
        let row = match (changed, &self.below) {
            (Ok(at), _) => self.changes[at].1.value.map(|value| (self.changes[at].1.key, value)),
            (Err(_), Some(snapshot)) => {
                snapshot.row(path)?.map(|row| schema::decode_row(&row)).transpose()?
            }
            (Err(_), None) => None,
        };
        row.ok_or_else(|| StorageError::corrupt(format!("the state row {path:?} of a snapshot is missing")))
    }
}
