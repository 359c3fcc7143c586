//! A leap over batches, by restoring a snapshot or a range delta: how a leap begins, and when it is given up as too
//! slow.

use std::time::Duration;

use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{
    Engine,
    bootstrap::{Bootstrap, COMPARE, DeltaBase, RestoreSetup},
    pipeline::Pipeline,
    streams::Key,
};
use crate::{
    config::Mode,
    plan::{self, Candidate, Inputs, Plan, PlanStep, price},
    range_delta,
};

/// Presumed compressed bytes of a row in a chunk.
const ROW_BYTES: f64 = 40.0;
/// A restore's speed is judged after this many request deadlines.
const PACE_DEADLINES: u32 = 3;
/// A restore goes on unless it takes this many times as long as another way, plus the time between two judgements. The
/// other way's time rests on promises.
const OUTPACED: f64 = 3.0;
/// The factor of [`OUTPACED`] if the other way rests on measured rates.
const OUTPACED_BY_PROVEN: f64 = 2.0;

impl Engine {
    /// Whether a restore, at its recent rate, takes far longer than another way would. Its peers may claim what they do not have, or send
    /// one row at a time. Without another way it goes on at any rate.
    pub(super) fn is_outpaced(&mut self, candidates: &[Candidate], now: Instant) -> bool {
        let Some(restore) = self.restore.as_ref().filter(|_| !self.jobs.restore.is_working()) else {
            return false;
        };
        if restore.look_at().is_none_or(|at| at > now) {
            return false;
        }
        let left = restore.seconds_left(now);
        let plan = self.beside(restore, candidates, now);
        let is_other =
            matches!(plan.step, PlanStep::Range(_) | PlanStep::Snapshot(_) | PlanStep::RangeDelta(_));
        let is_outpaced = is_other && left > plan.seconds * OUTPACED + restore.patience().as_secs_f64();
        if let Some(restore) = self.restore.as_mut().filter(|_| !is_outpaced) {
            restore.look_again(now);
        }
        is_outpaced
    }

    /// Whether a restore, at its measured rate, takes far longer than a way by peers that have delivered. Their rates
    /// are measured and not promised, so this comparison comes sooner. With a pinned way, nothing is compared. The
    /// restored rows stay, and the snapshot's price is right from then on.
    pub(super) fn is_outpaced_by_proven(&mut self, candidates: &[Candidate], now: Instant) -> bool {
        let is_free = self.config.mode == Mode::Auto;
        let Some(restore) = self.restore.as_mut().filter(|_| is_free) else { return false };
        let Some(left) = restore.shown_seconds_left(now) else { return false };
        let Some(restore) = &self.restore else { return false };
        let proven: Vec<Candidate> = candidates.iter().filter(|peer| peer.is_proven).cloned().collect();
        let plan = self.beside(restore, &proven, now);
        let is_other =
            matches!(plan.step, PlanStep::Range(_) | PlanStep::Snapshot(_) | PlanStep::RangeDelta(_));
        let is_outpaced = is_other && left > plan.seconds * OUTPACED_BY_PROVEN + COMPARE.as_secs_f64();
        if is_outpaced {
            self.ignored_offers.rest(restore.suppliers().deliverers().iter().copied(), now);
        }
        is_outpaced
    }

    /// Returns the best way without the peers that serve the restore. During a range delta, other peers may have the
    /// whole snapshot. During a progressing restore, strangers' promises count little: they are taken seldom, and all
    /// strangers count as one peer. A snapshot then counts only if two peers or a proven one offer it. No snapshot
    /// counts as smaller than this one has shown to be.
    fn beside(&self, restore: &Bootstrap, candidates: &[Candidate], now: Instant) -> Plan {
        let number = restore.number();
        let mut others = candidates.to_vec();
        for peer in others.iter_mut().filter(|peer| restore.needs().fits(peer)) {
            peer.snapshots.clear();
        }
        if !restore.suppliers().deliverers().is_empty() {
            let takes_word = self.ignored_offers.takes_word(now);
            others.retain(|peer| peer.is_proven || takes_word);
            let strangers = others.iter().filter(|peer| !peer.is_proven).count() as f64;
            for peer in others.iter_mut().filter(|peer| !peer.is_proven) {
                peer.bytes_per_second /= strangers;
            }
            plan::retain_vouched(&mut others);
        }
        let told = plan::told_rows(candidates, Some(number));
        let rows = told.into_iter().chain(restore.known_rows()).fold(0.0, f64::max);
        let inputs = Inputs { begun: None, rows_known: rows, ..self.inputs(self.head, &others) };
        plan::decide(&self.config, &inputs)
    }

    /// Pauses the peers that made a restore too slow. The pause grows only for those that delivered nothing.
    pub(super) fn blame_slow(&mut self, now: Instant) {
        let Some(restore) = &self.restore else { return };
        self.ignored_offers.broken(restore.suppliers().broke_promises(), now);
        if !restore.suppliers().deliverers().is_empty() {
            self.ignored_offers.rest(restore.suppliers().deliverers().iter().copied(), now);
            self.ignored_offers.took_word(now);
        }
    }

    /// Begins a restore. Drops the batches in flight: even with them, following batch by batch would take longer. A
    /// running commit ends first.
    pub(super) fn leap(
        &mut self,
        number: BatchNumber,
        by_changes: bool,
        candidates: &[Candidate],
        now: Instant,
    ) {
        self.drops_batches |= !self.pipeline.is_empty();
        self.pipeline.cut_uncommitted(self.head);
        self.drop_cut();
        if self.pipeline.is_empty() && !self.jobs.restore.is_any() {
            let serves = candidates.iter().filter(|peer| peer.offers(number));
            let from = |peer: &Candidate| range_delta::base(self.head, peer.range_delta_from?);
            let base = serves.filter_map(from).max().map(|from| DeltaBase { from, head: self.head });
            // A range delta needs a base, and the plan did not ask for all rows.
            if by_changes && base.is_none() {
                return;
            }
            let range_delta = base.filter(|_| by_changes);
            let bytes = self.leap_bytes(number, range_delta, candidates);
            let passing = Some(self.waypoint).filter(|waypoint| self.head < *waypoint && *waypoint <= number);
            let is_word = !candidates.iter().any(|peer| peer.is_proven && peer.offers(number));
            let is_on_word = std::mem::take(&mut self.drops_batches) && is_word;
            let is_new = self.begun.is_none();
            let beginning = RestoreSetup { number, range_delta, passing, is_new, bytes, is_on_word };
            let patience = Duration::from_millis(self.config.request_deadline_ms.get()) * PACE_DEADLINES;
            let restore = self.restore.insert(Bootstrap::new(beginning, patience, now));
            restore.advance(&mut self.streams, &self.jobs.restore);
            self.pipeline = Pipeline::new(number);
        }
    }

    /// Presumed bytes of a restore, from what peers claim about the snapshot. A range delta has at most all changes.
    fn leap_bytes(
        &self,
        number: BatchNumber,
        range_delta: Option<DeltaBase>,
        candidates: &[Candidate],
    ) -> f64 {
        let offered = candidates.iter().flat_map(|peer| &peer.snapshots);
        let offered = offered.filter(|offered| offered.number == number);
        // An impossible size says nothing. Such a size must not make ranges look so long that few are asked for at
        // once.
        let rows =
            offered.filter_map(price::plausible_rows).max_by(f64::total_cmp).unwrap_or_default() * ROW_BYTES;
        match range_delta {
            Some(DeltaBase { head, .. }) => {
                rows.min(self.course.amount(head, number).changes * self.ratios.delta)
            }
            None => rows,
        }
    }

    /// Drops the ranges that are followed in another way from now on. Ranges of the new way begin behind the kept ones.
    pub(super) fn replace(&mut self, plan: &Plan) {
        let kept = self.pipeline.in_flight(&self.ratios, self.optional_parts()).kept;
        tracing::info!(batch = kept.get(), target = plan.target.get(), reason = %plan.reason, "following the requested ranges in another way");
        self.pipeline.cut(kept);
        self.drop_cut();
    }

    /// Drops the requests for ranges behind the last kept one.
    pub(super) fn drop_cut(&mut self) {
        let next = self.pipeline.next();
        let is_behind = |key: &Key| matches!(key, Key::Range(first) if *first >= next);
        self.streams.drop_all(is_behind, &mut self.effects);
    }
}
