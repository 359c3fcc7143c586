//! [`Pace`]: how fast the pipeline really works, compared with its prices, and so when it will reach the target.
//!
//! Prices say how different kinds of work compare, and which stage is the slowest. The last seconds show how long that
//! work really takes, because the work done in them has a price too.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::plan::Load;

/// The time that the pace covers.
const WINDOW: Duration = Duration::from_secs(10);
/// Least time between samples: together they span the window.
const STEP: Duration = Duration::from_millis(250);
/// Before this much time the samples show nothing, and the price counts alone.
const SHOWS: Duration = Duration::from_secs(1);
/// Least seconds to report while work is left.
const LEAST_SECONDS: f64 = 0.01;
/// The pipeline counts as at most this many times slower than its price: one that stands still waits for something.
const SLOWER_MAX: f64 = 100.0;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The work done since the node began to catch up.
    done: Load,
    /// That work at earlier times, oldest first; empty before the first work after a pause.
    samples: VecDeque<(Instant, Load)>,
}

impl Pace {
    /// Records work that a stage did.
    pub(super) fn done(&mut self, load: Load, now: Instant) {
        self.done = self.done.plus(load);
        let age = |at: Instant| now.saturating_duration_since(at);
        // The time before the first work, such as its fetch, says nothing about the pace.
        if self.samples.back().is_none_or(|(at, _)| age(*at) >= STEP) {
            self.samples.push_back((now, self.done));
        }
        while self.samples.get(1).is_some_and(|(at, _)| age(*at) >= WINDOW) {
            self.samples.pop_front();
        }
    }

    /// Forgets the samples, because no work is left. The pace before a pause says nothing about the pace after it.
    pub(super) fn pause(&mut self) {
        self.samples.clear();
    }

    /// Seconds that the remaining work takes. This is its price `left`, times the length of the samples' window, over
    /// the price of the work done in that window.
    pub(super) fn seconds(&self, now: Instant, left: f64, price: impl Fn(&Load) -> f64) -> f64 {
        let shown = self.samples.front().and_then(|(at, before)| {
            let seconds = now.saturating_duration_since(*at).as_secs_f64();
            let priced = price(&self.done.plus(before.times(-1.0)));
            let is_shown = seconds >= SHOWS.as_secs_f64() && priced > 0.0;
            is_shown.then(|| left * (seconds / priced).min(SLOWER_MAX))
        });
        shown.unwrap_or(left).max(LEAST_SECONDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gas(execute: f64) -> Load {
        Load { execute, ..Load::default() }
    }

    /// A second for each unit of gas: half of what it takes here.
    fn price(load: &Load) -> f64 {
        load.execute
    }

    /// Goal: after a second, a pipeline that is half as fast as its price is expected to stay so.
    #[test]
    fn the_last_seconds_correct_the_price() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pace = Pace::default();
        assert_eq!(pace.seconds(at(500), 100.0, price), 100.0, "nothing shows yet");
        for ms in (0..30_000).step_by(100) {
            pace.done(gas(0.05), at(ms));
        }
        let seconds = pace.seconds(at(30_000), 100.0, price);
        assert!((195.0..205.0).contains(&seconds), "{seconds}");
        assert!(pace.samples.len() <= 42, "{}", pace.samples.len());
        assert_eq!(pace.seconds(at(30_000), 0.0, price), LEAST_SECONDS, "there is work");
        let standing = pace.seconds(at(3_600_000), 100.0, price);
        assert!((1_000.0..=10_000.0).contains(&standing), "{standing}");
        pace.pause();
        pace.done(gas(0.05), at(90_000));
        assert_eq!(pace.seconds(at(90_500), 100.0, price), 100.0, "a pause is no slow work");
    }
}
