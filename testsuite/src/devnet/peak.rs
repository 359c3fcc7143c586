//! [`MemoryPeak`]: the most memory that a node's processes ever took, as the kernel counted it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{leftovers::started, memory};

/// A handle to a node's peak, over all of its processes from their beginning. Whoever has one may look, as often as it likes: a peak
/// between two looks is seen by the second one. What a process took between its last look and its death is missed.
#[derive(Clone, Debug, Default)]
pub struct MemoryPeak(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// The process that runs, and when it started: a later one of its number is another one.
    process: Option<(u32, u64)>,
    mib: f64,
}

impl MemoryPeak {
    /// A process of the node begins.
    pub(super) fn begin(&self, pid: u32) {
        self.0.lock().process = started(pid).ok().flatten().map(|started| (pid, started));
        self.look();
    }

    /// Its process is about to end, or has ended.
    pub(super) fn end(&self) {
        self.look();
        self.0.lock().process = None;
    }

    /// Looks at what the process took so far. A process that has ended shows nothing.
    pub fn look(&self) {
        let mut seen = self.0.lock();
        let mib = seen.process.and_then(|(pid, began)| {
            let mib = memory::peak_mib(pid).ok()?;
            // Asked afterwards: while it still runs, what was read is its own.
            (started(pid).ok()? == Some(began)).then_some(mib)
        });
        seen.mib = seen.mib.max(mib.unwrap_or_default());
    }

    /// The most MiB so far; none if no process was ever seen.
    pub fn mib(&self) -> Option<f64> {
        Some(self.0.lock().mib).filter(|mib| *mib > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Goal: what a process took and gave back before anybody looked counts, and stays when the process is gone and another one came.
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
        // The number of one that ended, with another process behind it.
        let taken = MemoryPeak::default();
        taken.0.lock().process = Some((std::process::id(), 1));
        taken.look();
        assert_eq!(taken.mib(), None);
    }
}
