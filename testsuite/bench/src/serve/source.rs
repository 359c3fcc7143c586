//! A certified ledger of any size: linked headers over parts that are never executed. It is larger than the serving
//! cache; a chain of real transactions would take minutes to grow that large.

use std::{fs, path::Path};

use anyhow::Result;
use slipstream_storage::{CommitBatch, StorageConfig, Store};
use slipstream_testkit::{certify, genesis, keys};
use slipstream_types::{BatchHeader, BatchNumber, Delta, Digest, SecretKey};

use crate::ledger::chain::Parts;
use slipnet::progress::Progress;

/// Fills a directory's database with batches of about 120 KiB, and writes the genesis file.
pub(super) fn make(database: &Path, genesis_file: &Path, batches: u64, progress: Progress) -> Result<()> {
    fs::create_dir_all(database)?;
    let config = StorageConfig { fsync: false, snapshot_interval_batches: 0, ..Default::default() };
    let store = Store::open(&config, database)?;
    let keys = keys([1]);
    let genesis = genesis(&keys, 0);
    fs::write(genesis_file, serde_json::to_string(&genesis)?)?;
    store.initialize(&genesis)?;
    let mut task = progress.task("batches", batches);
    for number in 1..=batches {
        append(&store, &keys, BatchNumber::new(number))?;
        task.update(number, "");
    }
    store.close();
    Ok(())
}

fn append(store: &Store, keys: &[SecretKey], number: BatchNumber) -> Result<()> {
    let head = store.head()?;
    let Parts([body, receipts, delta_blob, hints]) = Parts::new(number.get())?;
    let header = BatchHeader {
        number,
        parent: head.digest,
        timestamp_ms: head.header.timestamp_ms + 100,
        transactions_root: Digest::ZERO,
        receipts_root: Digest::ZERO,
        delta_digest: Digest::ZERO,
        ..head.header
    };
    let certificate = certify(&head.accumulator, &header, None, keys);
    let delta = Delta::default();
    let batch = CommitBatch {
        body: Some(&body),
        receipts: Some(&receipts),
        delta_blob: Some(&delta_blob),
        hints: Some(&hints),
        certificate: Some(&certificate),
        ..CommitBatch::new(&header, &delta)
    };
    Ok(store.commit(batch, None)?)
}
