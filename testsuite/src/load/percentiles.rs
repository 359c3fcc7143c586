//! [`Latencies`], which processes can merge, and [`Percentiles`], which reports show. Sans-I/O.

use std::{fmt, time::Duration};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longer latencies count as ten minutes.
const LATENCY_US_MAX: u64 = 600_000_000;
/// The decimal digits of precision.
const DIGITS: u8 = 3;

/// Latency percentiles in milliseconds. Each latency counts from the time at which the sample was due.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The number of samples.
    pub count: u64,
    /// The median, in milliseconds.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The slowest sample.
    pub max: f64,
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Percentiles { p50, p90, p95, p99, max, .. } = self;
        write!(f, "p50 {p50:.1}  p90 {p90:.1}  p95 {p95:.1}  p99 {p99:.1}  max {max:.1} ms")
    }
}

/// Latencies in microseconds, to three digits. Serializes as pairs of a value and its count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS).expect("constant bounds"))
    }
}

impl Latencies {
    /// Adds a sample.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds the samples of another part of the same run.
    pub fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// Returns the number of samples.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the percentiles; `None` without samples.
    pub fn percentiles(&self) -> Option<Percentiles> {
        if self.0.is_empty() {
            return None;
        }
        let ms = |quantile| self.0.value_at_quantile(quantile) as f64 / 1_000.0;
        let max = self.0.max() as f64 / 1_000.0;
        Some(Percentiles {
            count: self.0.len(),
            p50: ms(0.5),
            p90: ms(0.9),
            p95: ms(0.95),
            p99: ms(0.99),
            max,
        })
    }
}

impl From<Vec<(u64, u64)>> for Latencies {
    fn from(samples: Vec<(u64, u64)>) -> Self {
        let mut latencies = Latencies::default();
        for (value, count) in samples {
            latencies.0.saturating_record_n(value, count);
        }
        latencies
    }
}

impl From<Latencies> for Vec<(u64, u64)> {
    fn from(latencies: Latencies) -> Self {
        let recorded = latencies.0.iter_recorded();
        recorded.map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_are_milliseconds() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentiles(), None);
        for ms in 1..=1_000 {
            latencies.record(Duration::from_millis(ms));
        }
        let found = latencies.percentiles().unwrap();
        assert_eq!(found.count, 1_000);
        assert!((499.0..=501.0).contains(&found.p50), "{found}");
        assert!((989.0..=991.0).contains(&found.p99), "{found}");
        assert!((999.0..=1_001.0).contains(&found.max), "{found}");
    }

    #[test]
    fn what_takes_longer_than_ten_minutes_counts_as_ten_minutes() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::MAX);
        let max = latencies.percentiles().unwrap().max;
        assert!((599_000.0..=601_000.0).contains(&max), "{max}");
    }

    proptest! {
        /// Goal: the percentiles do not depend on which process saw which sample, even if the samples were serialized.
        #[test]
        fn parts_add_up_to_the_whole(samples in prop::collection::vec((0..100_000_000u64, any::<bool>()), 0..200)) {
            let (mut whole, mut parts) = (Latencies::default(), [Latencies::default(), Latencies::default()]);
            for (us, part) in samples {
                whole.record(Duration::from_micros(us));
                parts[usize::from(part)].record(Duration::from_micros(us));
            }
            let text = serde_json::to_string(&parts[1]).unwrap();
            let travelled: Latencies = serde_json::from_str(&text).unwrap();
            parts[0].add(&travelled);
            let [added, _] = parts;
            // A value is serialized as the highest one of its bucket: the same bucket, the same percentiles.
            let figures = |latencies: &Latencies| latencies.percentiles().map(|it| (it.count, it.p50, it.p90, it.p99));
            prop_assert_eq!(figures(&added), figures(&whole));
        }
    }
}
