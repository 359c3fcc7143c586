//! What operators see of a backfill: its progress, and which peers are asked or why it waits.

use slipstream_network::PeerId;
use slipstream_storage::Backlog;
use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{Backfill, pieces::State, span::next_span};
use crate::{engine::Engine, status::BackfillStatus};

impl Engine {
    /// Returns batches per second, and the seconds until none is missing at this rate.
    pub(super) fn past_pace(
        &self,
        lowest: BatchNumber,
        wanted_from: BatchNumber,
        now: Instant,
    ) -> (f64, Option<f64>) {
        let (per_second, _) = self.backfill.progress.rates(now);
        let left = lowest.since(wanted_from) as f64;
        (per_second, (per_second > 0.0).then(|| left / per_second))
    }

    /// The backfill's status for operators, while something is missing.
    pub(in crate::engine) fn backfill_status(&self, now: Instant) -> Option<BackfillStatus> {
        let (lowest, wanted_from) = Backlog::missing(self.backfill.backlog.as_ref()?)?;
        let (batches_per_second, eta_seconds) = self.past_pace(lowest, wanted_from, now);
        let (_, bytes_per_second) = self.backfill.progress.rates(now);
        Some(BackfillStatus {
            wanted_from,
            lowest,
            batches_left: lowest.since(wanted_from),
            batches_per_second,
            bytes_per_second,
            eta_seconds,
            reason: self.backfill_reason(now),
        })
    }

    /// Whether a connected peer keeps some of the missing history.
    pub fn is_backfilling(&self, now: Instant) -> bool {
        let Backfill { backlog: Some(backlog), .. } = &self.backfill else { return false };
        next_span(backlog, &self.book.holdings(now)).is_some()
    }

    /// Says which peers are asked, or why the backfill waits.
    fn backfill_reason(&self, now: Instant) -> String {
        if self.is_behind() || self.restore.is_some() {
            return "the head comes first".into();
        }
        let pieces = || self.backfill.pieces.iter();
        let asked = pieces().filter_map(|piece| match piece.state {
            State::Asked { peer, .. } => Some(peer),
            _ => None,
        });
        let asked: Vec<PeerId> = asked.collect();
        match (asked.first(), pieces().next()) {
            (Some(peer), Some(newest)) => {
                let others = match asked.len() - 1 {
                    0 => String::new(),
                    others => format!(" and {others} more"),
                };
                let (first, last) = (newest.span.first, newest.span.last);
                format!("asking {}{others}; next: batches {first} to {last}", peer.short())
            }
            (None, Some(_)) if self.backfill.throttle.end(now).is_some() => {
                "resting: links and cores serve the head first".into()
            }
            (None, Some(_)) => "storing what arrived, or waiting for a free peer".into(),
            (_, None) if self.is_backfilling(now) => "the head comes first".into(),
            (_, None) => "no connected peer keeps older batches".into(),
        }
    }
}
