//! [`Progress`]: how far a node is with its present work, and when it is done.

use std::fmt;

use serde::{Deserialize, Serialize};
use slipstream_sync::{Phase, SyncStatus};

use crate::health::{Health, Reason};

/// How far a node is.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Progress {
    /// What it does.
    pub phase: Phase,
    /// What `done`, `total` and `per_second` count.
    pub unit: Unit,
    /// So many are done: the head, or the rows that are restored.
    pub done: u64,
    /// Of so many: the newest certified batch that is known, or about the rows of the snapshot; never below `done`.
    pub total: u64,
    /// The share that is done, 0 to 100.
    pub percent: f64,
    /// Units per second over the last ten seconds.
    pub per_second: f64,
    /// When it is done.
    pub eta: Eta,
}

/// What [`Progress`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Batches of the ledger, from the first on.
    Batches,
    /// Rows of the state.
    Rows,
}

impl Unit {
    /// As it is serialized.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Batches => "batches",
            Unit::Rows => "rows",
        }
    }
}

/// When a node is done with what it does.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Eta {
    /// There is nothing left to do.
    Done,
    /// There is, and nobody can tell yet how long it takes.
    Estimating,
    /// Nothing moves: the blocker says why.
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
