//! A rollback: moves the head of a store that no node runs on to an earlier batch, whose state the history still
//! knows.
//!
//! ```text
//!  history ─▶ rows after the batch ─▶ root, compared with its header ─▶ snapshots above and frontiers removed ─▶ one write
//! ```
//! The write drops everything above the batch and moves the head; it is atomic and durable. No start needs the
//! snapshots and frontiers that are removed before the write. A kill at any moment leaves the old head or the new one,
//! and a second call finishes the rollback. Snapshots are removed first, and durably: one that stayed would be served
//! once another ledger reaches its batch.

mod ledger;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::{self, File},
    io,
    ops::ControlFlow,
    path::Path as FilePath,
};

use slipstream_types::{BatchHeader, BatchNumber, Digest, Path};

use self::ledger::{drop_epoch_ends, drop_history, drop_ledger};
use crate::{
    backend::{Backend, Column, Direction, Reader, WriteBatch},
    config::StorageConfig,
    directory::{FRONTIERS_DIR, SNAPSHOTS_DIR},
    error::{RollbackError, StorageError},
    floors::{read_headers_floor, read_record},
    history::past_rows::{recorded_from, recorded_sealed},
    history_log::LogValue,
    kept::KeptRecord,
    maintenance::Maintenance,
    nodes::load_accumulator,
    schema::{self, HEAD_KEY, HeadRecord, KINDS, PRUNED_KEY, PrunedRecord, RESTORE_KEY, RestoreRecord},
    state::{Update, load::load_tree},
    takeover::RESTORE_HEADERS_MAX,
    waypoint::passage_before,
};

/// What one rollback may reach.
#[derive(Clone, Copy)]
struct Bounds {
    /// The batch that becomes the head.
    to: BatchNumber,
    /// Maximum number of rows that change.
    rows_max: usize,
}

impl Bounds {
    /// Maximum number of entries of the history, and of the transactions' index, that are dropped: a GiB of each, held
    /// twice.
    fn entries_max(self) -> usize {
        4 * self.rows_max
    }

    fn too_much(self) -> StorageError {
        let (rows_max, entries_max) = (self.rows_max, self.entries_max());
        RollbackError::TooMuch { to: self.to, rows_max, entries_max }.into()
    }
}

/// Counts what a rollback drops, or would drop.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RollbackReport {
    /// Number of the head before the rollback.
    pub from: BatchNumber,
    /// Number of the head after the rollback.
    pub to: BatchNumber,
    /// State root after the rollback, which was computed and compared with the header.
    pub state_root: Digest,
    /// Rows that get an earlier value.
    pub rows_put: u64,
    /// Rows that did not exist after the batch.
    pub rows_removed: u64,
    /// Stored bytes of bodies, receipts, deltas and hints.
    pub blob_bytes: u64,
    /// Certificates, including those of epoch ends.
    pub certificates: u64,
    /// Snapshots above the batch.
    pub snapshots: Vec<BatchNumber>,
}

impl Maintenance {
    /// Moves the head to an earlier batch, or with `dry_run` only reports what that would drop. It also drops the
    /// named records in the ranges of `records`, both ends included: those made of later batches.
    ///
    /// # Errors
    /// [`StorageError::Rollback`] gives the reason. [`StorageError::Corrupt`] if the kept data contradicts the state root in the batch's
    /// header. The store is unchanged then.
    pub fn roll_back(
        &self,
        to: BatchNumber,
        records: &[(String, String)],
        dry_run: bool,
    ) -> Result<RollbackReport, StorageError> {
        roll_back(&self.backend, &self.dir, &self.config, to, records, dry_run)
    }
}

/// As [`Maintenance::roll_back`], on any backend.
pub(crate) fn roll_back(
    backend: &dyn Backend,
    dir: &FilePath,
    config: &StorageConfig,
    to: BatchNumber,
    records: &[(String, String)],
    dry_run: bool,
) -> Result<RollbackReport, StorageError> {
    let reader = backend.snapshot();
    let head = reader.get(Column::Meta, HEAD_KEY)?.ok_or(StorageError::NotInitialized)?;
    let head: HeadRecord = schema::decode("head record", &head)?;
    let header = check(&*reader, &head, to)?;
    let bounds = Bounds { to, rows_max: config.tuning.rollback_rows_max };
    let before = rows_behind(&*reader, &head, bounds)?;
    let mut writes = WriteBatch::default();
    let mut report =
        RollbackReport { from: head.number, to, state_root: header.state_root, ..RollbackReport::default() };

    let updates = put_rows(&before.rows, head.active.column(), &mut writes, &mut report)?;
    let tree = load_tree(&reader, head.active.column(), config.tree_memory_mib)?.apply(&updates)?;
    if tree.root() != header.state_root {
        let (found, expected) = (tree.root(), header.state_root);
        return Err(StorageError::corrupt(format!(
            "the history's rows lead to the state root {found} after batch {to}, but its header says {expected}"
        )));
    }
    drop(tree);
    drop_ledger(&*reader, &head, bounds, &mut writes, &mut report)?;
    drop_epoch_ends(&*reader, to, &mut writes, &mut report)?;
    drop_history(&*reader, &head, to, &before, &mut writes)?;
    put_records(&*reader, &head, to, &mut writes)?;
    passage_before(&*reader, &header, &mut writes)?;
    for (first, last) in records {
        writes.clear_range(Column::Records, first.as_bytes(), last.as_bytes());
    }
    report.snapshots = snapshots_above(backend, to)?;
    if dry_run {
        return Ok(report);
    }
    drop(reader);
    remove_snapshots(backend, dir, to, &report.snapshots)?;
    // The frontiers belong to later states, and are never needed: the next start reads the rows.
    let frontiers = dir.join(FRONTIERS_DIR);
    match fs::remove_dir_all(&frontiers) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(StorageError::io("remove", &frontiers, error));
        }
        _ => {}
    }
    backend.write(writes, true)?;
    Ok(report)
}

fn snapshots_above(backend: &dyn Backend, to: BatchNumber) -> Result<Vec<BatchNumber>, StorageError> {
    let numbers = backend.checkpoints()?.into_iter().map(|(number, _)| BatchNumber::new(number));
    Ok(numbers.filter(|number| *number > to).collect())
}

/// Removes the snapshots above the new head, durably and before that head is written.
fn remove_snapshots(
    backend: &dyn Backend,
    dir: &FilePath,
    to: BatchNumber,
    above: &[BatchNumber],
) -> Result<(), StorageError> {
    if above.is_empty() {
        return Ok(());
    }
    for number in above {
        backend.remove_checkpoint(number.get())?;
    }
    let snapshots = dir.join(SNAPSHOTS_DIR);
    if let Some(left) = snapshots_above(backend, to)?.first() {
        let error = io::Error::other("it is still there: remove it by hand");
        return Err(StorageError::io("remove", &snapshots.join(left.to_string()), error));
    }
    let synced = File::open(&snapshots).and_then(|dir| dir.sync_all());
    synced.map_err(|error| StorageError::io("sync", &snapshots, error))
}

/// Checks that the store can go back to a batch. Returns the batch's header.
fn check(reader: &dyn Reader, head: &HeadRecord, to: BatchNumber) -> Result<BatchHeader, StorageError> {
    if to >= head.number {
        return Err(RollbackError::NotBelow { to, head: head.number }.into());
    }
    if let Some(record) = reader.get(Column::Meta, RESTORE_KEY)? {
        let record: RestoreRecord = schema::decode("restore record", &record)?;
        return Err(RollbackError::Restoring { restoring: record.header.number }.into());
    }
    let first = recorded_from(reader)?.unwrap_or(head.number);
    if to < first {
        return Err(RollbackError::BeyondWindow { to, first }.into());
    }
    // The next batch may ask BLOCKHASH for all of these headers.
    let asked = to.next().before(RESTORE_HEADERS_MAX as u64).max(BatchNumber::GENESIS.next());
    if schema::is_header_pruned(asked, read_headers_floor(reader)?.get()) {
        return Err(RollbackError::NoLedger { to }.into());
    }
    let header = reader.get(Column::Headers, &schema::number_key(to))?;
    match header.zip(load_accumulator(reader, to)?) {
        Some((header, _)) => schema::decode("header", &header),
        None => Err(RollbackError::NoLedger { to }.into()),
    }
}

/// The rows as they were before all batches after a given one.
struct PreviousRows {
    /// The first batch that changed each path since, and the row before it: empty if there was none.
    rows: BTreeMap<Path, (BatchNumber, Vec<u8>)>,
    /// Keys of the history's entries for those batches.
    keys: Vec<Vec<u8>>,
    /// Up to this batch the history is complete, and the log does not count.
    sealed: BatchNumber,
    bounds: Bounds,
}

impl PreviousRows {
    fn add(&mut self, path: Path, batch: BatchNumber, row: &[u8]) -> Result<(), StorageError> {
        if self.rows.len() >= self.bounds.rows_max && !self.rows.contains_key(&path) {
            return Err(self.bounds.too_much());
        }
        match self.rows.entry(path) {
            Entry::Vacant(vacant) => drop(vacant.insert((batch, row.to_vec()))),
            // The first change counts: the others replaced later rows.
            Entry::Occupied(mut found) if batch < found.get().0 => drop(found.insert((batch, row.to_vec()))),
            Entry::Occupied(_) => {}
        }
        Ok(())
    }
}

fn rows_behind(reader: &dyn Reader, head: &HeadRecord, bounds: Bounds) -> Result<PreviousRows, StorageError> {
    let sealed = recorded_sealed(reader)?.unwrap_or(head.number);
    let mut before = PreviousRows { rows: BTreeMap::new(), keys: Vec::new(), sealed, bounds };
    let (to, entries_max) = (bounds.to, bounds.entries_max());
    let after = to.max(sealed);
    reader.scan(
        Column::HistoryLog,
        &schema::number_key(after.next()),
        Direction::Up,
        &mut |key, value| {
            for entry in LogValue::parse(key, value)?.iter() {
                let entry = entry?;
                if entry.batch > after && entry.batch <= head.number {
                    before.add(Path(*entry.path), entry.batch, entry.row)?;
                }
            }
            Ok(ControlFlow::Continue(()))
        },
    )?;
    // Scans all of the history, which is sorted by path. A kill may have left entries that no record counts as
    // sealed. Batches of another ledger must not find them.
    reader.scan(Column::History, &[], Direction::Up, &mut |key, row| {
        let place =
            key.split_first_chunk::<32>().and_then(|(path, _)| Some((*path, schema::history_batch(key)?)));
        let (path, batch) =
            place.ok_or_else(|| StorageError::corrupt("a key of the history is too short"))?;
        if batch > to.get() {
            before.keys.push(key.to_vec());
            before.add(Path(path), BatchNumber::new(batch), row)?;
        }
        match before.keys.len() > entries_max {
            true => Err(bounds.too_much()),
            false => Ok(ControlFlow::Continue(())),
        }
    })?;
    Ok(before)
}

/// Puts the rows back. Returns the updates that the tree needs for that.
fn put_rows(
    rows: &BTreeMap<Path, (BatchNumber, Vec<u8>)>,
    column: Column,
    writes: &mut WriteBatch,
    report: &mut RollbackReport,
) -> Result<Vec<Update>, StorageError> {
    let mut updates = Vec::with_capacity(rows.len());
    for (path, (_, row)) in rows {
        if row.is_empty() {
            writes.delete(column, path.0);
            report.rows_removed += 1;
            updates.push((*path, None));
        } else {
            let (key, value) = schema::decode_row(row)?;
            writes.put(column, path.0, row.clone());
            report.rows_put += 1;
            updates.push((*path, Some(value.hash(&key))));
        }
    }
    Ok(updates)
}

/// Moves the head, and corrects records about batches that are gone.
fn put_records(
    reader: &dyn Reader,
    head: &HeadRecord,
    to: BatchNumber,
    writes: &mut WriteBatch,
) -> Result<(), StorageError> {
    let pruned = read_record(reader)?;
    let below: [BatchNumber; KINDS.len()] = pruned.below.map(|below| below.min(to.next()));
    if below != pruned.below {
        writes.put(Column::Meta, PRUNED_KEY, schema::encode(&PrunedRecord { below }));
    }
    let mut lowest = head.lowest.map(|lowest| lowest.min(to.next()));
    let mut kept = KeptRecord::read(reader)?;
    kept.cut(to, &mut lowest);
    kept.put(writes);
    let head = HeadRecord { number: to, active: head.active, lowest };
    writes.put(Column::Meta, HEAD_KEY, schema::encode(&head));
    Ok(())
}
