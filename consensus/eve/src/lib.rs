//! Eve: validators execute first, ahead and in parallel, and agree on the outcome afterwards.
//!
//! ```text
//!  primary of the view             executors (every validator)              verifiers (every validator)
//!  builds, executes ── Order ────▶ execute it on the outcome before
//!                                  ── Verify{order, outcome} ─────────────▶ max(u, r) + 1 equal tokens, the batch before is decided
//!                                                                           ── Prepare ──▶ all    n - u: remember it durably
//!                                                                           ── Commit ───▶ all    n - u: the certificate
//!                                  equal outcome: commit; another: fetch the agreed one
//!
//!  n - u complaints ─▶ ViewChange{highest decision, highest prepared} ─▶ the next primary: NewView{n - u of them} ─▶ continue
//! ```
//!
//! The protocol is that of Kapritsos et al., "All about Eve: Execute-Verify Replication for Multi-Core Servers" (OSDI
//! 2012). Its thresholds are in the [`ValidatorSet`]: it stays live with up to `u` failures and safe with up to `r`
//! lies. It differs from the paper in three points. Validators agree on one batch after the other, while they already
//! execute later ones. A view ends only when a quorum complains about it. Every retransmission answers a [`Status`].
//!
//! [`Core`] is one validator, without store, clock, lock, task or thread. Its driver feeds it one input after another. The core
//! returns what to do at once ([`Core::next_effect`]), and what to emit once a record is durable ([`Core::flush`]).
//!
//! # Why no two batches of one number are certified
//!
//! Let `T` be decided at number `k` in view `v`: a quorum (`n - u`) committed to it. The honest of them first recorded that a
//! quorum prepared it. Two quorums share `r + 1` validators, one of them honest.
//!
//! 1. *In one view* a quorum cannot prepare two outcomes of one number. The quorums would share an honest validator,
//!    which would have signed two prepares of one number and view. Before it sends a prepare, the prepare is on record,
//!    its driver keeps the outcome, or the view adopted the outcome. In each case it finds out after a restart what it
//!    may have sent.
//! 2. *In a later view* `w`, by induction over the views between, a quorum prepares only `T` at `k`. View `w` begins
//!    with the view changes of a quorum that left all views below `w`. An honest validator of it committed to `T` in
//!    `v`, before it left `v`. So its view change names a decision of `k` or above, or an outcome prepared at `k` or
//!    above in a view from `v` on. If that outcome is of `k`, it is `T` by the induction. If it is above `k`, then `k`
//!    is decided, because honest validators prepare only on decided batches. Either way [`NewView::prepared`] and
//!    [`NewView::decided`] leave only `T` to prepare at `k`.
//! 3. A prepared batch has an outcome that some honest validator can show. `max(u, r) + 1` executors sent its token,
//!    and one of them is honest. That one made the outcome durable before it sent the token, and keeps it until the
//!    number is decided and committed.
//!
//! # Why the chain makes progress
//!
//! Assume that at most `u` validators fail. A validator that expects a batch and gets none complains. `max(u, r) + 1` complaints
//! make everybody complain, and a quorum of complaints ends the view. Patience doubles with every view without a decision, so views
//! eventually outlast message delays. Of `n` views in a row, each validator leads one. A lone complaint ends no view: its validator
//! stays until a quorum complains.

mod agreement;
mod change;
mod conduct;
mod core;
mod effect;
mod memory;
mod message;
mod misconduct;
mod ordering;
mod planted;
mod record;
mod setup;
mod slot;
mod status;
#[cfg(test)]
mod tests;

#[cfg(doc)]
use slipstream_types::ValidatorSet;

#[cfg(feature = "planted")]
pub use self::planted::{Fault, plant};
pub use self::{
    core::Core,
    effect::{Effect, Flush, NoOutcome, Output, Timer, To, Work},
    memory::Silence,
    message::{
        Ballot, Evidence, Message, NewView, Order, Prepared, Signatures, SignedOrder, Status, Verify,
        ViewChange, Vote,
    },
    record::Record,
    setup::{Kept, Outcome, Settings, Setup},
};
