//! The median and other quantiles of a few values.

/// Returns the median; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match (values.len(), values.len() % 2) {
        (0, _) => None,
        (_, 1) => Some(values[half]),
        _ => Some((values[half - 1] + values[half]) / 2.0),
    }
}

/// Returns the value below which this share of the sorted values lies; `None` without values.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = (sorted.len().checked_sub(1)? as f64 * share).round() as usize;
    sorted.get(place).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_was_seen() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[1.0, 2.0, 9.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0, 9.0], 0.99), Some(9.0));
    }

    #[test]
    fn medians() {
        assert_eq!(
            (median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])),
            (None, Some(2.0), Some(2.5))
        );
    }
}
