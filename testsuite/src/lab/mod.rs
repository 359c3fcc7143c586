//! Devnets that outlive the command that starts them, several at a time: `slipnet up -d`, `down`, `status`, `logs`,
//! `stop`, `start` and `clean`.
//!
//! ```text
//!  slipnet up -d NAME ──▶ REGISTRY/NAME/plan.json ──▶ slipnet keep (the keeper) ──▶ Devnet, Links
//!                                                       │ holds REGISTRY/NAME/lock
//!  slipnet status, stop, start, down ──────────────────▶│ answers at REGISTRY/NAME/control
//! ```
//!
//! Nodes die with their parent, as everywhere in slipnet. The parent of a detached devnet's nodes is its keeper, which
//! leaves the shell's session and so keeps running.
//!
//! Invariants:
//! * A devnet runs exactly while its keeper holds the lock: process ids are not trusted.
//! * The end of a node ends no other. The keeper logs it, and `slipnet start NODE` starts the node again on its ports.
//! * Files stay until `clean`, which refuses a devnet that runs.

mod commands;
mod control;
mod keeper;
mod logs;
mod registry;
mod up;

pub use commands::LabCommand;
pub use control::{NodeState, State};
pub use registry::{Entry, Registry};
pub use up::Up;
