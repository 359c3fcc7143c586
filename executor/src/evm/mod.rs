//! The adapter to revm: no other module names revm's types.
//!
//! ```text
//!  Machine ── runs transactions ──▶ revm State (one cache per batch) ──misses──▶ Recorder ──▶ ExecutionState
//!     │                                   │ after                                 │ before
//!     └── finish ─────────────────────────┴─────────────── changes ───────────────┘──▶ Delta, Hints
//! ```
//! revm's `State` asks its database once per key and batch. So the recorder below `State` sees the working set in
//! first-use order. The working set becomes the hints. The recorder also sees every key's value before the batch.
//! Compared with the cache after the batch, these values give the net delta. The inputs of KECCAK256 are kept too
//! (`preimages`), because hints name the slots of mappings by these inputs.
//!
//! Callers name a batch's values by [`BatchEnv`], and the state below the recorder by [`ExecutionState`]. That state
//! may have analysed code, a recorder of jumps and an interrupt.
//!
//! On several threads, helpers run transactions ahead of their turn ([`Speculator`]) over [`Versions`]. The recorder
//! then also reads from [`Versions`]. [`Machine::accept`] checks whether a result of a transaction that ran ahead is
//! still valid.

mod adapter;
mod changes;
mod code;
mod env;
mod footprint;
mod interrupting;
mod listing;
mod machine;
mod observe;
mod precompiles;
mod preimages;
mod recorder;
mod speculate;
mod spoil;
mod state;
mod system_calls;
#[cfg(test)]
pub(crate) mod tests;
mod tracing;
mod transfers;
mod versions;
mod words;
mod working_set;

pub(crate) use adapter::is_precompile;
pub use adapter::{check_static, precompiles};
pub(crate) use changes::Changes;
pub use code::AnalysedCode;
pub use env::{BatchEnv, SpecId};
pub(crate) use footprint::Spends;
pub(crate) use listing::Listing;
pub(crate) use machine::{ExecutedTransaction, FinishedBatch, Machine, RunError};
pub(crate) use speculate::{SpeculativeReads, Speculator, Verdict};
pub use spoil::ConcurrencyBug;
pub use state::ExecutionState;
pub use tracing::TraceTypes;
pub(crate) use tracing::{CallsTracer, GethTracer, ReplayTracer, Tracer, Tracing};
pub(crate) use transfers::Transfers;
pub(crate) use versions::Versions;
pub use working_set::ReadSet;
pub(crate) use working_set::WorkingSet;
