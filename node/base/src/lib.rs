//! The parts that all other parts of a node depend on: the files around it, its tasks, its log and its errors.
//!
//! * [`keys`], [`genesis_file`], [`schedule_file`], [`operator_token`], [`lock`]: files that an operator provides, or
//!   that belong to one process. [`kept_file`]: small files that outlive the node, such as [`bans_file`] and
//!   [`orders_file`]. [`small_file`]: writes such files, each completely or not at all.
//! * [`tasks`]: every task has a name, an owner and an end. [`failure_notes`]: why the last process ended.
//! * [`Log`]: log lines to standard error and to a file. [`log_rate_limit`]: a rate limit for lines that callers can cause.
//! * [`NodeError`]: why a node does not start, or stopped.
//!
//! Invariant: a file that is damaged, readable by others, or another program's is named, and never silently replaced.

pub mod bans_file;
pub mod clock;
mod duration;
mod error;
pub mod failure_notes;
pub mod genesis_file;
pub mod json_list;
pub mod kept_file;
pub mod keys;
pub mod lock;
mod log;
pub mod log_rate_limit;
pub mod operator_token;
pub mod orders_file;
pub mod schedule_file;
pub mod small_file;
pub mod tasks;

pub use self::{
    duration::about,
    error::{NodeError, YEAR_MS},
    log::{FilterError, Log, parse_filter},
};

/// The directory of the store, below the data directory.
pub const DATABASE: &str = "db";

/// `slipstream/v0.1.0/linux-x86_64`, as `web3_clientVersion` and `/v1/status` report it.
pub fn client_version() -> String {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("slipstream/v{}/{os}-{arch}", env!("CARGO_PKG_VERSION"))
}
