//! Times as people write them, and the time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Parses 30s, 500ms, 5m, 1.5h, or a number of seconds.
///
/// # Errors
/// If the text is no such time, or is negative. The error says what was expected.
pub fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 =
        number.parse().map_err(|_| format!("{text}: expected a time such as 30s, 500ms or 5m"))?;
    let seconds = match unit {
        "ms" => number / 1_000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3_600.0,
        _ => return Err(format!("{unit}: the units are ms, s, m and h")),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("{text} is not a valid time"))
}

/// Milliseconds since 1970 by this machine's clock, for the ages of batches, whose timestamps are wall-clock times.
pub fn now_ms() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
}

#[allow(clippy::disallowed_methods, reason = "ages of batches count from their times of day")]
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1_500)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("-1s").is_err() && duration("s").is_err() && duration("1d").is_err());
    }
}
