//! The validators' protocol, searched state by state.
//!
//! The search runs [`slipstream_eve::Core`] itself, the code that validators run. There are three honest cores, each with a disk and a
//! driver that carries out effects at once. `stateright` explores everything that may happen to them within [`Bounds`]. It looks for a
//! state in which the protocol is unsafe, or from which the chain stops.
//!
//! ```text
//!  StatementSet: all that the honest said ──▶ liar: all that it can sign then
//!    │ any of it, in any order, any number of times, or never │
//!    └────────────▶ reaction: messages that make a core speak ◀┘ ◀── a second passes, it crashes
//!                        Core, driver, disk ──▶ more is said, a batch is committed
//! ```
//!
//! # What is bounded
//!
//! * Four validators, `u = r = 1`. Each is executor and verifier, so the liar lies as both.
//! * Batches and views: nobody builds a batch or enters a view above the last one.
//! * Crashes: up to the given number, between two steps, or within a step, before or after the step's record is
//!   durable.
//! * Silence: a core takes at most three silent messages before one that makes it speak. All four concern one outcome,
//!   or all concern orders, or all concern views.
//! * Work ends at once: a long execution has the same effect as an order that arrives late. Honest executors do not
//!   err.
//! * With [`Bounds::is_prompt`] orders of honest primaries arrive at once, and decided outcomes are fetched at once.
//!
//! Unbounded are the liar's messages and their number; losses, delays, repetitions and order of messages; and when each
//! validator loses patience.
//!
//! # What is looked for
//!
//! In every state, no number gets two certificates or two commits, whatever votes the liar could add to the given ones.
//! An honest validator commits only what it executed and a quorum certified. It signs at most one statement of a kind
//! for a number and view, and votes in no view that it left. No honest validator is convicted. A later view cannot
//! replace what an earlier one may have decided. An honest validator keeps what a quorum prepared. From some states
//! liveness must hold too: once messages arrive and the liar is silent, all honest validators commit a new batch. This
//! check tries one fair schedule of many, see `liveness`.
//!
//! # What makes it small
//!
//! The search computes a core's response to an input once, with the real [`slipstream_eve::Core`] and real signatures.
//! It looks the response up wherever the core is in the same state; [`slipstream_eve::Core::hash_conduct`] defines
//! sameness. Said messages form a growing set, so the network has no state. A core takes messages only when they make
//! it speak: see `reaction`. Every validator complains about every view from its beginning, and each complaint is heard
//! or not: see `node`.

mod archive;
mod bounds;
mod constants;
mod item;
mod liar;
mod liveness;
mod memo;
mod node;
mod node_state;
mod reaction;
mod report;
mod search;
mod statements;
#[cfg(test)]
mod tests;
mod violation;

pub use bounds::{Bounds, Options};
pub use report::{Counterexample, Report, SearchReport, check};
