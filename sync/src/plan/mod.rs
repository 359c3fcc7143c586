//! Decides the next step, as a pure function of the local head, the policy, the peers' offers and the costs here.

mod leap;
pub mod part;
pub mod price;

use std::fmt;

use slipstream_network::PeerId;
use slipstream_types::BatchNumber;

pub(crate) use self::leap::{retain_vouched, told_rows};
use self::price::{Bound, Costs, Machine, Price, Sizes, Supply};
use crate::{
    config::{Mode, SyncConfig},
    protocol::SnapshotOffer,
};

/// A peer that may be asked, as far as planning goes.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// Key of the peer.
    pub peer: PeerId,
    /// Number of its certified head.
    pub head: BatchNumber,
    /// From where on it serves replay, if it does.
    pub replay_from: Option<BatchNumber>,
    /// From where on it serves deltas (with history, if this node keeps it), if it does.
    pub delta_from: Option<BatchNumber>,
    /// From where on it serves deltas alone, and so range deltas, if it does.
    pub range_delta_from: Option<BatchNumber>,
    /// Its snapshots, newest first, with its own word for their sizes.
    pub snapshots: Vec<SnapshotOffer>,
    /// Its rate in bytes per second, measured, or presumed while it is unknown.
    pub bytes_per_second: f64,
    /// Whether it delivered what passed its checks, of late: promises alone prove nothing.
    pub is_proven: bool,
}

/// How a range of batches is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeMode {
    /// Executes bodies.
    Replay,
    /// Applies deltas.
    Delta,
}

impl fmt::Display for RangeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RangeMode::Replay => "replay",
            RangeMode::Delta => "delta",
        })
    }
}

impl Candidate {
    /// Whether it serves a batch in a mode.
    pub fn serves(&self, mode: RangeMode, number: BatchNumber) -> bool {
        let from = match mode {
            RangeMode::Replay => self.replay_from,
            RangeMode::Delta => self.delta_from,
        };
        self.head >= number && from.is_some_and(|from| from <= number)
    }

    /// Whether it keeps any batches. A peer that keeps none, such as an archive, has only the headers of its snapshots.
    pub fn keeps_batches(&self) -> bool {
        self.replay_from.is_some() || self.range_delta_from.is_some()
    }

    /// Whether it has a snapshot.
    pub fn offers(&self, number: BatchNumber) -> bool {
        self.snapshots.iter().any(|offered| offered.number == number)
    }
}

/// The next thing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The node is at the head, or no peer can be asked.
    Idle,
    /// Batches are certified, but no peer keeps what this mode needs of the next one.
    Stuck,
    /// Follows batches in a mode.
    Range(RangeMode),
    /// Begin from a snapshot.
    Snapshot(BatchNumber),
    /// Apply the range delta up to a snapshot.
    RangeDelta(BatchNumber),
}

/// A step, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The step to take.
    pub step: Step,
    /// Of a range whose batches are followed in both modes at once: the share that is replayed.
    pub replayed: Option<f64>,
    /// The highest certified batch that is known.
    pub target: BatchNumber,
    /// Seconds that it is thought to take.
    pub seconds: f64,
    /// The bottleneck, if it is known.
    pub bound: Option<Bound>,
    /// Why this and nothing else, for operators.
    pub reason: String,
}

/// The facts that a plan rests on.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The next batch that nothing was asked for yet is behind this one.
    pub head: BatchNumber,
    /// The snapshot of a restore that did not finish.
    pub begun: Option<BatchNumber>,
    /// The batch of the operator's waypoint. Until the ledger has passed it nobody vouches for it.
    pub waypoint: BatchNumber,
    /// The peers that may be asked, best first.
    pub peers: &'a [Candidate],
    /// Snapshots that peers claimed and failed to send; the offers here omit them.
    pub given_up: usize,
    /// Rows that the state is known to have, by a restore that is under way: no snapshot is shorter, whatever its peers say. 0 if unknown.
    pub rows_known: f64,
    /// Most batches that a range delta may pass; at most [`RANGE_DELTA_BATCHES_MAX`].
    pub range_delta_max: u64,
    /// Average sizes of the batches ahead, or `None` before the first header.
    pub sizes: Option<&'a Sizes>,
    /// Costs of work on this machine.
    pub costs: &'a Costs,
    /// Cores and settings of this machine.
    pub machine: Machine,
    /// How the last range was followed.
    pub current: Option<RangeMode>,
    /// Whether the other mode was used beside it.
    pub is_mixed: bool,
}

/// A gap of so many batches is the head: there it matters to know a batch soon, and to have executed it.
const HEAD_GAP: u64 = 16;
/// Gaps below this are not worth a snapshot or a range delta.
const WIDE_GAP: u64 = 64;
/// Another mode must be so much cheaper than the one in use.
const SWITCH: f64 = 0.8;
/// Both modes at once must be so much cheaper than the cheaper one of them; and so much to go on with that.
const MIX: f64 = 0.8;
const STAY_MIXED: f64 = 0.9;
/// Most batches that a range delta spans: its headers come in one answer.
pub const RANGE_DELTA_BATCHES_MAX: u64 = slipstream_types::limits::HEADERS_MAX as u64;
/// Decides the next step.
///
/// In the policy, `replay`, `delta`, `snapshot` and `range_delta` pin their way. A pinned snapshot or range delta is taken if one is ahead,
/// and then batches as with `auto`. If none can be had, the reason says why. `auto` takes the cheapest allowed way. If nobody keeps the
/// next batch, a snapshot is the only way on. It is then taken whatever it costs, except under a pinned mode that excludes snapshots.
pub fn decide(policy: &SyncConfig, inputs: &Inputs<'_>) -> Plan {
    Planner { policy, inputs }.decide()
}

struct Planner<'a> {
    policy: &'a SyncConfig,
    inputs: &'a Inputs<'a>,
}

/// A mode with its price for the whole gap.
#[derive(Clone, Copy)]
struct Way {
    mode: RangeMode,
    price: Price,
    seconds: f64,
    /// The share that is replayed, if the other mode is used beside this one.
    replayed: Option<f64>,
}

impl Planner<'_> {
    fn decide(&self) -> Plan {
        let Inputs { head, peers, .. } = *self.inputs;
        let Some(target) = peers.iter().map(|peer| peer.head).max().filter(|target| *target > head) else {
            let reason = match self.inputs.waypoint {
                _ if peers.is_empty() => "no peer can be asked".into(),
                waypoint if head < waypoint => format!("no peer has batch {waypoint}, the waypoint's, yet"),
                _ => "no peer has a newer batch".into(),
            };
            return self.plan(Step::Idle, head, 0.0, None, reason);
        };
        let gap = target.since(head);
        let way = self.range(gap);
        if let Some(plan) = self.leap(target, way) {
            return plan;
        }
        let plan = match way {
            Some(way) => self.follow(target, way),
            None => match self.snapshot_at(target) {
                Some((number, seconds)) if self.may_restore() => {
                    let reason = format!("no peer keeps batch {} any more", head.next());
                    self.plan(Step::Snapshot(number), target, seconds, None, reason)
                }
                _ => {
                    let reason = format!("no connected peer serves batch {} as the policy asks", head.next());
                    self.plan(Step::Stuck, target, 0.0, None, reason)
                }
            },
        };
        match self.unusable(target) {
            Some(why) => Plan { reason: format!("{why}; {}", plan.reason), ..plan },
            None => plan,
        }
    }

    fn plan(
        &self,
        step: Step,
        target: BatchNumber,
        seconds: f64,
        bound: Option<Bound>,
        reason: String,
    ) -> Plan {
        Plan { step, replayed: None, target, seconds, bound, reason }
    }

    fn allows(&self, mode: Mode) -> bool {
        match self.policy.mode {
            Mode::Auto => !self.policy.forbid.contains(&mode),
            Mode::Snapshot | Mode::RangeDelta => {
                mode == self.policy.mode || !self.policy.forbid.contains(&mode)
            }
            pinned => pinned == mode,
        }
    }

    /// The cheapest mode in which somebody serves the next batch; the one in use if another is not much cheaper.
    fn range(&self, gap: u64) -> Option<Way> {
        let ways: Vec<Way> = [RangeMode::Replay, RangeMode::Delta]
            .into_iter()
            .filter_map(|mode| self.way(mode, self.inputs.head, gap))
            .collect();
        let replay = ways.iter().find(|way| way.mode == RangeMode::Replay);
        // At the head a node executes if it can keep up: it then serves and answers by its own result.
        if let Some(replay) = replay.filter(|replay| gap <= HEAD_GAP && replay.seconds < 1.0) {
            return Some(*replay);
        }
        let best = ways.iter().min_by(|one, other| one.seconds.total_cmp(&other.seconds))?;
        let current = ways.iter().find(|way| Some(way.mode) == self.inputs.current);
        let way = *current.filter(|current| best.seconds > current.seconds * SWITCH).unwrap_or(best);
        let mixed = (gap >= WIDE_GAP && ways.len() == 2).then(|| self.mixed(way, gap));
        let worth = if self.inputs.is_mixed { STAY_MIXED } else { MIX };
        Some(mixed.filter(|mixed| mixed.seconds < worth * best.seconds).unwrap_or(way))
    }

    /// A way with the other mode beside it, each with the share that suits both best.
    fn mixed(&self, way: Way, gap: u64) -> Way {
        let next = self.inputs.head.next();
        let rate = |serves: (bool, bool)| {
            let is_of = |peer: &&Candidate| {
                (peer.serves(RangeMode::Replay, next), peer.serves(RangeMode::Delta, next)) == serves
            };
            let (proven, strangers): (Vec<_>, Vec<_>) =
                self.inputs.peers.iter().filter(is_of).partition(|peer| peer.is_proven);
            let sum = |peers: &[&Candidate]| peers.iter().map(|peer| peer.bytes_per_second).sum::<f64>();
            // Strangers promise; all that serve the same are worth one peer. A node that begins knows nobody: if all were worth one, it would
            // leave one mode's peers without work.
            sum(&proven) + sum(&strangers) / strangers.len().max(1) as f64
        };
        let supply =
            Supply { replay: rate((true, false)), delta: rate((false, true)), either: rate((true, true)) };
        let (replayed, price) =
            price::best_mix(&self.sizes(), self.inputs.costs, &self.inputs.machine, &supply);
        Way { replayed: Some(replayed), price, seconds: price.seconds * gap as f64, ..way }
    }

    /// The cost of `gap` batches behind a batch in a mode, if it is allowed and a peer serves the first of them.
    fn way(&self, mode: RangeMode, behind: BatchNumber, gap: u64) -> Option<Way> {
        let named = match mode {
            RangeMode::Replay => Mode::Replay,
            RangeMode::Delta => Mode::Delta,
        };
        let next = behind.next();
        let serving = self.inputs.peers.iter().filter(|peer| peer.serves(mode, next));
        let (count, rate) = serving.fold((0, 0.0), |(n, rate), peer| (n + 1, rate + peer.bytes_per_second));
        if count == 0 || !self.allows(named) {
            return None;
        }
        let price = price::batch(mode, &self.sizes(), self.inputs.costs, &self.inputs.machine, rate);
        Some(Way { mode, price, seconds: price.seconds * gap as f64, replayed: None })
    }

    fn sizes(&self) -> Sizes {
        self.inputs.sizes.copied().unwrap_or_else(|| Sizes::of_header(200.0, 24_000.0, 16_000.0))
    }

    fn follow(&self, target: BatchNumber, way: Way) -> Plan {
        let gap = target.since(self.inputs.head);
        let ms = |way: &Way| {
            format!("{} {:.2} ms a batch, bound by {}", way.mode, way.price.seconds * 1e3, way.price.bound)
        };
        let other = match way.mode {
            RangeMode::Replay => self.way(RangeMode::Delta, self.inputs.head, gap),
            RangeMode::Delta => self.way(RangeMode::Replay, self.inputs.head, gap),
        };
        let reason = match (other, way.replayed) {
            (None, _) => format!("{}; nothing else is served or allowed", ms(&way)),
            (Some(_), None) if gap <= HEAD_GAP && way.mode == RangeMode::Replay => {
                "at the head batches are executed".into()
            }
            (Some(other), None) => format!("{}; {}", ms(&way), ms(&other)),
            (Some(_), Some(replayed)) => format!(
                "replay of {:.0} % of the batches beside deltas of the others {:.2} ms a batch, bound by {}",
                100.0 * replayed,
                way.price.seconds * 1e3,
                way.price.bound
            ),
        };
        let plan = self.plan(Step::Range(way.mode), target, way.seconds, Some(way.price.bound), reason);
        Plan { replayed: way.replayed, ..plan }
    }
}

#[cfg(test)]
mod tests;
