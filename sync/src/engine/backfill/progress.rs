//! [`Progress`]: how fast a backfill goes, and when to log it.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// The time that a rate covers.
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Maximum number of samples kept for the rate.
const SAMPLES_MAX: usize = 64;
/// Least time between two log lines.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The batches and bytes stored while something is missing.
#[derive(Debug, Default)]
pub(super) struct Progress {
    batches: u64,
    bytes: u64,
    /// Times, with the batches and bytes stored by then; oldest first.
    samples: VecDeque<(Instant, u64, u64)>,
    logged_at: Option<Instant>,
}

impl Progress {
    /// Counts from now on.
    pub(super) fn began(now: Instant) -> Progress {
        Progress { samples: VecDeque::from([(now, 0, 0)]), logged_at: Some(now), ..Progress::default() }
    }

    /// Records what was stored.
    pub(super) fn stored(&mut self, batches: u64, bytes: u64, now: Instant) {
        (self.batches, self.bytes) = (self.batches + batches, self.bytes + bytes);
        let is_old = |at: Instant| now.saturating_duration_since(at) > RATE_WINDOW;
        while self.samples.len() >= SAMPLES_MAX || self.samples.get(1).is_some_and(|(at, ..)| is_old(*at)) {
            self.samples.pop_front();
        }
        self.samples.push_back((now, self.batches, self.bytes));
    }

    /// Recent batches and bytes per second; 0 if none were stored within [`RATE_WINDOW`].
    pub(super) fn rates(&self, now: Instant) -> (f64, f64) {
        let age = |at: &Instant| now.saturating_duration_since(*at);
        let before = self.samples.iter().rfind(|(at, ..)| age(at) >= RATE_WINDOW).or(self.samples.front());
        let Some((at, batches, bytes)) = before else { return (0.0, 0.0) };
        let seconds = age(at).min(RATE_WINDOW).as_secs_f64().max(0.1);
        ((self.batches - batches) as f64 / seconds, (self.bytes - bytes) as f64 / seconds)
    }

    /// Whether a log line is due. If so, counts it as written.
    pub(super) fn is_log_due(&mut self, now: Instant) -> bool {
        let is_due = self.logged_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_EVERY);
        if is_due {
            self.logged_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rates cover the last seconds and end at zero; a log line is due every ten seconds.
    #[test]
    fn rates_are_of_the_last_seconds() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let mut progress = Progress::began(start);
        let mut logged = 0;
        for second in 1..=30 {
            progress.stored(5, 100, at(second));
            logged += u32::from(progress.is_log_due(at(second)));
        }
        assert_eq!((progress.rates(at(30)), logged), ((5.0, 100.0), 3));
        assert_eq!(progress.rates(at(40)), (0.0, 0.0));
    }
}
