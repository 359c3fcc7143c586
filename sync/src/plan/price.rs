//! The cost of following: seconds of a [`Load`] on this machine, from these peers.
//!
//! ```text
//! network  = bytes of the parts that the mode needs / what its peers deliver together
//! in order = the stages that take one range after the other (execute, commit), each by itself
//! work     = every stage's seconds: those that use all cores in full, the others over the cores
//! price    = the largest of these: the pipeline is as fast as its slowest part
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};
use slipstream_types::BatchHeader;

pub use super::costs::Costs;
use super::load::{Load, OptionalParts};
use crate::protocol::SnapshotOffer;

/// What bounds the pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Bytes from peers.
    Network,
    /// All cores together.
    #[serde(rename = "cpu")]
    Work,
    /// One transaction after the other.
    Execution,
    /// Roots and writes.
    Commit,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::Network => "network",
            Bound::Work => "cpu",
            Bound::Execution => "execution",
            Bound::Commit => "commit",
        })
    }
}

/// Seconds that some work takes, and its bottleneck.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Price {
    /// Seconds of the whole pipeline.
    pub seconds: f64,
    /// The slowest part of the pipeline.
    pub bound: Bound,
}

/// Cores and settings of the machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// Cores that work in parallel.
    pub cores: f64,
    /// The optional parts that are fetched along with the needed ones.
    pub parts: OptionalParts,
}

/// Combined rates of peers in bytes per second, split by what the peers serve.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Supply {
    /// Rate of peers that serve replay and no deltas.
    pub replay: f64,
    /// Rate of peers that serve deltas and no replay.
    pub delta: f64,
    /// Rate of peers that serve both.
    pub either: f64,
}

/// Prices some work. Replayed and applied batches share the cores and the links.
pub fn of(load: &Load, costs: &Costs, cores: f64, supply: &Supply) -> Price {
    let Supply { replay, delta, either } = *supply;
    let over = |bytes: f64, rate: f64| bytes / rate.max(1.0);
    let bytes = load.replay_bytes + load.delta_bytes;
    let network = over(load.replay_bytes, replay + either)
        .max(over(load.delta_bytes, delta + either))
        .max(over(bytes, replay + delta + either));
    let execute = load.execute * costs.execute;
    let commit = load.commit * costs.commit;
    let on_all = bytes * costs.check + load.prepare * costs.prepare + load.open * costs.open;
    let parts = [
        (network, Bound::Network),
        (on_all + (execute + commit) / cores.max(1.0), Bound::Work),
        (execute, Bound::Execution),
        (commit, Bound::Commit),
    ];
    let slowest = parts.into_iter().max_by(|(one, _), (other, _)| one.total_cmp(other));
    let (seconds, bound) = slowest.expect("there are four");
    Price { seconds, bound }
}

/// Steps of the share that [`best_mix`] tries.
const SHARES: u32 = 32;

/// Returns the share of replay with which both modes together are the cheapest, with its load and price. `replay` and
/// `delta` are the remaining work in each mode, `in_flight` is the work in flight. Each part of a price is linear in the
/// share, so a single minimum exists.
pub fn best_mix(
    in_flight: Load,
    [replay, delta]: [Load; 2],
    costs: &Costs,
    cores: f64,
    supply: &Supply,
) -> (f64, Load, Price) {
    let shares = (1..SHARES).map(|part| f64::from(part) / f64::from(SHARES));
    let priced = shares.map(|share| {
        let load = in_flight.plus(replay.times(share)).plus(delta.times(1.0 - share));
        (share, load, of(&load, costs, cores, supply))
    });
    let best = priced.min_by(|(_, _, one), (_, _, other)| one.seconds.total_cmp(&other.seconds));
    best.expect("there are shares")
}

/// Compressed bytes per byte of rows: half of a row is hashes.
const ROWS_RATIO: f64 = 0.75;
/// Bytes of a header; a range delta carries one for each batch.
const HEADER_BYTES: f64 = 280.0;
const _: () = assert!(HEADER_BYTES >= BatchHeader::BYTES as f64);
/// The work on each batch that a range delta skips, as bytes of changes. A peer reads and merges its delta, and this
/// node checks and writes its header.
const PASSED_CHANGES: f64 = 1.5e3;
/// Fixed cost of a range delta, as a share of a snapshot's: its ranges are in memory, and it needs no files.
const RANGE_DELTA_LEAP: f64 = 0.5;

/// Prices a snapshot's rows.
pub fn snapshot(bytes: f64, costs: &Costs, cores: f64, bytes_per_second: f64) -> Price {
    leap(bytes * ROWS_RATIO, bytes * costs.restore / cores.max(1.0), costs.leap, bytes_per_second)
}

/// Prices a range delta's changes and the headers of its `batches` batches.
pub fn range_delta(bytes: f64, batches: u64, costs: &Costs, cores: f64, bytes_per_second: f64) -> Price {
    let fetched = bytes * ROWS_RATIO + batches as f64 * HEADER_BYTES;
    let passed = batches as f64 * PASSED_CHANGES * costs.commit;
    let work = passed + bytes * (costs.open + costs.commit / cores.max(1.0));
    leap(fetched, work, costs.leap * RANGE_DELTA_LEAP, bytes_per_second)
}

/// Prices a leap whose fetching and work overlap, plus the `fixed` seconds that every leap takes.
fn leap(fetched: f64, work: f64, fixed: f64, bytes_per_second: f64) -> Price {
    let network = fetched / bytes_per_second.max(1.0);
    let bound = if network > work { Bound::Network } else { Bound::Work };
    Price { seconds: network.max(work) + fixed, bound }
}

/// Plausible bytes of a row with its path, averaged over a state. An offer outside this range is false.
const ROW_BYTES: std::ops::RangeInclusive<f64> = 32.0..=256.0;
/// More rows than any state has: no node could catch up with so large a state by its rows.
const ROWS_MAX: u64 = 1 << 40;

/// Returns the rows of an offered snapshot, or `None` if its numbers are implausible or unknown.
pub fn plausible_rows(offered: &SnapshotOffer) -> Option<f64> {
    let rows = offered.rows as f64;
    let is_true =
        (1..=ROWS_MAX).contains(&offered.rows) && ROW_BYTES.contains(&(offered.bytes as f64 / rows));
    is_true.then_some(rows)
}

/// Number of rows, out of `rows`, that `updates` updates touch if each row is equally likely: an upper bound for a
/// range delta.
pub fn touched_rows(updates: f64, rows: f64) -> f64 {
    if rows <= 0.0 { updates } else { rows * (1.0 - (-updates / rows).exp()) }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            RangeMode,
            course::Amount,
            load::{NextStage, Ratios},
        },
        *,
    };

    const CORES: f64 = 2.0;
    const PARTS: OptionalParts = OptionalParts { history: false, hints: true };

    fn load(mode: RangeMode) -> Load {
        Load::of(mode, &Amount::presumed(1_000.0), NextStage::Fetch, &Ratios::default(), PARTS)
    }

    fn from(rate: f64) -> Supply {
        Supply { either: rate, ..Supply::default() }
    }

    #[test]
    fn the_slowest_part_is_the_price() {
        let costs = Costs::presumed(CORES);
        let price = |mode, costs: &Costs, rate| of(&load(mode), costs, CORES, &from(rate));
        let thin = price(RangeMode::Replay, &costs, 100e3);
        assert_eq!(thin.bound, Bound::Network);
        let wide = price(RangeMode::Replay, &costs, 1e9);
        assert_eq!(wide.bound, Bound::Work);
        assert!(wide.seconds < thin.seconds);
        let slow = Costs { execute: 1e-7, ..costs };
        assert_eq!(price(RangeMode::Replay, &slow, 1e9).bound, Bound::Execution);
        assert!(price(RangeMode::Delta, &slow, 1e9).seconds < wide.seconds);
    }

    /// Goal: deltas over a thin link add to cores that execute what a wide link brings. If one resource bounds both
    /// modes, mixing gains nothing.
    #[test]
    fn both_modes_together_use_what_each_leaves() {
        let costs = Costs { prepare: 30e-6, execute: 2e-9, ..Costs::presumed(CORES) };
        let loads = [RangeMode::Replay, RangeMode::Delta].map(load);
        let by_replay = of(&loads[0], &costs, CORES, &from(1e9)).seconds;
        // As fast by deltas as by replay.
        let apart = Supply { replay: 1e9, delta: loads[1].delta_bytes / by_replay, either: 0.0 };
        let (share, _, price) = best_mix(Load::default(), loads, &costs, CORES, &apart);
        assert!((0.4..0.6).contains(&share), "{share}");
        assert!(price.seconds < 0.65 * by_replay, "{price:?}, {by_replay}");
        // This machine applies as slowly as it executes, so only its cores matter.
        let even = Costs {
            open: costs.execute * loads[0].execute / loads[1].open,
            prepare: 0.0,
            check: 0.0,
            commit: 0.0,
            ..costs
        };
        let (_, _, price) = best_mix(Load::default(), loads, &even, 1.0, &from(1e9));
        let best = of(&loads[0], &even, 1.0, &from(1e9)).seconds;
        assert!(price.seconds > 0.95 * best, "{price:?}, {best}");
    }

    /// Goal: a restore takes at least the transfer of its rows, or the work on them.
    #[test]
    fn a_snapshot_costs_its_rows() {
        let costs = Costs::presumed(CORES);
        let thin = snapshot(80e6, &costs, CORES, 1e6);
        assert!(thin.bound == Bound::Network && (50.0..90.0).contains(&thin.seconds), "{thin:?}");
        let wide = snapshot(80e6, &costs, CORES, 1e9);
        assert!(wide.bound == Bound::Work && (0.2..2.0).contains(&wide.seconds), "{wide:?}");
    }

    #[test]
    fn few_updates_touch_as_many_rows_and_many_touch_all() {
        assert!((touched_rows(10.0, 1e6) - 10.0).abs() < 0.1);
        assert!((touched_rows(1e9, 1e6) - 1e6).abs() < 1.0);
        assert_eq!(touched_rows(7.0, 0.0), 7.0);
    }
}
