//! What a round cost: time, CPU of the whole process, bytes that reached the disk.

use std::{fs, time::Instant};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

/// Cost of some updates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    updates: f64,
    seconds: f64,
    cpu_s: f64,
    bytes: f64,
}

impl Cost {
    pub(super) fn updates_per_s(&self) -> f64 {
        self.updates / self.seconds
    }

    pub(super) fn cpu_us_per_update(&self) -> f64 {
        self.cpu_s * 1e6 / self.updates
    }

    pub(super) fn bytes_per_update(&self) -> f64 {
        self.bytes / self.updates
    }
}

/// A running measurement.
pub(super) struct Meter {
    start: Instant,
    cpu_s: f64,
    bytes: f64,
}

impl Meter {
    pub(super) fn start() -> Result<Meter> {
        Ok(Meter { bytes: written_bytes()?, cpu_s: cpu_s(), start: Instant::now() })
    }

    pub(super) fn stop(self, updates: usize) -> Result<Cost> {
        let seconds = self.start.elapsed().as_secs_f64();
        Ok(Cost {
            updates: updates as f64,
            seconds,
            cpu_s: cpu_s() - self.cpu_s,
            bytes: written_bytes()? - self.bytes,
        })
    }
}

fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Bytes that the process sent to the disk so far, its background threads included.
fn written_bytes() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/io").context("cannot read /proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(line.context("/proc/self/io tells no write_bytes")?.trim().parse()?)
}
