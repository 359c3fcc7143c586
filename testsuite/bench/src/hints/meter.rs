//! The cost of a replay: time, CPU of all threads, and disk reads.

use std::time::Instant;

use slipstream_storage::{IoCounts, Store};

use slipnet::cpu;

/// The cost of one block, or of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) seconds: f64,
    /// User and system CPU time of the whole process.
    pub(crate) cpu_s: f64,
    /// Data blocks read from the disk.
    pub(crate) disk_reads: u64,
}

impl Cost {
    /// Measures some work on a store.
    pub(crate) fn of<T>(store: &Store, work: impl FnOnce() -> T) -> (Cost, T) {
        let (before, cpu_s, start) = (store.io_counts(), cpu::of_this_process(), Instant::now());
        let done = work();
        let seconds = start.elapsed().as_secs_f64();
        let IoCounts { blocks, .. } = store.io_counts();
        let cost =
            Cost { seconds, cpu_s: cpu::of_this_process() - cpu_s, disk_reads: blocks - before.blocks };
        (cost, done)
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |a, b| Cost {
            seconds: a.seconds + b.seconds,
            cpu_s: a.cpu_s + b.cpu_s,
            disk_reads: a.disk_reads + b.disk_reads,
        })
    }
}
