//! [`Progress`]: how much of its present work a node has done, and when it will finish.

use std::fmt;

use serde::{Deserialize, Serialize};
use slipstream_sync::{Phase, SyncStatus};

use crate::health::{Health, Reason};

/// How much of its present work a node has done.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Progress {
    /// The present work.
    pub phase: Phase,
    /// The unit of `done`, `total` and `per_second`.
    pub unit: Unit,
    /// Units done: the head, or the restored rows.
    pub done: u64,
    /// Units in total: the newest known certified batch, or roughly the rows of the snapshot; never below `done`.
    pub total: u64,
    /// The completed share in percent, 0 to 100.
    pub percent: f64,
    /// Units per second over the last ten seconds.
    pub per_second: f64,
    /// When the work will be done.
    pub eta: Eta,
}

/// The unit in which [`Progress`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Batches of the ledger, from the first one on.
    Batches,
    /// Rows of the state.
    Rows,
}

impl Unit {
    /// Its serialised form.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Batches => "batches",
            Unit::Rows => "rows",
        }
    }
}

/// When a node will finish its present work.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Eta {
    /// Nothing is left to do.
    Done,
    /// Work is left, and its duration is not known yet.
    Estimating,
    /// There is no progress: the blocker says why.
    Blocked,
    /// At the present rate.
    Left {
        /// Seconds, 0 or more.
        seconds: f64,
    },
}

impl fmt::Display for Eta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Eta::Done => f.write_str("done"),
            Eta::Estimating => f.write_str("estimating"),
            Eta::Blocked => f.write_str("blocked"),
            Eta::Left { seconds } => write!(f, "{seconds:.0} s"),
        }
    }
}

impl Eta {
    fn of(health: &Health, seconds: Option<f64>) -> Eta {
        let reason = health.blocker.as_ref().map(|blocker| blocker.reason);
        match (reason, seconds.filter(|seconds| seconds.is_finite())) {
            (Some(Reason::NoPeers | Reason::Stalled | Reason::Halted | Reason::NoBatch), _) => Eta::Blocked,
            (_, Some(seconds)) if seconds > 0.0 => Eta::Left { seconds },
            (None, _) if health.behind_batches == 0 && health.eta_seconds == Some(0.0) => Eta::Done,
            _ => Eta::Estimating,
        }
    }
}

impl Progress {
    /// The progress of a node with this health.
    pub fn of(sync: &SyncStatus, health: &Health) -> Progress {
        let restore =
            sync.snapshot.as_ref().filter(|_| matches!(sync.phase, Phase::Snapshot | Phase::RangeDelta));
        let (unit, done, total, share, per_second, seconds) = match restore {
            Some(restore) => (
                Unit::Rows,
                restore.rows,
                restore.rows_total,
                restore.share,
                restore.rows_per_second,
                restore.eta_seconds,
            ),
            None => {
                let (done, total) = (sync.head.get(), sync.target.get());
                let share = if total == 0 { 0.0 } else { done as f64 / total as f64 };
                (Unit::Batches, done, total, share, sync.batches_per_second, health.eta_seconds)
            }
        };
        Progress {
            phase: sync.phase,
            unit,
            done,
            total: total.max(done),
            percent: (share * 100.0).clamp(0.0, 100.0),
            per_second,
            eta: Eta::of(health, seconds),
        }
    }
}
