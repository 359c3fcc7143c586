//! [`Series`]: values over the time of a run.

use serde::{Deserialize, Serialize};

/// The most points of a series; more are thinned. A chart shows a thousand, and an hour of samples would be megabytes.
pub(super) const POINTS_MAX: usize = 4_096;

/// Values over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// The unit, such as `ms` or `MiB`.
    pub unit: String,
    /// Milliseconds since the run began, with the value at that time; in time order, at most 4,096.
    pub points: Vec<(u64, f64)>,
}

impl Series {
    /// Makes an empty series.
    pub fn new(unit: &str) -> Series {
        Series { unit: unit.to_owned(), points: Vec::new() }
    }

    /// Adds a value, unless it is not finite or older than the last one.
    /// A full series first drops every second point, so that it still covers the whole run, but keeps its largest and
    /// its smallest value.
    pub fn push(&mut self, at_ms: u64, value: f64) {
        let is_late = self.points.last().is_some_and(|(last, _)| *last > at_ms);
        if is_late || !value.is_finite() {
            return;
        }
        if self.points.len() >= POINTS_MAX {
            let by_value = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
            let values = || self.values().enumerate();
            let ends = [values().max_by(by_value), values().min_by(by_value)];
            let ends = ends.map(|end| end.map(|(index, _)| index));
            let mut places = 0..;
            self.points.retain(|_| places.next().is_some_and(|it| it % 2 == 0 || ends.contains(&Some(it))));
        }
        self.points.push((at_ms, value));
    }

    /// Returns the largest value; `None` for an empty series.
    pub fn max(&self) -> Option<f64> {
        self.values().max_by(f64::total_cmp)
    }

    /// Returns the last value; `None` for an empty series.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, value)| *value)
    }

    /// Returns the median; `None` for an empty series.
    pub fn median(&self) -> Option<f64> {
        let values: Vec<f64> = self.values().collect();
        crate::quantiles::median(&values)
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.points.iter().map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an hour of samples stays small and still begins and ends where the run did.
    #[test]
    fn a_full_series_is_thinned_over_all_of_its_time() {
        let mut series = Series::new("s");
        (0..20_000).for_each(|at| series.push(at, at as f64));
        assert!(series.points.len() <= POINTS_MAX && series.points.len() > POINTS_MAX / 2);
        assert_eq!((series.points[0].0, series.last()), (0, Some(19_999.0)));
        assert!(series.points.is_sorted_by_key(|(at, _)| *at));
    }

    /// Goal: a full series keeps a peak of one sample, and a single minimum.
    #[test]
    fn a_full_series_keeps_its_extremes() {
        let mut series = Series::new("s");
        for at in 0..20_000 {
            series.push(at, if at == 3_333 { 900.0 } else { 5.0 - f64::from(u8::from(at == 7_777)) });
        }
        assert!(series.points.len() <= POINTS_MAX);
        assert_eq!((series.max(), series.median()), (Some(900.0), Some(5.0)));
        assert!(series.points.contains(&(7_777, 4.0)));
    }

    #[test]
    fn what_is_no_number_or_late_is_left_out() {
        let mut series = Series::new("s");
        for (at, value) in [(10, 1.0), (5, 2.0), (20, f64::NAN), (20, f64::INFINITY), (20, 3.0), (30, 2.0)] {
            series.push(at, value);
        }
        assert_eq!(series.points, [(10, 1.0), (20, 3.0), (30, 2.0)]);
        assert_eq!((series.max(), series.median(), series.last()), (Some(3.0), Some(2.0), Some(2.0)));
        assert_eq!(Series::new("s").median(), None);
    }
}
