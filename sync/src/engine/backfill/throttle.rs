//! [`Throttle`]: the pauses of the backfill. While the head moves, the pauses leave links and cores to the head most of
//! the time.

use std::time::Duration;

use tokio::time::Instant;

/// The head counts as moving if a batch was committed within this time.
const MOVING: Duration = Duration::from_secs(2);
/// After an answer, its check and its write, the backfill rests for this many times as long as each took. So three new
/// batches in four meet no traffic and no work of the backfill.
const FACTOR: u32 = 3;
/// An answer, its check or its write counts as at most this long, so a peer that holds answers back causes no longer
/// rest.
const TOOK_MAX: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// When the head last moved by one batch.
    moved_at: Option<Instant>,
    until: Option<Instant>,
}

impl Throttle {
    /// Records that the head moved by one batch.
    pub(super) fn head_moved(&mut self, now: Instant) {
        self.moved_at = Some(now);
    }

    /// Rests after an answer that took this long. Answers may come side by side, so their rests overlap.
    pub(super) fn answered(&mut self, took: Duration, now: Instant) {
        if self.is_moving(now) {
            self.until = self.until.max(Some(now + took.min(TOOK_MAX) * FACTOR));
        }
    }

    /// Rests after work on an answer that took this long. These rests add up.
    pub(super) fn worked(&mut self, took: Duration, now: Instant) {
        if self.is_moving(now) {
            self.until = self.until.max(Some(now)).map(|until| until + took.min(TOOK_MAX) * FACTOR);
        }
    }

    fn is_moving(&self, now: Instant) -> bool {
        self.moved_at.is_some_and(|at| now.saturating_duration_since(at) < MOVING)
    }

    /// When the rest ends; `None` if the backfill does not rest now.
    pub(super) fn end(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}
