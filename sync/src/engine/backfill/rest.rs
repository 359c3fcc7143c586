//! [`Rest`]: while the head moves, the backfill leaves links and cores to it for most of the time.

use std::time::Duration;

use tokio::time::Instant;

/// The head moves if a batch was committed within this time.
const MOVING: Duration = Duration::from_secs(2);
/// After an answer, its check and its write the backfill rests for this many times as long as each took, so that three batches in four meet
/// none of them.
const FACTOR: u32 = 3;
/// Each counts as if it took at most this time: who holds answers back gains no longer rest.
const TOOK_MAX: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// When the head last moved by one batch.
    moved_at: Option<Instant>,
    until: Option<Instant>,
}

impl Rest {
    /// The head moved by one batch.
    pub(super) fn head_moved(&mut self, now: Instant) {
        self.moved_at = Some(now);
    }

    /// An answer came after this time. Others may have come side by side with it.
    pub(super) fn answered(&mut self, took: Duration, now: Instant) {
        if self.is_moving(now) {
            self.until = self.until.max(Some(now + took.min(TOOK_MAX) * FACTOR));
        }
    }

    /// Work on an answer took this time.
    pub(super) fn worked(&mut self, took: Duration, now: Instant) {
        if self.is_moving(now) {
            self.until = self.until.max(Some(now)).map(|until| until + took.min(TOOK_MAX) * FACTOR);
        }
    }

    fn is_moving(&self, now: Instant) -> bool {
        self.moved_at.is_some_and(|at| now.saturating_duration_since(at) < MOVING)
    }

    /// When it ends, if it lasts.
    pub(super) fn end(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}
