//! A node: the parts of the crates below, assembled, started and stopped with the real clock, key and sockets.
//!
//! ```text
//!  node.yaml, key, genesis ─▶ Node::start ─┬─▶ network ── Router ─┬─ SYNC ─▶ SyncServer ──┐
//!                                          │                      ├─ CONSENSUS ─▶ Validator ├─▶ Store
//!  ethers, cast ─ POST / ─▶ rpc ───────────┤                      ├─ TRANSACTIONS ─▶ Forwarder ─▶ Pool
//!  operators ─ /v1/status, /metrics ─▶ api ┘                      └─ mesh ─▶ Broadcaster ─▶ Follower ─┘
//! ```
//!
//! Its parts are crates. Each depends only on those to its left:
//!
//! ```text
//!  base ─▶ fair ─▶ status ─▶ rpc ─▶ api ─▶ node ─▶ cli
//! ```
//!
//! * `base`: the files around a node, its tasks, log and errors. `fair`: how callers share the machine.
//! * `status`: whether the node is healthy, and if not, why; its document, events and metrics.
//! * `rpc`: batches as Ethereum blocks. `api`: the HTTP side. `cli`: the commands of `slipstream`.
//!
//! Invariants: configuration, key, genesis and ports are checked before anything is written. Only one process at a time
//! uses a data directory. When a task panics or fails, the node stops and names the task.
//!
//! The node trusts its files and its operator. It distrusts its peers and callers: every request is bounded in size,
//! number and time.

mod addresses;
mod archives;
mod mesh;
mod node;
mod open_files;
mod repair;
mod router;
mod scrub;

pub use self::node::{Node, check};
