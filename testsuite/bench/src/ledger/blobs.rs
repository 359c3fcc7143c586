//! Appending, serving and pruning the blobs of a ledger.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use slipstream_storage::{PruneConfig, StorageConfig, Store};
use slipstream_types::{BatchNumber, Delta};

use super::{
    Aim, Figure, Progress, Report, Size,
    chain::{self, PARTS, Parts},
    raw::Beneath,
};
use crate::harness::{
    files::{self, Log},
    ratios,
};

/// Batches of one served range, as a syncing peer requests it: about 4 MiB.
const RANGE_BATCHES: u64 = 32;
const MB: f64 = 1e6;

fn config() -> StorageConfig {
    StorageConfig { snapshot_interval_batches: 0, ..StorageConfig::default() }
}

pub(super) fn measure(size: &Size, dir: &Path, progress: Progress, report: &mut Report) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    append(size, dir, progress, report)?;
    serve(size, dir, progress, report)?;
    prune(size, dir, progress, report)?;
    report.notes.push(format!(
        "blobs: {} batches of {} KiB; every append is synced; served in ranges of {RANGE_BATCHES} batches, all four kinds, \
         cold = dropped from the page cache before each run",
        size.batches,
        PARTS.iter().map(|(_, bytes)| bytes >> 10).sum::<usize>()
    ));
    Ok(())
}

/// Appends the same batches to the store and to a file.
fn append(size: &Size, dir: &Path, progress: Progress, report: &mut Report) -> Result<()> {
    progress.step("appending batches");
    let store = Store::open(&config(), &dir.join("store"))?;
    chain::initialize(&store)?;
    let mut log = Log::create(&dir.join("log"))?;
    let mut rates: [Vec<f64>; 2] = Default::default();
    let (per_run, empty) = (size.batches / size.runs as u64, Delta::new(Vec::new(), Vec::new())?);
    let mut task = progress.task("runs", size.runs as u64);
    for run in 0..size.runs as u64 {
        let batches = (0..per_run).map(|i| Parts::new(run * per_run + i + 1)).collect::<Result<Vec<_>>>()?;
        let bytes = batches.iter().map(Parts::bytes).sum::<usize>() as f64;
        rates[0].push(rate(bytes, || {
            batches.iter().try_for_each(|parts| chain::commit(&store, &empty, Some(parts)))
        })?);
        rates[1].push(rate(bytes, || {
            batches.iter().try_for_each(|parts| log.append(&parts.0.each_ref().map(|blob| blob.as_bytes())))
        })?);
        task.update(run + 1, "");
    }
    store.close();
    let ratio = ratios(&rates[0], &rates[1]);
    let [store_rate, file_rate] = rates;
    report.figures.extend([
        Figure::new("append_mb_per_s", "MB/s", store_rate),
        Figure::new("append_mb_per_s.file", "MB/s", file_rate),
        Figure::new("append_vs_file", "ratio", ratio),
    ]);
    Ok(())
}

/// Serves the whole ledger in ranges: from the store, from the same files by RocksDB alone, and from a plain file.
fn serve(size: &Size, dir: &Path, progress: Progress, report: &mut Report) -> Result<()> {
    progress.step("serving ranges");
    let store_dir = dir.join("store");
    let store = Store::open(&config(), &store_dir)?;
    files::wait_until_quiet()?;
    // Read-only, so that it can be open beside the store, which does not change its files now.
    let beneath = Beneath::open(&store_dir)?;
    let columns = ["bodies", "receipts", "deltas", "hints"];
    let plain = || columns.iter().map(|column| beneath.read_all(column, RANGE_BATCHES)).sum::<Result<u64>>();
    let served = || serve_all(&store);
    let (mut cold, mut warm): ([Vec<f64>; 3], [Vec<f64>; 2]) = Default::default();
    for _ in 0..size.runs {
        files::drop_cached(dir)?;
        cold[0].push(read_rate(served)?);
        warm[0].push(read_rate(served)?);
        files::drop_cached(dir)?;
        cold[1].push(read_rate(plain)?);
        warm[1].push(read_rate(plain)?);
        files::drop_cached(dir)?;
        cold[2].push(read_rate(|| files::read_sequentially(&dir.join("log")))?);
    }
    let [served, plain, file] = cold;
    report.figures.extend([
        Figure::new("serve_vs_plain_reads", "ratio", ratios(&served, &plain)).aim(Aim::AtLeast(0.8)),
        Figure::new("serve_mb_per_s", "MB/s", served.clone()),
        Figure::new("serve_mb_per_s.plain_rocksdb", "MB/s", plain),
        Figure::new("serve_mb_per_s.file", "MB/s", file.clone()),
        Figure::new("serve_vs_file", "ratio", ratios(&served, &file)),
        Figure::new("serve_vs_plain_reads.warm", "ratio", ratios(&warm[0], &warm[1])),
        Figure::new("serve_mb_per_s.warm", "MB/s", warm[0].clone()),
    ]);
    Ok(())
}

/// Reads headers and all parts of every range, like the sync server.
fn serve_all(store: &Store) -> Result<u64> {
    let head = store.head()?.header.number;
    let (mut bytes, mut first) = (0, BatchNumber::new(1));
    while first <= head {
        let headers = store.headers(first, RANGE_BATCHES as usize)?;
        let mut parts = PARTS.map(|(kind, _)| store.blobs(kind, first, headers.len()));
        for header in &headers {
            for blobs in &mut parts {
                let blob = blobs.of(header.number)?.context("a blob of the ledger is missing")?;
                bytes += blob.len() as u64;
            }
        }
        first = first.after(RANGE_BATCHES);
    }
    Ok(bytes)
}

/// Prunes half of the ledger while batches are committed.
fn prune(size: &Size, dir: &Path, progress: Progress, report: &mut Report) -> Result<()> {
    progress.step("pruning half of the batches beside commits");
    let store_dir = dir.join("store");
    let window = size.batches / 2;
    let windows = PruneConfig::of_batches([window; 4]);
    let store = Store::open(&StorageConfig { prune: windows, ..config() }, &store_dir)?;
    files::wait_until_quiet()?;
    let quiet_ms = commit_times(&store, &AtomicBool::new(false), 100)?;
    let before = files::disk_bytes(&store_dir);
    let finished = AtomicBool::new(false);
    let (stalled, seconds, freed) = std::thread::scope(|scope| {
        let commits = scope.spawn(|| commit_times(&store, &finished, usize::MAX));
        let start = Instant::now();
        let pruned = store.prune().map(|_| ());
        let seconds = start.elapsed().as_secs_f64();
        let freed = before.saturating_sub(files::disk_bytes(&store_dir));
        finished.store(true, Ordering::Release);
        let commits = commits.join().expect("the committer does not panic")?;
        pruned?;
        anyhow::Ok((commits, seconds, freed))
    })?;
    let due = (size.batches / 2) as f64 * PARTS.iter().map(|(_, bytes)| *bytes).sum::<usize>() as f64;
    ensure!(freed > 0, "pruning freed nothing");
    report.figures.extend([
        Figure::new("prune_seconds", "s", vec![seconds]),
        Figure::new("prune_stall_ms", "ms", vec![worst(&stalled)]),
        Figure::new("prune_stall_ms.without", "ms", vec![worst(&quiet_ms)]),
        Figure::new("prune_freed_share", "ratio", vec![freed as f64 / due]),
    ]);
    Ok(())
}

/// Commits until `finished` is set, or `max` times; returns the duration of each commit in milliseconds.
fn commit_times(store: &Store, finished: &AtomicBool, max: usize) -> Result<Vec<f64>> {
    let (empty, parts) = (Delta::new(Vec::new(), Vec::new())?, Parts::new(0)?);
    let mut times = Vec::new();
    while times.is_empty() || (times.len() < max && !finished.load(Ordering::Acquire)) {
        let start = Instant::now();
        chain::commit(store, &empty, Some(&parts))?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

fn worst(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

fn rate(bytes: f64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(bytes / MB / start.elapsed().as_secs_f64())
}

fn read_rate(work: impl FnOnce() -> Result<u64>) -> Result<f64> {
    let start = Instant::now();
    let bytes = work()?;
    Ok(bytes as f64 / MB / start.elapsed().as_secs_f64())
}
