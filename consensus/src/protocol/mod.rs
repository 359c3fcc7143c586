//! How validators agree: a certifying set with a fixed proposer.
//!
//! ```text
//!  proposer (validators[0])                     every other validator
//!      ── Standing ────────────────────────────────────────────▶
//!      ◀── Standing{certificate of the head, clock} ───────────   once at the start; the clocks every minute
//!  build, execute, record own vote + batch
//!      ── Propose{header, body, hints, parent certificate} ──▶  commit the parent, check, re-execute, record vote
//!      ◀── Vote{index, signature} ─────────────────────────────
//!  quorum: certificate, commit
//!      ── Decide{certificate} ─────────────────────────────────▶ commit the outcome held in memory
//! ```
//!
//! Safety needs nothing but two rules: a validator records its vote durably before it tells anybody, and never signs two
//! ledger infos of one number ([`record`]); and two quorums of n - u share an honest validator. Liveness needs the proposer
//! and a quorum. Eve's execute-verify protocol with its view change, which does without the fixed proposer, takes this
//! module's place later; `validator` around it stays.
//!
//! Everything here is plain data and decisions, no I/O: [`fixed`] is the machine that decides, `validator` drives it.

pub(crate) mod effects;
pub(crate) mod fixed;
pub(crate) mod messages;
pub(crate) mod record;
#[cfg(test)]
mod tests;
pub(crate) mod tip;
pub(crate) mod votes;
