//! The two ways that skip batches: a snapshot, and a range delta up to one. A claim about a snapshot gains weight as
//! more peers make it.

use std::collections::BTreeSet;

use slipstream_types::BatchNumber;

use super::{
    BatchWay, Candidate, HEAD_GAP, Inputs, LEAP_SECONDS, Plan, PlanStep, Planner, RangeMode, SWITCH,
    WIDE_GAP,
    load::Load,
    price::{self, Bound, Price, Supply, touched_rows},
};
use crate::{config::Mode, protocol::SnapshotOffer, range_delta};

/// A snapshot or a range delta must take less than this share of the time of the batches one by one. Its size is a
/// promise, and the history that it skips is fetched later.
const LEAP: f64 = 0.8;
/// Presumed seconds for a batch behind a snapshot, while no peer serves it.
const TAIL_BATCH_SECONDS: f64 = 0.02;
/// Presumed bytes of a snapshot whose size is unknown or implausible. So a promise of a short one earns nothing.
const SNAPSHOT_BYTES_UNKNOWN: f64 = 1e9;
/// Bytes of one row with its overhead in a delta.
const ROW_BYTES: f64 = 80.0;

/// Returns the median of the peers' plausible claims about the rows of a snapshot; of any snapshot on offer if `number`
/// is `None`. Each peer has one vote, however much it offers.
pub(crate) fn told_rows(peers: &[Candidate], number: Option<BatchNumber>) -> Option<f64> {
    let is_it = |offered: &&SnapshotOffer| number.is_none_or(|number| offered.number == number);
    let vote = |peer: &Candidate| peer.snapshots.iter().filter(is_it).find_map(price::plausible_rows);
    let mut votes: Vec<f64> = peers.iter().filter_map(vote).collect();
    votes.sort_unstable_by(f64::total_cmp);
    votes.get(votes.len() / 2).copied()
}

/// Whether a peer that has delivered offers a snapshot, or two peers do.
fn is_vouched<'p>(peers: impl Iterator<Item = &'p Candidate> + Clone, number: BatchNumber) -> bool {
    let mut offering = peers.filter(|peer| peer.offers(number));
    offering.clone().any(|peer| peer.is_proven) || offering.nth(1).is_some()
}

/// Drops the snapshots that only a lone stranger offers.
pub(crate) fn retain_vouched(peers: &mut [Candidate]) {
    let offered = peers.iter().flat_map(|peer| &peer.snapshots).map(|offered| offered.number);
    let vouched: BTreeSet<BatchNumber> = offered.filter(|number| is_vouched(peers.iter(), *number)).collect();
    for peer in peers {
        peer.snapshots.retain(|offered| vouched.contains(&offered.number));
    }
}

/// A way that skips batches, with its price.
#[derive(Clone, Copy)]
pub(super) struct Leap {
    /// The snapshot that it leads to.
    pub(super) number: BatchNumber,
    /// The price of its rows, or of the changes in them.
    rows: Price,
    /// The work behind it, the rates of the peers that serve that work, and its price.
    tail: (Load, Supply, Price),
}

impl Leap {
    /// Seconds to the target. The batches behind the snapshot are fetched beside the rows, and followed after them.
    pub(super) fn seconds(&self) -> f64 {
        self.rows.seconds + self.tail.2.seconds
    }

    /// The bottleneck of the longer part.
    pub(super) fn bound(&self) -> Bound {
        let (_, _, tail) = &self.tail;
        if tail.seconds > self.rows.seconds { tail.bound } else { self.rows.bound }
    }
}

impl Planner<'_> {
    /// Returns the plan for a leap (a snapshot or a range delta), if the policy pins the leap or it is much cheaper
    /// than batch by batch. A leap drops batches that arrived. So a leap must then be cheaper than the work that is
    /// left on them, and vouched for.
    pub(super) fn leap(&self, target: BatchNumber, way: Option<&BatchWay>) -> Option<Plan> {
        let Inputs { head, asked, in_flight, peers, .. } = *self.inputs;
        let gap = target.since(head);
        let pinned = self.policy.mode;
        let by_batches = way.map_or(f64::INFINITY, |way| way.price.seconds);
        let begins = !in_flight.came;
        if pinned == Mode::Snapshot && head == BatchNumber::GENESIS && begins {
            let leap = self.snapshot_at(target)?;
            return Some(self.take(
                PlanStep::Snapshot(leap.number),
                target,
                &leap,
                "the policy asks for it".into(),
            ));
        }
        let is_far = gap >= WIDE_GAP || (gap > HEAD_GAP && by_batches >= LEAP_SECONDS);
        let may_drop = |leap: &Leap| begins || is_vouched(peers.iter(), leap.number);
        let pays = |leap: &Leap| is_far && may_drop(leap) && leap.seconds() < by_batches * LEAP;
        let changes = self.range_delta_at(target).filter(|_| self.allows(Mode::RangeDelta));
        let snapshot = self.snapshot_at(target).filter(|_| self.may_restore() && pinned != Mode::RangeDelta);
        let snapshot = snapshot.filter(pays);
        // Its server has to merge the deltas first, so it must be clearly cheaper than a snapshot.
        let is_best = |leap: &Leap| snapshot.is_none_or(|other| leap.seconds() < SWITCH * other.seconds());
        let is_asked_for = |leap: &Leap| {
            let is_cheaper = || may_drop(leap) && leap.seconds() < by_batches;
            pinned == Mode::RangeDelta && ((begins && asked < target) || is_cheaper())
        };
        let changes = changes.filter(|leap| is_asked_for(leap) || (pays(leap) && is_best(leap)));
        let (step, leap, what) = match (changes, snapshot) {
            (Some(changes), _) => (PlanStep::RangeDelta(changes.number), changes, "the range delta"),
            (None, Some(snapshot)) => (PlanStep::Snapshot(snapshot.number), snapshot, "the snapshot"),
            (None, None) => return None,
        };
        let seconds = leap.seconds();
        let reason = match by_batches.is_finite() {
            true => format!("{what} takes {seconds:.1} s; {gap} batches one by one take {by_batches:.1} s"),
            false => format!("{what} takes {seconds:.1} s, and no peer keeps the next batch"),
        };
        Some(self.take(step, target, &leap, reason))
    }

    /// The plan that takes a leap.
    pub(super) fn take(&self, step: PlanStep, target: BatchNumber, leap: &Leap, reason: String) -> Plan {
        let (load, supply, _) = leap.tail;
        let plan = self.plan(step, target, leap.seconds(), reason);
        Plan { bound: Some(leap.bound()), load, supply, ..plan }
    }

    /// Prices the batches behind a snapshot, in the cheaper mode. Guesses while no peer shows that it serves them.
    fn tail(&self, number: BatchNumber, target: BatchNumber) -> (Load, Supply, Price) {
        let modes = [RangeMode::Replay, RangeMode::Delta].into_iter().filter(|mode| self.allows_range(*mode));
        let ways = modes.filter_map(|mode| {
            let supply = Supply { either: self.rate(mode, number.next(), |_| true)?, ..Supply::default() };
            Some(self.priced(mode, self.load(mode, number, target), supply))
        });
        let best = ways.min_by(|one, other| one.price.seconds.total_cmp(&other.price.seconds));
        best.map_or_else(
            || {
                let seconds = target.since(number) as f64 * TAIL_BATCH_SECONDS;
                (Load::default(), Supply::default(), Price { seconds, bound: Bound::Network })
            },
            |best| (best.load, best.supply, best.price),
        )
    }

    /// Returns the snapshot to restore, with its cost. A begun restore goes on while a peer serves it. Otherwise
    /// returns the best peer's newest snapshot: if the highest won, the boldest claim would decide.
    pub(super) fn snapshot_at(&self, target: BatchNumber) -> Option<Leap> {
        let Inputs { head, peers, begun, costs, machine, .. } = *self.inputs;
        let fits = |number: BatchNumber| number > head;
        let begun = begun.filter(|number| fits(*number) && peers.iter().any(|peer| peer.offers(*number)));
        let number = begun.or_else(|| self.newest(peers.iter(), fits))?;
        let offering = peers.iter().filter(|peer| peer.offers(number));
        let rate = offering.map(|peer| peer.bytes_per_second).sum();
        let (_, bytes) = self.offered_size(number);
        let rows = price::snapshot(bytes, costs, machine.cores, rate);
        Some(Leap { number, rows, tail: self.tail(number, target) })
    }

    /// Returns the best peer's newest snapshot that fits. A snapshot at or above the waypoint proves the waypoint
    /// before anything is stored, so it goes first. Nothing vouches for a lower one until the batches behind it have
    /// passed the waypoint. A snapshot that a proven peer or two peers offer goes before a lone stranger's.
    fn newest<'p>(
        &self,
        peers: impl Iterator<Item = &'p Candidate> + Clone,
        fits: impl Fn(BatchNumber) -> bool,
    ) -> Option<BatchNumber> {
        let is_vouched = |number: BatchNumber| is_vouched(peers.clone(), number);
        let from = |least: BatchNumber, vouched: bool| {
            peers.clone().find_map(|peer| {
                let mut numbers = peer.snapshots.iter().map(|offered| offered.number);
                numbers.find(|number| *number >= least && fits(*number) && (!vouched || is_vouched(*number)))
            })
        };
        let ways =
            [(self.inputs.waypoint, true), (self.inputs.waypoint, false), (BatchNumber::GENESIS, true)];
        ways.into_iter()
            .find_map(|(least, vouched)| from(least, vouched))
            .or_else(|| from(BatchNumber::GENESIS, false))
    }

    /// Rows and bytes of a snapshot: the median of its peers' plausible claims, so that one liar decides nothing. A
    /// snapshot that a lone peer offers counts at least as the median of all offers, because states do not shrink.
    fn offered_size(&self, number: BatchNumber) -> (f64, f64) {
        let peers = self.inputs.peers;
        let told = told_rows(peers, Some(number));
        let rows = match peers.iter().filter(|peer| peer.offers(number)).count() {
            0 | 1 => told.into_iter().chain(told_rows(peers, None)).max_by(f64::total_cmp),
            _ => told,
        };
        let known = Some(self.inputs.rows_known).filter(|known| *known > 0.0);
        let rows = rows.into_iter().chain(known).max_by(f64::total_cmp);
        rows.map_or((0.0, SNAPSHOT_BYTES_UNKNOWN), |rows| (rows, rows * ROW_BYTES))
    }

    /// Returns the snapshot that the range delta leads to, with an upper bound on its cost. Servers merge at most
    /// `ROWS_MAX` rows.
    pub(super) fn range_delta_at(&self, target: BatchNumber) -> Option<Leap> {
        let Inputs { head, machine, costs, course, .. } = *self.inputs;
        let (number, rate) = self.served_range_delta()?;
        let (rows, _) = self.offered_size(number);
        let touched = touched_rows(course.amount(head, number).changes / ROW_BYTES, rows);
        let rows = price::range_delta(touched * ROW_BYTES, number.since(head), costs, machine.cores, rate);
        let leap = Leap { number, rows, tail: self.tail(number, target) };
        // If rows change again and again, this overestimates them. So a policy that pins the range delta tries it
        // anyway.
        let may_be_served = touched <= range_delta::ROWS_MAX as f64 || self.policy.mode == Mode::RangeDelta;
        may_be_served.then_some(leap)
    }

    /// Returns the snapshot up to which peers serve the range delta, with their combined rate.
    fn served_range_delta(&self) -> Option<(BatchNumber, f64)> {
        let Inputs { head, peers, range_delta_max, .. } = *self.inputs;
        let serves = |peer: &&Candidate| {
            peer.range_delta_from.is_some_and(|from| range_delta::base(head, from).is_some())
        };
        let fits = |number: BatchNumber| number > head && number.since(head) <= range_delta_max;
        let number = self.newest(peers.iter().filter(serves), fits)?;
        let offering = peers.iter().filter(serves).filter(|peer| peer.offers(number));
        Some((number, offering.map(|peer| peer.bytes_per_second).sum()))
    }

    /// Says why the leap that the policy pins cannot be made. Near the head none is due.
    pub(super) fn unusable(&self, target: BatchNumber) -> Option<String> {
        let head = self.inputs.head;
        let is_far = target.since(head) >= WIDE_GAP;
        let (mode, is_due) = match self.policy.mode {
            Mode::Snapshot => {
                ("snapshot", (is_far || head == BatchNumber::GENESIS) && self.snapshot_at(target).is_none())
            }
            Mode::RangeDelta => ("range_delta", is_far && self.range_delta_at(target).is_none()),
            _ => return None,
        };
        is_due.then(|| format!("the policy asks for {mode}, but {}", self.no_leap()))
    }

    /// Says why no leap is available.
    pub(super) fn no_leap(&self) -> String {
        let Inputs { head, peers, given_up, range_delta_max, .. } = *self.inputs;
        let mut ahead = peers.iter().flat_map(|peer| &peer.snapshots).filter(|offered| offered.number > head);
        match ahead.next() {
            None if given_up > 0 => "peers do not send the snapshots that they offer".into(),
            None => "no peer offers a snapshot ahead of this node".into(),
            Some(_) if self.served_range_delta().is_some() => {
                format!("more than {} rows changed", range_delta::ROWS_MAX)
            }
            Some(_) => format!(
                "no peer that offers a snapshot at most {range_delta_max} batches ahead keeps the deltas from batch {} on",
                head.before(head.get() % range_delta::BASE_STEP).next()
            ),
        }
    }

    /// Whether the node may start over from a snapshot. A node with a ledger does so only beside a peer that keeps
    /// batches. An archive keeps no batches, so it does not show whether other peers have the next ones. Behind an
    /// archive's snapshot, the node would lack a peer to follow.
    pub(super) fn may_restore(&self) -> bool {
        let is_empty = self.inputs.head == BatchNumber::GENESIS;
        self.allows(Mode::Snapshot) && (is_empty || self.inputs.peers.iter().any(Candidate::keeps_batches))
    }
}
