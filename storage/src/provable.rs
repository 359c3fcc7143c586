//! [`ProvableState`]: a recent state with its tree, to answer requests for single rows and their proofs.
//!
//! Only the head has a tree. The tree of a batch shortly before is derived from it. The deltas in between name the
//! changed paths, and that state's own rows give the earlier values. So the changes of those batches bound the cost.

use std::fmt;

use slipstream_types::{
    BatchHeader, BatchNumber, BlobKind, Delta, StateKey, StateValue,
    tree::{Leaf, StateRangeProof},
};

use crate::{
    error::StorageError,
    shared::HeadState,
    state::{Tree, Update},
    store::Store,
    trees::RecentTrees,
    view::View,
};

/// A state whose rows can be proved. It keeps old rows from being freed, like a [`View`].
pub struct ProvableState {
    view: View,
    tree: Tree,
}

impl fmt::Debug for ProvableState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProvableState of batch {}", self.header().number)
    }
}

impl Store {
    /// Returns the state after a batch, with the tree that proves its rows: the head's, or one of the
    /// [`crate::PROVABLE_BATCHES`] before it.
    ///
    /// # Errors
    /// [`StorageError::NotProvable`] for other batches, or if too much changed since; [`StorageError::TreeInUse`]
    /// during a long run of commits; otherwise errors of the disk.
    pub fn provable_state(&self, number: BatchNumber) -> Result<ProvableState, StorageError> {
        let current = self.current()?;
        let (head, column) = (current.record.number, current.record.active);
        let first = head.before(self.0.config.tuning.provable_batches);
        let refused = |reason| StorageError::NotProvable { number, first, head, reason };
        if number > head {
            return Err(refused("it does not exist yet"));
        }
        if number < first {
            return Err(refused("it is too old"));
        }
        let view = self.view_of(number)?.ok_or_else(|| refused("the store does not keep its state"))?;
        let remembered = self.0.trees.lock().get(number, column);
        if let Some(tree) = remembered {
            return Ok(ProvableState { view, tree });
        }
        let found = self.current_with_tree_in_time()?;
        let (current, tree) = found.ok_or(StorageError::TreeInUse { number })?;
        let base = tree.shed();
        let tree = match number == current.record.number {
            true => tree,
            false => tree.apply(&self.back_to(&view, current.record.number, &refused)?)?,
        };
        if tree.root() != view.head().state_root {
            let text =
                format!("the deltas up to batch {head} do not lead back to the state of batch {number}");
            return Err(StorageError::corrupt(text));
        }
        let mut trees = self.0.trees.lock();
        trees.put(number, current.record.active, tree.clone(), base);
        // The head may have moved on since, or jumped to another column.
        let current = self.current()?;
        self.keep_within(&mut trees, &current);
        drop(trees);
        Ok(ProvableState { view, tree })
    }

    /// Evicts remembered trees that are too old for a head, or take too much memory. While a commit has the head's
    /// tree, memory is checked at the next head instead.
    pub(crate) fn keep_within(&self, trees: &mut RecentTrees, current: &HeadState) {
        let config = &self.0.config;
        trees.release(current.record.number, current.record.active, config.tuning.provable_batches);
        if let Some(tree) = &*current.tree.lock() {
            trees.fit(tree, Tree::resident_max(config.tree_memory_mib));
        }
    }

    /// Returns the updates that turn the state at a later head back into the view's, sorted by path.
    fn back_to(
        &self,
        view: &View,
        head: BatchNumber,
        refused: &impl Fn(&'static str) -> StorageError,
    ) -> Result<Vec<Update>, StorageError> {
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for number in view.head().number.next().through(head) {
            let blob = self.blob(BlobKind::Delta, number)?;
            let blob = blob.ok_or_else(|| refused("the store lacks the deltas of the later batches"))?;
            bytes += blob.content_len(BlobKind::Delta)? as u64;
            if bytes > self.0.config.tuning.provable_delta_bytes_max {
                return Err(refused("too much changed since then"));
            }
            let delta: Delta = blob.open(BlobKind::Delta)?;
            keys.extend(delta.entries().iter().map(|entry| entry.key));
        }
        keys.sort_unstable();
        keys.dedup();
        let (paths, rows) = (StateKey::paths(&keys), view.rows(&keys)?);
        let before = |(key, row): (&StateKey, Option<StateValue>)| row.map(|row| row.hash(key));
        let mut updates: Vec<Update> = paths.into_iter().zip(keys.iter().zip(rows).map(before)).collect();
        updates.sort_unstable_by_key(|(path, _)| *path);
        Ok(updates)
    }
}

impl ProvableState {
    /// The header of its batch.
    pub fn header(&self) -> &BatchHeader {
        self.view.head()
    }

    /// The view that reads its rows.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns the proof that the state has this row at the key's path or, without a row, that it has none there. The
    /// proof is verified before it is returned, so nobody is sent one that fails.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] if the row does not match the state root; or errors of the disk.
    pub fn prove(&self, key: &StateKey, row: Option<StateValue>) -> Result<StateRangeProof, StorageError> {
        let path = key.path();
        let proof = self.tree.prove(&path, &path)?;
        let leaf = row.map(|row| Leaf { path, value_hash: row.hash(key) });
        let header = self.header();
        proof.verify(header.state_root, path, path, leaf.as_slice()).map_err(|error| {
            let number = header.number;
            StorageError::corrupt(format!(
                "the row at {path:?} does not match the state of batch {number}: {error}"
            ))
        })?;
        Ok(proof)
    }
}
