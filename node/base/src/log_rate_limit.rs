//! [`LogRateLimit`]: a rate limit for log lines that callers can cause: one a second.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How often a line may be written.
const INTERVAL: Duration = Duration::from_secs(1);

/// The rate limit of one log line. Without it, a caller that can make the node fail would flood the log, and important
/// lines would be lost.
pub struct LogRateLimit(Mutex<State>);

struct State {
    last: Option<Instant>,
    left_out: u64,
}

impl LogRateLimit {
    /// A limit that has let no line pass yet.
    pub const fn per_second() -> LogRateLimit {
        LogRateLimit(Mutex::new(State { last: None, left_out: 0 }))
    }

    /// Returns how many lines were suppressed since the last one, if a line may be written now; otherwise `None`.
    pub fn pass(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            state.left_out += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_tells_of_the_others() {
        let (sparse, start) = (LogRateLimit::per_second(), Instant::now());
        let lines: Vec<_> =
            (0..2_500).filter_map(|ms| sparse.pass(start + Duration::from_millis(ms))).collect();
        assert_eq!(lines, [0, 999, 999]);
    }
}
