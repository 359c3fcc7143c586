//! Predictors foretell the reads of a transaction without hints and without executing it. The crate knows no EVM: it
//! reads a state through [`StateReader`](slipstream_storage::StateReader), and `slipstream_executor` uses it.
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
//! * [`Predictors`]: the programs of contracts that are called often; [`Predictors::predict`] runs them for one
//!   [`TransactionRef`] in a block of some [`BlockValues`]. `program_store` keeps the programs across restarts.
//! * [`build`]: makes a [`Program`] from bytecode. `opcode` and `fold` know the instructions, `blocks` the basic blocks,
//!   `ssa` their operations on values, `flow` which block follows which, `chain` the blocks that run as one, and `slice`
//!   which of their operations keys depend on.
//! * `run`: executes programs, with calls between contracts; [`Predicted`] is what it names, [`PredictStats`] how far it
//!   came.
//! * [`JumpWatch`]: records the jumps of executions that analysis cannot resolve.
//! * [`PredictMode`], [`PredictConfig`], [`PredictLimits`]: how much is predicted, and at what cost.
//!
//! A predictor may be wrong. That costs reads, but never changes a result: predictors touch only caches. Loops, unknown
//! jumps and unpredictable instructions give fewer keys. Everything is bounded: analysis by the code's length, runs by
//! [`PredictLimits`], the programs kept by [`PredictConfig`].
//!
//! ```
//! use slipstream_predict::{PredictConfig, Predictors, build};
//!
//! // PUSH1 7 SLOAD POP STOP
//! let program = build(&[0x60, 7, 0x54, 0x50, 0x00], &[]);
//! assert!(program.size_bytes() < 200);
//! assert!(Predictors::new(PredictConfig::default()).is_empty());
//! ```

mod blocks;
mod chain;
mod config;
mod constants;
mod flow;
mod fold;
mod opcode;
mod predictors;
mod program;
mod program_store;
mod request;
mod run;
mod slice;
mod ssa;
mod stats;
#[cfg(test)]
mod tests;
mod watch;

pub use config::{PredictConfig, PredictLimits, PredictMode};
pub use flow::JumpEdge;
pub use predictors::Predictors;
pub use program::{CODE_BYTES_MAX, Program, build};
pub use request::{BlockValues, TransactionRef};
pub use stats::{PredictStats, Predicted, StopReason};
pub use watch::JumpWatch;
