//! How durations are shown to people.

use std::time::Duration;

/// Formats a duration in its largest unit. Rounds up, so that nothing begins before the shown time is over.
pub fn about(time: Duration) -> String {
    let seconds = time.as_millis().div_ceil(1_000);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds.div_ceil(60)),
        7_200..172_800 => format!("{} h", seconds.div_ceil(3_600)),
        _ => format!("{} days", seconds.div_ceil(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: once the shown duration is over, the announced event has begun.
    #[test]
    fn durations_are_rounded_up() {
        for (seconds, shown) in
            [(1, "1 s"), (119, "119 s"), (121, "3 min"), (7_201, "3 h"), (200_000, "3 days")]
        {
            assert_eq!(about(Duration::from_secs(seconds)), shown);
        }
    }
}
