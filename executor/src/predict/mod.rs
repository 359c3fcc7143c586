//! Predictors foretell the reads of a transaction without hints and without executing it.
//!
//! ```text
//!  code ─▶ blocks ─▶ ssa + fold ─▶ flow ─▶ chain ─▶ slice ─▶ program      in the background, once per contract: build
//!                                   ▲ observed jumps           │
//!  transaction ──▶ accounts ──────────────────────────────▶  run ──▶ keys and code hashes, as soon as each is known: predict
//!                                                              ▲
//!                                              StateReader, which may be stale
//! ```
//!
//! Source: the diploma thesis "Speeding up the storage layer of blockchain clients with static analysis and speculative
//! execution of smart contracts" (Erigon; in Greek). The modules refer to its twelve steps. This implementation differs
//! in two points. The source's predictors follow the jumps that were seen often; these leave out paths that can only
//! revert. Internal calls are copied into their callers, so fewer jumps are left to resolve.
//!
//! [`Predictors::foretell`] does this for a whole batch. Its result has the form of hints, with each transaction's
//! reads and changes for a conflict graph.
//!
//! A predictor may be wrong. That costs reads, but never changes a result: predictors touch only caches. Loops, unknown
//! jumps and unpredictable instructions give fewer keys. Everything is bounded: analysis by the code's length, runs by
//! [`PredictLimits`], the programs kept by [`PredictConfig`].
//!
//! ```
//! use slipstream_executor::predict::{PredictConfig, Predictors, build};
//!
//! // PUSH1 7 SLOAD POP STOP
//! let program = build(&[0x60, 7, 0x54, 0x50, 0x00], &[]);
//! assert!(program.size_bytes() < 200);
//! assert!(Predictors::new(PredictConfig::default()).is_empty());
//! ```

mod batch;
mod blocks;
mod buffer;
mod calls;
mod chain;
mod constants;
mod flow;
mod fold;
mod opcode;
mod operations;
mod predictors;
mod program;
mod run;
mod saved;
mod slice;
mod ssa;
#[cfg(test)]
mod tests;
mod watch;
mod world;

use serde::{Deserialize, Serialize};
use slipstream_types::{Digest, StateKey};

pub use batch::Prediction;
pub use predictors::Predictors;
pub use program::{CODE_BYTES_MAX, Program, build};
pub use watch::JumpWatch;

/// How much is predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PredictMode {
    /// Predicts nothing.
    Off,
    /// Predicts the accounts in the transaction: sender, recipient and its code, fee recipient, access list,
    /// authorities.
    #[default]
    Accounts,
    /// As `Accounts`, and runs the called contracts' programs.
    Full,
}

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

/// A jump that execution made, as positions in the code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JumpEdge {
    /// Position of the JUMP or JUMPI in the code.
    pub from: u32,
    /// Position of the JUMPDEST in the code.
    pub to: u32,
}

/// Limits of the cost of one transaction's prediction. Keys found before a limit are valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PredictLimits {
    /// Operations of programs. A mainnet transaction takes some 330 on average; one in 700 reaches the default.
    pub steps_max: u64,
    /// Bytes of memory of all nested calls together.
    pub memory_bytes_max: usize,
    /// Depth of nested calls. It bounds the thread's stack too: a call takes less than 2 KiB of it.
    pub depth_max: usize,
    /// Maximum number of keys that one prediction names.
    pub keys_max: u64,
    /// Maximum number of rows read to continue the prediction.
    pub reads_max: u64,
}

impl Default for PredictLimits {
    fn default() -> Self {
        Self {
            steps_max: 100_000,
            memory_bytes_max: 1 << 20,
            depth_max: 24,
            keys_max: 4_096,
            reads_max: 4_096,
        }
    }
}

/// Tuning of predictors. It changes no execution result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PredictConfig {
    /// Maximum bytes of programs that are kept; the least recently used are evicted first.
    pub programs_bytes_max: usize,
    /// Calls of a contract after which its code is analysed.
    pub calls_min: u32,
    /// Whether a prediction that meets an unanalysed contract analyses it at once. That costs a read of the code, which
    /// execution needs too, and some milliseconds of analysis for a large contract.
    pub builds_at_once: bool,
    /// Whether the prediction reads slots to continue with their values. If not, it predicts only keys that depend on
    /// no value, and never waits.
    pub reads_slots: bool,
    /// Limits of one transaction's prediction.
    pub limits: PredictLimits,
}

impl Default for PredictConfig {
    fn default() -> Self {
        Self {
            programs_bytes_max: 64 << 20,
            calls_min: 4,
            builds_at_once: false,
            reads_slots: true,
            limits: PredictLimits::default(),
        }
    }
}

/// Counts of one prediction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PredictStats {
    /// Number of rows named.
    pub keys: u64,
    /// Number of codes named.
    pub codes: u64,
    /// Rows read to continue; each was named too.
    pub reads: u64,
    /// Number of operations run.
    pub steps: u64,
    /// Why the prediction is incomplete; `None` if every path was followed to its end.
    pub stopped_because: Option<StopReason>,
}

/// Why a prediction is incomplete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// It reached [`PredictLimits::steps_max`].
    Steps,
    /// It reached [`PredictLimits::memory_bytes_max`].
    Memory,
    /// It reached [`PredictLimits::depth_max`]; the prediction continued after that call.
    Depth,
    /// It reached [`PredictLimits::keys_max`].
    Keys,
    /// It reached [`PredictLimits::reads_max`].
    Reads,
    /// The state could not be read. Execution will report the error.
    ReadFailed,
    /// A contract has no program; the prediction continued after its call.
    NoProgram,
    /// A jump had an unknown target, or its program has no block there.
    UnknownJump,
    /// A branch depended on an unknown value; one path was followed.
    UnknownBranch,
    /// A call's target is unknown; the prediction continued after it.
    UnknownCall,
    /// The number of a slot is unknown; the prediction continued after the access.
    UnknownSlot,
}
