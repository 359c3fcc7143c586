//! The `slipstream` program as a library: wiring, command line, JSON-RPC, status and metrics.
//!
//! The crates below make all decisions. This one assembles them, supplies the real clock, key and sockets, and exposes
//! the node to operators and to Ethereum tools.
//!
//! ```text
//!  node.yaml, key, genesis ─▶ Node::start ─┬─▶ network ── Router ─┬─ SYNC ─▶ SyncServer ──┐
//!                                          │                      ├─ CONSENSUS ─▶ Validator ├─▶ Store
//!  ethers, cast ─ POST / ─▶ rpc ───────────┤                      ├─ TRANSACTIONS ─▶ Forwarder ─▶ Pool
//!  operators ─ /v1/status, /metrics ─▶ api ┘                      └─ mesh ─▶ Broadcaster ─▶ Follower ─┘
//! ```
//!
//! * [`node`]: the running parts, and the order in which they start and stop. [`tasks`]: every task has a name, an
//!   owner and an end.
//! * [`cli`]: the commands of `slipstream`, one module each.
//! * [`keys`], [`genesis_file`], [`lock`], [`operator_token`]: the files around a node. [`Log`]: log lines to standard
//!   error and to a file.
//! * [`health`]: whether a node is healthy, and if not, why. [`status`]: the node's state and activity,
//!   for operators and the log.
//! * [`events`]: the node's changes, for listeners.
//! * `rpc`: batches as Ethereum blocks. [`api`]: the HTTP side.
//!
//! Invariants: configuration, key, genesis and ports are checked before anything is written. Only one process at a time
//! uses a data directory. When a task panics or fails, the node stops and names the task.
//!
//! The node trusts its files and its operator. It distrusts its peers and callers: every request is bounded in size,
//! number and time.

mod addresses;
pub mod api;
mod archives;
mod bans_file;
mod barred;
mod blocking;
pub mod cli;
pub mod clock;
mod error;
pub mod events;
mod failure_notes;
mod fair;
pub mod genesis_file;
pub mod health;
mod json_list;
mod kept_file;
pub mod keys;
mod leash;
pub mod lock;
mod log;
mod mask;
mod mesh;
pub mod node;
mod open_files;
pub mod operator_token;
mod orders_file;
mod origin;
mod probation;
mod repair;
mod router;
mod rpc;
pub mod schedule_file;
mod scrub;
mod seat;
mod small_file;
mod sparse;
pub mod speed;
pub mod status;
pub mod tasks;
mod turns;
mod workers;

pub use error::NodeError;
pub use log::{FILTER_BYTES_MAX, FilterError, Log};
pub use node::Node;
