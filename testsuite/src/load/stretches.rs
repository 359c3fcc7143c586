//! [`Stretches`]: latencies by the time slice in which each sample was due. Processes can merge them. Sans-I/O.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::percentiles::{Latencies, Percentiles};

/// The most slices of one run: enough for a chart, few enough for a report.
const STRETCHES_MAX: u64 = 600;

/// Returns the width of each slice in milliseconds, at least a second.
pub(super) fn width_ms(end: Duration) -> u64 {
    (end.as_millis() as u64).div_ceil(STRETCHES_MAX).max(1_000)
}

/// One time slice of the reads at a node.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReadPoint {
    /// Milliseconds from the start of the run to the end of the slice.
    pub at_ms: u64,
    /// Reads per second that were due.
    pub due_per_second: f64,
    /// The due reads that were answered, however late, per second.
    #[serde(default)]
    pub answered_per_second: f64,
    /// The latency of the due reads in milliseconds, to two digits; at least ten seconds for those without an answer.
    pub read_ms: Option<Percentiles>,
}

/// Latencies by slice: values in microseconds to two digits, with their counts. At the highest rate, one second has
/// 20,000 reads and about a hundred distinct values.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Stretches {
    width_ms: u64,
    seen: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// The samples without an answer, by slice.
    missed: BTreeMap<u64, u64>,
}

impl Stretches {
    /// Makes the slices of a run of this duration.
    pub(super) fn of(duration: Duration) -> Stretches {
        Stretches { width_ms: width_ms(duration), seen: BTreeMap::new(), missed: BTreeMap::new() }
    }

    /// Adds a sample that was due `due` after the start.
    pub(super) fn record(&mut self, due: Duration, latency: Duration) {
        let stretch = self.seen.entry(self.place(due)).or_default();
        *stretch.entry(two_digits(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX))).or_default() += 1;
    }

    /// Adds a sample without an answer. It was due `due` after the start and has waited for `latency`.
    pub(super) fn miss(&mut self, due: Duration, latency: Duration) {
        self.record(due, latency);
        *self.missed.entry(self.place(due)).or_default() += 1;
    }

    fn place(&self, due: Duration) -> u64 {
        due.as_millis() as u64 / self.width_ms
    }

    /// Adds the samples of another part of the same run.
    pub(super) fn add(&mut self, other: &Stretches) {
        for (place, count) in &other.missed {
            *self.missed.entry(*place).or_default() += count;
        }
        for (place, values) in &other.seen {
            let stretch = self.seen.entry(*place).or_default();
            values.iter().for_each(|(value, count)| *stretch.entry(*value).or_default() += count);
        }
    }

    /// Returns the figures of each slice, even if nothing was due in it. The last slice may be shorter.
    pub(super) fn points(&self, duration: Duration) -> Vec<ReadPoint> {
        let end_ms = duration.as_millis() as u64;
        let count = end_ms.div_ceil(self.width_ms);
        let point = |place: u64| {
            let values = self.seen.get(&place).into_iter().flatten().map(|(value, count)| (*value, *count));
            let latencies = Latencies::from(values.collect::<Vec<_>>());
            let at_ms = ((place + 1) * self.width_ms).min(end_ms);
            let per_second = |count: u64| count as f64 * 1_000.0 / (at_ms - place * self.width_ms) as f64;
            let missed = self.missed.get(&place).copied().unwrap_or_default();
            ReadPoint {
                at_ms,
                due_per_second: per_second(latencies.len()),
                answered_per_second: per_second(latencies.len().saturating_sub(missed)),
                read_ms: latencies.percentiles(),
            }
        };
        (0..count).map(point).collect()
    }
}

/// Returns the midpoint of all values with the same two leading digits and the same length.
fn two_digits(value: u64) -> u64 {
    let mut unit = 1;
    while value / unit >= 100 {
        unit *= 10;
    }
    (value / unit * unit).saturating_add(unit / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_digits_are_near() {
        assert_eq!([0, 7, 99, 100, 109, 12_345].map(two_digits), [0, 7, 99, 105, 105, 12_500]);
        assert!(two_digits(u64::MAX) > u64::MAX / 2);
    }

    /// Goal: a latency belongs to the second in which its read was due, whichever process saw it. A second without
    /// reads has a point too.
    #[test]
    fn parts_add_up_to_stretches() {
        let (ms, duration) = (Duration::from_millis, Duration::from_secs(4));
        let (mut first, mut second) = (Stretches::of(duration), Stretches::of(duration));
        (0..50).for_each(|read| first.record(ms(read * 20), ms(2)));
        second.miss(ms(990), ms(10_000));
        second.record(ms(3_999), ms(5));
        first.add(&serde_json::from_str(&serde_json::to_string(&second).unwrap()).unwrap());
        let points = first.points(duration);
        let rates = |points: &[ReadPoint]| -> Vec<(u64, f64, f64)> {
            let of = |point: &ReadPoint| (point.at_ms, point.due_per_second, point.answered_per_second);
            points.iter().map(of).collect()
        };
        assert_eq!(
            rates(&points),
            [(1_000, 51.0, 50.0), (2_000, 0.0, 0.0), (3_000, 0.0, 0.0), (4_000, 1.0, 1.0)]
        );
        let late = points[0].read_ms.unwrap();
        assert!((2.0..2.2).contains(&late.p50) && (10_000.0..11_000.0).contains(&late.max), "{late}");
        assert_eq!(points[1].read_ms, None);
        // A last slice of half a second has half of the reads, and the same rate.
        let duration = ms(1_500);
        let mut short = Stretches::of(duration);
        (0..15).for_each(|read| short.record(ms(read * 100), ms(2)));
        assert_eq!(rates(&short.points(duration)), [(1_000, 10.0, 10.0), (1_500, 10.0, 10.0)]);
    }

    /// Goal: a long run has no more slices than a chart can show.
    #[test]
    fn an_hour_has_six_hundred_stretches() {
        let hour = Duration::from_secs(3_600);
        assert_eq!((width_ms(hour), width_ms(Duration::from_secs(9))), (6_000, 1_000));
        assert_eq!(Stretches::of(hour).points(hour).len(), 600);
    }
}
