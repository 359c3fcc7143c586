//! The time from when the primary makes a batch to its certificate, according to the primary's log and store.

use std::{collections::BTreeMap, fs, ops::RangeInclusive, path::Path};

use anyhow::{Context, Result};
use slipstream_storage::Store;
use slipstream_types::BatchNumber;

/// Returns when a validator decided each batch, in milliseconds since 1970, from its log at level debug.
///
/// # Errors
/// If the log cannot be read, or one of its lines has an unknown format.
pub(super) fn decided_ms(log: &Path) -> Result<BTreeMap<u64, f64>> {
    let text = fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    let lines = text.lines().filter(|line| line.contains("batch decided"));
    lines.map(|line| decision(line).with_context(|| format!("cannot parse this line: {line}"))).collect()
}

fn decision(line: &str) -> Option<(u64, f64)> {
    let (time, rest) = line.split_once(' ')?;
    let number = rest.split(' ').find_map(|field| field.strip_prefix("number="))?;
    Some((number.parse().ok()?, unix_ms(time)?))
}

/// Parses RFC 3339 in UTC.
fn unix_ms(time: &str) -> Option<f64> {
    let (date, clock) = time.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut clock = clock.splitn(3, ':').map(|part| part.parse::<f64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    // "Days from civil" by H. Hinnant: years begin in March.
    let year = if month <= 2 { year - 1 } else { year };
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = year.div_euclid(400) * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some((days as f64 * 86_400.0 + hour * 3_600.0 + minute * 60.0 + second) * 1_000.0)
}

/// Returns the sorted times from making to certificate, in milliseconds, one for each transaction in these batches.
///
/// # Errors
/// If the store cannot be read.
pub(super) fn waits_ms(
    store: &Store,
    decided: &BTreeMap<u64, f64>,
    batches: RangeInclusive<u64>,
) -> Result<Vec<f64>> {
    let mut waits = Vec::new();
    for (number, at_ms) in decided.range(batches) {
        let header = store
            .header(BatchNumber::new(*number))?
            .with_context(|| format!("the store has no batch {number}"))?;
        let wait = at_ms - header.timestamp_ms as f64;
        waits.extend(std::iter::repeat_n(wait, header.tx_count as usize));
    }
    waits.sort_by(f64::total_cmp);
    Ok(waits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_numbers_are_read_from_a_line() {
        assert_eq!(unix_ms("1970-01-01T00:00:00.5Z"), Some(500.0));
        assert_eq!(unix_ms("2024-02-29T12:00:00Z"), Some(1_709_208_000_000.0));
        let line = "2026-11-23T12:47:26.250000Z DEBUG slipstream_consensus::validator::effects: batch decided number=7 transactions=3 view=0";
        assert_eq!(decision(line), Some((7, 1_795_438_046_250.0)));
        assert_eq!(decision("batch decided"), None);
    }
}
