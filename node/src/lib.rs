//! The `slipstream` program as a library: wiring, command line, JSON-RPC, status and metrics.
//!
//! All decisions live in the crates below. This one puts them together, gives them the real clock, key and sockets, and shows them
//! to operators and to Ethereum's tools.
//!
//! ```text
//!  node.yaml, key, genesis ─▶ Node::start ─┬─▶ network ── Router ─┬─ SYNC ─▶ SyncServer ──┐
//!                                          │                      ├─ CONSENSUS ─▶ Validator ├─▶ Store
//!  ethers, cast ─ POST / ─▶ rpc ───────────┤                      ├─ TRANSACTIONS ─▶ Forwarder ─▶ Pool
//!  operators ─ /v1/status, /metrics ─▶ api ┘                      └─ mesh ─▶ Broadcaster ─▶ Follower ─┘
//! ```
//!
//! * [`node`]: the running parts, and the order in which they start and stop. [`tasks`]: every task has a name, an owner and an
//!   end.
//! * [`cli`]: the commands of `slipstream`, each in a module of its name.
//! * [`keys`], [`genesis_file`], [`lock`], [`operator_token`]: the files around a node. [`Log`]: its lines to standard error and to
//!   a file.
//! * [`health`]: whether a node is as it should be, and why not. [`status`]: everything that it is and does, for everybody who asks and for the log.
//! * [`events`]: the changes at a node, for listeners.
//! * `rpc`: batches as Ethereum blocks. [`api`]: the HTTP side.
//!
//! Invariants: configuration, key, genesis and ports are checked before anything is written. One process at a time uses a data
//! directory. A panic or an error of one task stops the node and names the task.
//!
//! It trusts its files and its operator. It distrusts its peers and its callers: every request is bounded in size, number and time.

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
