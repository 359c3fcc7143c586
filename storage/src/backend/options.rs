//! How each column is stored on disk, and why. The figures behind these choices come from `slipnet bench ledger`.
//!
//! * **State, code and indexes** are read by key, in no order: a cold key costs one read. Memory holds the index and
//!   filter blocks of every file, so a lookup reads the data block alone. A filter makes an absent key cost nothing in
//!   249 of 250 cases.
//! * **Blobs** are written in the order of their keys and never changed. Files move down the levels unmerged, so each has its own
//!   range of batches and pruning drops it whole. RocksDB's blob files would cost a second lookup per value. They would
//!   save the rewriting of values, which does not happen here. The history's log is such a column too: one value per
//!   write, dropped from the front. Its paths are hashes, which do not compress.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, BlockBasedTablePinningTier, Cache, ColumnFamilyDescriptor,
    CompactionDecision, DBCompressionType, DataBlockIndexType, Options, SliceTransform,
};

use slipstream_types::Path;

use super::Column;
use crate::{schema, transactions};

/// Bytes of one column's rows in memory before it is flushed.
const WRITE_BUFFER_BYTES_MAX: usize = 32 << 20;
/// Filter bits per key. 12 let one absent key in 250 through, so a lookup hardly ever reads a file that lacks its key.
const FILTER_BITS_PER_KEY: f64 = 12.0;
/// Bytes of a data block in columns that are read by key; a cold read brings one. Larger blocks hold more of an
/// account's neighbouring slots, but cost more to read and to search when these do not help.
const POINT_BLOCK_BYTES: usize = 4 << 10;
/// Bytes of a data block of blobs. Most blobs are longer and have a block of their own; short ones share one.
const BLOB_BLOCK_BYTES: usize = 16 << 10;
/// Bytes of a state column's files. They are large, so that few are open and one multi-get stays within one file.
const STATE_FILE_BYTES: u64 = 128 << 20;

/// The inputs that shape the options of a database's columns.
pub(super) struct Shape<'a> {
    pub(super) cache: &'a Cache,
    /// Whether index and filter blocks stay in the cache whatever else is read. False for checkpoints, because chunks
    /// read them from end to end.
    pub(super) pin_indexes: bool,
    pub(super) floors: &'a Floors,
}

/// The floors below which compaction drops the rows of a column.
#[derive(Clone, Debug, Default)]
pub(super) struct Floors {
    /// The index drops transactions of batches below this one.
    pub(super) index: Arc<AtomicU64>,
    /// Headers of batches below this one are dropped, with their certificates, their index entries, and the
    /// accumulator nodes that only they need.
    pub(super) headers: Arc<AtomicU64>,
    /// The history drops rows before batches up to this one.
    pub(super) history: Arc<AtomicU64>,
}

/// The columns that hold one blob per batch, or per write of several.
pub(super) fn is_blobs(column: Column) -> bool {
    matches!(column, Column::Bodies | Column::Receipts | Column::Deltas | Column::Hints | Column::HistoryLog)
}

pub(super) fn columns(shape: Shape<'_>) -> impl Iterator<Item = ColumnFamilyDescriptor> {
    Column::ALL
        .iter()
        .map(move |column| ColumnFamilyDescriptor::new(column.name(), column_options(*column, &shape)))
}

pub(super) fn column_options(column: Column, shape: &Shape<'_>) -> Options {
    let mut options = Options::default();
    let mut table = table_options(shape);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES_MAX);
    options.set_max_write_buffer_number(3);
    options.set_compression_type(DBCompressionType::Lz4);
    match column {
        _ if is_blobs(column) => {
            // Blobs are compressed already, or incompressible.
            options.set_compression_type(DBCompressionType::None);
            table.set_block_size(BLOB_BLOCK_BYTES);
            // A file in level 0 cannot be dropped, so each is moved down at once.
            options.set_level_zero_file_num_compaction_trigger(1);
        }
        Column::StateA | Column::StateB => {
            point_reads(&mut table);
            options.set_target_file_size_base(STATE_FILE_BYTES);
        }
        Column::Codes | Column::HeaderIndex => point_reads(&mut table),
        Column::Transactions => starts(&mut options, &mut table, transactions::PREFIX_BYTES),
        Column::History => starts(&mut options, &mut table, size_of::<Path>()),
        _ => {}
    }
    options.set_block_based_table_factory(&table);
    if let Some((name, floor, is_gone)) = filter_of(column, shape.floors) {
        let floor = Arc::clone(floor);
        options.set_compaction_filter(name, move |_level, key, value| {
            match is_gone(key, value, floor.load(Ordering::Acquire)) {
                true => CompactionDecision::Remove,
                false => CompactionDecision::Keep,
            }
        });
    }
    options
}

/// Whether a key with its value is dropped at a floor. Unreadable entries stay, so that their next reader reports
/// them.
type DropTest = fn(&[u8], &[u8], u64) -> bool;

/// Returns which rows compaction drops from a column: the filter's name, its floor and its test.
fn filter_of(column: Column, floors: &Floors) -> Option<(&'static str, &Arc<AtomicU64>, DropTest)> {
    Some(match column {
        Column::Headers | Column::Certificates => {
            ("pruned headers", &floors.headers, |number, _, floor| is_of_pruned(number, floor))
        }
        Column::HeaderIndex => {
            ("index of pruned headers", &floors.headers, |_, number, floor| is_of_pruned(number, floor))
        }
        Column::Nodes => ("nodes over pruned headers", &floors.headers, |key, _, floor| {
            schema::node_position(key).is_some_and(|position| !schema::is_node_needed(position, floor))
        }),
        Column::Transactions => ("pruned transactions", &floors.index, |key, _, floor| {
            transactions::decode_place(key).is_ok_and(|(number, _)| number.get() < floor)
        }),
        Column::History => ("states of the past", &floors.history, |key, _, floor| {
            schema::history_batch(key).is_some_and(|batch| batch <= floor)
        }),
        _ => return None,
    })
}

fn is_of_pruned(number: &[u8], floor: u64) -> bool {
    schema::decode_number(number).is_ok_and(|number| schema::is_header_pruned(number, floor))
}

fn table_options(shape: &Shape<'_>) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(shape.cache);
    // Index and filters count against the cache too, or memory would grow with the table.
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    if shape.pin_indexes {
        table.set_unpartitioned_pinning_tier(BlockBasedTablePinningTier::All);
    }
    table
}

/// Sets up a column whose keys are looked up by their first bytes: a filter over these skips the files that have no
/// match.
fn starts(options: &mut Options, table: &mut BlockBasedOptions, alike: usize) {
    options.set_prefix_extractor(SliceTransform::create_fixed_prefix(alike));
    table.set_bloom_filter(FILTER_BITS_PER_KEY, false);
    table.set_whole_key_filtering(false);
}

fn point_reads(table: &mut BlockBasedOptions) {
    table.set_bloom_filter(FILTER_BITS_PER_KEY, false);
    table.set_whole_key_filtering(true);
    table.set_block_size(POINT_BLOCK_BYTES);
    table.set_index_type(BlockBasedIndexType::BinarySearch);
    table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
}
