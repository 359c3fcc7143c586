//! Pruning drops blobs and headers beyond a window per kind. It drops whole files, so the disk has the space at once
//! and nothing is rewritten.
//!
//! Pruning takes two steps. First the floor of a kind moves up in a synced write; from then on the store serves and
//! announces nothing below it. Then the files that hold only lower batches are dropped. A kill between the steps
//! leaves invisible files, which the next pruning drops. Batches that share a file with kept ones go later, with that
//! file.
//!
//! A batch whose header is pruned also loses its certificate, its index entry, and the accumulator nodes that no
//! later header needs. The store is then like one that began from a snapshot at the floor.

use std::ops::ControlFlow;

use slipstream_types::{BatchHeader, BatchNumber, BlobKind, accumulator::NodePosition};

use crate::{
    backend::{Backend, Column, Direction, FreedSpace, Upkeep, WriteBatch},
    config::PruneConfig,
    error::StorageError,
    schema::{self, HeadRecord, KINDS, PRUNED_HEADERS_KEY, PRUNED_KEY, PrunedRecord},
    shared::HeadState,
    store::Store,
    takeover::RESTORE_HEADERS_MAX,
    window::Window,
    writer::Writer,
};

/// Columns that are pruned with headers. Their keys are batch numbers, except for the index and the nodes.
const OF_HEADERS: [Column; 4] = [Column::Headers, Column::Certificates, Column::HeaderIndex, Column::Nodes];

/// Reports what pruning did, or would do, to one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PruneReport {
    /// The kind of data.
    pub kind: PrunedKind,
    /// The lowest batch whose data of this kind is kept.
    pub lowest: BatchNumber,
    /// Bytes of the dropped files.
    pub bytes: u64,
    /// The part of them that snapshots share: the disk has it back when newer snapshots replace these.
    pub bytes_in_snapshots: u64,
}

/// Names a kind of data that pruning drops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrunedKind {
    /// The blobs of one kind.
    Blobs(BlobKind),
    /// Headers, with certificates and nodes of the accumulator.
    Headers,
}

impl PrunedKind {
    /// The kind's name in messages to people.
    pub fn name(self) -> &'static str {
        match self {
            PrunedKind::Blobs(kind) => kind.name(),
            PrunedKind::Headers => "headers",
        }
    }
}

/// Returns the floors of blobs that the windows require at a head. Pruning moves no floor down, because dropped data
/// stays gone; a backfill does, once it has fetched that data again.
pub(crate) fn target(
    backend: &dyn Backend,
    head: &HeadRecord,
    pruned: &PrunedRecord,
    config: &PruneConfig,
) -> Result<PrunedRecord, StorageError> {
    let mut target = *pruned;
    for ((floor, kind), window) in target.below.iter_mut().zip(KINDS).zip(config.blobs()) {
        let Some(column) = schema::blob_column(kind) else { continue };
        *floor = (*floor).max(first_kept(backend, head.number, column, window)?);
    }
    Ok(target)
}

/// Returns the first batch that a window over a column of batches keeps.
fn first_kept(
    backend: &dyn Backend,
    head: BatchNumber,
    column: Column,
    window: Window,
) -> Result<BatchNumber, StorageError> {
    let first = match window {
        Window::All => BatchNumber::GENESIS,
        Window::Batches(batches) => head.next().before(batches),
        Window::Seconds(seconds) => first_since(backend, head, seconds)?,
        Window::Bytes(bytes) => match backend.key_within(column, bytes)? {
            Some(key) => schema::decode_number(&key)?,
            None => BatchNumber::GENESIS,
        },
    };
    Ok(first.min(head))
}

/// Returns the first batch that a backfill should reach, at least 1. All batches from `lowest` on are stored. Those
/// in the gap of a leap have an unknown age and length, so all of them are wanted while their window may have room.
pub(crate) fn first_wanted(
    backend: &dyn Backend,
    head: BatchNumber,
    lowest: BatchNumber,
    column: Column,
    window: Window,
) -> Result<BatchNumber, StorageError> {
    let all = BatchNumber::new(1);
    let first = match window {
        Window::All | Window::Batches(_) => first_kept(backend, head, column, window)?,
        Window::Seconds(seconds) => {
            let first = first_since(backend, head, seconds)?;
            match backend.get(Column::Headers, &schema::number_key(first.before(1)))? {
                Some(_) => first,
                None => all,
            }
        }
        // Pruning drops whole files. So a window that is nearly full is left alone, or pruning and backfill would undo
        // each other's work.
        Window::Bytes(bytes) if backend.size(column)?.bytes >= bytes - bytes / 8 => lowest,
        Window::Bytes(_) => all,
    };
    Ok(first.max(all))
}

/// Returns the first batch that is older than the head by at most `seconds`. Timestamps never descend. A batch in the
/// gap of a leap counts as old as the last one before the gap.
fn first_since(reader: &dyn Backend, head: BatchNumber, seconds: u64) -> Result<BatchNumber, StorageError> {
    let timestamp_ms = |number| {
        let mut found = 0;
        reader.scan(Column::Headers, &schema::number_key(number), Direction::Down, &mut |_, header| {
            found = schema::decode::<BatchHeader>("header", header)?.timestamp_ms;
            Ok(ControlFlow::Break(()))
        })?;
        Ok::<_, StorageError>(found)
    };
    let oldest_ms = timestamp_ms(head)?.saturating_sub(seconds.saturating_mul(1_000));
    let (mut too_old, mut kept) = (0, head.get());
    while kept - too_old > 1 {
        let middle = too_old + (kept - too_old) / 2;
        match timestamp_ms(BatchNumber::new(middle))? >= oldest_ms {
            true => kept = middle,
            false => too_old = middle,
        }
    }
    Ok(BatchNumber::new(kept))
}

/// Returns the write of the first step, for blobs.
pub(crate) fn record_write(target: &PrunedRecord) -> WriteBatch {
    let mut writes = WriteBatch::default();
    writes.put(Column::Meta, PRUNED_KEY, schema::encode(target));
    writes
}

/// Runs the second step for blobs, or with `dry_run` returns what it would free. The floors must be on disk.
pub(crate) fn drop_files(
    backend: &dyn Upkeep,
    target: &PrunedRecord,
    dry_run: bool,
) -> Result<Vec<PruneReport>, StorageError> {
    let mut pruned = Vec::new();
    for (kind, lowest) in KINDS.into_iter().zip(target.below) {
        let Some(column) = schema::blob_column(kind).filter(|_| lowest > BatchNumber::GENESIS) else {
            continue;
        };
        let below = schema::number_key(lowest);
        let dropped = if dry_run {
            backend.droppable(column, &[], &below)?
        } else {
            backend.drop_between(column, &[], &below)?
        };
        pruned.push(PruneReport::of(PrunedKind::Blobs(kind), lowest, dropped));
    }
    if !dry_run {
        backend.forget_transactions_below(target.below[0].get());
    }
    Ok(pruned)
}

/// Runs the second step for headers. The header of the genesis stays, so pruned headers in the same file go when that
/// file is compacted.
fn drop_headers(backend: &dyn Upkeep, lowest: BatchNumber) -> Result<PruneReport, StorageError> {
    backend.forget_headers_below(lowest.get());
    let mut dropped = FreedSpace::default();
    let mut add = |more: FreedSpace| {
        dropped.bytes += more.bytes;
        dropped.bytes_in_snapshots += more.bytes_in_snapshots;
    };
    let (first, below) = (schema::number_key(BatchNumber::new(1)), schema::number_key(lowest));
    for column in [Column::Headers, Column::Certificates] {
        add(backend.drop_between(column, &first, &below)?);
    }
    for level in 0..64 {
        let key = |index| schema::node_key(NodePosition { level, index });
        let needed = schema::first_node_needed(level, lowest.get());
        if needed <= 2 {
            break;
        }
        add(backend.drop_between(Column::Nodes, &key(2), &key(needed))?);
    }
    Ok(PruneReport::of(PrunedKind::Headers, lowest, dropped))
}

impl PruneReport {
    fn of(kind: PrunedKind, lowest: BatchNumber, dropped: FreedSpace) -> PruneReport {
        let FreedSpace { bytes, bytes_in_snapshots } = dropped;
        PruneReport { kind, lowest, bytes, bytes_in_snapshots }
    }
}

impl Store {
    /// Drops everything beyond the configured windows. Call it from a task beside the commits: it delays them by one
    /// small write. Returns what was dropped, per kind that was ever pruned.
    ///
    /// # Errors
    /// Errors of the disk; the store refuses further work then. Announced data is still there.
    pub fn prune(&self) -> Result<Vec<PruneReport>, StorageError> {
        let _moving = self.0.floors.moving();
        let (blobs, headers) = self.writer().raise_floors()?;
        let (floors, step) = (&self.0.floors, self.0.config.tuning.headers_step_batches);
        self.guard(|backend| {
            let mut pruned = drop_files(backend, &blobs, false)?;
            if headers.since(floors.headers_dropped()) >= step {
                pruned.push(drop_headers(backend, headers)?);
                floors.set_headers_dropped(headers);
            }
            Ok(pruned)
        })
    }
}

impl Writer<'_> {
    /// Runs the first step: moves the floors up to where the windows require them. Returns the floors of blobs and of
    /// headers.
    fn raise_floors(&self) -> Result<(PrunedRecord, BatchNumber), StorageError> {
        let current = self.store.current()?;
        let backend = &*self.store.0.backend;
        let floors = &self.store.0.floors;
        let pruned = floors.record();
        let target = target(backend, &current.record, &pruned, &self.store.0.config.prune)?;
        let headers = self.headers_floor(&current, &target)?;
        let mut writes = WriteBatch::default();
        if target != pruned {
            writes = record_write(&target);
        }
        if headers != floors.headers() {
            writes.put(Column::Meta, PRUNED_HEADERS_KEY, schema::number_key(headers));
            self.store.keep_passage(&current.head.header, &mut writes)?;
        }
        if !writes.0.is_empty() {
            // Syncs even with `fsync` off: after a power cut, the store must not announce dropped batches.
            self.store.write_unguarded(writes, true)?;
            floors.set(&target, headers);
        }
        Ok((target, headers))
    }

    /// Returns the floor of headers that their window requires, if the rest of the store allows it. Blobs, past
    /// states, snapshots and the newest certificate keep their headers; past states and snapshots also keep the
    /// earlier ones that BLOCKHASH needs.
    fn headers_floor(&self, current: &HeadState, blobs: &PrunedRecord) -> Result<BatchNumber, StorageError> {
        let Store(shared) = self.store;
        let (backend, floor) = (&*shared.backend, shared.floors.headers());
        let window = match shared.config.prune.headers {
            Window::All => return Ok(floor),
            Window::Bytes(bytes) => Window::Bytes(bytes_of_headers(backend, bytes)?),
            window => window,
        };
        let mut lowest = first_kept(backend, current.record.number, Column::Headers, window)?;
        let snapshot = shared.snapshots.lock().first().map(|snapshot| snapshot.info().number);
        let certified = self.store.latest_certificate()?.map(|certificate| certificate.info.number);
        let asked_before = |number: BatchNumber| number.before(RESTORE_HEADERS_MAX as u64);
        for needed in [
            blobs.below.into_iter().min(),
            Some(asked_before(self.store.first_state(current)?)),
            snapshot.map(asked_before),
            Some(certified.unwrap_or_default()),
        ] {
            lowest = lowest.min(needed.unwrap_or(lowest));
        }
        Ok(lowest.max(floor))
    }
}

/// Returns the part of `bytes` that is for headers alone. The rest is for what is pruned with them.
fn bytes_of_headers(backend: &dyn Upkeep, bytes: u64) -> Result<u64, StorageError> {
    let mut all = 0;
    for column in OF_HEADERS {
        all += backend.size(column)?.bytes;
    }
    let headers = backend.size(Column::Headers)?.bytes;
    Ok((u128::from(bytes) * u128::from(headers) / u128::from(all.max(1))) as u64)
}
