//! [`MemoryPeak`]: the most memory that a node's processes have used, as counted by the kernel.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{leftovers::started, memory};

/// A handle to a node's peak memory, over all of its processes since it first started. Any holder may look at any time:
/// the kernel keeps the peak, so a peak between two looks is not lost. Memory that a process takes between the last
/// look and its death is missed.
#[derive(Clone, Debug, Default)]
pub struct MemoryPeak(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// The running process and its start time. The start time distinguishes it from a later process with the same id.
    process: Option<(u32, u64)>,
    mib: f64,
}

impl MemoryPeak {
    /// Records that a process of the node has started.
    pub(super) fn begin(&self, pid: u32) {
        self.0.lock().process = started(pid).ok().flatten().map(|started| (pid, started));
        self.look();
    }

    /// Records that its process is about to end, or has ended.
    pub(super) fn end(&self) {
        self.look();
        self.0.lock().process = None;
    }

    /// Reads the process's peak so far. A process that has ended has none.
    pub fn look(&self) {
        let mut seen = self.0.lock();
        let mib = seen.process.and_then(|(pid, began)| {
            let mib = memory::peak_mib(pid).ok()?;
            // The start time is read after the peak: if it is unchanged, the peak belongs to this process.
            (started(pid).ok()? == Some(began)).then_some(mib)
        });
        seen.mib = seen.mib.max(mib.unwrap_or_default());
    }

    /// Returns the peak in MiB; `None` if no process has been seen.
    pub fn mib(&self) -> Option<f64> {
        Some(self.0.lock().mib).filter(|mib| *mib > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Goal: memory that a process took and released before the first look counts, and the peak survives the process
    /// and its successor.
    #[test]
    fn a_peak_between_two_looks_is_seen() {
        let peak = MemoryPeak::default();
        assert_eq!(peak.mib(), None);
        peak.begin(std::process::id());
        let before = peak.mib().unwrap();
        let taken = vec![1_u8; 64 << 20];
        assert_eq!(taken.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 20);
        drop(taken);
        peak.end();
        let most = peak.mib().unwrap();
        assert!(most >= before && most > 64.0, "{before} and then {most}");
        let mut child = Command::new("/bin/sleep").arg("100").spawn().unwrap();
        peak.begin(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        peak.end();
        assert_eq!(peak.mib(), Some(most));
        // The id of an ended process, now reused by another.
        let taken = MemoryPeak::default();
        taken.0.lock().process = Some((std::process::id(), 1));
        taken.look();
        assert_eq!(taken.mib(), None);
    }
}
