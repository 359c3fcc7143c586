//! The validators' protocol, searched state by state.
//!
//! What is searched is [`slipstream_eve::Core`] itself, the code that validators run: three honest cores, each with a driver that does at once what
//! its core wants, and a disk. `stateright` walks through all that may happen to them within [`Bounds`], and looks for a state in which
//! the protocol is unsafe, or from which the chain does not go on.
//!
//! ```text
//!  Said: all that the honest said ──▶ liar: all that it can sign then
//!    │ any of it, in any order, any number of times, or never │
//!    └───────────────▶ react: messages that make a core speak ◀┘ ◀── a second passes, it crashes
//!                        Core, driver, disk ──▶ more is said, a batch is committed
//! ```
//!
//! # What is bounded
//!
//! * Four validators, `u = r = 1`. Each is executor and verifier, so that the one that lies does so as both.
//! * Batches and views: nobody makes a batch above the last one, and nobody goes on to a view above the last one.
//! * Crashes: as many as are said, between two steps, or in the middle of one before or after its record is durable.
//! * Silence: a core takes at most three messages without a word before one that makes it speak, all four of them on one outcome, on orders,
//!   or on views.
//! * Work ends at once: an execution that takes long is an order that comes late. Honest executors do not err.
//! * With [`Bounds::is_prompt`] orders of honest primaries come at once, and what is decided is fetched at once.
//!
//! What the liar says and how often, what is lost, delayed, repeated or reordered, and who loses patience when, is not bounded.
//!
//! # What is looked for
//!
//! In every state: no two batches of one number can be certified from the votes that were given and all that the liar could add, or are committed; no
//! honest validator signs two statements of one kind for one number and view, or votes in a view that it left; nobody honest is
//! convicted; what may be decided in a view cannot be replaced in a later one; what a quorum prepared somebody honest keeps. From one state in so
//! many: once messages arrive and the liar is silent, all honest validators commit a batch that none of them had. That is one fair
//! schedule, see `live`, not all of them.
//!
//! # What makes it small
//!
//! What a core makes of an input is computed once ([`slipstream_eve::Core`] and all signatures are real) and looked up wherever it is in the same
//! state; see [`slipstream_eve::Core::hash_conduct`] for what is the same. What was said is a set that grows, so that a network needs
//! no state. A core takes messages when they make it speak: see `react`. Everybody complains of every view from its beginning, and is heard
//! or not: see `node`.

mod bounds;
mod ground;
mod item;
mod liar;
mod live;
mod node;
mod place;
mod react;
mod report;
mod said;
mod search;
#[cfg(test)]
mod tests;
mod wrong;

pub use bounds::{Bounds, Options};
pub use report::{Found, Report, Row, check};
