//! What leaves the tables where RocksDB's leaves its files.

use super::{MemoryBackend, durable::Way, tables::Versions};
use crate::{
    backend::{Column, Dropped, Upkeep, WriteBatch},
    error::StorageError,
    schema,
};

/// Batches after which old entries of the history go.
const FORGET_EVERY: u64 = 64;

impl Upkeep for MemoryBackend {
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

    fn reclaim(&self, column: Column, _readers: usize) -> Result<(), StorageError> {
        let mut writes = WriteBatch::default();
        writes.clear(column);
        // It ends with a compaction, before which RocksDB syncs the log.
        self.write_by(Way::SyncedLog, writes);
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
}
