//! Point reads of state rows, cold and warm.
//!
//! Cold: the store's reads bypass the page cache (`direct_reads`). Its block cache holds little more than the index and
//! filter blocks, which a first round of other keys loads. The figure is the kernel's count of this process's read
//! calls, divided by the keys read: it includes every block of every kind.

use std::{path::Path, time::Instant};

use anyhow::{Result, ensure};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use slipstream_storage::{StorageConfig, Store, View};
use slipstream_types::{Address, B256, Delta, StateKey, StateValue, U256, delta::DeltaEntry};

use super::{Aim, Figure, Progress, Report, Size, chain};
use crate::harness::{files, ratios};

const THREADS: [usize; 3] = [1, 4, 16];
/// Slots of one account, which are adjacent on disk.
const SLOTS: u64 = 10;
const BATCH_ROWS: u64 = 10_000;
/// Keys of one batched read.
const MULTI_GET: usize = 256;
const WARM_KEYS: usize = 2_000;
const WARM_READS: usize = 200_000;

fn cold_config() -> StorageConfig {
    StorageConfig { block_cache_mib: 4, direct_reads: true, ..warm_config() }
}

fn warm_config() -> StorageConfig {
    StorageConfig { snapshot_interval_batches: 0, fsync: false, ..StorageConfig::default() }
}

/// Returns key `index` of the state; keys from the state's size on are absent.
fn key(index: u64) -> StateKey {
    let mut address = [0; 20];
    address[..8].copy_from_slice(&(index / SLOTS).to_be_bytes());
    StateKey::Slot(Address::from(address), B256::from(U256::from(index % SLOTS)))
}

pub(super) fn measure(size: &Size, dir: &Path, progress: Progress, report: &mut Report) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let store_dir = dir.join("store");
    fill(size, &store_dir, progress)?;
    let noise = dir.join("noise");
    files::fill(&noise, files::disk_bytes(&store_dir))?;
    cold(size, &store_dir, &noise, progress, report)?;
    warm(size, &store_dir, progress, report)?;
    report.notes.push(format!(
        "point reads: {} slots, {SLOTS} an account; cold = O_DIRECT, index and filters in memory; reads per key counted by the \
         kernel (/proc/self/io syscr); floor: random 4 KiB blocks of a file of the same size, O_DIRECT",
        size.rows
    ));
    Ok(())
}

fn fill(size: &Size, dir: &Path, progress: Progress) -> Result<()> {
    progress.step("filling the state");
    let store = Store::open(&warm_config(), dir)?;
    chain::initialize(&store)?;
    let mut task = progress.task("rows", size.rows);
    for first in (0..size.rows).step_by(BATCH_ROWS as usize) {
        let entry =
            |index| DeltaEntry { key: key(index), value: Some(StateValue::Slot(U256::from(index + 1))) };
        let last = (first + BATCH_ROWS).min(size.rows);
        chain::commit(&store, &Delta::new((first..last).map(entry).collect(), Vec::new())?, None)?;
        task.update(last, "");
    }
    store.close();
    Ok(())
}

fn cold(size: &Size, dir: &Path, noise: &Path, progress: Progress, report: &mut Report) -> Result<()> {
    progress.step("reading cold keys");
    let store = Store::open(&cold_config(), dir)?;
    files::wait_until_quiet()?;
    let view = store.view()?;
    read(&view, 1, &sample(size, 0, 2_000), true)?;

    let mut reads: [Vec<f64>; 2] = Default::default();
    let (mut rates, mut floors): ([Vec<f64>; 3], [Vec<f64>; 3]) = Default::default();
    let mut batched = Vec::new();
    for run in 0..size.runs as u64 {
        for (i, threads) in THREADS.into_iter().enumerate() {
            let keys = sample(size, 1 + 10 * run + i as u64, size.reads);
            let calls = files::io_counter("syscr")?;
            rates[i].push(read(&view, threads, &keys, true)?);
            if threads == 1 {
                reads[0].push((files::io_counter("syscr")? - calls) as f64 / keys.len() as f64);
            }
            floors[i].push(files::direct_reads_per_s(noise, threads, size.reads)?);
        }
        let absent: Vec<StateKey> =
            (0..size.reads as u64).map(|i| key(size.rows + SLOTS * (1 + run) * 1_000_000 + i)).collect();
        let calls = files::io_counter("syscr")?;
        read(&view, 1, &absent, false)?;
        reads[1].push((files::io_counter("syscr")? - calls) as f64 / absent.len() as f64);
        let keys = sample(size, 9 + 10 * run, size.reads);
        let start = Instant::now();
        for keys in keys.chunks(MULTI_GET) {
            ensure!(view.rows(keys)?.iter().all(Option::is_some), "a row is missing");
        }
        batched.push(keys.len() as f64 / start.elapsed().as_secs_f64());
    }
    let [present, absent] = reads;
    report.figures.push(Figure::new("disk_reads_per_cold_key", "ratio", present).aim(Aim::AtMost(1.05)));
    report.figures.push(Figure::new("disk_reads_per_absent_key", "ratio", absent));
    for ((threads, rates), floors) in THREADS.into_iter().zip(rates).zip(floors) {
        let ratio = ratios(&rates, &floors);
        report.figures.extend([
            Figure::new(format!("cold_reads_per_s.t{threads}"), "1/s", rates),
            Figure::new(format!("cold_reads_per_s.t{threads}.pread"), "1/s", floors),
            Figure::new(format!("cold_reads_vs_pread.t{threads}"), "ratio", ratio),
        ]);
    }
    report.figures.push(Figure::new(format!("cold_reads_per_s.batches_of_{MULTI_GET}"), "1/s", batched));
    Ok(())
}

/// Measures reads of keys whose blocks are in the block cache.
fn warm(size: &Size, dir: &Path, progress: Progress, report: &mut Report) -> Result<()> {
    progress.step("reading warm keys");
    let store = Store::open(&warm_config(), dir)?;
    let view = store.view()?;
    let keys = sample(size, 99, WARM_KEYS);
    read(&view, 1, &keys, true)?;
    let (mut single, mut batched) = (Vec::new(), Vec::new());
    let rounds = WARM_READS / WARM_KEYS;
    for _ in 0..size.runs {
        let start = Instant::now();
        for _ in 0..rounds {
            read(&view, 1, &keys, true)?;
        }
        single.push(start.elapsed().as_secs_f64() * 1e9 / (rounds * keys.len()) as f64);
        let start = Instant::now();
        for _ in 0..rounds {
            for keys in keys.chunks(MULTI_GET) {
                view.rows(keys)?;
            }
        }
        batched.push(start.elapsed().as_secs_f64() * 1e9 / (rounds * keys.len()) as f64);
    }
    report.figures.extend([
        Figure::new("warm_read_ns", "ns", single),
        Figure::new(format!("warm_read_ns.batches_of_{MULTI_GET}"), "ns", batched),
    ]);
    Ok(())
}

/// Returns random keys of the state.
fn sample(size: &Size, seed: u64, count: usize) -> Vec<StateKey> {
    let mut random = SmallRng::seed_from_u64(seed);
    (0..count).map(|_| key(random.random_range(0..size.rows))).collect()
}

/// Reads keys one by one, divided among threads; returns the rate.
fn read(view: &View, threads: usize, keys: &[StateKey], present: bool) -> Result<f64> {
    let start = Instant::now();
    let read_some = |keys: &[StateKey]| {
        for key in keys {
            let StateKey::Slot(address, slot) = key else { continue };
            ensure!(view.slot(address, slot)?.is_zero() != present, "{key:?} is not as it was written");
        }
        Ok(())
    };
    if threads == 1 {
        read_some(keys)?;
    } else {
        std::thread::scope(|scope| {
            let shares = keys.chunks(keys.len().div_ceil(threads));
            let readers: Vec<_> = shares.map(|share| scope.spawn(|| read_some(share))).collect();
            readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
        })?;
    }
    Ok(keys.len() as f64 / start.elapsed().as_secs_f64())
}
