//! The bytes of each column of a chain's store, per batch and per transaction.

use anyhow::{Context, Result, ensure};
use rocksdb::{DB, Options};
use slipstream_storage::{StorageConfig, plain_database};

use super::{
    Figure, KINDS,
    chains::{Chain, Traffic},
};
use crate::harness::files::wait_until_quiet;

/// The columns whose size per batch is fixed.
const FIXED: [&str; 4] = ["headers", "header_index", "nodes", "certificates"];
const INDEX: &str = "transactions";
/// In the order of [`KINDS`].
const BLOBS: [&str; KINDS.len()] = ["bodies", "receipts", "deltas", "hints"];
/// The state's columns, and those that have a few rows however long the ledger is.
const OTHERS: [&str; 9] = [
    "default",
    "epoch_ends",
    "codes",
    "missing_codes",
    "records",
    "state_a",
    "state_b",
    "history",
    "history_log",
];

/// Bytes of the files of some columns.
struct Taken {
    fixed: [u64; FIXED.len()],
    index: u64,
    blobs: [u64; BLOBS.len()],
    /// The fixed columns and the index, each merged into one level.
    fixed_compacted: u64,
    index_compacted: u64,
}

/// Returns the figures of a chain whose store is closed.
pub(super) fn measure(chain: &Chain) -> Result<Vec<Figure>> {
    let known = DB::list_cf(&Options::default(), chain.dir.join("db"))?;
    for name in &known {
        let all = FIXED.iter().chain([&INDEX]).chain(&BLOBS).chain(&OTHERS);
        ensure!(all.into_iter().any(|it| it == name), "bench growth does not know the column {name}");
    }
    // As a node opens it: the log's rows are flushed, so that everything is in files.
    let database = plain_database(&StorageConfig::default(), &chain.dir)?;
    for name in &known {
        database.flush_cf(family(&database, name)?)?;
    }
    wait_until_quiet()?;
    Ok(figures(chain, &Taken::of(&database)?))
}

impl Taken {
    fn of(database: &DB) -> Result<Taken> {
        let (mut fixed, mut blobs) = ([0; FIXED.len()], [0; BLOBS.len()]);
        for (bytes, name) in fixed.iter_mut().zip(FIXED).chain(blobs.iter_mut().zip(BLOBS)) {
            *bytes = file_bytes(database, name)?;
        }
        let index = file_bytes(database, INDEX)?;
        let mut fixed_compacted = 0;
        for name in FIXED {
            fixed_compacted += compacted_bytes(database, name)?;
        }
        let index_compacted = compacted_bytes(database, INDEX)?;
        Ok(Taken { fixed, index, blobs, fixed_compacted, index_compacted })
    }
}

fn figures(chain: &Chain, taken: &Taken) -> Vec<Figure> {
    let traffic = chain.traffic.name();
    let figure = |name: String, bytes: f64| Figure::new(format!("{name}.{traffic}"), "B", vec![bytes]);
    let per = |bytes: u64, count: u64| bytes as f64 / count as f64;
    let Chain { batches, transactions, setup, .. } = *chain;
    // Blobs count only for the traffic's batches. Headers count for all batches, and index entries for all
    // transactions.
    let (of_traffic, sent) = (batches - setup.batches, transactions - setup.transactions);
    let blobs: Vec<u64> =
        taken.blobs.iter().zip(setup.blob_bytes).map(|(bytes, setup)| bytes - setup).collect();
    let mut figures = vec![
        figure("fixed_bytes_per_batch".into(), per(taken.fixed.iter().sum(), batches)),
        figure("fixed_bytes_per_batch.compacted".into(), per(taken.fixed_compacted, batches)),
        figure("index_bytes_per_transaction".into(), per(taken.index, transactions)),
        figure("index_bytes_per_transaction.compacted".into(), per(taken.index_compacted, transactions)),
    ];
    for (bytes, kind) in blobs.iter().zip(KINDS) {
        figures.push(figure(format!("blobs_bytes_per_transaction.{}", kind.name()), per(*bytes, sent)));
    }
    let in_batch = per(sent, of_traffic);
    let fixed = || FIXED.iter().zip(&taken.fixed).map(|(name, bytes)| (*name, per(*bytes, batches)));
    let per_batch = fixed()
        .chain([(INDEX, per(taken.index, transactions) * in_batch)])
        .chain(BLOBS.iter().zip(&blobs).map(|(name, bytes)| (*name, per(*bytes, of_traffic))));
    figures.extend(per_batch.map(|(name, bytes)| figure(format!("bytes_per_batch.{name}"), bytes)));
    // With one transaction per batch both values are the same. The lines above have the bytes of index and blobs per
    // transaction.
    if chain.traffic != Traffic::Single {
        let per_transaction = fixed().map(|(name, bytes)| (name, bytes / in_batch));
        figures.extend(
            per_transaction.map(|(name, bytes)| figure(format!("bytes_per_transaction.{name}"), bytes)),
        );
    }
    figures
}

/// Returns the bytes of a column's files, as on a running node.
fn file_bytes(database: &DB, name: &str) -> Result<u64> {
    let bytes = database.property_int_value_cf(family(database, name)?, "rocksdb.live-sst-files-size")?;
    bytes.with_context(|| format!("RocksDB does not report the size of {name}"))
}

/// Returns the bytes of a column's files after they are merged.
fn compacted_bytes(database: &DB, name: &str) -> Result<u64> {
    database.compact_range_cf(family(database, name)?, None::<&[u8]>, None::<&[u8]>);
    file_bytes(database, name)
}

fn family<'a>(database: &'a DB, name: &str) -> Result<&'a rocksdb::ColumnFamily> {
    database.cf_handle(name).with_context(|| format!("the store has no column {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::{QUICK, Size};
    use slipnet::progress::Progress;

    /// Goal: all columns of a store are known, and rows that are only in the log count: a batch takes at least the size
    /// of its random part.
    #[test]
    fn a_batch_takes_at_least_its_digests() {
        let dir = tempfile::tempdir().unwrap();
        let size = Size { single_batches: 150, senders: 50, ..QUICK };
        let chain = Chain::make(Traffic::Single, &size, &dir.path().join("single"), Progress::Quiet).unwrap();
        let figures = measure(&chain).unwrap();
        let value = |name: &str| figures.iter().find(|figure| figure.name() == name).unwrap().value();
        // Parent, roots and digests that differ; a header's digest twice; two roots and a signature. The index has
        // seven bytes of a transaction's hash.
        assert!(value("fixed_bytes_per_batch.single") > 4.0 * 32.0 + 2.0 * 32.0 + 128.0);
        assert!(value("index_bytes_per_transaction.single") > 7.0);
        assert!(value("blobs_bytes_per_transaction.body.single") > 64.0);
    }
}
