//! Maintains the database's files: their sizes, the files that can be dropped at once, and the rows that compaction
//! drops.

use std::{fs, os::unix::fs::MetadataExt as _, sync::atomic::Ordering};

use rocksdb::{ColumnFamily, CompactOptions, DB, LiveFile, statistics::Ticker};

use super::{ABOVE_ALL_KEYS, RocksBackend, family};
use crate::{
    backend::{Column, ColumnSize, FreedSpace, IoCounts, RowStore as _, Upkeep},
    error::StorageError,
};

pub(super) fn size_of(db: &DB, family: &ColumnFamily) -> Result<ColumnSize, StorageError> {
    let property = |name: &str| Ok::<_, StorageError>(db.property_int_value_cf(family, name)?.unwrap_or(0));
    let bytes = property("rocksdb.live-sst-files-size")? + property("rocksdb.cur-size-all-mem-tables")?;
    Ok(ColumnSize { keys: property("rocksdb.estimate-num-keys")?, bytes })
}

impl RocksBackend {
    fn files(&self, column: Column) -> Result<Vec<LiveFile>, StorageError> {
        let mut files = self.db.live_files()?;
        files.retain(|file| file.column_family_name == column.name());
        Ok(files)
    }

    /// Returns the column's files whose keys all lie in `from..below`.
    fn files_between(
        &self,
        column: Column,
        from: &[u8],
        below: &[u8],
    ) -> Result<Vec<LiveFile>, StorageError> {
        let mut files = self.files(column)?;
        files.retain(|LiveFile { start_key, end_key, .. }| {
            start_key.as_deref().is_some_and(|key| key >= from)
                && end_key.as_deref().is_some_and(|key| key < below)
        });
        Ok(files)
    }

    fn sum(&self, files: &[LiveFile]) -> FreedSpace {
        let mut dropped = FreedSpace::default();
        for file in files {
            let path = self.files_dir.join(file.name.trim_start_matches('/'));
            // A file that is gone meanwhile is not shared.
            let held = fs::metadata(path).is_ok_and(|found| found.nlink() > 1);
            dropped.bytes += file.size as u64;
            dropped.bytes_in_snapshots += if held { file.size as u64 } else { 0 };
        }
        dropped
    }
}

impl Upkeep for RocksBackend {
    fn size(&self, column: Column) -> Result<ColumnSize, StorageError> {
        size_of(&self.db, family(&self.db, column))
    }

    fn io_counts(&self) -> IoCounts {
        let count = |ticker| self.options.get_ticker_count(ticker);
        IoCounts {
            keys: count(Ticker::NumberKeysRead) + count(Ticker::NumberMultigetKeysRead),
            blocks: count(Ticker::BlockCacheDataMiss),
            syncs: count(Ticker::WalFileSynced),
            bytes_written: count(Ticker::WalFileBytes)
                + count(Ticker::FlushWriteBytes)
                + count(Ticker::CompactWriteBytes),
        }
    }

    fn drop_cached(&self) {
        // Blocks in use stay, and with them the pinned index and filter blocks.
        let mut cache = self.cache.clone();
        cache.set_capacity(0);
        cache.set_capacity(self.cache_bytes);
    }

    fn droppable(&self, column: Column, from: &[u8], below: &[u8]) -> Result<FreedSpace, StorageError> {
        Ok(self.sum(&self.files_between(column, from, below)?))
    }

    fn drop_between(&self, column: Column, from: &[u8], below: &[u8]) -> Result<FreedSpace, StorageError> {
        let mut files = self.files_between(column, from, below)?;
        if files.iter().any(|file| file.level == 0) {
            // RocksDB drops no file of level 0. The files do not overlap, so a compaction moves them down as they
            // are.
            let mut options = CompactOptions::default();
            options.set_exclusive_manual_compaction(false);
            let family = family(&self.db, column);
            self.db.compact_range_cf_opt(family, Some(from), Some(below), &options);
            files = self.files_between(column, from, below)?;
            files.retain(|file| file.level > 0);
        }
        let Some(last) = files.iter().filter_map(|file| file.end_key.as_ref()).max() else {
            return Ok(FreedSpace::default());
        };
        let dropped = self.sum(&files);
        self.db.delete_file_in_range_cf(family(&self.db, column), from, &last[..])?;
        Ok(dropped)
    }

    fn key_within(&self, column: Column, bytes: u64) -> Result<Option<Vec<u8>>, StorageError> {
        let mut files = self.files(column)?;
        files.sort_unstable_by(|a, b| b.start_key.cmp(&a.start_key));
        let mut taken = 0;
        let fits = |file: &&LiveFile| {
            taken += file.size as u64;
            taken <= bytes
        };
        let within = files.iter().take_while(fits).count().max(1);
        Ok(if within < files.len() { files[within - 1].start_key.clone() } else { None })
    }

    fn reclaim(&self, column: Column, readers: usize) -> Result<(), StorageError> {
        let (family, all) = (family(&self.db, column), (&[][..], &ABOVE_ALL_KEYS[..]));
        // Dropping files takes them from snapshots too.
        if !self.has_readers_beyond(readers) {
            self.drop_files(column)?;
        }
        let mut rest = self.db.raw_iterator_cf(family);
        rest.seek_to_first();
        let empty = !rest.valid();
        rest.status()?;
        drop(rest);
        if !empty {
            // Deletes rows that are not in a file of their own yet. The compaction removes the tombstone; otherwise every
            // file ingested later would have to stay above it.
            self.db.delete_range_cf(family, all.0, all.1)?;
        }
        self.db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
        Ok(())
    }

    fn drop_files(&self, column: Column) -> Result<(), StorageError> {
        Ok(self.db.delete_file_in_range_cf(family(&self.db, column), &[][..], &ABOVE_ALL_KEYS[..])?)
    }

    fn forget_transactions_below(&self, number: u64) {
        self.floors.index.store(number, Ordering::Relaxed);
    }

    fn forget_headers_below(&self, number: u64) {
        self.floors.headers.store(number, Ordering::Relaxed);
    }

    fn forget_history_up_to(&self, number: u64) {
        self.floors.history.store(number, Ordering::Release);
    }
}
