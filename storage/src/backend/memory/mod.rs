//! The in-memory twin of [`super::rocks`]: every key has its versions, and a snapshot is a sequence number. Where
//! crashes matter, it also tracks what has reached the disk: see [`MemoryBackend::after_crash`].

mod checkpoints;
mod durable;
mod tables;
mod upkeep;

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::{Mutex, RwLock};

use super::{Column, Direction, Reader, RowStore, SortedFile, Visit, WriteBatch};
use crate::error::StorageError;
use durable::{DurableWrites, WritePath};
use tables::Tables;

#[derive(Default)]
struct Shared {
    tables: RwLock<Tables>,
    /// Live snapshots by sequence number, with their count. Locked after `tables`.
    live: Mutex<BTreeMap<u64, usize>>,
}

/// A database that lives as long as its last handle.
#[derive(Clone, Default)]
pub(crate) struct MemoryBackend {
    shared: Arc<Shared>,
    /// Checkpoints by number. They are not in `shared`, because they keep `shared` alive.
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

impl MemoryBackend {
    /// Creates a backend that tracks what a crash would leave.
    pub(crate) fn with_crashes() -> MemoryBackend {
        let backend = MemoryBackend::default();
        backend.shared.tables.write().durable = Some(DurableWrites::default());
        backend
    }

    /// Number of writes that a crash may lose.
    pub(crate) fn unsynced(&self) -> usize {
        self.shared.tables.read().durable.as_ref().map_or(0, DurableWrites::unsynced)
    }

    /// Returns the database that a power cut leaves, as a separate one: the first `kept` of the unsynced writes have reached the
    /// disk. As on RocksDB, a log loses its end. Linked files and checkpoints survive whole, because a checkpoint has its own
    /// copy of the log. A sorted file that was not linked in is gone.
    pub(crate) fn after_crash(&self, kept: usize) -> MemoryBackend {
        let tables = self.shared.tables.read();
        let mut left = Tables { durable: Some(DurableWrites::default()), ..Tables::default() };
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

    fn write_by(&self, way: WritePath, batch: WriteBatch) {
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

/// Rows that are all written when the file is ingested.
struct MemoryFile {
    backend: MemoryBackend,
    column: Column,
    rows: WriteBatch,
}

impl SortedFile for MemoryFile {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        self.rows.put(self.column, key, value);
        Ok(())
    }

    fn seal(&mut self) -> Result<(), StorageError> {
        Ok(())
    }

    fn ingest(self: Box<Self>) -> Result<(), StorageError> {
        self.backend.write_by(WritePath::Beside, self.rows);
        Ok(())
    }
}

impl RowStore for MemoryBackend {
    fn write(&self, batch: WriteBatch, durable: bool) -> Result<(), StorageError> {
        self.write_by(if durable { WritePath::SyncedLog } else { WritePath::Log }, batch);
        Ok(())
    }

    fn sorted_file(&self, column: Column) -> Result<Box<dyn SortedFile>, StorageError> {
        Ok(Box::new(MemoryFile { backend: self.clone(), column, rows: WriteBatch::default() }))
    }

    fn snapshot(&self) -> Arc<dyn Reader> {
        let tables = self.shared.tables.read();
        *self.shared.live.lock().entry(tables.sequence).or_default() += 1;
        Arc::new(MemorySnapshot { shared: Arc::clone(&self.shared), sequence: tables.sequence })
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

    /// Goal: a crash takes only the end of the log, and writes beside the log stay.
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
        let mut linked = backend.sorted_file(Column::StateB).unwrap();
        linked.put(b"row", b"1").unwrap();
        linked.seal().unwrap();
        let mut lost = backend.sorted_file(Column::StateB).unwrap();
        lost.put(b"other", b"1").unwrap();
        lost.seal().unwrap();
        linked.ingest().unwrap();
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
