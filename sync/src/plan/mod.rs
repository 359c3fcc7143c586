//! Decides the next step, as a pure function of the local head, the work ahead of it, the policy, the peers' offers and the costs here.

mod batches;
mod costs;
mod course;
mod leap;
mod load;
pub mod part;
pub mod price;
mod ways;

use std::fmt;

use slipstream_network::PeerId;
use slipstream_types::BatchNumber;

use self::{
    batches::ByBatches,
    price::{Bound, Costs, Machine, Supply},
};
pub(crate) use self::{
    costs::{KEY as COSTS_KEY, Measured},
    leap::{retain_vouched, told_rows},
    ways::compare,
};
pub use self::{
    course::{Amount, Course},
    load::{Before, Fetched, Load, Ratios},
    ways::{EmptyPlan, PlanStatus, RangesStatus, Way, WayStatus},
};
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
    /// From where on it serves deltas, if it does.
    pub delta_from: Option<BatchNumber>,
    /// From where on it serves deltas with bodies and receipts, if this node keeps them and it does.
    pub whole_from: Option<BatchNumber>,
    /// From where on it serves deltas alone, and so range deltas, if it does.
    pub range_delta_from: Option<BatchNumber>,
    /// Its snapshots, newest first, with its own word for their sizes.
    pub snapshots: Vec<SnapshotOffer>,
    /// Its rate in bytes per second, measured, or presumed while it is unknown; the peer book gives 0 then.
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

    /// Whether it serves a batch with bodies and receipts beside its delta.
    pub fn serves_whole(&self, number: BatchNumber) -> bool {
        self.head >= number && self.whole_from.is_some_and(|from| from <= number)
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
    /// Whether ranges that are not prepared yet are dropped, and their batches followed as the step says.
    pub replaces: bool,
    /// The highest certified batch that is known.
    pub target: BatchNumber,
    /// Seconds from the committed head to the target, with all that is under way.
    pub seconds: f64,
    /// The bottleneck, if it is known.
    pub bound: Option<Bound>,
    /// The work in these seconds; of a leap, that behind it.
    pub load: Load,
    /// The peers' rates that they rest on.
    pub supply: Supply,
    /// Why this and nothing else, for operators.
    pub reason: String,
}

/// Work under way between the committed head and the last batch that was asked for.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct InHand {
    /// What is left to do of it.
    pub load: Load,
    /// Whether any of it came.
    pub came: bool,
    /// The last batch of it that is being prepared, or is further: these ranges are not followed in another mode any more.
    pub kept: BatchNumber,
    /// What is left to do up to that batch.
    pub kept_load: Load,
    /// The first range of it that did not come: how it is followed, and its first batch.
    pub awaited: Option<(RangeMode, BatchNumber)>,
}

/// The facts that a plan rests on.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The last committed batch.
    pub head: BatchNumber,
    /// The last batch that was asked for; the head if nothing is under way.
    pub asked: BatchNumber,
    /// What is under way between the two.
    pub in_hand: InHand,
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
    /// The work along the ledger.
    pub course: &'a Course,
    /// Compressed bytes of batches' parts.
    pub ratios: &'a Ratios,
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
/// The head is executed only if that takes less.
const HEAD_SECONDS: f64 = 1.0;
/// In gaps below this the modes are not mixed, and a leap takes more than [`LEAP_SECONDS`] of work to pay.
const WIDE_GAP: u64 = 64;
/// Batches whose work takes so long are worth a snapshot or a range delta, however few they are.
const LEAP_SECONDS: f64 = 2.0;
/// Another mode must be so much cheaper than the one in use.
const SWITCH: f64 = 0.8;
/// Another mode must be so much cheaper for ranges to be dropped that were asked for in the mode in use.
const REPLACE: f64 = 0.6;
/// And that must spare so much: near the end a request takes as long.
const REPLACE_SECONDS: f64 = 0.5;
/// Both modes at once must be so much cheaper than the cheaper one of them; and so much to go on with that.
const MIX: f64 = 0.8;
const STAY_MIXED: f64 = 0.9;
/// Most batches that a range delta spans: its headers come in one answer.
pub const RANGE_DELTA_BATCHES_MAX: u64 = slipstream_types::limits::HEADERS_MAX as u64;
/// Decides the next step.
///
/// Every way is priced from the committed head to the target, with all that is under way: what was fetched costs no network any more. In
/// the policy, `replay`, `delta`, `snapshot` and `range_delta` pin their way. A pinned snapshot or range delta is taken if one is ahead,
/// and then batches as with `auto`. If none can be had, the reason says why. `auto` takes the cheapest allowed way. If nobody keeps the
/// next batch, a snapshot is the only way on. It is then taken whatever it costs, except under a pinned mode that excludes snapshots.
pub fn decide(policy: &SyncConfig, inputs: &Inputs<'_>) -> Plan {
    Planner { policy, inputs }.decide()
}

struct Planner<'a> {
    policy: &'a SyncConfig,
    inputs: &'a Inputs<'a>,
}

impl RangeMode {
    fn other(self) -> RangeMode {
        match self {
            RangeMode::Replay => RangeMode::Delta,
            RangeMode::Delta => RangeMode::Replay,
        }
    }
}

impl Planner<'_> {
    fn decide(&self) -> Plan {
        let Inputs { head, asked, peers, .. } = *self.inputs;
        let Some(target) = self.target() else {
            let reason = match self.inputs.waypoint {
                _ if peers.is_empty() => "no peer can be asked".into(),
                waypoint if head < waypoint => format!("no peer has batch {waypoint}, the waypoint's, yet"),
                _ => "no peer has a newer batch".into(),
            };
            return self.plan(Step::Idle, head, 0.0, reason);
        };
        let way = self.by_batches(target);
        if let Some(plan) = self.leap(target, way.as_ref()) {
            return plan;
        }
        let plan = match way {
            Some(way) => self.follow(target, &way),
            None => match self.snapshot_at(target) {
                Some(leap) if self.may_restore() => {
                    let reason = format!("no peer keeps batch {} any more", asked.next());
                    self.take(Step::Snapshot(leap.number), target, &leap, reason)
                }
                _ => {
                    let reason =
                        format!("no connected peer serves batch {} as the policy asks", asked.next());
                    self.plan(Step::Stuck, target, 0.0, reason)
                }
            },
        };
        match self.unusable(target) {
            Some(why) => Plan { reason: format!("{why}; {}", plan.reason), ..plan },
            None => plan,
        }
    }

    /// The highest certified batch, if it is ahead.
    fn target(&self) -> Option<BatchNumber> {
        self.inputs.peers.iter().map(|peer| peer.head).max().filter(|target| *target > self.inputs.head)
    }

    fn plan(&self, step: Step, target: BatchNumber, seconds: f64, reason: String) -> Plan {
        Plan {
            step,
            replayed: None,
            replaces: false,
            target,
            seconds,
            bound: None,
            load: Load::default(),
            supply: Supply::default(),
            reason,
        }
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
}

#[cfg(test)]
mod tests;
