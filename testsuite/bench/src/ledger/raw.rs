//! RocksDB without any layer above it: the rival of serving.

use std::path::Path;

use anyhow::{Context, Result};
use rocksdb::{DB, Options, ReadOptions};

/// A store's own database, read by RocksDB alone while no store has it open.
pub(super) struct Beneath(DB);

impl Beneath {
    pub(super) fn open(store_dir: &Path) -> Result<Beneath> {
        let (path, mut options) = (store_dir.join("db"), Options::default());
        options.set_max_open_files(512);
        let columns = DB::list_cf(&options, &path)?;
        Ok(Beneath(DB::open_cf_for_read_only(&options, &path, columns, false)?))
    }

    /// Reads a column in runs of `run` rows; returns the bytes of its values.
    pub(super) fn read_all(&self, column: &str, run: u64) -> Result<u64> {
        let family = self.0.cf_handle(column).with_context(|| format!("the store has no column {column}"))?;
        read_runs(self.0.raw_iterator_cf_opt(family, uncached()), run)
    }
}

/// Returns the store's options for serving: blocks that are read once do not evict others, and the readahead is the
/// same.
fn uncached() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    options.set_readahead_size(256 << 10);
    options
}

/// Seeks to the start of each run and copies its values into one reused buffer.
fn read_runs(mut rows: rocksdb::DBRawIterator<'_>, run: u64) -> Result<u64> {
    let (mut bytes, mut buffer) = (0, Vec::new());
    let mut first = 1u64;
    loop {
        rows.seek(first.to_be_bytes());
        for _ in 0..run {
            let Some(value) = rows.value() else {
                rows.status()?;
                return Ok(bytes);
            };
            buffer.clear();
            buffer.extend_from_slice(value);
            bytes += buffer.len() as u64;
            rows.next();
        }
        first += run;
    }
}
