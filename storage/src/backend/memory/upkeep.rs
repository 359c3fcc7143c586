//! Drops rows from the tables where RocksDB would drop them from its files.

use super::{MemoryBackend, durable::WritePath, tables::Versions};
use crate::{
    backend::{Column, FreedSpace, Upkeep, WriteBatch},
    error::StorageError,
    schema,
};

/// Batches between two removals of old history entries.
const FORGET_EVERY: u64 = 64;

/// Bytes of a key and its newest value.
fn bytes((key, versions): (&Vec<u8>, &Versions)) -> u64 {
    let newest = versions.last().and_then(|(_, value)| value.as_ref()).map_or(0, |value| value.len());
    (key.len() + newest) as u64
}

impl Upkeep for MemoryBackend {
    fn drop_between(&self, column: Column, from: &[u8], below: &[u8]) -> Result<FreedSpace, StorageError> {
        let mut tables = self.shared.tables.write();
        let table = &mut tables.columns[column as usize];
        let mut kept = table.split_off(below);
        let dropped = table.split_off(from);
        table.append(&mut kept);
        Ok(FreedSpace { bytes: dropped.iter().map(bytes).sum(), bytes_in_snapshots: 0 })
    }

    fn key_within(&self, column: Column, bytes_max: u64) -> Result<Option<Vec<u8>>, StorageError> {
        let tables = self.shared.tables.read();
        let (mut taken, mut within) = (0, None);
        for entry in tables.columns[column as usize].iter().rev() {
            taken += bytes(entry);
            if taken > bytes_max && within.is_some() {
                return Ok(within);
            }
            within = Some(entry.0.clone());
        }
        Ok(None)
    }

    fn reclaim(&self, column: Column, _readers: usize) -> Result<(), StorageError> {
        let mut writes = WriteBatch::default();
        writes.clear(column);
        // RocksDB ends this with a compaction, before which it syncs the log.
        self.write_by(WritePath::SyncedLog, writes);
        Ok(())
    }

    fn forget_history_up_to(&self, number: u64) {
        // Only every so often, because each time visits every entry.
        if number.is_multiple_of(FORGET_EVERY) {
            let mut tables = self.shared.tables.write();
            tables.columns[Column::History as usize]
                .retain(|key, _| schema::history_batch(key).is_some_and(|batch| batch > number));
        }
    }
}
