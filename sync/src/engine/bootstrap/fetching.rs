//! [`Fetching`]: how far a restore is, and how long the rest is expected to take.

use std::time::Duration;

use slipstream_storage::Span;

use super::Bootstrap;
use crate::{engine::stages::IDLE_AFTER, status::SnapshotStatus, work::Progress};

/// A restore that has begun.
#[derive(Clone, Debug)]
pub(super) struct Fetching {
    pub(super) progress: Progress,
    /// Share that was done when the restore began or resumed; the rate leaves this share out.
    share_before: f64,
}

impl Fetching {
    pub(super) fn new(progress: Progress) -> Fetching {
        Fetching { share_before: progress.share, progress }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.progress.is_complete()
    }

    /// Share that was done since the restore began or resumed.
    pub(super) fn done(&self) -> f64 {
        self.progress.share - self.share_before
    }

    /// Seconds until the restore is complete, if the share `before` was done `seconds` ago. `moved` says whether
    /// anything came since. Code comes last, and the share does not include it.
    pub(super) fn seconds_left(&self, before: Option<f64>, seconds: f64, moved: bool) -> f64 {
        let done = self.progress.share - before.unwrap_or(self.share_before);
        let left = 1.0 - self.progress.share;
        match (self.progress.spans.is_empty() && self.progress.older.is_none(), done > 0.0) {
            (true, _) if moved => 0.0,
            (false, true) => left.max(0.0) / done * seconds,
            _ => f64::INFINITY,
        }
    }

    /// The restore's status for operators.
    pub(super) fn status(&self, age: Duration, idle: Duration) -> SnapshotStatus {
        let (progress, done) = (&self.progress, self.done());
        let elapsed = age.as_secs_f64().max(1e-3);
        let rows_total = if progress.share > 0.001 { progress.rows as f64 / progress.share } else { 0.0 };
        // While a restore stands still, its rate since the beginning means nothing.
        let is_moving = done > 0.0 && idle < IDLE_AFTER;
        SnapshotStatus {
            number: progress.number,
            rows: progress.rows,
            rows_total: rows_total as u64,
            share: progress.share,
            rows_per_second: if is_moving { rows_total * done / elapsed } else { 0.0 },
            eta_seconds: is_moving.then(|| elapsed * (1.0 - progress.share).max(0.0) / done),
            rows_kept: progress.kept.0,
            bytes_kept: progress.kept.1,
        }
    }
}

impl Bootstrap {
    /// Rows of the state, extrapolated from those that were proved; `None` while they are too few.
    pub(in crate::engine) fn known_rows(&self) -> Option<f64> {
        let progress = &self.fetching().filter(|fetching| fetching.progress.share > 0.001)?.progress;
        Some(progress.rows as f64 / progress.share)
    }

    /// Expected bytes of a range's chunk. Paths are hashes, so a range's share of the paths is also its share of the
    /// rows. A range within one account is part of one that was too long for a chunk, so its chunk counts as the
    /// longest so far.
    pub(super) fn chunk_bytes(&self, span: Span) -> u64 {
        let bytes_max = u64::from(self.chunk_bytes_max());
        if span.is_within_account() {
            return if self.longest > 0 { self.longest.min(bytes_max) } else { bytes_max };
        }
        let done = self.fetching().map_or(0.0, Fetching::done);
        let total = match self.arrived {
            _ if done > 0.02 => self.bytes as f64 / done,
            (bytes, share) if share > 0.0 => bytes as f64 / share,
            _ => self.beginning.bytes,
        };
        ((total * span.share()) as u64).clamp(1_024, bytes_max)
    }
}
