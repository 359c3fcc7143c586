//! The common part of the benches: for those of sync a chain made without consensus, a relay that adds latency, and node
//! processes; for those of stores directories that are kept, plain files, and child processes.
//!
//! ```text
//!  chain (signed, executed, certified in process) ─▶ data directory ─▶ slipstream (serves) ◀─ relay ─▶ slipstream (follows)
//! ```

pub(super) mod chain;
pub(super) mod child;
pub(super) mod files;
pub(super) mod follower;
pub(super) mod kept;
pub(super) mod node;
pub(super) mod relay;
pub(super) mod watch;
pub(super) mod workload;

use std::time::Duration;

/// One way of the round trip of 150 ms that the aims speak of.
pub(super) const ONE_WAY: Duration = Duration::from_millis(75);

/// The ratios of two measurements that were made alternately, run by run.
pub(super) fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}
