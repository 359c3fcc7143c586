//! The snapshots of a [`Store`]: when they are made, and which are kept.

use std::sync::Arc;

use slipstream_types::{BatchNumber, Certificate};

use crate::{
    backend::WriteBatch,
    error::StorageError,
    shared::HeadState,
    snapshot::{Snapshot, SnapshotInfo},
    state::{Tree, load::ColumnRows},
    store::Store,
    writer::Writer,
};

impl Store {
    /// Returns the snapshots that can be served, newest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.0.snapshots.lock().iter().rev().map(|snapshot| snapshot.info().clone()).collect()
    }

    /// Returns the snapshot of exactly this batch. It stays readable while the handle is kept, even when newer ones
    /// replace it.
    pub fn snapshot(&self, number: BatchNumber) -> Result<Option<Arc<Snapshot>>, StorageError> {
        Ok(self.0.snapshots.lock().iter().find(|snapshot| snapshot.info().number == number).cloned())
    }

    /// Makes a snapshot of the head now, whatever the interval says. Returns the existing one if there is one.
    ///
    /// # Errors
    /// [`StorageError::NoSnapshot`] if the head lacks a certificate or snapshots are off.
    pub fn create_snapshot(&self) -> Result<SnapshotInfo, StorageError> {
        let writer = self.writer();
        let current = self.current()?;
        let number = current.record.number;
        if let Some(made) = self.snapshot(number)? {
            return Ok(made.info().clone());
        }
        let refused = |reason| StorageError::NoSnapshot { number, reason };
        if self.0.config.snapshots_kept == 0 {
            return Err(refused("`storage.snapshots_kept` is 0: set it to 1 or more"));
        }
        let certificate = self.certificate(number)?.ok_or_else(|| {
            refused(
                "the batch has no certificate of its own: run the node until it is in sync, stop it, and try again",
            )
        })?;
        writer.take_snapshot(&current, &certificate)
    }

    pub(crate) fn is_snapshot_due(&self, number: BatchNumber) -> bool {
        let config = &self.0.config;
        let interval = config.snapshot_interval_batches;
        interval > 0 && config.snapshots_kept > 0 && number.get().is_multiple_of(interval)
    }

    /// Takes over the checkpoints of earlier processes.
    pub(crate) fn load_snapshots(&self, head: Option<BatchNumber>) -> Result<(), StorageError> {
        let rows = self.current().map_or(0, |current| current.tree.lock().as_ref().map_or(0, Tree::leaves));
        for (number, reader) in self.0.backend.checkpoints()? {
            let (memory_mib, frontiers) = (self.0.config.tree_memory_mib, self.frontiers_dir());
            match Snapshot::of_checkpoint(BatchNumber::new(number), rows, reader, memory_mib, frontiers) {
                Ok(Some(snapshot)) if Some(snapshot.info().number) <= head => {
                    self.0.snapshots.lock().push(Arc::new(snapshot));
                }
                // The snapshot may be the last copy of some batches, so it is kept until the ledger is there again.
                Ok(Some(_)) => {
                    let head = head.map(|head| head.get());
                    tracing::error!(
                        snapshot = number,
                        head,
                        "the store's head is below one of its snapshots: the log lost its end, and batches with it. \
                        The node keeps the snapshot but does not serve it; check the disk, and do not let a \
                        validator vote with this store"
                    );
                }
                // The snapshot may turn out whole once the disk, or the limit on open files, is in order.
                Ok(None) => tracing::warn!(
                    snapshot = number,
                    "a snapshot's name and content belong to different batches: the node keeps it but does not serve it; remove its directory by hand"
                ),
                Err(error) => tracing::warn!(
                    snapshot = number,
                    %error,
                    "cannot read a snapshot: the node keeps it but does not serve it; check the disk, or remove its directory by hand"
                ),
            }
        }
        self.drop_old_snapshots();
        Ok(())
    }

    fn drop_old_snapshots(&self) {
        let mut snapshots = self.0.snapshots.lock();
        let surplus = snapshots.len().saturating_sub(self.0.config.snapshots_kept);
        for snapshot in snapshots.drain(..surplus) {
            let number = snapshot.info().number;
            if let Err(error) = self.0.backend.remove_checkpoint(number.get()) {
                tracing::warn!(%number, %error, "cannot remove an old snapshot");
            }
        }
    }
}

impl Writer<'_> {
    /// Freezes the head's state if a snapshot is due, and frees snapshots beyond the number kept. A snapshot only
    /// serves others, so its failure is logged and does not fail the commit.
    pub(crate) fn make_snapshot(&self, current: &HeadState, certificate: &Certificate) {
        let number = current.record.number;
        if !self.store.is_snapshot_due(number) || matches!(self.store.snapshot(number), Ok(Some(_))) {
            return;
        }
        if let Err(error) = self.take_snapshot(current, certificate) {
            tracing::warn!(%number, %error, "cannot take a snapshot; peers can still restore from older ones");
        }
    }

    /// Shortly before a snapshot, flushes large memtables in the background and starts a new log file, so that the
    /// checkpoint copies little of the log. Batches that were committed together count as one step, and this runs at
    /// least one step ahead.
    pub(crate) fn prepare_snapshot(&self, before: BatchNumber, committed: BatchNumber) {
        let interval = self.store.0.config.snapshot_interval_batches;
        if interval == 0 || self.store.0.config.snapshots_kept == 0 {
            return;
        }
        let ahead = (interval / 10).clamp(1, 16).max(committed.since(before));
        let due = |number: BatchNumber| number.after(ahead).get() / interval;
        if due(committed) > due(before)
            && let Err(error) = self.store.0.backend.prepare_checkpoint()
        {
            tracing::warn!(%error, "cannot prepare the next snapshot");
        }
    }

    fn take_snapshot(
        &self,
        current: &HeadState,
        certificate: &Certificate,
    ) -> Result<SnapshotInfo, StorageError> {
        let number = current.record.number;
        // A crash must not leave a snapshot whose batch it loses: the commit may still be unsynced.
        if self.store.0.config.fsync {
            self.store.write(WriteBatch::default(), true)?;
        }
        let reader = self.store.0.backend.checkpoint(number.get())?;
        let state_root = current.head.header.state_root;
        let tree = current.tree.lock().clone();
        let rows = tree.as_ref().map_or(0, Tree::leaves);
        let info = SnapshotInfo { number, state_root, certificate: certificate.clone(), rows };
        let column = current.record.active.column();
        let tree_memory_mib = self.store.0.config.tree_memory_mib;
        // The checkpoint outlives the head's rows, which the tree's evicted parts would be read from.
        let tree = tree.map(|tree| tree.read_from(ColumnRows::new(Arc::clone(&reader), column)));
        let snapshot = Snapshot::new(
            info.clone(),
            reader,
            column,
            tree_memory_mib,
            self.store.frontiers_dir(),
            tree,
            self.store.is_unread(),
        );
        self.store.0.snapshots.lock().push(Arc::new(snapshot));
        self.store.drop_old_snapshots();
        Ok(info)
    }
}
