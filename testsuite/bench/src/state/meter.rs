//! The cost of a round: time, CPU of the whole process, and bytes written to the disk or read from it.

use std::time::Instant;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use slipnet::cpu;

use crate::harness::files::io_counter;

/// The cost of some updates.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Cost {
    updates: f64,
    seconds: f64,
    cpu_s: f64,
    bytes: f64,
    read_bytes: f64,
}

impl Cost {
    pub(crate) fn updates_per_s(&self) -> f64 {
        self.updates / self.seconds
    }

    pub(crate) fn cpu_us_per_update(&self) -> f64 {
        self.cpu_s * 1e6 / self.updates
    }

    pub(crate) fn bytes_per_update(&self) -> f64 {
        self.bytes / self.updates
    }

    /// Returns the bytes read from the disk itself; reads from the operating system's cache do not count.
    pub(crate) fn read_bytes_per_update(&self) -> f64 {
        self.read_bytes / self.updates
    }
}

/// A running measurement.
pub(crate) struct Meter {
    start: Instant,
    cpu_s: f64,
    bytes: u64,
    read_bytes: u64,
}

impl Meter {
    pub(crate) fn start() -> Result<Meter> {
        let (bytes, read_bytes) = (io_counter("write_bytes")?, io_counter("read_bytes")?);
        Ok(Meter { bytes, read_bytes, cpu_s: cpu::of_this_process(), start: Instant::now() })
    }

    pub(crate) fn stop(self, updates: usize) -> Result<Cost> {
        let seconds = self.start.elapsed().as_secs_f64();
        Ok(Cost {
            updates: updates as f64,
            seconds,
            cpu_s: cpu::of_this_process() - self.cpu_s,
            bytes: (io_counter("write_bytes")? - self.bytes) as f64,
            read_bytes: (io_counter("read_bytes")? - self.read_bytes) as f64,
        })
    }
}
