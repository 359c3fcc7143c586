//! Executes batches: runs Ethereum transactions through `revm`, over a view of the state that another crate owns.
//!
//! The crate decodes and checks transactions and runs them in order. It returns a batch's results: receipts, the *net*
//! state delta, the working set as hints, and gas. Its only I/O is to read through
//! [`StateReader`](slipstream_storage::StateReader); commits, roots and certificates belong to other crates. A
//! [`Session`] owns its threads and what a node keeps from batch to batch. Everything else keeps no state between
//! calls.
//!
//! ```text
//!  Body ─ decode_body ─▶ [Transaction] ─┐                                   ┌─▶ Receipts
//!  pool ─ build ────────────────────────┼─▶ execute ─▶ evm (revm) ─▶ Outcome┼─▶ Delta     ─ seal ─▶ header and blobs
//!  header ─ BatchEnv ───────────────────┘                 │  ▲              └─▶ Hints
//!                                                   reads ▼  │
//!      ExecutionState: storage::View │ WarmState (read ahead by hints) │ LayeredState (batches ahead) │ MemoryState
//! ```
//!
//! * `transaction` and `body`: decoding by the chain's rules; `senders` are recovered in parallel.
//! * `outcome`: following a batch ([`execute`]). `assemble`: proposing one ([`build`]). [`seal`](seal()): its header.
//!   `hinting`: its hints. [`validators`]: the validators after it.
//! * [`call`](call()), [`estimate_gas`], [`create_access_list`], [`Simulation`]: JSON-RPC's calls that are not
//!   transactions, each a [`CallRequest`] with [`Overrides`]. [`trace`]: tracers of batches and calls.
//! * `prefetch`: reading ahead by hints. `prediction`: foretells the reads and conflicts of a batch without hints;
//!   [`slipstream_predict`] foretells the reads of each transaction from the contracts' bytecode.
//! * `access`: the reads and writes of each transaction, and the conflicts between them. `parallel`: the same outcome
//!   on several threads ([`execute_parallel`]).
//! * `hot`: a cache of the rows that the last batches touched. `overlay`: batches that are executed but not committed.
//! * [`speed`]: gas per second of each kind of work on this machine.
//! * `session`: all of these combined, for following, voting and proposing. [`difference`](difference()): the first
//!   field in which two headers differ.
//! * `evm`: the only folder that knows revm, which changes every month. The folder has [`BatchEnv`], a batch's values
//!   as the EVM sees them, and [`ExecutionState`], a state that the EVM runs on.
//!
//! Invariants: the outcome is a function of state, environment and transactions alone. Hints, warm data, conflicts and
//! thread counts change how long execution takes, never its result. A result computed with values from hints is valid
//! once [`WarmState::confirm`] finds all of those values right. [`execute`] accepts every batch that [`build`] made: a
//! proposer's limits are the same or stricter. The crate trusts its [`ExecutionState`] alone.
//!
//! ```
//! use slipstream_executor::{BatchEnv, execute};
//! use slipstream_storage::MemoryState;
//! use slipstream_types::{Address, Genesis};
//!
//! let genesis = Genesis::default();
//! let state = MemoryState::from_genesis(&genesis).unwrap();
//! let env = BatchEnv::new(&genesis.chain, &genesis.header().unwrap(), 1_000, Address::ZERO);
//! let outcome = execute(&state, &env, &[]).unwrap();
//! assert!(outcome.delta.entries().is_empty());
//! ```

mod access;
mod access_list;
mod assemble;
mod body;
mod call;
mod config;
mod difference;
mod error;
mod evm;
mod hinting;
mod hot;
mod interrupt;
mod outcome;
mod overlay;
mod overrides;
mod parallel;
mod prediction;
mod prefetch;
mod request;
mod seal;
mod senders;
mod session;
mod simulate;
pub mod speed;
pub mod trace;
mod transaction;
pub mod validators;

pub use access::{AccessSet, announced_conflicts, conflicts};
pub use access_list::{AccessListOutcome, create_access_list};
pub use assemble::{
    AssembledBatch, BuildClock, BuildLimits, Candidates, NoTimeLimit, RemainingCapacity, build, build_by,
};
pub use body::{BodyError, decode_body, decode_each};
pub use call::{CALL_GAS_MAX, CallOutcome, EstimateError, call, estimate_gas};
pub use config::{ExecutorConfig, HintsMode};
pub use difference::{Difference, difference};
pub use error::{ExecuteError, MoveError, Rejection};
pub use evm::{
    AnalysedCode, BatchEnv, ConcurrencyBug, ExecutionState, ReadSet, SpecId, check_static, precompiles,
};
pub use hinting::{hint_context, open_hints, seal_hints, seal_hints_with_values};
pub use hot::{HotCache, HotStats};
pub use interrupt::Interrupt;
#[doc(hidden)]
pub use outcome::execute_silently;
pub use outcome::{Outcome, execute};
pub use overlay::{Layer, LayeredState, Overlay, State};
pub use overrides::{AccountOverride, BlockOverrides, Overrides, StorageOverride};
pub use parallel::{ForcedMethod, InjectedFaults, ParallelStats, Workers, execute_parallel};
pub use prediction::{Prediction, predict_batch};
pub use prefetch::{
    PrefetchBackend, PrefetchLimits, PrefetchRequest, PrefetchStats, Prefetcher, WarmState, WarmStats,
};
pub use request::CallRequest;
pub use seal::{BatchContext, SealedBatch, seal};
pub use senders::Senders;
pub use session::{
    Ahead, AheadUse, BatchExecution, ExecutionMethod, OrderedBatch, Session, SessionError, StallStats, Trust,
};
pub use simulate::{SimulateError, SimulatedBatch, SimulatedCall, Simulation, SimulationRules};
pub use transaction::{Admission, Envelope, Transaction, TransactionError};
