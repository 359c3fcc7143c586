//! A process's resource use: its peak memory, and its CPU time.

use std::fs;

use anyhow::{Context, Result};
use slipnet::{cpu, memory};

/// A process that is measured from some moment on. Linux tracks the peak of its memory, so that no poll can miss it.
pub(super) struct Meter {
    pid: u32,
    cpu_s: f64,
    mib: f64,
}

impl Meter {
    /// Starts measuring: the peak is reset.
    ///
    /// # Errors
    /// If no process has this id, or it belongs to another user.
    pub(super) fn start(pid: u32) -> Result<Meter> {
        let path = format!("/proc/{pid}/clear_refs");
        // "5" resets the peak to the current memory of the process; see proc(5).
        fs::write(&path, "5").with_context(|| format!("cannot reset the peak memory in {path}"))?;
        Ok(Meter { pid, cpu_s: cpu::of_process(pid)?, mib: 0.0 })
    }

    /// Returns the peak memory since the start, in MiB. For a process that has exited it is the peak up to the last
    /// poll.
    pub(super) fn peak_mib(&mut self) -> f64 {
        self.mib = self.mib.max(memory::peak_mib(self.pid).unwrap_or_default());
        self.mib
    }

    /// Returns the CPU seconds since the start; 0 for a process that has exited.
    pub(super) fn cpu_s(&self) -> f64 {
        cpu::of_process(self.pid).map_or(0.0, |now| (now - self.cpu_s).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_of_the_time_since_the_start() {
        let mut child = std::process::Command::new("/bin/sleep").arg("100").spawn().unwrap();
        let mut meter = Meter::start(child.id()).unwrap();
        let before = meter.peak_mib();
        assert!(before > 0.0 && before < 100.0, "{before}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((meter.peak_mib(), meter.cpu_s()), (before, 0.0), "its last look stays");
        assert!(Meter::start(child.id()).is_err());
    }
}
