//! Eve: validators execute first, ahead and in parallel, and agree on what came of it afterwards.
//!
//! ```text
//!  primary of the view             executors (every validator)              verifiers (every validator)
//!  builds, executes ── Order ────▶ execute it on the outcome before
//!                                  ── Verify{order, outcome} ─────────────▶ max(u, r) + 1 equal tokens, the batch before is decided
//!                                                                           ── Prepare ──▶ all    n - u: remember it durably
//!                                                                           ── Commit ───▶ all    n - u: the certificate
//!                                  equal outcome: commit; another: fetch what was agreed on
//!
//!  complaints of n - u ─▶ ViewChange{highest decision, highest prepared} ─▶ its primary: NewView{n - u of them} ─▶ go on
//! ```
//!
//! The protocol is that of Kapritsos et al., "All about Eve: Execute-Verify Replication for Multi-Core Servers" (OSDI 2012), with its
//! thresholds (`u` failures to stay live, `r` lies to stay safe, both in the [`ValidatorSet`]). What differs: a batch is agreed upon
//! after the one before it, while later ones are already executed; a view ends only when a quorum complains of it; and all
//! repetition is an answer to a [`Status`].
//!
//! [`Core`] is one validator. It has no store, clock, lock, task or thread: it is fed one input after another, and says what is to be
//! done at once ([`Core::next_effect`]) and what may be seen outside only after a record is durable ([`Core::flush`]).
//!
//! # Why no two batches of one number are certified
//!
//! Let `T` be decided at number `k` in view `v`: a quorum (`n - u`) committed to it, the honest of them after they recorded that a
//! quorum prepared it. Two quorums share `r + 1` validators, one of them honest.
//!
//! 1. *In one view* two outcomes of a number cannot both be prepared by a quorum: an honest validator of both would have signed two
//!    prepares of one number and view. It records its prepare before it says it.
//! 2. *In a later view* `w`: by induction over the views between, no quorum prepares anything but `T` at `k`. `w` begins with the word of a
//!    quorum that left all views below `w`. An honest one of it committed to `T` in `v`, before it left `v`; so it names a
//!    decision of `k` or above, or something prepared at `k` or above in a view from `v` on. If that is of `k`, it is `T` by the induction;
//!    if it is above `k`, then `k` is decided, because honest validators prepare only on what is decided. Either way
//!    [`NewView::prepared`] and [`NewView::decided`] leave nothing but `T` to be prepared at `k` by those who follow them.
//! 3. A prepared batch has an outcome that somebody can show: `max(u, r) + 1` said its token, one of them honest, and who says it has
//!    made the outcome durable before and keeps it until the number is decided and committed.
//!
//! # Why the chain goes on
//!
//! While at most `u` fail: whoever expects a batch and gets none complains, `max(u, r) + 1` complaints make everybody complain, and a quorum
//! of complaints ends the view. Patience doubles with every view without a decision, so that at some time the views are longer than messages
//! take, and every `n`th has each honest primary. A view that nobody else wants to end goes on with the one that complains: it does not leave
//! before a quorum complains.

mod agreement;
mod change;
mod conduct;
mod core;
mod effect;
mod message;
mod ordering;
mod planted;
mod record;
mod slot;
mod status;
#[cfg(test)]
mod tests;

#[cfg(doc)]
use slipstream_types::ValidatorSet;

#[cfg(feature = "planted")]
pub use self::planted::{Fault, plant};
pub use self::{
    core::{Core, Outcome, Settings, Setup},
    effect::{Effect, Flush, NoOutcome, Output, Timer, To, Work},
    message::{
        Ballot, Evidence, Message, NewView, Order, Prepared, Signatures, SignedOrder, Status, Verify,
        ViewChange, Vote,
    },
    record::Record,
};
