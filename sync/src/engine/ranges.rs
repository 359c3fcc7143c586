//! Requests for ranges: how long each is, and in which mode it is followed.

use std::time::Duration;

use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{
    Engine,
    mix::Mix,
    streams::{Key, Requirement, Streams},
};
use crate::{
    config::Mode,
    plan::{Amount, Candidate, Load, NextStage, PlanStep, RangeMode},
    protocol::{Parts, RANGE_BATCHES_MAX, RANGE_BYTES_MAX, RangeRequest, Request},
};

/// A range has as many bytes as its peer delivers in this time. That is short compared with a hedge, and long compared
/// with the cost of a request.
const PIECE_SECONDS: f64 = 0.25;
/// Least compressed bytes of a range.
const PIECE_BYTES_MIN: f64 = 128e3;
/// Number of next batches whose average decides the length of a range.
const LOOK_BATCHES: u64 = 64;
/// Maximum number of ranges that wait for a peer with room. Further ranges would have an outdated length when their
/// turn comes.
const WAITING_RANGES: usize = 4;
/// Beside ranges of deltas, a range that is replayed is executed in about this time.
const REPLAY_SECONDS: f64 = 0.5;
/// The first ranges of a mix are replayed: as many as are executed in about this time, by the costs that are known
/// then. On a slow link the first deltas take as long to come, and replays behind them would wait for them.
const HEAD_START_SECONDS: f64 = 0.5;
/// Deltas of the last batches before the target, as many as this, come with all parts that the node keeps.
const WHOLE_BATCHES: u64 = 64;
/// How long deltas come alone, after a peer that claims to have the other parts was late.
const WHOLE_REST: Duration = Duration::from_secs(30);
/// Ranges to replay are lent to peers with deltas while fewer ranges of deltas than this are requested. So while one is
/// in flight, the next is already requested.
const LENT_MAX: usize = 2;

impl Engine {
    /// Asks for ranges while the buffer has room. All have one mode, or a share of the batches is replayed and the
    /// others are applied by deltas.
    pub(super) fn fill(&mut self, mode: RangeMode, replayed: Option<f64>, candidates: &[Candidate]) {
        // Answers that wait for their check are held in addition to their pieces.
        let budget = (u64::from(self.config.buffer_mib.get()) << 20).saturating_sub(self.checking.bytes());
        self.mode = Some(mode);
        if self.mix.is_some() && replayed.is_none() {
            self.end_mix(mode, candidates);
        }
        self.mix = replayed.map(|share| {
            let mix = self.mix.unwrap_or_else(|| Mix::after(self.head_start(share, candidates)));
            mix.with_share(share)
        });
        while self.pipeline.has_room(budget) {
            let first = self.pipeline.next();
            let target = |mode| {
                let serving = candidates.iter().filter(|peer| peer.serves(mode, first));
                Some((mode, serving.map(|peer| peer.head).max()?))
            };
            // If no peer serves a batch in the mode whose turn it is, the plan's mode serves it.
            let turn = self.mix.map_or(mode, |mix| mix.turn());
            let Some((turn, target)) = target(turn).or_else(|| target(mode)) else { return };
            if self.streams.waiting_ranges(turn) >= WAITING_RANGES {
                return;
            }
            let batch = self.batch_bytes(turn, first);
            let count = self.piece_batches(first, turn, candidates, batch);
            let last = first.after(count - 1).min(target);
            let batches = last.since(first) + 1;
            let amount = self.course.amount(first.before(1), last);
            let bytes = self.ratios.bytes(turn, &amount, self.optional_parts()) as u64;
            self.pipeline.push(last, turn, bytes, amount);
            self.want_range(first, last, turn, bytes);
            if let Some(mix) = &mut self.mix {
                mix.take(turn, batches as f64);
            }
        }
    }

    /// Batches to replay before the first deltas, if a mix begins now: at most their share of what is left.
    fn head_start(&self, share: f64, candidates: &[Candidate]) -> f64 {
        let target = candidates.iter().map(|peer| peer.head).max();
        let left = target.map_or(0, |target| target.since(self.pipeline.last()));
        let batches = HEAD_START_SECONDS / self.replay_seconds(self.pipeline.next()).max(1e-6);
        batches.min(share * left as f64)
    }

    fn want_range(&mut self, first: BatchNumber, last: BatchNumber, mode: RangeMode, bytes: u64) {
        let is_whole = mode == RangeMode::Delta && self.comes_whole(first, last);
        let request = RangeRequest {
            first,
            batches_max: (last.since(first) + 1) as u32,
            bytes_max: self.config.range_bytes_max.get().min(RANGE_BYTES_MAX),
            parts: self.parts(mode, is_whole, first, last),
        };
        let needs = if is_whole { Requirement::Whole(first) } else { Requirement::Batch(mode, first) };
        self.streams.want(Key::Range(first), Request::Range(request), needs, bytes);
        self.pipeline.set_whole(first, is_whole || mode == RangeMode::Replay || !self.config.history);
    }

    /// Whether deltas are requested with the other parts that the node keeps: near the target, if a peer has these
    /// parts. Further back the head comes first, and the backfill fetches the other parts.
    fn comes_whole(&self, first: BatchNumber, last: BatchNumber) -> bool {
        self.is_near(last) && self.are_whole(first)
    }

    /// Whether a believed peer has all parts of a batch that the node keeps.
    fn are_whole(&self, number: BatchNumber) -> bool {
        self.wholes.iter().any(|(from, head)| *from <= number && number <= *head)
    }

    /// Whether a batch is so near the target that the node wants all of its parts at once.
    pub(super) fn is_near(&self, number: BatchNumber) -> bool {
        self.config.history && self.newest.since(number) < WHOLE_BATCHES
    }

    /// Asks for the rest of a range whose answer ended early.
    pub(super) fn want_rest(&mut self, first: BatchNumber) {
        if let Some(piece) = self.pipeline.get(first) {
            let (last, mode, bytes) = (piece.last, piece.mode, piece.bytes);
            self.want_range(first, last, mode, bytes);
        }
    }

    /// The average work of the next batches from `first` on.
    fn batch(&self, first: BatchNumber) -> Amount {
        self.course.amount(first.before(1), first.after(LOOK_BATCHES - 1)).times(1.0 / LOOK_BATCHES as f64)
    }

    /// Estimated compressed bytes of a batch from `first` on.
    fn batch_bytes(&self, mode: RangeMode, first: BatchNumber) -> f64 {
        self.ratios.bytes(mode, &self.batch(first), self.optional_parts()).max(64.0)
    }

    /// Batches of a range, which ends at a multiple of a power of two. So followers with similar links ask for the same
    /// ranges, and a peer makes each answer once for all of them.
    fn piece_batches(
        &self,
        first: BatchNumber,
        mode: RangeMode,
        candidates: &[Candidate],
        batch: f64,
    ) -> u64 {
        let serving = candidates.iter().filter(|peer| peer.serves(mode, first));
        let rate = serving.map(|peer| self.streams.links.cut_rate(&peer.peer)).fold(0.0, f64::max);
        let bytes_max = f64::from(self.config.range_bytes_max.get().min(RANGE_BYTES_MAX));
        let bytes = (rate * PIECE_SECONDS).max(PIECE_BYTES_MIN).min(bytes_max * 0.75);
        let most = u64::from(self.config.range_batches_max.get().min(RANGE_BATCHES_MAX));
        let most = most.min(self.mixed_batches_max(mode, first)).max(1);
        let count = ((bytes / batch) as u64).clamp(1, most);
        to_boundary(first, 1 << count.ilog2())
    }

    /// Maximum number of batches of a range in a mix: ranges in the other mode must not wait long for this one.
    fn mixed_batches_max(&self, mode: RangeMode, first: BatchNumber) -> u64 {
        match (self.mix, mode) {
            (Some(_), RangeMode::Replay) => (REPLAY_SECONDS / self.replay_seconds(first).max(1e-6)) as u64,
            _ => u64::MAX,
        }
    }

    fn parts(&self, mode: RangeMode, is_whole: bool, first: BatchNumber, last: BatchNumber) -> Parts {
        let needed = needed(mode);
        match mode {
            RangeMode::Replay if self.hints => needed.with(Parts::HINTS),
            // Hints are for others: peers that keep bodies serve them to peers that execute.
            RangeMode::Delta if is_whole => needed.with(Parts::BODY).with(Parts::RECEIPTS).with(Parts::HINTS),
            RangeMode::Delta if self.is_audited(first, last) => needed.with(Parts::BODY),
            _ => needed,
        }
    }

    /// Whether a batch of a range will be audited, which takes its body.
    fn is_audited(&self, first: BatchNumber, last: BatchNumber) -> bool {
        let share = self.config.audit;
        let drawn = |number| crate::work::is_drawn(self.audit_seed, share, number);
        share > 0.0 && first.through(last).any(drawn)
    }

    /// Gives another mode to ranges whose mode is no longer served, or gives them up.
    pub(super) fn remode(&mut self, candidates: &[Candidate]) {
        let asked: Vec<(BatchNumber, RangeMode)> = self.pipeline.asked().collect();
        for (first, mode) in asked {
            let key = Key::Range(first);
            let is_served = candidates.iter().any(|peer| peer.serves(mode, first));
            if is_served && self.lost_whole(first, mode) {
                self.turn_into(first, mode);
            }
            if is_served || !self.streams.is_waiting(&key) || self.checking.has(&key, &self.jobs.checks) {
                continue;
            }
            let before = first.before(1);
            match self.decide_behind(before, candidates).step {
                PlanStep::Range(other) if other != mode => {
                    tracing::info!(batch = first.get(), from = %mode, to = %other, "no peer serves the range in the \
                        requested mode; using the other mode");
                    self.turn_into(first, other);
                }
                PlanStep::Snapshot(_) | PlanStep::RangeDelta(_) => {
                    self.pipeline.cut(before);
                    return self.drop_cut();
                }
                _ => {}
            }
        }
    }

    /// Whether a range waits for a peer with all of its parts, although no such peer is left. Its deltas alone are then
    /// enough.
    fn lost_whole(&self, first: BatchNumber, mode: RangeMode) -> bool {
        let asked_whole = mode == RangeMode::Delta && self.streams.needs_whole(&Key::Range(first));
        asked_whole && !self.are_whole(first) && self.may_turn(first, |streams, key| streams.is_waiting(key))
    }

    /// Ends a mix. From now on one mode follows everything, including ranges of the other mode that no peer was asked
    /// for.
    fn end_mix(&mut self, mode: RangeMode, candidates: &[Candidate]) {
        let asked: Vec<(BatchNumber, RangeMode)> =
            self.pipeline.asked().filter(|(_, of)| *of != mode).collect();
        for (first, _) in asked {
            let is_served = candidates.iter().any(|peer| peer.serves(mode, first));
            if is_served && self.may_turn(first, |streams, key| streams.is_waiting(key)) {
                self.turn_into(first, mode);
            }
        }
    }

    /// Executes the range that everything else waits for, if its deltas fail to come and a peer without these deltas
    /// serves its bodies. Deltas fail to come if no peer has room for the request, or the answer is late. Call this
    /// when no other peer can be asked. Returns whether the range is now replayed.
    pub(super) fn take_over(&mut self, candidates: &[Candidate], now: Instant) -> bool {
        let may = self.may_change(Mode::Replay);
        let awaited = self.pipeline.awaited().filter(|_| may);
        let Some(first) = awaited else { return false };
        let is_delta = self.pipeline.get(first).is_some_and(|piece| piece.mode == RangeMode::Delta);
        let executes =
            |peer: &Candidate| peer.serves(RangeMode::Replay, first) && !peer.serves(RangeMode::Delta, first);
        let takes = is_delta
            && candidates.iter().any(executes)
            && self.may_turn(first, |streams, key| streams.is_late(key, now));
        if takes {
            let key = Key::Range(first);
            self.streams.mark_overdue(&key);
            self.settle(&key, now);
            self.turn_into(first, RangeMode::Replay);
        }
        takes
    }

    /// Asks a peer that keeps less for the awaited range's deltas alone, if that range was requested with all its parts
    /// and is late. With `proven`, asks only a peer that has delivered. So a peer that claims everything and sends
    /// nothing delays the head once. Returns whether it asks.
    pub(super) fn take_alone(&mut self, candidates: &[Candidate], proven: bool, now: Instant) -> bool {
        let Some(first) =
            self.pipeline.awaited().filter(|first| self.streams.needs_whole(&Key::Range(*first)))
        else {
            return false;
        };
        let has_deltas = |peer: &Candidate| {
            peer.serves(RangeMode::Delta, first)
                && !peer.serves_whole(first)
                && (peer.is_proven || !proven)
                && self.streams.links.has_room(&peer.peer, 0)
        };
        let key = Key::Range(first);
        let takes = !self.streams.is_waiting(&key)
            && candidates.iter().any(has_deltas)
            && self.may_turn(first, |streams, key| streams.is_late(key, now));
        if takes {
            self.wholes_rest = Some(now + WHOLE_REST);
            self.wholes.clear();
            self.streams.mark_overdue(&key);
            self.settle(&key, now);
            self.turn_into(first, RangeMode::Delta);
        }
        takes
    }

    /// Runs [`Engine::take_over`] before the next stranger is asked for the range that the last one did not send. Does
    /// so only if a proven peer has the bodies and no proven peer has the deltas. All strangers may be one peer: under
    /// ever new keys it would hold this range up again and again.
    pub(super) fn take_over_from_strangers(&mut self, candidates: &[Candidate], now: Instant) -> bool {
        let Some(first) =
            self.pipeline.awaited().filter(|first| !self.streams.is_waiting(&Key::Range(*first)))
        else {
            return false;
        };
        let is_proven = |mode| candidates.iter().any(|peer| peer.is_proven && peer.serves(mode, first));
        is_proven(RangeMode::Replay) && !is_proven(RangeMode::Delta) && self.take_over(candidates, now)
    }

    /// Asks for the deltas of the last range that is to be replayed, if idle peers without bodies deliver them before
    /// execution gets there. So these peers work until both ends meet, whatever share was planned. Returns whether a
    /// range was lent.
    pub(super) fn lend(&mut self, candidates: &[Candidate]) -> bool {
        let asked = self.pipeline.asked().filter(|(_, mode)| *mode == RangeMode::Delta).count();
        if asked >= LENT_MAX || !self.may_change(Mode::Delta) {
            return false;
        }
        let Some((first, last)) = self.pipeline.last_to_replay() else { return false };
        let bytes = self.range_bytes(RangeMode::Delta, first, last);
        let has_deltas_alone = |peer: &&Candidate| {
            let has_deltas = |number| peer.serves(RangeMode::Delta, number);
            has_deltas(first) && has_deltas(last) && !peer.serves(RangeMode::Replay, first)
        };
        // A peer with an overdue answer has no room. Peers that stall, however many, hold up two ranges at a time.
        let has_room = |peer: &&Candidate| self.streams.links.has_room(&peer.peer, bytes);
        let serving = candidates.iter().filter(has_deltas_alone).filter(has_room);
        let comes = serving.map(|peer| self.streams.links.expected(&peer.peer, bytes)).min();
        let before = self.pipeline.left(|at, _| at < first, &self.ratios, self.optional_parts());
        let executes = self.seconds_to_replay(&before);
        let lends = comes.is_some_and(|comes| comes.as_secs_f64() < executes)
            && !self.checking.has(&Key::Range(first), &self.jobs.checks);
        if lends {
            self.turn_into(first, RangeMode::Delta);
        }
        lends
    }

    /// Whether ranges may change to this mode. Behind a snapshot nothing waits for a range.
    fn may_change(&self, mode: Mode) -> bool {
        self.config.mode == Mode::Auto && !self.config.forbid.contains(&mode) && self.restore.is_none()
    }

    /// Average seconds to replay a batch on this machine, from `first` on.
    fn replay_seconds(&self, first: BatchNumber) -> f64 {
        let amount = self.batch(first);
        let load =
            Load::of(RangeMode::Replay, &amount, NextStage::Prepare, &self.ratios, self.optional_parts());
        self.seconds_to_replay(&load)
    }

    /// Seconds to prepare and execute a load on this machine.
    fn seconds_to_replay(&self, load: &Load) -> f64 {
        let costs = self.stages.costs();
        load.execute * costs.execute + load.prepare * costs.prepare
    }

    /// Estimated compressed bytes of a range.
    fn range_bytes(&self, mode: RangeMode, first: BatchNumber, last: BatchNumber) -> u64 {
        self.ratios.bytes(mode, &self.course.amount(first.before(1), last), self.optional_parts()) as u64
    }

    /// Whether a range can still be requested in another way.
    fn may_turn(&self, first: BatchNumber, is_free: impl Fn(&Streams, &Key) -> bool) -> bool {
        let key = Key::Range(first);
        is_free(&self.streams, &key) && !self.checking.has(&key, &self.jobs.checks)
    }

    /// Asks for a range in another mode.
    fn turn_into(&mut self, first: BatchNumber, mode: RangeMode) {
        self.streams.settle(&Key::Range(first), &mut self.effects);
        if let Some(last) = self.pipeline.get(first).map(|piece| piece.last) {
            self.pipeline.remode(first, mode, self.range_bytes(mode, first, last));
            if let Some(mix) = self.mix.as_mut().filter(|_| mode == RangeMode::Replay) {
                mix.took_over((last.since(first) + 1) as f64);
            }
        }
        self.want_rest(first);
    }
}

/// The parts that a range must have in a mode.
pub(super) fn needed(mode: RangeMode) -> Parts {
    match mode {
        RangeMode::Replay => Parts::BODY,
        RangeMode::Delta => Parts::DELTA,
    }
}

/// Batches from `first` to the next multiple of `batches`.
fn to_boundary(first: BatchNumber, batches: u64) -> u64 {
    batches - first.get() % batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_at_the_same_batches_wherever_they_begin() {
        for (first, count) in [(0, 256), (1, 255), (255, 1), (256, 256), (u64::MAX, 1)] {
            assert_eq!(to_boundary(BatchNumber::new(first), 256), count, "from {first}");
        }
        assert_eq!(to_boundary(BatchNumber::new(7), 1), 1);
    }
}
