//! Predictors foretell the reads of a transaction without hints and execution.
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
//! execution of smart contracts" (Erigon; in Greek). The modules name its twelve steps. It differs in two points. The
//! source's predictors follow the jumps that were seen often; these leave out paths that can only revert. Internal calls are
//! copied into their callers, so fewer jumps are left to resolve.
//!
//! [`Predictors::foretell`] does this for a whole batch. Its result has the form of hints, with each transaction's reads and changes for a
//! graph of conflicts.
//!
//! A predictor may be wrong, and costs reads then, never a result: it touches caches only. Loops, unknown jumps and
//! instructions that cannot be foreseen give fewer keys. Everything is bounded: analysis by the code's length, runs by
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

pub use batch::Foretold;
pub use predictors::Predictors;
pub use program::{CODE_BYTES_MAX, Program, build};
pub use watch::JumpWatch;

/// How much is foretold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PredictMode {
    /// Nothing.
    Off,
    /// What stands in the transaction: sender, recipient and its code, fee recipient, access list, authorities.
    #[default]
    Accounts,
    /// What the called contracts' programs come to as well.
    Full,
}

/// A row or code that execution will probably read or change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Predicted {
    /// A row that it will probably read.
    Key(StateKey),
    /// Code, by its hash.
    Code(Digest),
    /// A row that it will probably change as well, told when all is known; it was told as a key before.
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

/// Limits the cost of one transaction's prediction. Keys found before a limit are good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PredictLimits {
    /// Operations of programs. A mainnet transaction takes some 330 on average; one in 700 reaches the default.
    pub steps_max: u64,
    /// Bytes of memory of all nested calls together.
    pub memory_bytes_max: usize,
    /// Nested calls. Bounds the thread's stack too: a call takes less than 2 KiB of it.
    pub depth_max: usize,
    /// Most keys that one prediction names.
    pub keys_max: u64,
    /// Rows read to go on.
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

/// Tuning of predictors. None of it changes a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PredictConfig {
    /// Bytes of programs that are kept; the least recently used go first.
    pub programs_bytes_max: usize,
    /// Calls of a contract after which its code is analysed.
    pub calls_min: u32,
    /// Whether a prediction that meets an unanalysed contract analyses it at once. That costs reading the code, which
    /// execution needs too, and some milliseconds of analysis for a large contract.
    pub builds_at_once: bool,
    /// Whether the prediction reads slots to continue with their values. If it does not, it foretells only keys that depend
    /// on no value, and never waits.
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

/// Counts what a prediction did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PredictStats {
    /// How many rows it named.
    pub keys: u64,
    /// How many codes it named.
    pub codes: u64,
    /// Rows read to go on; each was named too.
    pub reads: u64,
    /// How many operations it ran.
    pub steps: u64,
    /// Why there might have been more; none if everything was followed to its end.
    pub stopped_because: Option<StopReason>,
}

/// Why a prediction is incomplete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// It reached [`PredictLimits::steps_max`].
    Steps,
    /// It reached [`PredictLimits::memory_bytes_max`].
    Memory,
    /// [`PredictLimits::depth_max`]; the prediction went on behind that call.
    Depth,
    /// It reached [`PredictLimits::keys_max`].
    Keys,
    /// It reached [`PredictLimits::reads_max`].
    Reads,
    /// The state could not be read. Execution will say why.
    ReadFailed,
    /// A contract has no program; the prediction went on behind its call.
    NoProgram,
    /// A call went to where its program has no block; the prediction went on behind it.
    UnknownJump,
    /// A branch hung on an unknown value; one way was followed.
    UnknownBranch,
    /// A call's target is not known; the prediction went on behind it.
    UnknownCall,
    /// A slot is not known; the prediction went on behind it.
    UnknownSlot,
}
