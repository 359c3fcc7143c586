//! [`Stop`]: ends work that is no longer wanted, and counts the time that it takes on a simulated machine.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use slipstream_executor::Interrupt;
use tokio::sync::Notify;

/// See the module. Clones control the same work.
#[derive(Clone, Default, Debug)]
pub(super) struct Stop(Arc<Work>);

#[derive(Default, Debug)]
struct Work {
    is_stopped: AtomicBool,
    stopped: Notify,
    simulated_us: AtomicU64,
}

impl Stop {
    pub(super) fn stop(&self) {
        self.0.is_stopped.store(true, Relaxed);
        self.0.stopped.notify_one();
    }

    pub(super) fn interrupt(&self) -> Interrupt {
        let stop = self.clone();
        Interrupt::when(move || stop.is_stopped())
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Relaxed)
    }

    /// Adds time that a simulated machine works, which its thread does not take.
    pub(super) fn spend(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0.simulated_us.fetch_add(us, Relaxed);
    }

    /// How long a simulated machine has worked; zero on a real machine.
    pub(super) fn spent(&self) -> Duration {
        Duration::from_micros(self.0.simulated_us.load(Relaxed))
    }

    /// Lets a simulated machine's working time pass. Returns whether the work was stopped before its end.
    pub(super) async fn pass(&self) -> bool {
        let spent = self.spent();
        if spent.is_zero() {
            return false;
        }
        tokio::time::timeout(spent, self.0.stopped.notified()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// Goal: simulated work takes its time unless it is stopped. Real work, whose time has passed, takes none.
    #[tokio::test(start_paused = true)]
    async fn simulated_work_passes_or_is_stopped() {
        let begun = Instant::now();
        let real = Stop::default();
        real.stop();
        assert!(!real.pass().await, "what has ended cannot be stopped");
        let simulated = Stop::default();
        simulated.spend(Duration::from_secs(2));
        simulated.spend(Duration::from_secs(1));
        assert!(!simulated.pass().await);
        assert_eq!(begun.elapsed(), Duration::from_secs(3));
        simulated.stop();
        assert!(simulated.pass().await);
        assert_eq!(begun.elapsed(), Duration::from_secs(3));
    }
}
