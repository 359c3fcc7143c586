//! [`Store::commit`]: a batch becomes the head in one atomic write, or nothing happens.

use slipstream_types::{BatchNumber, Delta, Digest, Path, tree::Subtree};

use crate::{
    batch::CommitBatch,
    changes::{Changes, NextState},
    error::StorageError,
    shared::HeadState,
    stage::{StagedCommit, check_follows},
    state::Tree,
    store::Store,
    writer::Writer,
};

/// The state that a delta would give. It holds the rows behind its computed root, so a commit stores exactly those. Dropping
/// it rolls back.
pub struct Speculation {
    /// The version of the state that it was made on, as [`HeadState::version`] counts.
    base: u64,
    version: u64,
    /// Versions of the states before it, the newest first, that its tree may still be read from.
    lineage: Vec<u64>,
    next: NextState,
}

/// Maximum length of a [`Speculation::lineage`]. Execution further ahead reads older rows until the head catches up.
const LINEAGE_MAX: usize = 8;

impl Speculation {
    /// The state root after the delta.
    pub fn root(&self) -> Digest {
        self.next.tree.root()
    }

    /// The state after the delta, to execute further batches on. It outlives the commit of the speculation.
    pub fn state(&self) -> SpeculatedState {
        SpeculatedState { version: self.version, lineage: self.lineage.clone(), tree: self.next.tree.clone() }
    }
}

/// An uncommitted state that [`Store::speculate_after`] continues from. A clone shares everything.
#[derive(Clone)]
pub struct SpeculatedState {
    version: u64,
    /// See [`Speculation::lineage`].
    lineage: Vec<u64>,
    tree: Tree,
}

impl Store {
    /// Computes the root that the head's state would have after a delta. Writes nothing.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn speculate(&self, delta: &Delta) -> Result<Speculation, StorageError> {
        let (current, tree) = self.current_with_tree()?;
        self.speculation(vec![current.version], tree, delta)
    }

    /// As [`Store::speculate`], but on a state that is itself uncommitted, for execution ahead of agreement. The
    /// result can be committed once the state before it is.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn speculate_after(
        &self,
        before: &SpeculatedState,
        delta: &Delta,
    ) -> Result<Speculation, StorageError> {
        let known = before.lineage.iter().copied().take(LINEAGE_MAX - 1);
        let lineage: Vec<u64> = [before.version].into_iter().chain(known).collect();
        let (mut tree, current) = (before.tree.clone(), self.current()?);
        // Rows committed meanwhile are in the head's rows.
        if let Some(ahead) = lineage.iter().position(|version| *version == current.version) {
            tree = tree.read_ahead_of(current.rows(), ahead as u32);
        }
        self.speculation(lineage, tree, delta)
    }

    /// Speculates on the first state of a lineage.
    fn speculation(&self, lineage: Vec<u64>, tree: Tree, delta: &Delta) -> Result<Speculation, StorageError> {
        let next = NextState { updates: None, ..NextState::of(tree, &[delta])? };
        Ok(Speculation { base: lineage[0], version: self.new_version(), lineage, next })
    }

    /// Computes the root that the head's state would have after a run of deltas. Merges the deltas first, so each
    /// node is hashed once however often it changes. Writes nothing.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn speculate_run(&self, deltas: &[&Delta]) -> Result<Digest, StorageError> {
        let (_, tree) = self.current_with_tree()?;
        Ok(tree.apply(&Changes::of(deltas).1)?.root())
    }

    /// Returns the subtree of the head's state whose paths share the first `bits` bits of `path`. Two versions are
    /// equal there if their subtrees are.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn subtree(&self, path: &Path, bits: usize) -> Result<Subtree, StorageError> {
        self.current_with_tree()?.1.subtree(path, bits.min(256))
    }

    /// Makes the next batch the head: checks number, parent, state root, certificate and code, then writes everything at
    /// once and durably. A speculation on the same head saves computing the root again; one on another state is ignored.
    ///
    /// # Errors
    /// [`StorageError::NotNext`] if another commit came first; otherwise the check that failed. Nothing is written
    /// then.
    pub fn commit(
        &self,
        batch: CommitBatch<'_>,
        speculation: Option<Speculation>,
    ) -> Result<(), StorageError> {
        self.commit_synced(batch, speculation, true)
    }

    /// As [`Store::commit`], but does not wait for a sync, for callers that have the batch in a durable record. The
    /// next durable write also syncs the commit. After a power cut before that, only the record is there.
    ///
    /// # Errors
    /// Those of [`Store::commit`].
    pub fn commit_recorded(
        &self,
        batch: CommitBatch<'_>,
        speculation: Option<Speculation>,
    ) -> Result<(), StorageError> {
        self.commit_synced(batch, speculation, false)
    }

    fn commit_synced(
        &self,
        batch: CommitBatch<'_>,
        speculation: Option<Speculation>,
        durable: bool,
    ) -> Result<(), StorageError> {
        let writer = self.writer();
        let current = self.current()?;
        check_follows(current.record.number, current.head.digest, batch.header)?;
        let (version, next) = match speculation.filter(|speculation| speculation.base == current.version) {
            Some(Speculation { version, next, .. }) => (version, next),
            None => (self.new_version(), NextState::of(writer.take_tree(&current)?, &[batch.delta])?),
        };
        match writer.stage(Some(writer.base(&current)), &[batch], next) {
            Ok(staged) => writer.persist(Some(&current), &[batch], staged, version, durable),
            Err(refused) => Err(writer.refuse(&current, *refused)),
        }
    }
}

impl Writer<'_> {
    /// Writes batches that were staged on the current head, or on nothing, and makes the last of them the head.
    pub(crate) fn persist(
        &self,
        current: Option<&HeadState>,
        batches: &[CommitBatch<'_>],
        staged: StagedCommit,
        version: u64,
        durable: bool,
    ) -> Result<(), StorageError> {
        let StagedCommit { head, record, epoch, tree, updates, touched, mut writes, .. } = staged;
        let recorded = self.put_history(current, batches, &touched, &mut writes);
        if let Err(error) = recorded.and_then(|()| self.store.write(writes, durable)) {
            if let Some(current) = current {
                self.return_tree(current, tree, [updates]);
            }
            return Err(error);
        }
        self.learn_epoch(epoch);
        let before = current.map_or(BatchNumber::GENESIS, |current| current.record.number);
        let current = self.current_of(head, record, version, Some(tree));
        self.install_after(before, &current);
        if let Some(certificate) = batches.last().and_then(|batch| batch.certificate) {
            self.make_snapshot(&current, certificate);
        }
        self.save_due_frontier(&current);
        Ok(())
    }
}
