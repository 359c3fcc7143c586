//! [`Cadence`]: when the proposer's next batch is due.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::ConsensusConfig;

/// A primary may be honest and make empty batches this many times as rarely as this validator would. One that makes none is missed by
/// validators in this many intervals, and by the first transaction at once.
const IDLE_SHARE: u32 = 5;

/// Batches by time and by what waits in the pool.
pub(super) struct Cadence {
    interval: Duration,
    /// `None` if empty batches are off.
    empty_interval: Option<Duration>,
    full: usize,
    last: Instant,
}

impl Cadence {
    /// Starts counting now.
    pub(super) fn new(config: &ConsensusConfig) -> Cadence {
        let empty_ms = config.empty_batch_interval_ms;
        Cadence {
            interval: Duration::from_millis(config.batch_interval_ms),
            empty_interval: (empty_ms > 0).then(|| Duration::from_millis(empty_ms)),
            full: config.batch_transactions_max.get(),
            last: Instant::now(),
        }
    }

    /// When to make a batch of so many transactions; `None` if there is nothing to make.
    pub(super) fn due(&self, pending: usize) -> Option<Instant> {
        match pending {
            0 => self.empty_interval.map(|interval| self.last + interval),
            pending if pending >= self.full => Some(self.last),
            _ => Some(self.last + self.interval),
        }
    }

    /// When a batch of another primary is overdue. An empty one is, much later than this validator would make it: the primary's operator
    /// may have set a longer time.
    pub(super) fn overdue(&self, pending: usize) -> Option<Instant> {
        match pending {
            0 => self.empty_interval.map(|interval| self.last + IDLE_SHARE * interval),
            pending => self.due(pending),
        }
    }

    /// Whether the batch may be one without transactions.
    pub(super) fn may_be_empty(&self, now: Instant) -> bool {
        self.empty_interval.is_some_and(|interval| self.last + interval <= now)
    }

    /// A batch was begun at that time, and made.
    pub(super) fn made(&mut self, begun: Instant) {
        self.last = begun;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a full pool is proposed at once and some transactions after the interval. An empty batch comes after the longer
    /// interval or never.
    #[tokio::test(start_paused = true)]
    async fn batches_are_due_by_time_and_size() {
        let config = ConsensusConfig { batch_interval_ms: 100, ..ConsensusConfig::default() };
        let full = config.batch_transactions_max.get();
        let mut cadence = Cadence::new(&config);
        let begun = Instant::now() + Duration::from_secs(5);
        cadence.made(begun);
        let after_ms = |pending| cadence.due(pending).map(|due| (due - begun).as_millis());
        assert_eq!([0, 1, full].map(after_ms), [Some(1_000), Some(100), Some(0)]);
        assert!(!cadence.may_be_empty(begun + Duration::from_millis(999)));
        assert!(cadence.may_be_empty(begun + Duration::from_millis(1_000)));
        let overdue_ms = |pending| cadence.overdue(pending).map(|due| (due - begun).as_millis());
        assert_eq!([0, 1, full].map(overdue_ms), [Some(5_000), Some(100), Some(0)]);
        let never = Cadence::new(&ConsensusConfig { empty_batch_interval_ms: 0, ..config });
        assert_eq!((never.due(0), never.overdue(0)), (None, None));
        assert!(!never.may_be_empty(begun + Duration::from_secs(3_600)));
    }
}
