//! The floor of reading: the chain's keys, read from the same files by the fastest reader. It knows all keys from the
//! start and only reads.

use std::{
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Instant,
};

use anyhow::Result;
use slipstream_storage::{StorageConfig, StorageError, Store, View};
use slipstream_types::StateKey;

use super::follow::cache_mib;
use crate::harness::kept::{clone_store, remove};
use slipnet::cpu;

/// Threads, and keys per call of each. One key is a point read; more are a multi-get, which lets the kernel read all
/// their blocks at once (io_uring).
const READERS: [(usize, usize); 5] = [(16, 1), (64, 1), (2, 256), (4, 256), (8, 256)];

/// The cost of reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floor {
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
    pub(super) threads: usize,
    pub(super) at_once: usize,
}

/// Reads keys from a clone of a base by each reader, and returns the fastest one's cost.
///
/// # Errors
/// If a read fails.
pub(super) fn read(base: &Path, keys: &[StateKey], rows: u64, dir: &Path) -> Result<Floor> {
    let mut fastest: Option<Floor> = None;
    clone_store(base, dir)?;
    let config = StorageConfig {
        direct_reads: true,
        block_cache_mib: cache_mib(rows),
        // The tree is not used.
        tree_memory_mib: 64,
        snapshot_interval_batches: 0,
        ..StorageConfig::default()
    };
    let store = Store::open(&config, dir)?;
    for (threads, at_once) in READERS {
        store.drop_cached();
        let (begin, cpu_before) = (Instant::now(), cpu::of_this_process());
        read_by(&store.view()?, keys, threads, at_once)?;
        let floor = Floor {
            seconds: begin.elapsed().as_secs_f64(),
            cpu_s: cpu::of_this_process() - cpu_before,
            threads,
            at_once,
        };
        if fastest.is_none_or(|fastest| floor.seconds < fastest.seconds) {
            fastest = Some(floor);
        }
    }
    store.close();
    remove(dir)?;
    Ok(fastest.expect("there are readers"))
}

fn read_by(view: &View, keys: &[StateKey], threads: usize, at_once: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), StorageError> {
        loop {
            let first = next.fetch_add(at_once, Relaxed);
            let Some(chunk) = keys.get(first..keys.len().min(first + at_once)) else { return Ok(()) };
            match chunk {
                [] => return Ok(()),
                [StateKey::Account(address)] => drop(view.account(address)?),
                [StateKey::Slot(address, slot)] => drop(view.slot(address, slot)?),
                chunk => drop(view.rows(chunk)?),
            }
        }
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })?;
    Ok(())
}
