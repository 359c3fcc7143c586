//! [`Costs`]: what the stages cost on this machine: presumed, measured, and kept across restarts.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use slipstream_types::{CodecError, codec};

/// The key of the record in the store.
pub(crate) const KEY: &str = "sync/costs";
/// Maximum bytes of the record.
const RECORD_BYTES_MAX: usize = 128;
/// Weight of a cost that this run has not measured, in seconds of work: the first ranges outweigh it.
const PRESUMED_SECONDS: f64 = 0.002;
/// Half-life of a measurement, in seconds of work of the same kind.
const HALF_LIFE_SECONDS: f64 = 4.0;
/// A job counts as at most this many times its expected time: a job that waited for the disk is no measure. Each
/// further slow job in a row multiplies the limit by this factor, so a few jobs reveal a slow machine.
const SLOWER_MAX: f64 = 4.0;
/// Plausible costs in a record or a measurement. Others come from a clock that jumped.
const PLAUSIBLE: std::ops::RangeInclusive<f64> = 1e-14..=10.0;

/// Elapsed seconds per unit of work in each stage on this machine. Checking, preparing and opening use all cores.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Checking signatures and digests, per compressed byte.
    pub check: f64,
    /// Decoding a body and recovering senders, per transaction.
    pub prepare: f64,
    /// Executing, per gas.
    pub execute: f64,
    /// Opening deltas, per uncompressed byte.
    pub open: f64,
    /// Computing roots and writing, per uncompressed byte of the deltas.
    pub commit: f64,
    /// Checking and writing a snapshot's rows, per byte of them, on one core.
    pub restore: f64,
    /// Fixed cost of a restore besides its rows: its beginning, its files, its code, its last write. It is not measured
    /// again.
    pub leap: f64,
}

/// The costs' bits as IEEE 754 doubles, in the order of the fields: BCS has no floating-point numbers.
#[derive(Serialize, Deserialize)]
struct SavedCosts([u64; 7]);

impl Costs {
    /// Returns typical costs on `cores` cores of 2020. Measurements replace them.
    pub fn presumed(cores: f64) -> Costs {
        let all = |seconds: f64| seconds / cores.max(1.0);
        Costs {
            check: all(2e-9),
            prepare: all(50e-6),
            execute: 1e-9,
            open: all(5e-9),
            commit: 40e-9,
            restore: 10e-9,
            leap: 0.1,
        }
    }

    /// Scales these costs to a machine on which arithmetic and hashing take these multiples of the time.
    pub(crate) fn scaled(self, arithmetic: f64, hashing: f64) -> Costs {
        Costs {
            check: self.check * hashing,
            prepare: self.prepare * arithmetic,
            execute: self.execute * arithmetic,
            open: self.open * hashing,
            commit: self.commit * hashing,
            restore: self.restore * hashing,
            leap: self.leap * hashing,
        }
    }

    /// Encodes the costs for the store.
    ///
    /// # Errors
    /// None in practice: the record is short.
    pub(crate) fn to_record(self) -> Result<Vec<u8>, CodecError> {
        let Costs { check, prepare, execute, open, commit, restore, leap } = self;
        let all = [check, prepare, execute, open, commit, restore, leap];
        codec::encode("costs", &SavedCosts(all.map(f64::to_bits)))
    }

    /// Decodes a record's costs. Returns `None` if it is damaged or implausible.
    pub(crate) fn of_record(record: &[u8]) -> Option<Costs> {
        let SavedCosts(bits) = codec::decode("costs", record, RECORD_BYTES_MAX).ok()?;
        let costs = bits.map(f64::from_bits);
        let [check, prepare, execute, open, commit, restore, leap] = costs;
        let is_plausible = costs.iter().all(|cost| PLAUSIBLE.contains(cost));
        is_plausible.then_some(Costs { check, prepare, execute, open, commit, restore, leap })
    }
}

/// Selects one of the costs.
pub(crate) type CostField = fn(&mut Costs) -> &mut f64;

/// Costs that measurements update. Each is recent seconds of that work over its amount, so a short job counts little.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredCosts {
    pub(crate) costs: Costs,
    /// Seconds of work that each cost rests on.
    seconds: Costs,
    /// How many times its expected time the next job may count.
    slower_max: Costs,
    /// Whether a cost was measured since the last save.
    is_new: bool,
}

impl MeasuredCosts {
    /// Begins with costs that are not measured yet.
    pub(crate) fn new(costs: Costs) -> MeasuredCosts {
        let all =
            |it| Costs { check: it, prepare: it, execute: it, open: it, commit: it, restore: it, leap: it };
        MeasuredCosts { costs, seconds: all(PRESUMED_SECONDS), slower_max: all(SLOWER_MAX), is_new: false }
    }

    /// Records a job of `units` that took `took`.
    pub(crate) fn learn(&mut self, which: CostField, took: Duration, units: f64) {
        if units <= 0.0 {
            return;
        }
        let (cost, seconds) = (which(&mut self.costs), which(&mut self.seconds));
        let slower_max = which(&mut self.slower_max);
        let (took, most) = (took.as_secs_f64(), units * *cost * *slower_max);
        *slower_max = if took > most { *slower_max * SLOWER_MAX } else { SLOWER_MAX };
        let took = took.min(most);
        let before = *seconds * 0.5f64.powf(took / HALF_LIFE_SECONDS);
        let (all, units) = (before + took, before / *cost + units);
        *seconds = all;
        *cost = (all / units).clamp(*PLAUSIBLE.start(), *PLAUSIBLE.end());
        self.is_new = true;
    }

    /// Fixes a cost, whatever is measured.
    #[cfg(test)]
    pub(crate) fn fix(&mut self, which: CostField, cost: f64) {
        *which(&mut self.costs) = cost;
        *which(&mut self.seconds) = 1e12;
    }

    /// Returns the record to store, if a cost was measured since the last call.
    pub(crate) fn save(&mut self) -> Option<Result<Vec<u8>, CodecError>> {
        std::mem::take(&mut self.is_new).then(|| self.costs.to_record())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Goal: a presumed cost lasts only until it is measured, and a tiny job changes next to nothing.
    #[test]
    fn measurements_replace_what_was_presumed() {
        let mut measured = MeasuredCosts::new(Costs::presumed(2.0));
        let presumed = measured.costs.prepare;
        measured.learn(|costs| &mut costs.prepare, MS, 1.0);
        assert!(measured.costs.prepare < 1.1 * presumed, "one transaction: {:?}", measured.costs);
        (0..4).for_each(|_| measured.learn(|costs| &mut costs.prepare, 200 * MS, 2_000.0));
        assert!((60e-6..100e-6).contains(&measured.costs.prepare), "{:?}", measured.costs);
        (0..200).for_each(|_| measured.learn(|costs| &mut costs.prepare, 100 * MS, 10_000.0));
        assert!((10e-6..10.5e-6).contains(&measured.costs.prepare), "{:?}", measured.costs);
        measured.learn(|costs| &mut costs.prepare, 5_000 * MS, 100.0);
        assert!(measured.costs.prepare < 11e-6, "one stood still: {:?}", measured.costs);
        assert_eq!(measured.costs.execute, Costs::presumed(2.0).execute);
        measured.learn(|costs| &mut costs.execute, MS, 0.0);
        assert_eq!(measured.costs.execute, Costs::presumed(2.0).execute);
    }

    /// Goal: a few short jobs reveal a machine that is far slower than presumed, and a single stall does not count as
    /// one.
    #[test]
    fn a_slow_machine_is_known_soon() {
        let mut measured = MeasuredCosts::new(Costs::presumed(2.0));
        let presumed = measured.costs.execute;
        let learn =
            |measured: &mut MeasuredCosts, ms| measured.learn(|costs| &mut costs.execute, ms * MS, 1e5);
        learn(&mut measured, 100);
        assert!(measured.costs.execute < 2.0 * presumed, "one stood still: {:?}", measured.costs);
        (0..9).for_each(|_| learn(&mut measured, 100));
        assert!(measured.costs.execute > 100.0 * presumed, "all are slow: {:?}", measured.costs);
    }

    #[test]
    fn costs_outlive_a_restart_and_damage_is_none() {
        let mut measured = MeasuredCosts::new(Costs::presumed(3.0));
        assert!(measured.save().is_none(), "nothing is new");
        measured.learn(|costs| &mut costs.open, MS, 1e6);
        let record = measured.save().unwrap().unwrap();
        assert_eq!(Costs::of_record(&record), Some(measured.costs));
        assert!(measured.save().is_none());
        let odd = Costs { check: f64::NAN, ..measured.costs }.to_record().unwrap();
        for damaged in [&record[1..], b"", &odd] {
            assert_eq!(Costs::of_record(damaged), None);
        }
    }
}
