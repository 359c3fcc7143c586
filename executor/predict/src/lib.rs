//! Predictors foretell a transaction's reads from its contracts' code, without hints or execution. The crate knows no
//! EVM: it reads a state through [`StateReader`](slipstream_storage::StateReader), and `slipstream_executor` uses it.
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
//! in two points. The source's predictors follow the jumps that were seen often; this crate's leave out paths that can
//! only revert. This crate also copies internal calls into their callers, so fewer jumps are left to resolve.
//!
//! * [`Predictors`]: the programs of contracts that are called often; [`Predictors::predict`] runs them for one
//!   [`TransactionRef`] in a block with the given [`BlockValues`]. `program_store` keeps the programs across restarts.
//! * [`build`]: makes a [`Program`] from bytecode. `opcode` and `fold` know the instructions, `blocks` finds the basic
//!   blocks, and `ssa` turns them into operations on values. `flow` finds which block follows which, `chain` joins the
//!   blocks that run as one, and `slice` finds the operations that keys depend on.
//! * `run`: executes programs, including calls between contracts. [`Predicted`] is a row or code that a prediction
//!   reports, and [`PredictStats`] how far the prediction came.
//! * [`JumpWatch`]: records the jumps of executions that analysis cannot resolve.
//! * [`PredictMode`], [`PredictConfig`], [`PredictLimits`]: how much is predicted, and at what cost.
//!
//! A predictor may be wrong. That costs reads, but never changes a result: predictors touch only caches. Loops, unknown
//! jumps and unpredictable instructions give fewer keys. Everything is bounded: analysis by the code's length, runs by
//! [`PredictLimits`], stored programs by [`PredictConfig`].
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
