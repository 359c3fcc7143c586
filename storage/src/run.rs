//! [`Store::commit_run`]: many batches become the head in groups, each by one root and one write.

use std::num::NonZeroUsize;

use slipstream_types::Delta;

use crate::{
    batch::CommitBatch,
    changes::{Changes, NextState},
    error::StorageError,
    shared::HeadState,
    stage::{CommitBase, RefusedCommit, StagedCommit, check_follows},
    state::Tree,
    store::Store,
    writer::Writer,
};

impl Store {
    /// Commits consecutive batches, `group_batches` at a time. Merges a group's deltas, computes its root once, and
    /// compares it with the last header's. Then writes the group durably at once, so a crash leaves all of it or
    /// nothing. While one group is written, the root of the next is computed. A group ends early at a batch whose
    /// snapshot is due. Two groups are in memory at a time, with all their parts.
    ///
    /// Number, parent, code and certificate of every batch are checked. Code that one batch brings counts as known to
    /// its whole group.
    ///
    /// # Errors
    /// Those of [`Store::commit`], for the first batch that does not fit; the batches before it are committed.
    /// Halving the group finds the batch of a [`StorageError::StateRootMismatch`]. After a wrong change of the state,
    /// later batches mismatch too, and this finds the first.
    pub fn commit_run(
        &self,
        batches: &[CommitBatch<'_>],
        group_batches: NonZeroUsize,
    ) -> Result<(), StorageError> {
        let writer = self.writer();
        // A snapshot needs the tree of exactly its batch, so a run ends there.
        for run in batches.chunk_by(|batch, _| !self.is_snapshot_due(batch.header.number)) {
            writer.commit_groups(&run.chunks(group_batches.get()).collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

impl Writer<'_> {
    /// Commits consecutive groups, none of them empty.
    fn commit_groups(&self, groups: &[&[CommitBatch<'_>]]) -> Result<(), StorageError> {
        let [first, following @ ..] = groups else { return Ok(()) };
        let mut current = self.store.current()?;
        check_follows(current.record.number, current.head.digest, first[0].header)?;
        let stage = |base: CommitBase<'_>, group: &[CommitBatch<'_>], tree: Tree| {
            NextState::of(tree, &deltas(group)).map(|next| self.stage(Some(base), group, next))
        };
        let tree = self.take_tree(&current)?;
        let mut staged = stage(self.base(&current), first, tree)?;
        for (group, next_group) in groups.iter().zip(following) {
            let StagedCommit { head, record, epoch, tree, updates, codes, touched, mut writes } =
                staged.map_err(|refused| self.refuse_group(&current, group, *refused))?;
            let base = CommitBase { head: &head, record: &record, codes: &codes, epoch };
            let write = || {
                self.put_history(Some(&current), group, &touched, &mut writes)?;
                self.store.write(writes, true)
            };
            let (written, next) = rayon::join(write, || stage(base, next_group, tree));
            if let Err(error) = written {
                let (tree, after) = match next? {
                    Ok(staged) => (staged.tree, staged.updates),
                    Err(refused) => (refused.tree, refused.updates),
                };
                self.return_tree(&current, tree, [after, updates]);
                return Err(error);
            }
            self.learn_epoch(epoch);
            let before = current.record.number;
            current = self.current_of(head, record, self.store.new_version(), None);
            self.install_after(before, &current);
            staged = next?.map(|staged| {
                let tree = staged.tree.read_ahead_of(current.rows(), 1);
                StagedCommit { tree, ..staged }
            });
        }
        let last = groups[following.len()];
        let staged = staged.map_err(|refused| self.refuse_group(&current, last, *refused))?;
        self.persist(Some(&current), last, staged, self.store.new_version(), true)
    }

    /// Commits the part of a refused group before the batch that does not fit. Returns that batch's error, or an
    /// earlier one.
    fn refuse_group(
        &self,
        current: &HeadState,
        group: &[CommitBatch<'_>],
        refused: RefusedCommit,
    ) -> StorageError {
        let index = refused.index;
        let fitting = match self.refuse(current, refused) {
            error @ StorageError::StateRootMismatch { .. } if index > 0 => {
                self.first_mismatch(current, &group[..=index], error)
            }
            error => Ok((index, error)),
        };
        let (fitting, error) = match fitting {
            Ok((0, error)) | Err(error) => return error,
            Ok(fitting) => fitting,
        };
        self.commit_groups(&[&group[..fitting]]).err().unwrap_or(error)
    }

    /// Returns how many batches of a mismatching group lead to a root that fits, and the mismatch of the batch after
    /// them.
    fn first_mismatch(
        &self,
        current: &HeadState,
        group: &[CommitBatch<'_>],
        mut mismatch: StorageError,
    ) -> Result<(usize, StorageError), StorageError> {
        let tree = self.copy_tree(current)?;
        let (mut fitting, mut unfit) = (0, group.len());
        while unfit - fitting > 1 {
            let middle = fitting.midpoint(unfit);
            let header = group[middle - 1].header;
            let (number, expected) = (header.number, header.state_root);
            let found = tree.clone().apply(&Changes::of(&deltas(&group[..middle])).1)?.root();
            if found == expected {
                fitting = middle;
            } else {
                unfit = middle;
                mismatch = StorageError::StateRootMismatch { number, expected, found };
            }
        }
        Ok((fitting, mismatch))
    }
}

fn deltas<'a>(group: &[CommitBatch<'a>]) -> Vec<&'a Delta> {
    group.iter().map(|batch| batch.delta).collect()
}
