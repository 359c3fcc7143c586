//! [`Failures`]: orders that could not be carried out. The node and the later orders continue. The judge is informed,
//! and the run returns an error at its end.

use std::{
    fmt::Display,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Error, Result, anyhow, bail};
use tokio::sync::watch;

use crate::output;

/// The number of failures, and the first of them. Each is printed when it happens.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: AtomicUsize,
    first: OnceLock<String>,
    /// The number of tasks beside the orders that may still fail.
    working: watch::Sender<usize>,
}

/// A task beside the orders, until this is dropped.
#[derive(Debug)]
pub(super) struct Work(Arc<Failures>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.working.send_modify(|working| *working -= 1);
    }
}

impl Failures {
    /// Records and prints a failure.
    pub(super) fn note(&self, what: impl Display, error: &Error) {
        let text = format!("{what} failed: {error:#}");
        output::note(&format!("{text}; the node and the later orders go on"));
        self.count.fetch_add(1, Ordering::Relaxed);
        let _ = self.first.set(text);
    }

    /// Registers a task beside the orders.
    pub(super) fn work(self: &Arc<Self>) -> Work {
        self.working.send_modify(|working| *working += 1);
        Work(self.clone())
    }

    /// Waits until no task is left. A task that takes longer than `within` has failed.
    pub(super) async fn settle(&self, within: Duration) {
        let mut working = self.working.subscribe();
        let is_settled =
            tokio::time::timeout(within, working.wait_for(|working| *working == 0)).await.is_ok();
        if !is_settled {
            self.note("what an order began", &anyhow!("it had not ended after {} s", within.as_secs()));
        }
    }

    /// Returns the outcome of the run.
    ///
    /// # Errors
    /// If anything failed.
    pub(super) fn end(&self) -> Result<()> {
        match (self.count.load(Ordering::Relaxed), self.first.get()) {
            (0, _) | (_, None) => Ok(()),
            (1, Some(first)) => bail!("an order could not be carried out: {first}"),
            (count, Some(first)) => bail!("orders failed {count} times, first: {first}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    /// Goal: the end of a run says how many orders failed, and which was the first.
    #[test]
    fn the_end_tells_of_the_first_failure() {
        let failures = Failures::default();
        failures.end().unwrap();
        failures.note("order 1s..,wipe", &anyhow!("no room").context("cannot clear data"));
        let first = "order 1s..,wipe failed: cannot clear data: no room";
        assert_eq!(
            failures.end().unwrap_err().to_string(),
            format!("an order could not be carried out: {first}")
        );
        failures.note("order 2s..,bit-flip=1", &anyhow!("no row"));
        assert_eq!(failures.end().unwrap_err().to_string(), format!("orders failed 2 times, first: {first}"));
    }

    /// Goal: the outcome waits for tasks, but not forever.
    #[tokio::test(start_paused = true)]
    async fn what_goes_on_is_waited_for() {
        let failures = Arc::<Failures>::default();
        let (minute, work) = (Duration::from_secs(60), failures.work());
        let begin = tokio::time::Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(minute / 2).await;
            drop(work);
        });
        failures.settle(minute).await;
        assert_eq!(begin.elapsed(), minute / 2);
        failures.end().unwrap();
        let _work = failures.work();
        failures.settle(minute).await;
        assert!(failures.end().unwrap_err().to_string().contains("it had not ended after 60 s"));
    }
}
