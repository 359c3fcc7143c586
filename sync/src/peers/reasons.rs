//! [`Reasons`]: why a peer's score is what it is, for operators.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::status::ScoreReason;

/// Changes of one cause are summed up for this long; then a new entry begins.
const MERGED: Duration = Duration::from_secs(60);
/// Entries kept for each cause, so that a stream of good answers does not evict the reasons of failures.
const KEPT: usize = 3;

/// A cause for a change of a score.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Time alone: measurements count less.
    Faded,
    /// An answer passed its checks.
    Verified,
    /// An answer was late, lost or refused.
    Failed,
    /// Execution showed how useful its hints were.
    Hints,
    /// Its head fell behind the best head, or caught up with it.
    Head,
}

#[derive(Debug)]
struct Entry {
    cause: Cause,
    since: Instant,
    last: Instant,
    times: u64,
    change: f64,
    what: String,
}

/// The last changes, oldest first; bounded by [`KEPT`] per cause.
#[derive(Debug, Default)]
pub(super) struct Reasons(VecDeque<Entry>);

impl Reasons {
    /// Records a change in points. Each failure has an entry of its own; other changes are summed up.
    pub(super) fn note(&mut self, now: Instant, cause: Cause, change: f64, what: String) {
        let last = self.0.iter_mut().rfind(|entry| entry.cause == cause);
        let merged = last
            .filter(|entry| cause != Cause::Failed && now.saturating_duration_since(entry.since) < MERGED);
        if let Some(entry) = merged {
            entry.times += 1;
            entry.change += change;
            (entry.last, entry.what) = (now, what);
            return;
        }
        if self.0.iter().filter(|entry| entry.cause == cause).count() == KEPT
            && let Some(oldest) = self.0.iter().position(|entry| entry.cause == cause)
        {
            self.0.remove(oldest);
        }
        self.0.push_back(Entry { cause, since: now, last: now, times: 1, change, what });
    }

    /// The reasons for the status, newest first.
    pub(super) fn list(&self, now: Instant) -> Vec<ScoreReason> {
        let mut entries: Vec<_> = self.0.iter().collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.last));
        let seconds_ago = |entry: &Entry| now.saturating_duration_since(entry.last).as_secs();
        let reason = |entry: &Entry| ScoreReason {
            what: entry.what.clone(),
            times: entry.times,
            change: entry.change.round() as i64,
            seconds_ago: seconds_ago(entry),
        };
        entries.into_iter().map(reason).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_answers_does_not_wash_away_failures() {
        let (start, mut reasons) = (Instant::now(), Reasons::default());
        for i in 0..4 {
            reasons.note(start, Cause::Failed, -10.0, format!("late {i}"));
        }
        for second in 0..10_000 {
            let now = start + Duration::from_secs(second);
            reasons.note(now, Cause::Verified, 0.5, "answers".into());
        }
        let list = reasons.list(start + Duration::from_secs(10_000));
        assert_eq!(list.len(), 2 * KEPT);
        assert_eq!((list[0].times, list[0].change, list[0].seconds_ago), (40, 20, 1));
        assert!(list.iter().any(|reason| reason.what == "late 3" && reason.change == -10));
        assert!(list.iter().all(|reason| reason.what != "late 0"));
    }
}
