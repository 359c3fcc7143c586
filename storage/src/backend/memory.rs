//! The in-memory twin of [`super::rocks`]: every key has its versions, and a snapshot is a sequence number. So is what has
//! reached the disk, where that counts: see [`MemoryBackend::after_crash`].

mod durable;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};

use super::{
    Backend, Column, Direction, Dropped, NumberedReader, Reader, SortedRun, Visit, Write, WriteBatch,
};
use crate::{error::StorageError, schema};
use durable::{Durable, Way};

/// Batches after which old entries of the history go.
const FORGET_EVERY: u64 = 64;

/// Versions of one key by ascending sequence number; none is a deletion.
type Versions = Vec<(u64, Option<Arc<[u8]>>)>;

#[derive(Default)]
struct Tables {
    sequence: u64,
    columns: [BTreeMap<Vec<u8>, Versions>; Column::ALL.len()],
    /// Keys with more than one version (or a deletion), by the sequence number that made the older ones stale.
    stale: VecDeque<(u64, Column, Vec<u8>)>,
    /// Only where there may be a crash.
    durable: Option<Durable>,
}

#[derive(Default)]
struct Shared {
    tables: RwLock<Tables>,
    /// Live snapshots by sequence number, with how many share it. Locked after `tables`.
    live: Mutex<BTreeMap<u64, usize>>,
}

/// A database that lives as long as its last handle.
#[derive(Clone, Default)]
pub(crate) struct MemoryBackend {
    shared: Arc<Shared>,
    /// By number. Not in what is shared, which they keep alive.
    checkpoints: Arc<Mutex<BTreeMap<u64, Arc<dyn Reader>>>>,
}

struct MemorySnapshot {
    shared: Arc<Shared>,
    sequence: u64,
}

impl Drop for MemorySnapshot {
    fn drop(&mut self) {
        let mut live = self.shared.live.lock();
        if let Some(count) = live.get_mut(&self.sequence) {
            *count -= 1;
            if *count == 0 {
                live.remove(&self.sequence);
            }
        }
    }
}

fn visible(versions: &Versions, sequence: u64) -> Option<&[u8]> {
    versions.iter().rev().find(|(at, _)| *at <= sequence).and_then(|(_, value)| value.as_deref())
}

impl MemoryBackend {
    /// One that knows what a crash would leave of it.
    pub(crate) fn with_crashes() -> MemoryBackend {
        let backend = MemoryBackend::default();
        backend.shared.tables.write().durable = Some(Durable::default());
        backend
    }

    /// Writes that a crash may lose.
    pub(crate) fn unsynced(&self) -> usize {
        self.shared.tables.read().durable.as_ref().map_or(0, Durable::unsynced)
    }

    /// What is left when the power goes and the first `kept` of the unsynced writes have reached the disk: an own database. As
    /// on RocksDB, a log loses its end; a file that was linked in and a checkpoint, which has its own copy of the log, are whole
    /// whatever the log lost; a run that was not linked in is gone.
    pub(crate) fn after_crash(&self, kept: usize) -> MemoryBackend {
        let tables = self.shared.tables.read();
        let mut left = Tables { durable: Some(Durable::default()), ..Tables::default() };
        let survives = |at: u64| tables.durable.as_ref().is_none_or(|durable| durable.survives(at, kept));
        for (column, table) in left.columns.iter_mut().zip(&tables.columns) {
            for (key, versions) in table {
                let last = versions.iter().rev().find(|(at, _)| survives(*at));
                if let Some((_, Some(value))) = last {
                    column.insert(key.clone(), vec![(0, Some(Arc::clone(value)))]);
                }
            }
        }
        let shared = Shared { tables: RwLock::new(left), live: Mutex::default() };
        let checkpoints = Mutex::new(self.checkpoints.lock().clone());
        MemoryBackend { shared: Arc::new(shared), checkpoints: Arc::new(checkpoints) }
    }

    fn write_by(&self, way: Way, batch: WriteBatch) {
        let mut tables = self.shared.tables.write();
        tables.sequence += 1;
        for write in batch.0 {
            tables.apply(write);
        }
        let sequence = tables.sequence;
        let durable = tables.durable.as_mut().map(|durable| {
            durable.write(sequence, way);
            durable.synced()
        });
        let live = self.shared.live.lock().keys().next().copied();
        let oldest = live.into_iter().chain(durable).min().unwrap_or(sequence);
        tables.collect(oldest);
    }
}

impl Tables {
    fn get(&self, column: Column, key: &[u8], sequence: u64) -> Option<Vec<u8>> {
        self.columns[column as usize]
            .get(key)
            .and_then(|versions| visible(versions, sequence))
            .map(<[u8]>::to_vec)
    }

    fn set(&mut self, column: Column, key: Vec<u8>, value: Option<Arc<[u8]>>) {
        let versions = self.columns[column as usize].entry(key.clone()).or_default();
        if !versions.is_empty() || value.is_none() {
            self.stale.push_back((self.sequence, column, key));
        }
        versions.push((self.sequence, value));
    }

    fn apply(&mut self, write: Write) {
        match write {
            Write::Put(column, key, value) => self.set(column, key, Some(value.into())),
            Write::Delete(column, key) => self.set(column, key, None),
            Write::Rows(column, rows) => {
                for (path, row) in rows.iter() {
                    self.set(column, path.0.to_vec(), row.map(Arc::from));
                }
            }
            Write::Clear(column) => {
                let keys: Vec<_> = self.columns[column as usize].keys().cloned().collect();
                for key in keys {
                    self.set(column, key, None);
                }
            }
            Write::ClearRange(column, first, last) => {
                let bounds = (Bound::Included(first), Bound::Included(last));
                let keys: Vec<_> =
                    self.columns[column as usize].range(bounds).map(|(key, _)| key.clone()).collect();
                for key in keys {
                    self.set(column, key, None);
                }
            }
        }
    }

    /// Drops versions that no snapshot can see any more.
    fn collect(&mut self, oldest_live: u64) {
        while self.stale.front().is_some_and(|(at, ..)| *at <= oldest_live) {
            let Some((_, column, key)) = self.stale.pop_front() else { return };
            let table = &mut self.columns[column as usize];
            let Some(versions) = table.get_mut(&key) else { continue };
            let seen = versions.iter().rposition(|(at, _)| *at <= oldest_live).unwrap_or(0);
            versions.drain(..seen);
            if matches!(versions[..], [(at, None)] if at <= oldest_live) {
                table.remove(&key);
            }
        }
    }

    fn scan(
        &self,
        column: Column,
        from: &[u8],
        direction: Direction,
        sequence: u64,
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError> {
        let table = &self.columns[column as usize];
        let rows: Box<dyn Iterator<Item = (&Vec<u8>, &Versions)>> = match direction {
            Direction::Up => Box::new(table.range::<[u8], _>((Bound::Included(from), Bound::Unbounded))),
            Direction::Down => {
                Box::new(table.range::<[u8], _>((Bound::Unbounded, Bound::Included(from))).rev())
            }
        };
        for (key, versions) in rows {
            let Some(value) = visible(versions, sequence) else { continue };
            if visit(key, value)? == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}

impl Reader for MemorySnapshot {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.shared.tables.read().get(column, key, self.sequence))
    }

    fn multi_get(&self, column: Column, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        let tables = self.shared.tables.read();
        Ok(keys.iter().map(|key| tables.get(column, key, self.sequence)).collect())
    }

    fn scan(
        &self,
        column: Column,
        from: &[u8],
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError> {
        self.shared.tables.read().scan(column, from, direction, self.sequence, visit)
    }
}

impl Reader for MemoryBackend {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.shared.tables.read().get(column, key, u64::MAX))
    }

    fn multi_get(&self, column: Column, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        let tables = self.shared.tables.read();
        Ok(keys.iter().map(|key| tables.get(column, key, u64::MAX)).collect())
    }

    fn scan(
        &self,
        column: Column,
        from: &[u8],
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError> {
        self.shared.tables.read().scan(column, from, direction, u64::MAX, visit)
    }
}

/// Rows that wait to be written at once.
struct MemoryRun {
    backend: MemoryBackend,
    column: Column,
    rows: WriteBatch,
}

impl SortedRun for MemoryRun {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        self.rows.put(self.column, key, value);
        Ok(())
    }

    fn seal(&mut self) -> Result<(), StorageError> {
        Ok(())
    }

    fn ingest(self: Box<Self>) -> Result<(), StorageError> {
        self.backend.write_by(Way::Beside, self.rows);
        Ok(())
    }
}

impl Backend for MemoryBackend {
    fn write(&self, batch: WriteBatch, durable: bool) -> Result<(), StorageError> {
        self.write_by(if durable { Way::SyncedLog } else { Way::Log }, batch);
        Ok(())
    }

    fn forget_history_up_to(&self, number: u64) {
        // Now and then: each time costs a look at every entry.
        if number.is_multiple_of(FORGET_EVERY) {
            let mut tables = self.shared.tables.write();
            tables.columns[Column::History as usize]
                .retain(|key, _| schema::history_batch(key).is_some_and(|batch| batch > number));
        }
    }

    fn drop_below(&self, column: Column, below: &[u8]) -> Result<Dropped, StorageError> {
        let mut tables = self.shared.tables.write();
        let table = &mut tables.columns[column as usize];
        let kept = table.split_off(below);
        let dropped = std::mem::replace(table, kept);
        let newest = |versions: &Versions| {
            versions.last().and_then(|(_, value)| value.as_ref()).map_or(0, |it| it.len())
        };
        let bytes = dropped.iter().map(|(key, versions)| (key.len() + newest(versions)) as u64).sum();
        Ok(Dropped { bytes, bytes_in_snapshots: 0 })
    }

    fn snapshot(&self) -> Arc<dyn Reader> {
        let tables = self.shared.tables.read();
        *self.shared.live.lock().entry(tables.sequence).or_default() += 1;
        Arc::new(MemorySnapshot { shared: Arc::clone(&self.shared), sequence: tables.sequence })
    }

    fn prepare_checkpoint(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn sorted_run(&self, column: Column) -> Result<Box<dyn SortedRun>, StorageError> {
        Ok(Box::new(MemoryRun { backend: self.clone(), column, rows: WriteBatch::default() }))
    }

    fn reclaim(&self, column: Column) -> Result<(), StorageError> {
        let mut writes = WriteBatch::default();
        writes.clear(column);
        // It ends with a compaction, before which RocksDB syncs the log.
        self.write_by(Way::SyncedLog, writes);
        Ok(())
    }

    fn checkpoint(&self, number: u64) -> Result<Arc<dyn Reader>, StorageError> {
        let checkpoint = self.snapshot();
        self.checkpoints.lock().insert(number, Arc::clone(&checkpoint));
        Ok(checkpoint)
    }

    fn checkpoints(&self) -> Result<Vec<NumberedReader>, StorageError> {
        Ok(self.checkpoints.lock().iter().map(|(number, reader)| (*number, Arc::clone(reader))).collect())
    }

    fn remove_checkpoint(&self, number: u64) -> Result<(), StorageError> {
        self.checkpoints.lock().remove(&number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{durable::UNSYNCED_MAX, *};

    fn put(key: &[u8], value: &[u8]) -> WriteBatch {
        let mut batch = WriteBatch::default();
        batch.put(Column::Records, key, value);
        batch
    }

    #[test]
    fn a_snapshot_stays_and_old_versions_are_collected() {
        let backend = MemoryBackend::default();
        backend.write(put(b"a", b"1"), true).unwrap();
        backend.write(put(b"b", b"1"), true).unwrap();
        let before = backend.snapshot();
        backend.write(put(b"a", b"2"), true).unwrap();
        let mut clear = WriteBatch::default();
        clear.clear(Column::Records);
        clear.put(Column::Records, *b"c", *b"3");
        backend.write(clear, true).unwrap();

        assert_eq!(before.get(Column::Records, b"a").unwrap().unwrap(), b"1");
        assert_eq!(before.get(Column::Records, b"c").unwrap(), None);
        assert_eq!(backend.get(Column::Records, b"a").unwrap(), None);
        assert_eq!(backend.get(Column::Records, b"c").unwrap().unwrap(), b"3");

        drop(before);
        backend.write(put(b"d", b"4"), true).unwrap();
        let tables = backend.shared.tables.read();
        assert!(tables.stale.is_empty());
        let table = &tables.columns[Column::Records as usize];
        assert_eq!(table.keys().collect::<Vec<_>>(), [b"c", b"d"]);
        assert!(table.values().all(|versions| versions.len() == 1));
    }

    /// Goal: a log loses its end and nothing else, and what went beside it stays.
    #[test]
    fn a_crash_leaves_what_was_synced_and_the_beginning_of_the_rest() {
        let backend = MemoryBackend::with_crashes();
        let clear = || {
            let mut clear = WriteBatch::default();
            clear.clear(Column::Records);
            clear
        };
        backend.write(put(b"a", b"1"), false).unwrap();
        backend.write(put(b"b", b"1"), true).unwrap();
        backend.write(put(b"a", b"2"), false).unwrap();
        let mut run = backend.sorted_run(Column::StateB).unwrap();
        run.put(b"row", b"1").unwrap();
        run.seal().unwrap();
        let mut lost = backend.sorted_run(Column::StateB).unwrap();
        lost.put(b"other", b"1").unwrap();
        lost.seal().unwrap();
        run.ingest().unwrap();
        backend.write(clear(), false).unwrap();
        backend.write(put(b"a", b"3"), false).unwrap();
        assert_eq!(backend.unsynced(), 3);
        let left = |kept| {
            let left = backend.after_crash(kept);
            assert_eq!(left.get(Column::StateB, b"row").unwrap().unwrap(), b"1");
            assert_eq!(left.get(Column::StateB, b"other").unwrap(), None);
            [b"a", b"b"].map(|key| left.get(Column::Records, key).unwrap().map(|value| value[0]))
        };
        assert_eq!(left(0), [Some(b'1'), Some(b'1')]);
        assert_eq!(left(1), [Some(b'2'), Some(b'1')]);
        assert_eq!(left(2), [None, None]);
        assert_eq!(left(3), [Some(b'3'), None]);
        assert_eq!(left(usize::MAX), [Some(b'3'), None]);

        let left = backend.after_crash(0);
        backend.write(put(b"b", b"4"), true).unwrap();
        assert_eq!(
            left.get(Column::Records, b"b").unwrap().unwrap(),
            b"1",
            "nobody writes to it from before"
        );
        assert_eq!(backend.unsynced(), 0);
        for value in 0..2 * UNSYNCED_MAX {
            backend.write(put(b"c", &value.to_be_bytes()), false).unwrap();
        }
        assert_eq!(backend.unsynced(), UNSYNCED_MAX);
        let left = backend.after_crash(0).get(Column::Records, b"c").unwrap().unwrap();
        assert_eq!(left, (UNSYNCED_MAX - 1).to_be_bytes(), "the first of a long log are written back");
    }
}
