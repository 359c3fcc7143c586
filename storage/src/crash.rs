//! [`CrashPoint`]: the named moments at which a process may die; [`Faults`]: makes one of them happen.
//!
//! Everything that a store leaves on disk comes from a [`WriteStep`]; a crash point is the moment right before or right
//! after one. Tests and campaigns (`slipnet campaign storage`) end a process at each crash point and examine the
//! directory that it left. A store opened without faults has no wrapper around its backend.

use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use strum::IntoEnumIterator as _;

use crate::error::StorageError;

/// A change of a store's directory. Each write is atomic, so a crash falls before or after it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, strum::EnumIter, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum WriteStep {
    /// The database is created, or opened and read.
    Open,
    /// The genesis becomes the head.
    Initialize,
    /// A batch becomes the head.
    Commit,
    /// A certificate arrives after its batch, or the end of an epoch before its batch.
    PutCertificate,
    /// A named record is set, or some are removed.
    PutRecord,
    /// A state column that is not in use is emptied.
    Reclaim,
    /// A restore is recorded: a new one, or one that continues with a newer target.
    RestoreStart,
    /// A sorted file of rows is made durable beside the unused state column.
    RestoreSeal,
    /// A sorted file of rows is linked into the unused state column.
    RestoreRows,
    /// The progress is recorded, after the rows that it counts.
    RestoreChunk,
    /// Missing code is stored.
    RestoreCode,
    /// The restored state becomes the head.
    RestoreFinish,
    /// An abandoned restore is freed.
    RestoreDiscard,
    /// The head's state is frozen.
    MakeSnapshot,
    /// An old snapshot is freed.
    DropSnapshot,
    /// Notes the paths that a write is about to touch, for the next start.
    FrontierNote,
    /// The tree's upper part is written for the next start.
    FrontierSave,
    /// The batches below which no blob of a kind is served are recorded.
    PruneRecord,
    /// The files of one kind of blob that hold only pruned batches are dropped.
    PruneDrop,
    /// A sorted file of the rows before some batches is made durable beside the history.
    HistorySeal,
    /// The sorted file is linked into the history.
    HistoryRows,
    /// The batch up to which the history is sealed is recorded.
    HistoryRecord,
    /// Files of the history's log are dropped whose batches are all sealed, or from before the window.
    HistoryDrop,
    /// Wrong rows and code are repaired.
    Repair,
    /// Batches below the stored ones are added.
    Backfill,
    /// An earlier batch becomes the head.
    Rollback,
}

impl WriteStep {
    /// Every step of a store in use. [`WriteStep::Repair`] and [`WriteStep::Rollback`] happen only on a store that is
    /// not in use.
    pub fn of_use() -> impl Iterator<Item = WriteStep> {
        WriteStep::iter().filter(|step| !matches!(step, WriteStep::Repair | WriteStep::Rollback))
    }

    fn name(self) -> &'static str {
        self.into()
    }
}

/// A moment at which a process may die. As text: `before:commit`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CrashPoint {
    /// Nothing of the step is on disk.
    Before(WriteStep),
    /// All of the step is on disk, but its caller does not know yet.
    After(WriteStep),
}

impl CrashPoint {
    /// Every crash point of a store in use.
    pub fn all() -> impl Iterator<Item = CrashPoint> {
        WriteStep::of_use().flat_map(|step| [CrashPoint::Before(step), CrashPoint::After(step)])
    }
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CrashPoint::Before(step) => write!(f, "before:{}", step.name()),
            CrashPoint::After(step) => write!(f, "after:{}", step.name()),
        }
    }
}

/// Text that names no crash point.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a crash point: write one such as before:commit or after:restore-chunk")]
pub struct UnknownCrashPoint(String);

impl FromStr for CrashPoint {
    type Err = UnknownCrashPoint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        CrashPoint::all()
            .find(|point| point.to_string() == text)
            .ok_or_else(|| UnknownCrashPoint(text.to_owned()))
    }
}

/// The effect of passing a crash point for the n-th time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    /// The process ends at once, as if killed: no destructor runs.
    Abort,
    /// The step is reported as failed.
    Fail,
}

#[derive(Debug)]
struct Plan {
    point: CrashPoint,
    passing: u64,
    effect: Effect,
    passed: AtomicU64,
}

/// At most one fault, for [`crate::Store::open_with`]. Clones share the count, so that it can span several stores.
#[derive(Clone, Debug, Default)]
pub struct Faults(Option<Arc<Plan>>);

impl Faults {
    /// No faults, as in every node.
    pub fn none() -> Faults {
        Faults(None)
    }

    /// Ends the process when a point is passed for the `passing`-th time, counted from 1.
    pub fn abort_at(point: CrashPoint, passing: u64) -> Faults {
        Self::plan(point, passing, Effect::Abort)
    }

    /// Makes a step fail with an I/O error when a point is passed for the `passing`-th time, counted from 1. Before the step,
    /// nothing of it is written; after it, everything is.
    pub fn fail_at(point: CrashPoint, passing: u64) -> Faults {
        Self::plan(point, passing, Effect::Fail)
    }

    fn plan(point: CrashPoint, passing: u64, effect: Effect) -> Faults {
        Faults(Some(Arc::new(Plan { point, passing, effect, passed: AtomicU64::new(0) })))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Passes a crash point, and makes its fault if that is due.
    pub(crate) fn pass(&self, point: CrashPoint) -> Result<(), StorageError> {
        let Some(plan) = self.0.as_deref().filter(|plan| plan.point == point) else { return Ok(()) };
        if plan.passed.fetch_add(1, Ordering::AcqRel) + 1 != plan.passing {
            return Ok(());
        }
        match plan.effect {
            Effect::Abort => std::process::abort(),
            Effect::Fail => {
                let source = std::io::Error::other(format!("a planned fault at {point}"));
                Err(StorageError::io("write to", "the store".as_ref(), source))
            }
        }
    }
}
