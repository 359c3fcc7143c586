//! Compares all ways to the target by what each would take, so that operators see why one is taken.

use serde::{Deserialize, Serialize};
use slipstream_types::BatchNumber;

use super::{
    Inputs, Plan, PlanStep, Planner, RangeMode, Stage, WIDE_GAP,
    leap::Leap,
    price::{Bound, Price},
};
use crate::config::{Mode, SyncConfig};

/// A way from the committed head to the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Every batch is executed.
    Replay,
    /// Every batch is applied by its delta.
    Delta,
    /// A share of the batches is executed, the others are applied.
    Mixed,
    /// The range delta up to a snapshot, and then the batches behind it.
    RangeDelta,
    /// A snapshot, and then the batches behind it.
    Snapshot,
}

impl Way {
    /// The way that follows a range in `mode`.
    pub(crate) fn of(mode: RangeMode) -> Way {
        match mode {
            RangeMode::Replay => Way::Replay,
            RangeMode::Delta => Way::Delta,
        }
    }

    /// The way's serialized name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Replay => "replay",
            Way::Delta => "delta",
            Way::Mixed => "mixed",
            Way::RangeDelta => "range_delta",
            Way::Snapshot => "snapshot",
        }
    }
}

impl Plan {
    /// The way that this plan takes; `None` if the plan follows nothing.
    pub(crate) fn way(&self) -> Option<Way> {
        match self.step {
            PlanStep::Idle | PlanStep::Stuck => None,
            PlanStep::Range(_) if self.replayed.is_some() => Some(Way::Mixed),
            PlanStep::Range(mode) => Some(Way::of(mode)),
            PlanStep::Snapshot(_) => Some(Way::Snapshot),
            PlanStep::RangeDelta(_) => Some(Way::RangeDelta),
        }
    }
}

/// What one way would take.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WayStatus {
    /// The way.
    pub way: Way,
    /// Seconds from the committed head to the target, including all work in flight; `None` if no peer makes the way
    /// possible.
    pub seconds: Option<f64>,
    /// Its bottleneck.
    pub bound: Option<Bound>,
    /// The snapshot that it leads to.
    pub snapshot: Option<BatchNumber>,
    /// Why it is impossible or excluded; `None` if the node may take it.
    pub why_not: Option<String>,
}

/// The ways to the target, as they stand.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PlanStatus {
    /// Batches between the committed head and the target.
    pub batches: u64,
    /// Transactions in them: exact where headers are known, otherwise estimated from other batches.
    pub transactions: u64,
    /// Gas that they use, likewise.
    pub gas: u64,
    /// Each way; empty at the target.
    pub ways: Vec<WayStatus>,
    /// The batches in flight, in order, alike ones together; the first 32 groups.
    pub ranges: Vec<RangesStatus>,
    /// What the node would do if it restarted without a ledger; `None` while no peer can be asked.
    pub if_empty: Option<EmptyPlan>,
}

/// Consecutive batches in flight, all in the same stage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RangesStatus {
    /// The first batch.
    pub first: BatchNumber,
    /// The last batch.
    pub last: BatchNumber,
    /// How they are followed.
    pub way: Way,
    /// What they wait for, or what is done with them.
    pub stage: Stage,
}

/// The plan of a node without a ledger, beside the same peers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EmptyPlan {
    /// Transactions of the whole ledger.
    pub transactions: u64,
    /// The way that it would take.
    pub way: Option<Way>,
    /// Why it would take that way.
    pub reason: String,
    /// Each way.
    pub ways: Vec<WayStatus>,
}

/// Prices each way from the committed head to the target, even a way that the policy excludes. Empty at the target.
pub(crate) fn compare(policy: &SyncConfig, inputs: &Inputs<'_>) -> Vec<WayStatus> {
    let open = SyncConfig { mode: Mode::Auto, forbid: Vec::new(), ..policy.clone() };
    let planner = Planner { policy: &open, inputs };
    let Some(target) = planner.target() else { return Vec::new() };
    let ways = [
        planner.status_of_range(RangeMode::Replay, target),
        planner.status_of_range(RangeMode::Delta, target),
        planner.status_of_mixed(target),
        planner.status_of_leap(Way::RangeDelta, planner.range_delta_at(target)),
        planner.status_of_leap(Way::Snapshot, planner.snapshot_at(target)),
    ];
    let excluded = |way: Way| {
        let modes: &[Mode] = match way {
            Way::Replay => &[Mode::Replay],
            Way::Delta => &[Mode::Delta],
            Way::Mixed => &[Mode::Replay, Mode::Delta],
            Way::RangeDelta => &[Mode::RangeDelta],
            Way::Snapshot => &[Mode::Snapshot],
        };
        modes.iter().find_map(|mode| Planner { policy, inputs }.excluded(*mode))
    };
    let told = |status: WayStatus| {
        let why_not = excluded(status.way).or(status.why_not);
        WayStatus { why_not, ..status }
    };
    ways.map(told).to_vec()
}

impl WayStatus {
    fn possible(way: Way, Price { seconds, bound }: Price) -> WayStatus {
        WayStatus { way, seconds: Some(seconds), bound: Some(bound), snapshot: None, why_not: None }
    }

    fn impossible(way: Way, why: impl Into<String>) -> WayStatus {
        WayStatus { way, seconds: None, bound: None, snapshot: None, why_not: Some(why.into()) }
    }
}

impl Planner<'_> {
    /// Says why the policy excludes a mode, if it does.
    fn excluded(&self, mode: Mode) -> Option<String> {
        let excluded = || match self.policy.forbid.contains(&mode) {
            true => format!("sync.forbid names {}", mode.name()),
            false => format!("sync.mode is {}", self.policy.mode.name()),
        };
        (!self.allows(mode)).then(excluded)
    }

    fn status_of_range(&self, mode: RangeMode, target: BatchNumber) -> WayStatus {
        let way = Way::of(mode);
        let is_under_way = self.inputs.asked >= target && self.inputs.current == Some(mode);
        let by_batches = if is_under_way { Some(self.under_way()) } else { self.way(mode, target) };
        match by_batches {
            Some(by_batches) => WayStatus::possible(way, by_batches.price),
            None if self.inputs.asked >= target => {
                WayStatus::impossible(way, "all batches are already requested in another way")
            }
            None => {
                let next = self.inputs.asked.next();
                WayStatus::impossible(way, format!("no available peer serves batch {next} in this mode"))
            }
        }
    }

    fn status_of_mixed(&self, target: BatchNumber) -> WayStatus {
        let modes = [RangeMode::Replay, RangeMode::Delta].map(|mode| self.way(mode, target));
        let [Some(replay), Some(_)] = modes else {
            return WayStatus::impossible(
                Way::Mixed,
                "it needs both replay and deltas, but no available peer serves one of them",
            );
        };
        if target.since(self.inputs.head) < WIDE_GAP {
            return WayStatus::impossible(Way::Mixed, format!("fewer than {WIDE_GAP} batches are ahead"));
        }
        WayStatus::possible(Way::Mixed, self.mixed(&replay, target).price)
    }

    fn status_of_leap(&self, way: Way, leap: Option<Leap>) -> WayStatus {
        match leap {
            None => WayStatus::impossible(way, self.no_leap()),
            Some(_) if way == Way::Snapshot && !self.may_restore() => {
                WayStatus::impossible(way, "no available peer keeps batches")
            }
            Some(leap) => {
                let price = Price { seconds: leap.seconds(), bound: leap.bound() };
                WayStatus { snapshot: Some(leap.number), ..WayStatus::possible(way, price) }
            }
        }
    }
}
