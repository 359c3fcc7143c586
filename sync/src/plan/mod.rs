//! Decides the next step, as a pure function of the local head, the work ahead, the policy, the peers' offers and the
//! costs here.
//!
//! Six types name similar things:
//!
//! | Type | What it is | Who shows it |
//! |------|------------|--------------|
//! | [`Mode`] | the operator's policy (`sync.mode`, `sync.forbid`) | the configuration; `mode` of the status |
//! | [`RangeMode`] | how one range is followed: executed, or applied by its delta | only log lines and reasons |
//! | [`PlanStep`] | the planner's decision, as an order to the engine | nobody: internal |
//! | [`Way`] | a complete way from the head to the target | `plan` of the status, `slipstream plan` |
//! | [`Phase`](crate::Phase) | what the node does now | `phase` of the status, metrics |
//! | [`PeerMode`](part::PeerMode) | what one peer is asked for next | each peer's `mode` in the status |

mod batches;
mod costs;
mod course;
mod leap;
mod load;
pub mod part;
pub mod price;
mod stage;
mod ways;

use std::fmt;

use slipstream_network::PeerId;
use slipstream_types::BatchNumber;

use self::{
    batches::BatchWay,
    price::{Bound, Costs, Machine, Supply},
};
pub(crate) use self::{
    costs::{KEY as COSTS_KEY, MeasuredCosts},
    leap::{retain_vouched, told_rows},
    ways::compare,
};
pub use self::{
    course::{Amount, Course},
    load::{Load, NextStage, OptionalParts, Ratios},
    stage::Stage,
    ways::{EmptyPlan, PlanStatus, RangesStatus, Way, WayStatus},
};
use crate::{
    config::{Mode, SyncConfig},
    protocol::SnapshotOffer,
};

/// A peer that may be asked, as the planner sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// Key of the peer.
    pub peer: PeerId,
    /// Number of its certified head.
    pub head: BatchNumber,
    /// First batch that it serves for replay; `None` if it serves none.
    pub replay_from: Option<BatchNumber>,
    /// First batch that it serves as a delta; `None` if it serves none.
    pub delta_from: Option<BatchNumber>,
    /// First batch that it serves with delta, body and receipts; `None` if it serves none or this node does not keep
    /// them.
    pub whole_from: Option<BatchNumber>,
    /// First batch whose delta it keeps, and so the start of its range deltas; `None` if it keeps none.
    pub range_delta_from: Option<BatchNumber>,
    /// Its snapshots, newest first. Their sizes are unproven claims.
    pub snapshots: Vec<SnapshotOffer>,
    /// Its rate in bytes per second: measured, or presumed while unknown. The peer book gives 0 for an unknown rate.
    pub bytes_per_second: f64,
    /// Whether it lately delivered an answer that passed its checks. Promises alone prove nothing.
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
    /// Whether it serves batch `number` in `mode`.
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

    /// Whether it offers the snapshot at batch `number`.
    pub fn offers(&self, number: BatchNumber) -> bool {
        self.snapshots.iter().any(|offered| offered.number == number)
    }
}

/// The next thing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlanStep {
    /// The node is at the head, or no peer can be asked.
    Idle,
    /// Certified batches are ahead, but no peer serves the next one as the policy asks.
    Stuck,
    /// Follow batches in a mode.
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
    pub step: PlanStep,
    /// The share of batches to replay, if they are followed in both modes at once.
    pub replayed: Option<f64>,
    /// Whether to drop the ranges that are not prepared yet, and to follow their batches as the step says.
    pub replaces: bool,
    /// The highest certified batch that is known.
    pub target: BatchNumber,
    /// Seconds from the committed head to the target, including all work in flight.
    pub seconds: f64,
    /// The bottleneck, if it is known.
    pub bound: Option<Bound>,
    /// The work in these seconds; for a leap, the work behind its snapshot.
    pub load: Load,
    /// The peers' rates that `seconds` assumes.
    pub supply: Supply,
    /// Why this step and no other, for operators.
    pub reason: String,
}

/// Work in flight between the committed head and the last requested batch.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct WorkInFlight {
    /// What is left of it.
    pub load: Load,
    /// Whether any of it has arrived.
    pub came: bool,
    /// The last batch of it that is in preparation or further. Ranges up to it keep their mode.
    pub kept: BatchNumber,
    /// What is left of the work up to `kept`.
    pub kept_load: Load,
    /// The first range that has not arrived: its mode and its first batch.
    pub awaited: Option<(RangeMode, BatchNumber)>,
}

/// The facts that a plan rests on.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The last committed batch.
    pub head: BatchNumber,
    /// The last requested batch; the head if nothing is in flight.
    pub asked: BatchNumber,
    /// The work in flight between the two.
    pub in_flight: WorkInFlight,
    /// The snapshot of an unfinished restore.
    pub begun: Option<BatchNumber>,
    /// The batch of the operator's waypoint. Until the ledger has passed it, nothing vouches for the ledger.
    pub waypoint: BatchNumber,
    /// The peers that may be asked, best first.
    pub peers: &'a [Candidate],
    /// Number of snapshots that peers claimed and failed to send; `peers` omits them.
    pub given_up: usize,
    /// Rows of the state, estimated by a restore in progress from the rows that it proved. No snapshot counts as
    /// smaller, whatever its peers claim. 0 if unknown.
    pub rows_known: f64,
    /// Maximum number of batches of a range delta for this node; at most [`RANGE_DELTA_BATCHES_MAX`].
    pub range_delta_max: u64,
    /// The work along the ledger.
    pub course: &'a Course,
    /// Compression ratios of the batches' parts.
    pub ratios: &'a Ratios,
    /// Costs of work on this machine.
    pub costs: &'a Costs,
    /// Cores and settings of this machine.
    pub machine: Machine,
    /// The mode of the last range.
    pub current: Option<RangeMode>,
    /// Whether the other mode was used as well.
    pub is_mixed: bool,
}

/// A gap of at most this many batches counts as the head. There a node should learn of a batch soon, and should have
/// executed it.
const HEAD_GAP: u64 = 16;
/// At the head, the node executes only if that takes less than this.
const HEAD_SECONDS: f64 = 1.0;
/// In gaps below this, the modes are not mixed, and a leap pays only from [`LEAP_SECONDS`] of work on.
const WIDE_GAP: u64 = 64;
/// Batches with this much work are worth a snapshot or a range delta, as long as they are more than [`HEAD_GAP`].
const LEAP_SECONDS: f64 = 2.0;
/// To switch modes, the other mode must take less than this share of the current mode's time.
const SWITCH: f64 = 0.8;
/// To drop requested ranges for the other mode, that mode must take less than this share of the time.
const REPLACE: f64 = 0.6;
/// To drop requested ranges, the other mode must also save at least this much: near the end a request takes as long.
const REPLACE_SECONDS: f64 = 0.5;
/// Both modes at once must take less than this share of the cheaper mode's time; `STAY_MIXED` applies once they are
/// mixed.
const MIX: f64 = 0.8;
const STAY_MIXED: f64 = 0.9;
/// Maximum number of batches that a range delta spans, because its headers come in one answer.
pub const RANGE_DELTA_BATCHES_MAX: u64 = slipstream_types::limits::HEADERS_MAX as u64;
/// Decides the next step.
///
/// Every way is priced from the committed head to the target, including all work in flight: fetched ranges cost no
/// network any more. In the policy, `replay`, `delta`, `snapshot` and `range_delta` pin their way. A pinned snapshot or
/// range delta is taken if one is ahead; the batches after it follow as with `auto`. If none is available, the reason
/// says why. `auto` takes the cheapest allowed way. If no peer keeps the next batch, a snapshot is the only way on. A
/// snapshot is then taken at any price, unless a pinned mode excludes snapshots.
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
                _ if peers.is_empty() => "no peer is available".into(),
                waypoint if head < waypoint => {
                    format!("no peer has reached the waypoint's batch {waypoint} yet")
                }
                _ => "no peer has a newer batch".into(),
            };
            return self.plan(PlanStep::Idle, head, 0.0, reason);
        };
        let way = self.by_batches(target);
        if let Some(plan) = self.leap(target, way.as_ref()) {
            return plan;
        }
        let plan = match way {
            Some(way) => self.follow(target, &way),
            None => match self.snapshot_at(target) {
                Some(leap) if self.may_restore() => {
                    let reason = format!("no peer keeps batch {}", asked.next());
                    self.take(PlanStep::Snapshot(leap.number), target, &leap, reason)
                }
                _ => {
                    let reason = format!(
                        "no connected peer serves batch {} in a way that the policy allows",
                        asked.next()
                    );
                    self.plan(PlanStep::Stuck, target, 0.0, reason)
                }
            },
        };
        match self.unusable(target) {
            Some(why) => Plan { reason: format!("{why}; {}", plan.reason), ..plan },
            None => plan,
        }
    }

    /// Returns the highest certified batch, if it is ahead of the head.
    fn target(&self) -> Option<BatchNumber> {
        self.inputs.peers.iter().map(|peer| peer.head).max().filter(|target| *target > self.inputs.head)
    }

    fn plan(&self, step: PlanStep, target: BatchNumber, seconds: f64, reason: String) -> Plan {
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
