//! [`Cadence`]: when the proposer's next batch is due.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::ConsensusConfig;

/// Factor by which another primary's pause before an empty batch may exceed this validator's own. A longer pause makes
/// its batch overdue. Once a transaction waits, the batch is overdue by the normal interval.
const IDLE_SHARE: u32 = 5;
/// If a batch takes 30 ms, the next one begins 60 ms after it began. So validators are idle for half of the time.
const PAUSE_SHARE: u32 = 2;
/// The pause is never shorter than the configured interval divided by this. Snapshots and past states are counted in batches, and every
/// batch takes one or two KiB of disk.
const INTERVAL_SHARE: u32 = 2;
/// In the average duration of batches, the past weighs this many times the newest one.
const TIMES_BEFORE: u32 = 3;

/// Decides when batches are due, by time and by the number of transactions that wait in the pool.
pub(super) struct Cadence {
    interval: Duration,
    /// The average duration of recent batches, from their beginning to their commit.
    took: Duration,
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
            took: Duration::from_millis(config.batch_interval_ms),
            empty_interval: (empty_ms > 0).then(|| Duration::from_millis(empty_ms)),
            full: config.batch_transactions_max.get(),
            last: Instant::now(),
        }
    }

    /// When to make a batch if `pending` transactions wait; `None` if there is nothing to make.
    pub(super) fn due(&self, pending: usize) -> Option<Instant> {
        let pause = self.interval.min((self.interval / INTERVAL_SHARE).max(PAUSE_SHARE * self.took));
        self.after(pending, pause, self.empty_interval)
    }

    /// When a batch of another primary is overdue. That primary may wait for the whole interval, and much longer before an empty batch.
    pub(super) fn overdue(&self, pending: usize) -> Option<Instant> {
        self.after(pending, self.interval, self.empty_interval.map(|interval| IDLE_SHARE * interval))
    }

    fn after(&self, pending: usize, pause: Duration, empty_pause: Option<Duration>) -> Option<Instant> {
        match pending {
            0 => empty_pause.map(|pause| self.last + pause),
            pending if pending >= self.full => Some(self.last),
            _ => Some(self.last + pause),
        }
    }

    /// Notes the time from a batch's beginning to its commit.
    pub(super) fn took(&mut self, took: Duration) {
        self.took = (TIMES_BEFORE * self.took + took.min(self.interval)) / (TIMES_BEFORE + 1);
    }

    /// Whether a batch without transactions is due.
    pub(super) fn may_be_empty(&self, now: Instant) -> bool {
        self.empty_interval.is_some_and(|interval| self.last + interval <= now)
    }

    /// Notes that a batch was begun at that time, and made.
    pub(super) fn made(&mut self, begun: Instant) {
        self.last = begun;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a full pool is proposed at once, and a few transactions after the interval. An empty batch comes after the
    /// longer interval, or never.
    #[tokio::test(start_paused = true)]
    async fn batches_are_due_by_time_and_size() {
        let config = ConsensusConfig { batch_interval_ms: 100, ..ConsensusConfig::default() };
        let full = config.batch_transactions_max.get();
        let mut cadence = Cadence::new(&config);
        let begun = Instant::now() + Duration::from_secs(5);
        cadence.made(begun);
        let after_ms = |due: Option<Instant>| due.map(|due| (due - begun).as_millis());
        let dues = |cadence: &Cadence| [0, 1, full].map(|pending| after_ms(cadence.due(pending)));
        let overdues = |cadence: &Cadence| [0, 1, full].map(|pending| after_ms(cadence.overdue(pending)));
        assert_eq!(dues(&cadence), [Some(1_000), Some(100), Some(0)]);
        assert!(!cadence.may_be_empty(begun + Duration::from_millis(999)));
        assert!(cadence.may_be_empty(begun + Duration::from_millis(1_000)));
        // The pause is twice the time that batches take, within its bounds. Other primaries may still wait for the whole interval.
        for (took_ms, some_ms) in [(30, 60), (1, 50), (1_000, 100)] {
            (0..20).for_each(|_| cadence.took(Duration::from_millis(took_ms)));
            let [empty, some, all] = dues(&cadence);
            assert_eq!((empty, all), (Some(1_000), Some(0)));
            assert!(some.is_some_and(|some| some.abs_diff(some_ms) <= 1), "{some:?} after {took_ms} ms");
            assert_eq!(overdues(&cadence), [Some(5_000), Some(100), Some(0)]);
        }
        let never = Cadence::new(&ConsensusConfig { empty_batch_interval_ms: 0, ..config });
        assert_eq!((never.due(0), never.overdue(0)), (None, None));
        assert!(!never.may_be_empty(begun + Duration::from_secs(3_600)));
    }
}
