//! The common parts of the benches. Benches of sync use a chain made without consensus, a relay that adds latency, and
//! node processes. Benches of stores use kept directories, plain files, and child processes.
//!
//! ```text
//!  chain (signed, executed, certified in process) ─▶ data directory ─▶ slipstream (serves) ◀─ relay ─▶ slipstream (follows)
//! ```

pub(super) mod chain;
pub(super) mod child;
pub(super) mod files;
pub(super) mod follower;
pub(super) mod handler;
pub(super) mod kept;
pub(super) mod node;
pub(super) mod relay;
pub(super) mod watch;
pub(super) mod workload;

use std::time::Duration;

/// Half of the round trip of 150 ms that the aims assume.
pub(super) const ONE_WAY: Duration = Duration::from_millis(75);

/// Returns the ratios of two measurements that were made alternately, run by run.
pub(super) fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}
