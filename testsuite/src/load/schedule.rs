//! [`Schedule`]: when each transaction of an open loop is due. Sans-I/O: pure arithmetic over a list of linear pieces.
//!
//! ```text
//!  rate │      ______            constant: one piece        due(i) is the time at which
//!       │    /|      |           ramp: one piece            the area under the rate reaches i
//!       │__/  |      |___        burst: two per period
//!       └───────────────── time
//! ```
//!
//! Invariants:
//! * `due` never decreases as the index grows.
//! * Every index below `len` is due within the duration.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The highest rate of a schedule, in transactions per second: far above what one machine signs or sends.
pub const RATE_MAX: u32 = 1_000_000;
/// The longest schedule. A run of more than a day shows no more than its first hour does, and its hashes fill the
/// memory.
pub const SECONDS_MAX: u64 = 24 * 3_600;
/// The most pieces of one schedule. A burst per millisecond for a day would otherwise fill the memory.
const PIECES_MAX: usize = 20_000;

/// The rate over a run. All rates are per second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Rate {
    /// A constant rate.
    Constant {
        /// The rate per second, at most [`RATE_MAX`].
        per_second: u32,
    },
    /// A linear change from one rate to another.
    Ramp {
        /// The rate per second at the start.
        from: u32,
        /// The rate per second at the end.
        to: u32,
    },
    /// A base rate, with a peak at the end of each period.
    Burst {
        /// The rate per second between peaks.
        base: u32,
        /// The rate per second in a peak.
        peak: u32,
        /// The milliseconds from peak to peak.
        period_ms: u64,
        /// The milliseconds of a peak; less than the period.
        peak_ms: u64,
    },
}

impl Rate {
    /// Returns a constant rate per second.
    pub fn constant(per_second: u32) -> Rate {
        Rate::Constant { per_second }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Constant { per_second } => write!(f, "{per_second} tx/s"),
            Rate::Ramp { from, to } => write!(f, "{from} to {to} tx/s"),
            Rate::Burst { base, peak, period_ms, peak_ms } => {
                write!(f, "{base} tx/s with {peak} tx/s for {peak_ms} of every {period_ms} ms")
            }
        }
    }
}

/// The reason why a rate makes no schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ScheduleError {
    /// Nothing would be sent.
    #[error("nothing to send: the rate times the duration is below one transaction; raise one of them")]
    Nothing,
    /// A rate above the bound.
    #[error("{0} per second is too fast: at most {RATE_MAX}")]
    TooFast(u32),
    /// A duration above the bound.
    #[error("{0} s is too long for one load: at most {SECONDS_MAX} s; start several")]
    TooLong(u64),
    /// More transactions than a run keeps.
    #[error("{count} transactions are too many for one run (they are signed beforehand): at most {max}")]
    TooMany {
        /// The transactions requested.
        count: u64,
        /// The transactions allowed.
        max: u64,
    },
    /// A peak that is not shorter than its period, or zero.
    #[error(
        "a peak of {peak_ms} ms does not fit a period of {period_ms} ms: it must be above 0 and below it"
    )]
    Peak {
        /// Milliseconds of the peak.
        peak_ms: u64,
        /// Milliseconds of the period.
        period_ms: u64,
    },
    /// A period so short that the list of pieces exceeds its bound.
    #[error(
        "a period of {0} ms is too short for this duration: at most {PIECES_MAX} changes of the rate fit a run"
    )]
    TooManyPieces(u64),
}

/// A time slice in which the rate changes linearly.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Piece {
    /// The start in seconds.
    start: f64,
    /// The length in seconds.
    length: f64,
    /// The rate per second at the start.
    from: f64,
    /// The rate per second at the end.
    to: f64,
    /// Transactions due before it.
    before: f64,
}

impl Piece {
    fn area(&self) -> f64 {
        (self.from + self.to) / 2.0 * self.length
    }

    /// Returns the seconds into the piece at which `area` of its transactions are due. Solves `from·t + slope·t²/2 =
    /// area` without cancellation.
    fn time_of(&self, area: f64) -> f64 {
        let slope = (self.to - self.from) / self.length;
        let root = (self.from * self.from + 2.0 * slope * area).max(0.0).sqrt();
        let divisor = self.from + root;
        let time = if divisor > 0.0 { 2.0 * area / divisor } else { 0.0 };
        time.clamp(0.0, self.length)
    }
}

/// The due times of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    pieces: Vec<Piece>,
    count: usize,
    duration: Duration,
}

impl Schedule {
    /// Makes the due times of a rate over a duration; at most `count_max` transactions.
    ///
    /// # Errors
    /// If nothing is due, or a bound is exceeded.
    pub fn new(rate: Rate, duration: Duration, count_max: u64) -> Result<Schedule, ScheduleError> {
        if duration.as_secs() > SECONDS_MAX {
            return Err(ScheduleError::TooLong(duration.as_secs()));
        }
        let fastest = match rate {
            Rate::Constant { per_second } => per_second,
            Rate::Ramp { from, to } => from.max(to),
            Rate::Burst { base, peak, .. } => base.max(peak),
        };
        if fastest > RATE_MAX {
            return Err(ScheduleError::TooFast(fastest));
        }
        let seconds = duration.as_secs_f64();
        let mut schedule = Schedule { pieces: Vec::new(), count: 0, duration };
        match rate {
            Rate::Constant { per_second } => schedule.push(seconds, per_second, per_second),
            Rate::Ramp { from, to } => schedule.push(seconds, from, to),
            Rate::Burst { base, peak, period_ms, peak_ms } => {
                schedule.push_bursts((base, peak), (period_ms, peak_ms))?;
            }
        }
        let area = schedule.pieces.last().map_or(0.0, |piece| piece.before + piece.area());
        // An area of 9.999999999 is ten transactions with a rounding error.
        let count = (area + 1e-6).floor() as u64;
        if count == 0 {
            return Err(ScheduleError::Nothing);
        }
        if count > count_max {
            return Err(ScheduleError::TooMany { count, max: count_max });
        }
        schedule.count = count as usize;
        Ok(schedule)
    }

    fn push_bursts(
        &mut self,
        (base, peak): (u32, u32),
        (period_ms, peak_ms): (u64, u64),
    ) -> Result<(), ScheduleError> {
        if peak_ms == 0 || peak_ms >= period_ms {
            return Err(ScheduleError::Peak { peak_ms, period_ms });
        }
        let pieces = self.duration.as_millis() / u128::from(period_ms) * 2;
        if pieces >= PIECES_MAX as u128 {
            return Err(ScheduleError::TooManyPieces(period_ms));
        }
        let seconds = |ms: u64| ms as f64 / 1_000.0;
        let mut left = self.duration.as_secs_f64();
        while left > 0.0 {
            for (length, rate) in [(seconds(period_ms - peak_ms), base), (seconds(peak_ms), peak)] {
                let length = length.min(left);
                if length > 0.0 {
                    self.push(length, rate, rate);
                }
                left -= length;
            }
        }
        Ok(())
    }

    fn push(&mut self, length: f64, from: u32, to: u32) {
        if length <= 0.0 {
            return;
        }
        let last = self.pieces.last();
        let start = last.map_or(0.0, |piece| piece.start + piece.length);
        let before = last.map_or(0.0, |piece| piece.before + piece.area());
        self.pieces.push(Piece { start, length, from: from.into(), to: to.into(), before });
    }

    /// Returns the number of transactions.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is due. A schedule is never empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the time from the start of the first piece to the end of the last.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// Returns the mean rate over the whole run, per second.
    pub fn mean_per_second(&self) -> f64 {
        self.count as f64 / self.duration.as_secs_f64()
    }

    /// Returns the highest rate of all pieces, which the generators must be able to send.
    pub fn peak_per_second(&self) -> f64 {
        self.pieces.iter().fold(0.0, |peak, piece| piece.from.max(piece.to).max(peak))
    }

    /// Returns when a transaction is due, after the start. Indices beyond the end are due at the end.
    pub fn due(&self, index: usize) -> Duration {
        let area = index as f64;
        // Finds the last piece that begins at or before this area and is not empty.
        let behind = self.pieces.partition_point(|piece| piece.before <= area);
        let Some(piece) = self.pieces[..behind].iter().rev().find(|piece| piece.area() > 0.0) else {
            return Duration::ZERO;
        };
        let seconds = piece.start + piece.time_of(area - piece.before);
        Duration::from_secs_f64(seconds).min(self.duration)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: u64 = 10_000_000;

    fn schedule(rate: Rate, seconds: u64) -> Schedule {
        Schedule::new(rate, Duration::from_secs(seconds), MAX).unwrap()
    }

    fn ms(schedule: &Schedule, index: usize) -> u128 {
        schedule.due(index).as_micros().div_ceil(1_000)
    }

    #[test]
    fn a_constant_rate_is_due_evenly() {
        let constant = schedule(Rate::Constant { per_second: 10 }, 3);
        assert_eq!(constant.len(), 30);
        assert_eq!((ms(&constant, 0), ms(&constant, 1), ms(&constant, 25)), (0, 100, 2_500));
        assert_eq!((constant.mean_per_second(), constant.peak_per_second()), (10.0, 10.0));
    }

    #[test]
    fn a_ramp_is_due_ever_faster_or_ever_slower() {
        let up = schedule(Rate::Ramp { from: 0, to: 100 }, 10);
        assert_eq!(up.len(), 500);
        // A quarter of the area is reached after half of the time.
        assert_eq!(ms(&up, 125), 5_000);
        let down = schedule(Rate::Ramp { from: 100, to: 0 }, 10);
        assert_eq!(down.len(), 500);
        assert_eq!(ms(&down, 375), 5_000);
        assert_eq!(up.peak_per_second(), 100.0);
    }

    #[test]
    fn a_burst_ends_its_period_with_its_peak() {
        let burst = Rate::Burst { base: 0, peak: 100, period_ms: 1_000, peak_ms: 200 };
        let burst = schedule(burst, 3);
        assert_eq!(burst.len(), 60);
        assert_eq!((ms(&burst, 0), ms(&burst, 19)), (800, 990));
        assert_eq!((ms(&burst, 20), ms(&burst, 40)), (1_800, 2_800));
    }

    #[test]
    fn what_makes_no_schedule_is_refused_with_a_reason() {
        let new = |rate, ms| Schedule::new(rate, Duration::from_millis(ms), 100).unwrap_err();
        let constant = |per_second| Rate::Constant { per_second };
        assert_eq!(new(constant(0), 1_000), ScheduleError::Nothing);
        assert_eq!(new(constant(1), 999), ScheduleError::Nothing);
        assert_eq!(new(constant(101), 1_000), ScheduleError::TooMany { count: 101, max: 100 });
        assert_eq!(new(constant(RATE_MAX + 1), 1_000), ScheduleError::TooFast(RATE_MAX + 1));
        assert_eq!(new(constant(1), 1_000 * (SECONDS_MAX + 1)), ScheduleError::TooLong(SECONDS_MAX + 1));
        let burst = |period_ms, peak_ms| Rate::Burst { base: 1, peak: 2, period_ms, peak_ms };
        assert_eq!(new(burst(5, 5), 1_000), ScheduleError::Peak { peak_ms: 5, period_ms: 5 });
        assert_eq!(new(burst(5, 0), 1_000), ScheduleError::Peak { peak_ms: 0, period_ms: 5 });
        assert_eq!(new(burst(2, 1), 3_600_000), ScheduleError::TooManyPieces(2));
    }

    fn rates() -> impl Strategy<Value = Rate> {
        prop_oneof![
            (0..5_000u32).prop_map(|per_second| Rate::Constant { per_second }),
            (0..5_000u32, 0..5_000u32).prop_map(|(from, to)| Rate::Ramp { from, to }),
            (0..1_000u32, 0..5_000u32, 2..5_000u64, 1..5_000u64).prop_map(
                |(base, peak, period_ms, peak_ms)| {
                    Rate::Burst { base, peak, period_ms, peak_ms: 1 + peak_ms % (period_ms - 1) }
                }
            ),
        ]
    }

    proptest! {
        /// Goal: at any rate, transactions are due in order and within the run, and their number is the area under the
        /// rate.
        #[test]
        fn due_times_are_ordered_and_within_the_run(rate in rates(), ms in 1..10_000u64) {
            let duration = Duration::from_millis(ms);
            let Ok(schedule) = Schedule::new(rate, duration, MAX) else { return Ok(()) };
            let mut last = Duration::ZERO;
            for index in 0..schedule.len() {
                let due = schedule.due(index);
                prop_assert!(due >= last && due <= duration, "{index}: {due:?} after {last:?}");
                last = due;
            }
            let mean = schedule.mean_per_second();
            prop_assert!(mean <= schedule.peak_per_second() + 1.0, "{mean}");
        }
    }
}
