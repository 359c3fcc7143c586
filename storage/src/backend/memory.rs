//! The in-memory twin of [`super::rocks`]: every key has its versions, and a snapshot is a sequence number.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};

use super::{
    Backend, Column, Direction, Dropped, NumberedReader, Reader, SortedRun, Visit, Write, WriteBatch,
};
use crate::error::StorageError;

/// Versions of one key by ascending sequence number; none is a deletion.
type Versions = Vec<(u64, Option<Arc<[u8]>>)>;

#[derive(Default)]
struct Tables {
    sequence: u64,
    columns: [BTreeMap<Vec<u8>, Versions>; Column::ALL.len()],
    /// Keys with more than one version (or a deletion), by the sequence number that made the older ones stale.
    stale: VecDeque<(u64, Column, Vec<u8>)>,
}

#[derive(Default)]
struct Shared {
    tables: RwLock<Tables>,
    /// Live snapshots by sequence number, with how many share it. Locked after `tables`.
    live: Mutex<BTreeMap<u64, usize>>,
}

/// A database that lives as long as its last handle.
#[derive(Clone, Default)]
pub(crate) struct MemoryBackend(Arc<Shared>);

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
        Ok(self.0.tables.read().get(column, key, u64::MAX))
    }

    fn multi_get(&self, column: Column, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        let tables = self.0.tables.read();
        Ok(keys.iter().map(|key| tables.get(column, key, u64::MAX)).collect())
    }

    fn scan(
        &self,
        column: Column,
        from: &[u8],
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError> {
        self.0.tables.read().scan(column, from, direction, u64::MAX, visit)
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
        self.backend.write(self.rows, false)
    }
}

impl Backend for MemoryBackend {
    fn write(&self, batch: WriteBatch, _durable: bool) -> Result<(), StorageError> {
        let mut tables = self.0.tables.write();
        tables.sequence += 1;
        for write in batch.0 {
            tables.apply(write);
        }
        let sequence = tables.sequence;
        let oldest_live = self.0.live.lock().keys().next().copied().unwrap_or(sequence);
        tables.collect(oldest_live);
        Ok(())
    }

    fn drop_below(&self, column: Column, below: &[u8]) -> Result<Dropped, StorageError> {
        let mut tables = self.0.tables.write();
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
        let tables = self.0.tables.read();
        *self.0.live.lock().entry(tables.sequence).or_default() += 1;
        Arc::new(MemorySnapshot { shared: Arc::clone(&self.0), sequence: tables.sequence })
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
        self.write(writes, false)
    }

    fn checkpoint(&self, _number: u64) -> Result<Arc<dyn Reader>, StorageError> {
        Ok(self.snapshot())
    }

    fn checkpoints(&self) -> Result<Vec<NumberedReader>, StorageError> {
        Ok(Vec::new())
    }

    fn remove_checkpoint(&self, _number: u64) -> Result<(), StorageError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let tables = backend.0.tables.read();
        assert!(tables.stale.is_empty());
        let table = &tables.columns[Column::Records as usize];
        assert_eq!(table.keys().collect::<Vec<_>>(), [b"c", b"d"]);
        assert!(table.values().all(|versions| versions.len() == 1));
    }
}
