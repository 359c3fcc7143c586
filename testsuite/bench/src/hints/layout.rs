//! Disk reads per key in two layouts. In one, an account and its slots are adjacent in the table. In the other, every
//! row has its own place, given by a hash of the whole key. Each layout is a plain RocksDB with the block size, filter
//! and index of the store's state, filled with the same number of rows.
//!
//! The gain from neighbours depends on a contract's number of untouched slots, which the blocks do not show. So several
//! tables have more and more of them; the first has none.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use anyhow::{Context, Result};
use rayon::prelude::*;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DataBlockIndexType, IngestExternalFileOptions, Options,
    SstFileWriter,
    statistics::{StatsLevel, Ticker},
};
use slipstream_types::{Digest, StateKey, StateValue};

use super::{filler::Rows, replay::FLOOR_THREADS};
use crate::{Figure, Report, harness::ratios};
use slipnet::progress::Progress;

/// Untouched slots of a contract for each touched one.
const NEIGHBOURS: [u64; 3] = [0, 20, 200];
/// Rows made at a time.
const CHUNK_ROWS: usize = 200_000;
/// Bytes of a file, as in the store.
const FILE_BYTES: u64 = 128 << 20;
/// A table's cache beside index and filters, which take about 3 bytes a row.
const CACHED_DATA_BYTES: u64 = 16 << 20;

/// The order of rows in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    /// Each row has its own place.
    Hashed,
    /// An account and its slots are adjacent, with this many untouched slots for each touched one.
    Neighbours(u64),
}

impl Layout {
    fn all() -> Vec<Layout> {
        [Layout::Hashed].into_iter().chain(NEIGHBOURS.map(Layout::Neighbours)).collect()
    }

    fn name(self) -> String {
        match self {
            Layout::Hashed => "hashed".into(),
            Layout::Neighbours(count) => format!("neighbours_{count}"),
        }
    }

    fn place(self, key: &StateKey) -> [u8; 32] {
        let path = key.path().0;
        match self {
            Layout::Hashed => Digest::tagged("slipnet/bench-hints-hashed", &path).0,
            Layout::Neighbours(_) => path,
        }
    }

    fn rows(self, real: &[(StateKey, StateValue)], filler: u64) -> Rows {
        let neighbours = match self {
            Layout::Hashed => NEIGHBOURS[NEIGHBOURS.len() - 1],
            Layout::Neighbours(count) => count,
        };
        Rows::new(real.to_vec(), filler, neighbours)
    }
}

/// Reads each batch from each layout, in turn, with an empty cache.
pub(super) fn measure(
    dir: &Path,
    (real, filler): (&[(StateKey, StateValue)], u64),
    batches: &[Vec<StateKey>],
    runs: usize,
    report: &mut Report,
    progress: Progress,
) -> Result<()> {
    let mut tables = Vec::new();
    for layout in Layout::all() {
        progress.step(&format!("filling a table with the layout {}", layout.name()));
        tables.push(Table::open(dir, layout, &layout.rows(real, filler))?);
    }
    let keys: usize = batches.iter().map(Vec::len).sum();
    let mut seconds = vec![Vec::new(); tables.len()];
    let mut reads = vec![Vec::new(); tables.len()];
    for run in 0..runs {
        progress.step(&format!("reading from {} layouts, round {} of {runs}", tables.len(), run + 1));
        for place in 0..tables.len() {
            let place = (place + run) % tables.len();
            let (table, before, mut spent) = (&tables[place], tables[place].blocks_read(), 0.0);
            for batch in batches {
                table.drop_cached();
                let start = Instant::now();
                table.read_all(batch)?;
                spent += start.elapsed().as_secs_f64();
            }
            seconds[place].push(spent);
            reads[place].push((table.blocks_read() - before) as f64 / keys as f64);
        }
    }
    for (place, table) in tables.iter().enumerate() {
        let name = table.layout.name();
        report.figures.push(Figure::new(
            format!("layout.reads_per_key.{name}"),
            "ratio",
            reads[place].clone(),
        ));
        let speedup = ratios(&seconds[0], &seconds[place]);
        report.figures.push(Figure::new(format!("layout.speedup.{name}"), "ratio", speedup));
    }
    report.notes.push(format!(
        "layout: {keys} keys of the isolated blocks, read by {FLOOR_THREADS} threads from plain tables; neighbours_N: an account's rows side by \
         side, with N slots that nobody touches for each one that a block touches"
    ));
    Ok(())
}

struct Table {
    layout: Layout,
    db: DB,
    options: Options,
    cache: Cache,
    cache_bytes: usize,
}

impl Table {
    /// Opens the table of an earlier run, or fills a new one.
    fn open(dir: &Path, layout: Layout, rows: &Rows) -> Result<Table> {
        let fingerprint = rows.fingerprint().to_string();
        let dir = dir.join(format!("slipnet-layout-{}-{}", layout.name(), &fingerprint[..16]));
        let filled = dir.join("filled");
        let cache_bytes = (CACHED_DATA_BYTES + 3 * rows.len()) as usize;
        let cache = Cache::new_lru_cache(cache_bytes);
        let options = options(&cache);
        if !filled.exists() {
            if dir.exists() {
                fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
            }
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
            let files = write(&dir, &options, layout, rows)?;
            let mut ingest = IngestExternalFileOptions::default();
            ingest.set_move_files(true);
            DB::open(&options, dir.join("db"))?.ingest_external_file_opts(&ingest, files)?;
            fs::write(&filled, [])?;
        }
        let db = DB::open(&options, dir.join("db"))?;
        Ok(Table { layout, db, options, cache, cache_bytes })
    }

    fn blocks_read(&self) -> u64 {
        self.options.get_ticker_count(Ticker::BlockCacheDataMiss)
    }

    /// Empties the cache; index and filters are in use and stay.
    fn drop_cached(&self) {
        let mut cache = self.cache.clone();
        cache.set_capacity(0);
        cache.set_capacity(self.cache_bytes);
    }

    fn read_all(&self, keys: &[StateKey]) -> Result<()> {
        thread::scope(|scope| {
            let read = |keys: &[StateKey]| -> Result<()> {
                for key in keys {
                    self.db.get_pinned(self.layout.place(key))?;
                }
                Ok(())
            };
            let parts = keys.chunks(keys.len().div_ceil(FLOOR_THREADS).max(1));
            let readers: Vec<_> = parts.map(|part| scope.spawn(move || read(part))).collect();
            readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
        })
    }
}

fn options(cache: &Cache) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    table.set_unpartitioned_pinning_tier(rocksdb::BlockBasedTablePinningTier::All);
    table.set_bloom_filter(12.0, false);
    table.set_block_size(4 << 10);
    table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_use_direct_reads(true);
    options.set_disable_auto_compactions(true);
    options.enable_statistics();
    options.set_statistics_level(StatsLevel::ExceptDetailedTimers);
    options.set_block_based_table_factory(&table);
    options
}

/// Writes the rows in the order of their places, to files that do not overlap.
fn write(dir: &Path, options: &Options, layout: Layout, rows: &Rows) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open: Option<SstFileWriter<'_>> = None;
    for numbers in rows.in_order(|key| layout.place(key)).chunks(CHUNK_ROWS) {
        let row = |number: &u32| {
            let (key, value) = rows.row(*number);
            let mut row = Vec::new();
            value.append_row(&key, &mut row);
            (layout.place(&key), row)
        };
        for (place, row) in numbers.par_iter().map(row).collect::<Vec<_>>() {
            let writer = match &mut open {
                Some(writer) => writer,
                None => {
                    let path = dir.join(format!("{}.sst", files.len()));
                    let writer = SstFileWriter::create(options);
                    writer.open(&path)?;
                    files.push(path);
                    open.insert(writer)
                }
            };
            writer.put(place, row)?;
            if writer.file_size() >= FILE_BYTES {
                writer.finish()?;
                open = None;
            }
        }
    }
    if let Some(mut writer) = open {
        writer.finish()?;
    }
    Ok(files)
}
