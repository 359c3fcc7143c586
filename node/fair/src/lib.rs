//! The machine is shared by callers who do not know each other. This crate decides who gets a thread, a place or bytes,
//! and when.
//!
//! ```text
//!   Origin (who) ─▶ Permits (how many at once) ─▶ Workers (threads below the node's own) ─▶ Leash (for how long)
//!                   Quota   (how many bytes)                                               └─▶ Turns (long work, in slices)
//! ```
//!
//! * [`Origin`]: the owner to which a caller is attributed. [`Permits`], [`Quota`]: an amount that origins share so that
//!   none of them can take what the others need.
//! * [`Blocking`]: a fixed number of places for work, each with a thread. [`Workers`]: the threads themselves.
//! * [`Leash`], [`Probation`], [`Turns`]: what a piece of work may still use once it has started.
//!
//! Invariant: a stranger that holds something gets more only if it then leaves free twice as much as it holds. The
//! number of its connections and requests does not matter.

mod blocking;
mod leash;
mod origin;
mod permits;
mod probation;
mod quota;
mod turns;
mod workers;

pub use self::{
    blocking::Blocking,
    leash::Leash,
    origin::{Origin, Vouched},
    permits::{Permit, Permits},
    probation::Probation,
    quota::{Quota, QuotaShare},
    turns::{Turn, Turns},
    workers::{Rank, WorkError, Workers, step_back},
};
