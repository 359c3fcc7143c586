//! [`Writer`]: the right to move the head or the restore record. One thread has it at a time.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    error::StorageError,
    frontier::TreeId,
    schema::HeadRecord,
    shared::{Head, HeadState, Shared},
    state::Tree,
    store::Store,
};

/// How long a reader waits for a commit that has the head's tree. It outlasts one batch; a longer run does not block
/// the readers' threads.
const PATIENCE: Duration = Duration::from_millis(250);

/// The store with the writer's lock held. Everything that needs the lock is a method here: staging and writing batches,
/// changing the head's tree, installing a head.
///
/// The lock is not re-entrant: calling methods of the [`Store`] that take it would deadlock.
pub(crate) struct Writer<'a> {
    pub(crate) store: &'a Store,
    _lock: MutexGuard<'a, ()>,
}

impl Store {
    /// Waits until nobody else writes.
    pub(crate) fn writer(&self) -> Writer<'_> {
        Writer { store: self, _lock: self.0.writer.lock() }
    }

    /// Returns the head with a copy of its tree. Waits for a commit in progress.
    pub(crate) fn current_with_tree(&self) -> Result<(Arc<HeadState>, Tree), StorageError> {
        let writer = self.writer();
        let current = self.current()?;
        let tree = writer.copy_tree(&current)?;
        Ok((current, tree))
    }

    /// As [`Store::current_with_tree`], for a reader. Copies the tree without the lock, unless a commit has taken the
    /// tree; never builds one from rows. Returns `None` if a commit keeps the tree longer than [`PATIENCE`].
    pub(crate) fn current_with_tree_in_time(&self) -> Result<Option<(Arc<HeadState>, Tree)>, StorageError> {
        let in_place = || -> Result<_, StorageError> {
            let current = self.current()?;
            let tree = current.tree.lock().clone();
            Ok(tree.map(|tree| (current, tree)))
        };
        if let Some(found) = in_place()? {
            return Ok(Some(found));
        }
        match self.0.writer.try_lock_for(PATIENCE) {
            Some(_lock) => in_place(),
            None => Ok(None),
        }
    }
}

impl Writer<'_> {
    /// Takes the head's tree, to be changed.
    pub(crate) fn take_tree(&self, current: &HeadState) -> Result<Tree, StorageError> {
        if let Some(tree) = current.tree.lock().take() {
            return Ok(tree);
        }
        // The tree was taken and not put back, because a write or a read failed. After a failed read the rows are
        // unchanged.
        self.store.check_poison()?;
        let Shared { config, frontiers, .. } = &*self.store.0;
        current.load_tree(config.tree_memory_mib, frontiers.as_ref()).map(|(tree, _)| tree)
    }

    /// Returns a copy of the head's tree, which stays in its place.
    pub(crate) fn copy_tree(&self, current: &HeadState) -> Result<Tree, StorageError> {
        let tree = self.take_tree(current)?;
        *current.tree.lock() = Some(tree.clone());
        Ok(tree)
    }

    /// Builds the [`HeadState`] of a head that was just written, with its rows as they are now. It shrinks the tree to
    /// the budget.
    pub(crate) fn current_of(
        &self,
        head: Head,
        record: HeadRecord,
        version: u64,
        tree: Option<Tree>,
    ) -> Arc<HeadState> {
        let reader = self.store.0.backend.snapshot();
        let headers_floor = self.store.0.floors.of_headers();
        let current = HeadState { head, record, version, tree: Mutex::default(), reader, headers_floor };
        *current.tree.lock() = tree.map(|tree| {
            let mut tree = tree.read_from(current.rows());
            tree.shrink(Tree::resident_max(self.store.0.config.tree_memory_mib));
            tree
        });
        Arc::new(current)
    }

    /// Replaces the head's record, and its reader by one of the backend as it is now. The head's state stays the same.
    pub(crate) fn replace_record(&self, current: &HeadState, record: HeadRecord) {
        let tree = current.tree.lock().take();
        let replaced = self.current_of(current.head.clone(), record, current.version, tree);
        self.store.0.current.write().replace(replaced);
    }

    /// Begins to note what is touched after the head that the store was opened at. If opening read all rows, saves the
    /// head's tree, so that the next start is fast.
    pub(crate) fn begin_frontiers(&self, current: &HeadState) {
        let Some(frontiers) = &self.store.0.frontiers else { return };
        match self.store.is_unread() {
            true => frontiers.begin(current.record.number),
            false => self.save_frontier(current),
        }
    }

    /// Has the upper part of a head's tree written in the background: see [`crate::frontier`]. `current` must be the
    /// store's head.
    pub(crate) fn save_frontier(&self, current: &HeadState) {
        let Shared { frontiers: Some(frontiers), snapshots, .. } = &*self.store.0 else { return };
        let kept = snapshots.lock().iter().map(|snapshot| snapshot.info().number).collect();
        let HeadState { head, record, tree, .. } = current;
        let Some(tree) = &*tree.lock() else { return };
        if let Err(error) = self.store.check_room(tree.frontier_bytes()) {
            return tracing::warn!(%error, "cannot write the state tree's upper part: the next start takes longer");
        }
        let title =
            TreeId { number: record.number, column: record.active, state_root: head.header.state_root };
        frontiers.save(title, tree.frontier(), kept);
    }

    /// As [`Writer::save_frontier`], if enough was touched since the last one.
    pub(crate) fn save_due_frontier(&self, current: &HeadState) {
        let leaves = current.tree.lock().as_ref().map_or(0, Tree::leaves);
        if self.store.0.frontiers.as_ref().is_some_and(|frontiers| frontiers.is_due(leaves)) {
            self.save_frontier(current);
        }
    }

    /// Invalidates the handles of all earlier restores. Returns the generation of the next.
    pub(crate) fn end_restores(&self) -> u64 {
        self.store.0.restore_generation.fetch_add(1, Ordering::AcqRel) + 1
    }
}
