//! Pruning: the ledger's blobs beyond a window per kind are dropped, by whole files, so that the disk has them back at once
//! and nothing is rewritten.
//!
//! Two steps, in this order: the floor of a kind moves up in a synced write, from which moment on nothing below it is served
//! or announced; then the files that hold only batches below it go. A kill between the two leaves blobs that nobody
//! can see, and the next step drops them. What shares a file with kept batches goes later, with that file.

use slipstream_types::{BatchNumber, BlobKind};

use crate::{
    backend::{Column, Upkeep, WriteBatch},
    config::PruneConfig,
    error::StorageError,
    schema::{self, HeadRecord, KINDS, PRUNED_KEY, PrunedRecord},
    store::Store,
    writer::Writer,
};

/// What pruning did, or would do, to one kind of blob.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pruned {
    /// The kind.
    pub kind: BlobKind,
    /// The lowest batch whose blob is kept.
    pub lowest: BatchNumber,
    /// Bytes of the files that go.
    pub bytes: u64,
    /// The part of them that snapshots share: the disk has it back when those are replaced by newer ones.
    pub bytes_in_snapshots: u64,
}

/// The floors that the windows ask for at a head. A floor never moves down: what was dropped does not come back.
pub(crate) fn target(head: &HeadRecord, pruned: &PrunedRecord, config: &PruneConfig) -> PrunedRecord {
    let mut target = *pruned;
    for (floor, window) in target.below.iter_mut().zip(config.windows()) {
        if window > 0 {
            *floor = (*floor).max(head.number.next().before(window));
        }
    }
    target
}

/// The write of the first step.
pub(crate) fn record_write(target: &PrunedRecord) -> WriteBatch {
    let mut writes = WriteBatch::default();
    writes.put(Column::Meta, PRUNED_KEY, schema::encode(target));
    writes
}

/// The second step, or with `dry_run` what it would free. Only for floors that are on disk.
pub(crate) fn drop_files(
    backend: &dyn Upkeep,
    target: &PrunedRecord,
    dry_run: bool,
) -> Result<Vec<Pruned>, StorageError> {
    let mut pruned = Vec::new();
    for (kind, lowest) in KINDS.into_iter().zip(target.below) {
        let Some(column) = schema::blob_column(kind).filter(|_| lowest > BatchNumber::GENESIS) else {
            continue;
        };
        let below = schema::number_key(lowest);
        let dropped =
            if dry_run { backend.droppable(column, &below)? } else { backend.drop_below(column, &below)? };
        let (bytes, bytes_in_snapshots) = (dropped.bytes, dropped.bytes_in_snapshots);
        pruned.push(Pruned { kind, lowest, bytes, bytes_in_snapshots });
    }
    if !dry_run {
        backend.forget_transactions_below(target.below[0].get());
    }
    Ok(pruned)
}

impl Store {
    /// Drops what is beyond the configured windows. For a task beside the commits, which it holds up for one small write.
    /// Returns what went, per kind that was ever pruned.
    ///
    /// # Errors
    /// What the disk says; the store refuses further work then. Nothing that is still announced was dropped.
    pub fn prune(&self) -> Result<Vec<Pruned>, StorageError> {
        let target = self.writer().raise_floors()?;
        self.guard(|backend| drop_files(backend, &target, false))
    }

    /// Below this batch no blob of the kind is served, because it was pruned; 0 before anything was.
    pub fn floor(&self, kind: BlobKind) -> BatchNumber {
        schema::kind_index(kind).map_or(BatchNumber::GENESIS, |index| self.0.floors.get(index))
    }

    pub(crate) fn is_pruned(&self, kind: BlobKind, number: BatchNumber) -> bool {
        number < self.floor(kind)
    }
}

impl Writer<'_> {
    /// The first step: moves the floors up to where the windows ask for them. Returns where they are.
    fn raise_floors(&self) -> Result<PrunedRecord, StorageError> {
        let head = self.store.current()?.record;
        let floors = &self.store.0.floors;
        let pruned = PrunedRecord { below: std::array::from_fn(|index| floors.get(index)) };
        let target = target(&head, &pruned, &self.store.0.config.prune);
        if target != pruned {
            // Synced even without `fsync`: after a power cut too, what is gone must not be announced.
            self.store.write_unguarded(record_write(&target), true)?;
            floors.set(&target);
        }
        Ok(target)
    }
}
