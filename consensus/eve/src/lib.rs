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
//! [`Core`] is one validator, without store, clock, lock, task or thread. Events go in through `handle_…(event, now)`.
//! Effects come out of [`Core::poll_effect`], outputs that need a durable record out of [`Core::poll_flush`], and the
//! time of the next call out of [`Core::poll_timeout`].
//!
//! # Why no two batches of one number are certified
//!
//! Let `T` be decided at number `k` in view `v`: a quorum (`n - u`) committed to it. Its honest members first recorded
//! that a quorum had prepared `T`. Two quorums share `r + 1` validators, one of them honest.
//!
//! 1. *In one view* a quorum cannot prepare two outcomes of one number. The quorums would share an honest validator,
//!    which would have signed two prepares of one number and view. A validator sends a prepare only in three cases: the
//!    prepare is on record, the driver keeps the outcome, or the view adopted the outcome. In each case the validator
//!    finds out after a restart what it may have sent.
//! 2. *In a later view* `w`, by induction over the views between, a quorum prepares only `T` at `k`. View `w` begins
//!    with the view changes of a quorum that left all views below `w`. One honest validator of that quorum committed to
//!    `T` in `v`, before it left `v`. So its view change names a decision at `k` or above, or an outcome prepared at
//!    `k` or above in a view from `v` on. An outcome prepared at `k` is `T` by the induction. If the outcome is above
//!    `k`, then `k` is decided, because honest validators prepare only on decided batches. Either way
//!    [`NewView::prepared`] and [`NewView::decided`] leave only `T` to prepare at `k`.
//! 3. A prepared batch has an outcome that some honest validator can show. `max(u, r) + 1` executors sent its token,
//!    and one of them is honest. That one made the outcome durable before it sent the token, and keeps it until the
//!    number is decided and committed.
//!
//! # Why the chain makes progress
//!
//! Assume that at most `u` validators fail. A validator that expects a batch and gets none complains. `max(u, r) + 1`
//! complaints make everybody complain, and a quorum of complaints ends the view. Patience doubles with every view
//! without a decision, so views eventually outlast message delays. Each validator leads one of `n` views in a row. A
//! lone complaint ends no view: its validator stays until a quorum complains.
//!
//! # One validator by hand
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use slipstream_eve::{Core, Effect, Order, Output, Settings, Setup, SignedOrder};
//! use slipstream_testkit::{info, key, set};
//! use slipstream_types::{Address, Digest};
//!
//! # let settings = Settings {
//! #     view_timeout_ms: 1_000, rotate_after: 0, protect_after: 0, protect_wait_ms: 0, recalls_votes: true,
//! # };
//! # let (certificate, record, outcomes, kept) = (None, None, Vec::new(), Vec::new());
//! // The only validator of its chain is a quorum by itself.
//! let (set, key, head, domain) = (set(0, &[key(1)], Address::ZERO), key(1), info(0, 0), Digest::ZERO);
//! # let setup = Setup {
//! #     set: set.clone(), key: key.clone(), head: head.clone(),
//! #     seat: 0, domain, settings, certificate, record, outcomes, kept,
//! # };
//! let now = Instant::now();
//! let mut core = Core::new(setup, now);
//!
//! // It is the primary: the driver builds batch 1.
//! let effect = std::iter::from_fn(|| core.poll_effect()).find(|it| matches!(it, Effect::Build { .. }));
//! let Some(Effect::Build { work, parent }) = effect else { panic!("{effect:?}") };
//!
//! // The driver reports the durable outcome. The decision comes out with the record to make durable before it.
//! let (epoch, view, number, transactions) = (head.epoch, work.view, work.number, Digest::ZERO);
//! let order = Order { epoch, view, number, parent, timestamp_ms: 100, transactions };
//! core.handle_built(work, SignedOrder::new(order, &domain, &key), info(0, 1), now);
//! let flush = core.poll_flush().unwrap();
//! let [Output::Commit(certificate)] = &flush.outputs[..] else { panic!("{:?}", flush.outputs) };
//! assert!(flush.record.is_some() && certificate.verify(&set).is_ok());
//!
//! // The driver calls again when the core's deadline has come, which sets the next one.
//! let deadline = core.poll_timeout().unwrap();
//! assert_eq!(deadline, now + Duration::from_millis(500));
//! core.handle_timeout(deadline);
//! assert!(core.poll_timeout() > Some(deadline));
//! ```

mod agreement;
mod change;
mod conduct;
mod core;
mod effect;
mod limits;
mod message;
mod misconduct;
mod ordering;
mod planted;
mod queries;
mod record;
mod recording;
mod setup;
mod silence;
mod slot;
mod state;
mod status;
#[cfg(test)]
mod tests;
mod timers;
mod vote_memory;

#[cfg(doc)]
use slipstream_types::ValidatorSet;

#[cfg(feature = "planted")]
pub use self::planted::{Fault, plant};
pub use self::{
    core::Core,
    effect::{Effect, Flush, NoOutcome, Output, Receivers, Timer, Work},
    message::{
        Ballot, Evidence, Message, NewView, Order, Prepared, Seat, Signatures, SignedOrder, Silence, Status,
        Verify, View, ViewChange, Vote,
    },
    record::{Amnesia, Record},
    setup::{KeptOutcome, Outcome, Settings, Setup},
};
