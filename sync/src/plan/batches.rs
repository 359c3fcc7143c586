//! The ways batch by batch: replay, deltas, both at once, and a change of mode for batches that were already requested.

use slipstream_types::BatchNumber;

use super::{
    Candidate, HEAD_GAP, HEAD_SECONDS, Inputs, Load, MIX, NextStage, Plan, PlanStep, Planner, REPLACE,
    REPLACE_SECONDS, RangeMode, STAY_MIXED, SWITCH, WIDE_GAP, WorkInFlight,
    price::{self, Price, Supply},
};
use crate::config::Mode;

/// A way that follows batch by batch, priced for the whole gap.
#[derive(Clone, Copy)]
pub(super) struct BatchWay {
    pub(super) mode: RangeMode,
    pub(super) load: Load,
    pub(super) supply: Supply,
    pub(super) price: Price,
    /// The share of batches to replay, if the other mode is used as well.
    pub(super) replayed: Option<f64>,
    pub(super) replaces: bool,
}

impl Planner<'_> {
    /// Returns the cheapest mode in which a peer serves the next batch. Keeps the mode in use unless another is much
    /// cheaper.
    pub(super) fn by_batches(&self, target: BatchNumber) -> Option<BatchWay> {
        let Inputs { head, asked, current, is_mixed, .. } = *self.inputs;
        if asked >= target {
            let way = self.under_way();
            return Some(self.replacing(target, &way).unwrap_or(way));
        }
        let gap = target.since(head);
        let ways: Vec<BatchWay> = [RangeMode::Replay, RangeMode::Delta]
            .into_iter()
            .filter_map(|mode| self.way(mode, target))
            .collect();
        let replay = ways.iter().find(|way| way.mode == RangeMode::Replay);
        // At the head a node executes if it can keep up: it then serves and answers from its own results.
        if let Some(replay) = replay.filter(|replay| gap <= HEAD_GAP && replay.price.seconds < HEAD_SECONDS) {
            return Some(*replay);
        }
        let best = ways.iter().min_by(|one, other| one.price.seconds.total_cmp(&other.price.seconds))?;
        let used = ways.iter().find(|way| Some(way.mode) == current);
        let stays = |used: &&BatchWay| best.price.seconds > used.price.seconds * SWITCH;
        let way = *used.filter(stays).unwrap_or(best);
        let mixed = (gap >= WIDE_GAP && ways.len() == 2).then(|| self.mixed(&way, target));
        let worth = if is_mixed { STAY_MIXED } else { MIX };
        let mixed = mixed.filter(|mixed| mixed.price.seconds < worth * best.price.seconds);
        Some(mixed.or_else(|| self.replacing(target, &way)).unwrap_or(way))
    }

    /// The way when everything is requested: its price covers the work that is left.
    pub(super) fn under_way(&self) -> BatchWay {
        let Inputs { in_flight: WorkInFlight { load, awaited, .. }, peers, current, is_mixed, .. } =
            *self.inputs;
        let keeping = peers.iter().filter(|peer| peer.keeps_batches());
        // The peers of other ranges do not speed up the awaited one.
        let awaited = awaited.filter(|_| !is_mixed);
        let rate = awaited.and_then(|(mode, first)| self.rate(mode, first, |_| true));
        let rate = rate.unwrap_or_else(|| keeping.map(|peer| peer.bytes_per_second).sum());
        let supply = Supply { either: rate, ..Supply::default() };
        let mode = current.unwrap_or(RangeMode::Replay);
        BatchWay { replayed: None, replaces: false, ..self.priced(mode, load, supply) }
    }

    /// Returns the other mode for all ranges that are not prepared yet, if that is far cheaper than to go on. Only
    /// peers that have delivered can make the node drop ranges that arrived: promises are free. To go on never counts
    /// as dearer than to request the same ranges again. Otherwise one slow peer at the end of the gap would make each
    /// mode look worse than the other.
    fn replacing(&self, target: BatchNumber, way: &BatchWay) -> Option<BatchWay> {
        let Inputs {
            head, asked, in_flight: WorkInFlight { kept, kept_load, .. }, current, is_mixed, ..
        } = *self.inputs;
        let used = current.filter(|_| asked > kept && !is_mixed && target.since(head) > HEAD_GAP)?;
        let anew = |mode, rate| {
            let load = kept_load.plus(self.load(mode, kept, target));
            self.priced(mode, load, Supply { either: rate, ..Supply::default() })
        };
        let mode = used.other();
        let rate = self.rate(mode, kept.next(), |peer| peer.is_proven).filter(|_| self.allows_range(mode))?;
        let other = BatchWay { replaces: true, ..anew(mode, rate) };
        let again = self.rate(used, kept.next(), |_| true).map(|rate| anew(used, rate).price.seconds);
        let stays = again.map_or(way.price.seconds, |again| again.min(way.price.seconds));
        let pays = other.price.seconds < REPLACE * stays && stays - other.price.seconds >= REPLACE_SECONDS;
        pays.then_some(other)
    }

    pub(super) fn priced(&self, mode: RangeMode, load: Load, supply: Supply) -> BatchWay {
        let price = price::of(&load, self.inputs.costs, self.inputs.machine.cores, &supply);
        BatchWay { mode, load, supply, price, replayed: None, replaces: false }
    }

    /// Prices a way with the other mode beside it, at the cheapest share of each.
    pub(super) fn mixed(&self, way: &BatchWay, target: BatchNumber) -> BatchWay {
        let Inputs { asked, in_flight, costs, machine, .. } = *self.inputs;
        let next = asked.next();
        let rate = |serves: (bool, bool)| {
            let is_of = |peer: &&Candidate| {
                (peer.serves(RangeMode::Replay, next), peer.serves(RangeMode::Delta, next)) == serves
            };
            let (proven, strangers): (Vec<_>, Vec<_>) =
                self.inputs.peers.iter().filter(is_of).partition(|peer| peer.is_proven);
            let sum = |peers: &[&Candidate]| peers.iter().map(|peer| peer.bytes_per_second).sum::<f64>();
            // Strangers only promise, so those that serve the same modes count as one peer. If all strangers together
            // counted as one, a new node, which knows nobody, would leave one mode's peers without work.
            sum(&proven) + sum(&strangers) / strangers.len().max(1) as f64
        };
        let supply =
            Supply { replay: rate((true, false)), delta: rate((false, true)), either: rate((true, true)) };
        let rest = [RangeMode::Replay, RangeMode::Delta].map(|mode| self.load(mode, asked, target));
        let (replayed, load, price) = price::best_mix(in_flight.load, rest, costs, machine.cores, &supply);
        BatchWay { mode: way.mode, load, supply, price, replayed: Some(replayed), replaces: false }
    }

    pub(super) fn allows_range(&self, mode: RangeMode) -> bool {
        self.allows(match mode {
            RangeMode::Replay => Mode::Replay,
            RangeMode::Delta => Mode::Delta,
        })
    }

    /// Returns the combined rate of the peers that pass `which` and serve the batch in a mode; `None` if no peer does.
    pub(super) fn rate(
        &self,
        mode: RangeMode,
        number: BatchNumber,
        which: impl Fn(&Candidate) -> bool,
    ) -> Option<f64> {
        let serving = self.inputs.peers.iter().filter(|peer| which(peer) && peer.serves(mode, number));
        let (count, rate) = serving.fold((0, 0.0), |(n, rate), peer| (n + 1, rate + peer.bytes_per_second));
        (count > 0).then_some(rate)
    }

    /// Prices the work in flight and then all other batches in a mode. `None` if the policy excludes the mode, or no
    /// peer serves the first of them.
    pub(super) fn way(&self, mode: RangeMode, target: BatchNumber) -> Option<BatchWay> {
        let Inputs { asked, in_flight, .. } = *self.inputs;
        let rate = self.rate(mode, asked.next(), |_| true).filter(|_| self.allows_range(mode))?;
        let load = in_flight.load.plus(self.load(mode, asked, target));
        Some(self.priced(mode, load, Supply { either: rate, ..Supply::default() }))
    }

    /// The work of the batches after `after` up to `last` in a mode, in all stages.
    pub(super) fn load(&self, mode: RangeMode, after: BatchNumber, last: BatchNumber) -> Load {
        let Inputs { course, ratios, machine, .. } = *self.inputs;
        Load::of(mode, &course.amount(after, last), NextStage::Fetch, ratios, machine.parts)
    }

    pub(super) fn follow(&self, target: BatchNumber, way: &BatchWay) -> Plan {
        let gap = target.since(self.inputs.head);
        let per_batch = |way: &BatchWay| {
            let ms = way.price.seconds * 1e3 / gap.max(1) as f64;
            format!("{:.1} s, {ms:.2} ms a batch, bound by {}", way.price.seconds, way.price.bound)
        };
        let told = |way: &BatchWay| format!("{} takes {}", way.mode, per_batch(way));
        let other = self.way(way.mode.other(), target);
        let reason = match (other, way.replayed) {
            _ if way.replaces => format!("{}; it replaces the requested ranges", told(way)),
            (_, Some(replayed)) => format!(
                "replay of {:.0} % of the batches and deltas of the others take {}",
                100.0 * replayed,
                per_batch(way)
            ),
            (None, _) if self.inputs.asked < target => {
                format!("{}; nothing else is served or allowed", told(way))
            }
            _ if gap <= HEAD_GAP && way.mode == RangeMode::Replay => {
                "at the head, batches are executed".into()
            }
            (None, _) => format!("all batches are requested; the rest takes {}", per_batch(way)),
            (Some(other), _) => format!("{}; {}", told(way), told(&other)),
        };
        let plan = self.plan(PlanStep::Range(way.mode), target, way.price.seconds, reason);
        let BatchWay { replayed, replaces, load, supply, .. } = *way;
        Plan { replayed, replaces, bound: Some(way.price.bound), load, supply, ..plan }
    }
}
