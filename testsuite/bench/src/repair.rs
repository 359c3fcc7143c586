//! The cost of repairing a state with one wrong row in a thousand, beside fetching all of it again.
//!
//! A peer serves the state over the in-memory network. The other store is a copy of its files in which rows were
//! changed, removed and added directly in the database. A repair transfers all bytes of its requests and answers. A
//! snapshot transfers the chunks of 1 MiB that a restore requests, compressed. The floor is the wrong rows alone, as if
//! they were known in advance.

use std::{fs, ops::ControlFlow, path::Path, time::Instant};

use anyhow::{Context, Result, ensure};
use slipstream_network::MemoryHub;
use slipstream_storage::{Repair, StorageConfig, Store, plain_database};
use slipstream_sync::{
    SyncServer,
    repair::{REPAIR_PATIENCE, RepairRecord, RepairReport, repair},
};
use slipstream_types::{Blob, BlobKind, Path as StatePath, PublicKey, state::ROW_BYTES_MAX};

use super::{Aim, BenchOptions, Figure, Report, harness::handler::serving, snapshot::source};
use slipnet::progress::Progress;

/// The number of rows, and of repairs.
const FULL: (u64, usize) = (1_000_000, 5);
const QUICK: (u64, usize) = (100_000, 3);
/// One row in this many is wrong.
const WRONG_ONE_IN: usize = 1_000;
const CHUNK_BYTES: usize = 1 << 20;

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let (rows, runs) = if options.quick { QUICK } else { FULL };
    let dir = options.temporary_dir()?;
    let (right, wrong) = (dir.path().join("right"), dir.path().join("wrong"));
    progress.step(&format!("filling a store with {rows} rows"));
    let store = source::filled(&right, rows, progress)?;
    store.create_snapshot()?;
    drop(store);
    let store = Store::open(&config(), &right)?;
    let snapshot_bytes = snapshot_bytes(&store)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut measured = Vec::new();
    for run in 0..runs {
        progress.step(&format!("repair {} of {runs}", run + 1));
        copy_database(&right, &wrong)?;
        let spoiled = spoil(&wrong, run)?;
        let began = Instant::now();
        let report = runtime.block_on(repair_from(&store, &wrong))?;
        let seconds = began.elapsed().as_secs_f64();
        ensure!(
            report.rows_put + report.rows_removed == spoiled,
            "{spoiled} rows were wrong, but the repair reports {report:?}"
        );
        drop(Store::open(&config(), &wrong).context("the repaired store does not open")?);
        measured.push((report, spoiled, seconds));
    }
    let share =
        |of: &dyn Fn(&(RepairReport, u64, f64)) -> f64| -> Vec<f64> { measured.iter().map(of).collect() };
    let figures = vec![
        Figure::new(
            "repair_bytes_share",
            "ratio",
            share(&|(report, ..)| report.bytes as f64 / snapshot_bytes),
        )
        .aim(Aim::AtMost(0.02)),
        Figure::new(
            "repair_bytes_share.floor",
            "ratio",
            share(&|(_, spoiled, _)| (*spoiled * ROW_BYTES_MAX as u64) as f64 / snapshot_bytes),
        ),
        Figure::new(
            "repair_bytes_per_row",
            "B",
            share(&|(report, spoiled, _)| report.bytes as f64 / *spoiled as f64),
        ),
        Figure::new("repair_questions", "1", share(&|(report, ..)| report.questions as f64)),
        Figure::new("repair_seconds", "s", share(&|(.., seconds)| *seconds)),
        Figure::new("snapshot_bytes", "B", vec![snapshot_bytes]),
    ];
    let notes = vec![
        format!("{rows} rows, one of {WRONG_ONE_IN} changed, removed or added; the floor is a row of {ROW_BYTES_MAX} bytes for each"),
        "the time is from opening the store to its last write, without latency: most of it reads the whole state".to_owned(),
    ];
    Ok(Report { bench: "repair", runs, figures, notes })
}

fn config() -> StorageConfig {
    StorageConfig { fsync: false, snapshot_interval_batches: 0, ..StorageConfig::default() }
}

/// Returns the bytes of all chunks on the wire.
fn snapshot_bytes(store: &Store) -> Result<f64> {
    let info = store.snapshots().into_iter().next().context("the store has no snapshot")?;
    let snapshot = store.snapshot(info.number)?.context("the snapshot is gone")?;
    let mut bytes = 0;
    snapshot.chunks(StatePath::MIN, StatePath::MAX, CHUNK_BYTES, &mut |chunk| {
        bytes += Blob::compress(BlobKind::StateChunk, &chunk.content)?.len();
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(bytes as f64)
}

/// Copies a store's files, except its snapshots.
fn copy_database(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    copy_files(from, to)?;
    copy_files(&from.join("db"), &to.join("db"))
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Makes rows wrong, different ones in every run; returns their number.
fn spoil(dir: &Path, run: usize) -> Result<u64> {
    let database = plain_database(&config(), dir)?;
    let rows = database.cf_handle("state_a").context("the store has no state column")?;
    let mut all = database.raw_iterator_cf(rows);
    let (mut at, mut wrong) = (run * 131, 0);
    all.seek_to_first();
    while let Some((key, row)) = all.item() {
        if at % WRONG_ONE_IN == 0 {
            let (mut key, mut row) = (key.to_vec(), row.to_vec());
            match wrong % 3 {
                0 => database.delete_cf(rows, &key)?,
                kind => {
                    // A changed last byte of the path makes it another row.
                    key[31] ^= u8::from(kind == 1);
                    row[40] ^= 1;
                    database.put_cf(rows, &key, &row)?;
                }
            }
            wrong += 1;
        }
        at += 1;
        all.next();
    }
    Ok(wrong)
}

async fn repair_from(store: &Store, dir: &Path) -> Result<RepairReport> {
    let (hub, [server, node]) = (MemoryHub::new(), [1, 2].map(|id| PublicKey([id; 32])));
    hub.join(server, serving(SyncServer::new(store.clone())));
    let empty = SyncServer::new(Store::memory(&config()));
    let transport = hub.join(node, serving(empty));
    ensure!(hub.connect(node, server), "the nodes are not connected");
    let dir = dir.to_owned();
    let session = tokio::task::spawn_blocking(move || Repair::open(&config(), &dir)).await??;
    Ok(repair(session, &*transport, REPAIR_PATIENCE, RepairRecord::default()).await?)
}
