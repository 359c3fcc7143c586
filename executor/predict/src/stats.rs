//! [`Predicted`]: a row or code that a prediction reports. [`PredictStats`]: how far the prediction came.

use slipstream_types::{Digest, StateKey};

/// A row or code that execution will probably read or change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Predicted {
    /// A row that execution will probably read.
    Key(StateKey),
    /// Code, by its hash.
    Code(Digest),
    /// A row that execution will probably change as well. Reported last; the row was reported as a key before.
    Change(StateKey),
}

/// Counts of one prediction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PredictStats {
    /// Number of rows reported.
    pub keys: u64,
    /// Number of codes reported.
    pub codes: u64,
    /// Rows read to continue the prediction; each was also reported.
    pub reads: u64,
    /// Number of operations run.
    pub steps: u64,
    /// Why the prediction is incomplete; `None` if every path was followed to its end.
    pub stopped_because: Option<StopReason>,
}

/// Why a prediction is incomplete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// It reached [`PredictLimits::steps_max`](crate::PredictLimits::steps_max).
    Steps,
    /// It reached [`PredictLimits::memory_bytes_max`](crate::PredictLimits::memory_bytes_max).
    Memory,
    /// It reached [`PredictLimits::depth_max`](crate::PredictLimits::depth_max); the prediction continued after that call.
    Depth,
    /// It reached [`PredictLimits::keys_max`](crate::PredictLimits::keys_max).
    Keys,
    /// It reached [`PredictLimits::reads_max`](crate::PredictLimits::reads_max).
    Reads,
    /// The state could not be read. Execution will report the error.
    ReadFailed,
    /// A contract has no program; the prediction continued after its call.
    NoProgram,
    /// A jump had an unknown target, or the program has no block at the target.
    UnknownJump,
    /// A branch depended on an unknown value; one path was followed.
    UnknownBranch,
    /// A call's target is unknown; the prediction continued after the call.
    UnknownCall,
    /// The number of a slot is unknown; the prediction continued after the access.
    UnknownSlot,
}
