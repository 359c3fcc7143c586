//! The cost of following: bytes over the network and seconds of work, per batch and mode.
//!
//! ```text
//! network  = bytes of the parts that the mode needs / what its peers deliver together
//! work     = every stage's seconds; the stages overlap, so their sum counts over the cores
//! in order = the stages that take one range after the other (execute, commit), each by itself
//! price    = the largest of these: the pipeline is as fast as its slowest part
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use super::RangeMode;
use crate::protocol::SnapshotOffer;

/// Sizes of a batch, averaged over those seen last. Header fields give the uncompressed ones, answers the compressed ones.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sizes {
    /// Transactions in a batch.
    pub transactions: f64,
    /// Compressed bytes of the body.
    pub body: f64,
    /// Compressed bytes of the receipts.
    pub receipts: f64,
    /// Compressed bytes of the delta.
    pub delta: f64,
    /// Compressed bytes of the hints.
    pub hints: f64,
    /// Uncompressed bytes of the delta.
    pub changes: f64,
}

/// Seconds of work on this machine, averaged over what was done last.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Checking signatures and digests, per compressed byte.
    pub check: f64,
    /// Decoding a body and recovering senders, per transaction.
    pub prepare: f64,
    /// Executing a batch, per transaction.
    pub execute: f64,
    /// Opening deltas, per uncompressed byte of them.
    pub open: f64,
    /// Roots and writes, per uncompressed byte of the deltas.
    pub commit: f64,
    /// Checking and writing a snapshot's rows, per byte of them.
    pub restore: f64,
}

impl Default for Costs {
    /// The needs of a core of 2020. Only the first plans use them: measurements replace them.
    fn default() -> Costs {
        Costs { check: 2e-9, prepare: 30e-6, execute: 15e-6, open: 5e-9, commit: 40e-9, restore: 5e-9 }
    }
}

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

/// Seconds that a batch takes, and why.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Price {
    /// Seconds of the whole pipeline.
    pub seconds: f64,
    /// The slowest part of it.
    pub bound: Bound,
}

/// Cores and settings of the machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// Cores that work in parallel.
    pub cores: f64,
    /// Whether bodies, receipts and hints come with deltas.
    pub history: bool,
    /// Whether hints come with bodies.
    pub hints: bool,
}

impl Sizes {
    /// Compressed bytes of a batch in a mode.
    pub fn bytes(&self, mode: RangeMode, machine: &Machine) -> f64 {
        match mode {
            RangeMode::Replay if machine.hints => self.body + self.hints,
            RangeMode::Replay => self.body,
            RangeMode::Delta if machine.history => self.delta + self.body + self.receipts + self.hints,
            RangeMode::Delta => self.delta,
        }
    }

    /// Takes in the sizes of another batch.
    pub fn learn(&mut self, seen: &Seen) {
        let parts = [
            (&mut self.transactions, Some(seen.transactions)),
            (&mut self.changes, Some(seen.changes)),
            (&mut self.body, seen.body),
            (&mut self.receipts, seen.receipts),
            (&mut self.delta, seen.delta),
            (&mut self.hints, seen.hints),
        ];
        for (average, value) in parts {
            if let Some(value) = value {
                *average += (value - *average) * LEARN;
            }
        }
    }

    /// Sizes of a batch whose header is known and whose parts are not. LZ4 halves transactions and outputs (measured: 2.2
    /// times), and takes a sixth off rows.
    pub fn of_header(transactions: f64, body: f64, changes: f64) -> Sizes {
        let (body, delta) = (body * 0.6, changes * 0.85);
        Sizes { transactions, body, receipts: body, delta, hints: delta * 0.6, changes }
    }
}

/// The share of one batch in an average: some hundred batches decide.
const LEARN: f64 = 0.02;

/// The parts of a batch that came.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Seen {
    /// Transactions in the batch.
    pub transactions: f64,
    /// Compressed bytes of the body, if it came.
    pub changes: f64,
    /// Compressed bytes of the parts that came.
    pub body: Option<f64>,
    /// Compressed bytes of the receipts, if they came.
    pub receipts: Option<f64>,
    /// Compressed bytes of the delta, if it came.
    pub delta: Option<f64>,
    /// Compressed bytes of the hints, if they came.
    pub hints: Option<f64>,
}

/// The combined rate of peers in bytes per second, apart for those that serve one mode and those that serve both.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Supply {
    /// Rate of peers that serve replay and no deltas.
    pub replay: f64,
    /// Rate of peers that serve deltas and no replay.
    pub delta: f64,
    /// Rate of peers that serve both.
    pub either: f64,
}

/// The price of a batch in a mode, from peers that deliver so many bytes a second together.
pub fn batch(
    mode: RangeMode,
    sizes: &Sizes,
    costs: &Costs,
    machine: &Machine,
    bytes_per_second: f64,
) -> Price {
    let replayed = if mode == RangeMode::Replay { 1.0 } else { 0.0 };
    let supply = Supply { either: bytes_per_second, ..Supply::default() };
    mixed(replayed, sizes, costs, machine, &supply)
}

/// The price of one batch in a gap of which this share is replayed while the rest is applied. Both use the cores and links at once.
pub fn mixed(replayed: f64, sizes: &Sizes, costs: &Costs, machine: &Machine, supply: &Supply) -> Price {
    let applied = 1.0 - replayed;
    let (replay, delta) = (
        replayed * sizes.bytes(RangeMode::Replay, machine),
        applied * sizes.bytes(RangeMode::Delta, machine),
    );
    let Supply { replay: for_replay, delta: for_delta, either } = *supply;
    let over = |bytes: f64, rate: f64| bytes / rate.max(1.0);
    let network = over(replay, for_replay + either)
        .max(over(delta, for_delta + either))
        .max(over(replay + delta, for_replay + for_delta + either));
    let commit = sizes.changes * costs.commit;
    let execute = replayed * sizes.transactions * costs.execute;
    let prepare = replayed * sizes.transactions * costs.prepare;
    let open = applied * sizes.changes * costs.open;
    let work = (replay + delta) * costs.check + prepare + execute + open + commit;
    let parts = [
        (network, Bound::Network),
        (work / machine.cores.max(1.0), Bound::Work),
        (execute, Bound::Execution),
        (commit, Bound::Commit),
    ];
    let slowest = parts.into_iter().max_by(|(one, _), (other, _)| one.total_cmp(other));
    let (seconds, bound) = slowest.expect("there are four");
    Price { seconds, bound }
}

/// Shares that [`best_mix`] tries.
const SHARES: u32 = 32;

/// The share of replay with which both modes together are the cheapest, and the price. Each part of a price is linear in the share, so
/// that there is one lowest place.
pub fn best_mix(sizes: &Sizes, costs: &Costs, machine: &Machine, supply: &Supply) -> (f64, Price) {
    let shares = (1..SHARES).map(|part| f64::from(part) / f64::from(SHARES));
    let priced = shares.map(|share| (share, mixed(share, sizes, costs, machine, supply)));
    let best = priced.min_by(|(_, one), (_, other)| one.seconds.total_cmp(&other.seconds));
    best.expect("there are shares")
}

/// Seconds for a snapshot's rows.
pub fn snapshot(bytes: f64, costs: &Costs, machine: &Machine, bytes_per_second: f64) -> f64 {
    (bytes / bytes_per_second.max(1.0)).max(bytes * costs.restore / machine.cores.max(1.0))
}

/// Plausible bytes of a row with its path, on an average over a state; an offer outside this range is false.
const ROW_BYTES: std::ops::RangeInclusive<f64> = 32.0..=256.0;
/// More rows than any state has: a node with as many could not be caught up with by rows.
const ROWS_MAX: u64 = 1 << 40;

/// The rows of an offered snapshot. Returns `None` if its numbers contradict each other or say that they are unknown.
pub fn plausible_rows(offered: &SnapshotOffer) -> Option<f64> {
    let rows = offered.rows as f64;
    let is_true =
        (1..=ROWS_MAX).contains(&offered.rows) && ROW_BYTES.contains(&(offered.bytes as f64 / rows));
    is_true.then_some(rows)
}

/// How many of `rows` rows some updates touch, if each row is equally likely: the most that a range delta has.
pub fn touched_rows(updates: f64, rows: f64) -> f64 {
    if rows <= 0.0 { updates } else { rows * (1.0 - (-updates / rows).exp()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine { cores: 2.0, history: false, hints: true };

    fn sizes() -> Sizes {
        Sizes::of_header(250.0, 30_000.0, 20_000.0)
    }

    #[test]
    fn the_slowest_part_is_the_price() {
        let (sizes, costs) = (sizes(), Costs::default());
        let thin = batch(RangeMode::Replay, &sizes, &costs, &MACHINE, 100_000.0);
        assert_eq!(thin.bound, Bound::Network);
        let wide = batch(RangeMode::Replay, &sizes, &costs, &MACHINE, 1e9);
        assert_eq!(wide.bound, Bound::Work);
        assert!(wide.seconds < thin.seconds);
        let slow = Costs { execute: 1e-3, ..costs };
        assert_eq!(batch(RangeMode::Replay, &sizes, &slow, &MACHINE, 1e9).bound, Bound::Execution);
        assert!(batch(RangeMode::Delta, &sizes, &slow, &MACHINE, 1e9).seconds < wide.seconds);
    }

    /// Goal: a thin link with deltas works beside cores that execute what a wide link brings. If one thing bounds both modes, mixing
    /// gains nothing.
    #[test]
    fn both_modes_together_use_what_each_leaves() {
        let (sizes, costs) = (sizes(), Costs { prepare: 60e-6, execute: 40e-6, ..Costs::default() });
        let alone = |mode, rate| batch(mode, &sizes, &costs, &MACHINE, rate).seconds;
        let by_replay = alone(RangeMode::Replay, 1e9);
        // As fast by deltas as by replay.
        let thin = sizes.bytes(RangeMode::Delta, &MACHINE) / by_replay;
        let apart = Supply { replay: 1e9, delta: thin, either: 0.0 };
        let (share, price) = best_mix(&sizes, &costs, &MACHINE, &apart);
        assert!((0.4..0.6).contains(&share), "{share}");
        assert!(price.seconds < 0.65 * by_replay, "{price:?}, {by_replay}");
        // A machine that applies as it executes: the cores are all there is.
        let even = Costs { open: 40e-6 * 250.0 / 20_000.0, prepare: 0.0, check: 0.0, commit: 0.0, ..costs };
        let wide = Supply { either: 1e9, ..Supply::default() };
        let one = Machine { cores: 1.0, ..MACHINE };
        let (_, price) = best_mix(&sizes, &even, &one, &wide);
        let best = batch(RangeMode::Replay, &sizes, &even, &one, 1e9).seconds;
        assert!(price.seconds > 0.95 * best, "{price:?}, {best}");
    }

    #[test]
    fn averages_follow_what_came_and_keep_what_did_not() {
        let mut sizes = sizes();
        let receipts = sizes.receipts;
        for _ in 0..1_000 {
            sizes.learn(&Seen { transactions: 10.0, body: Some(500.0), ..Default::default() });
        }
        assert!((sizes.transactions - 10.0).abs() < 0.1 && (sizes.body - 500.0).abs() < 1.0, "{sizes:?}");
        assert_eq!(sizes.receipts, receipts);
    }

    #[test]
    fn few_updates_touch_as_many_rows_and_many_touch_all() {
        assert!((touched_rows(10.0, 1e6) - 10.0).abs() < 0.1);
        assert!((touched_rows(1e9, 1e6) - 1e6).abs() < 1.0);
        assert_eq!(touched_rows(7.0, 0.0), 7.0);
    }
}
