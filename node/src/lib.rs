//! The `slipstream` program as a library: wiring, command line, JSON-RPC, status and metrics.
//!
//! Everything that decides lives in the crates below; this one puts them together, gives them the real clock, key and
//! sockets, and shows them to operators and to Ethereum's tools.
//!
//! ```text
//!  node.yaml, key, genesis ─▶ Node::start ─┬─▶ network ── Router ─┬─ SYNC ─▶ SyncServer ──┐
//!                                          │                      ├─ CONSENSUS ─▶ Validator ├─▶ Store
//!  ethers, cast ─ POST / ─▶ rpc ───────────┤                      ├─ TRANSACTIONS ─▶ Forwarder ─▶ Pool
//!  operators ─ /v1/status, /metrics ─▶ api ┘                      └─ broadcast ─▶ Follower ─┘
//! ```
//!
//! * [`node`]: what runs, in which order it starts and stops. [`tasks`]: every task has a name, an owner and an end.
//! * [`cli`]: `slipstream init | run | status | snapshot … | config check | config show`.
//! * [`keys`], [`genesis_file`], [`lock`]: the files around a node. [`Log`]: what it writes to standard error.
//! * [`health`]: whether a node is as it should be, and why not, for everybody who asks and for the log.
//! * `rpc`: batches as Ethereum blocks. [`api`]: the HTTP side.
//!
//! Invariants: nothing is written before configuration, key, genesis and ports have been checked; one process at a time uses
//! a data directory; a panic or an error of one task stops the node and names the task.
//!
//! What it trusts: its files and its operator. Not its peers, and not its callers: every request is bounded in size, number
//! and time.

mod addresses;
pub mod api;
mod blocking;
pub mod cli;
pub mod clock;
mod error;
mod fair;
pub mod genesis_file;
pub mod health;
mod json_list;
pub mod keys;
mod leash;
pub mod lock;
mod log;
mod mesh;
pub mod node;
mod origin;
mod repair;
mod router;
mod rpc;
pub mod schedule_file;
mod scrub;
mod seat;
mod sparse;
pub mod tasks;
mod turns;
mod workers;

pub use error::NodeError;
pub use log::Log;
pub use node::Node;
