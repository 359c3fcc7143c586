//! [`Fault`]: the kinds of faults that worlds inject, and [`Coverage`]: in how many runs each of them occurred.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, strum::VariantArray)]
pub enum Fault {
    /// A message was lost, and either sent again or not.
    Loss,
    /// A message overtook an earlier one of the same link.
    Reordering,
    /// The network was split: no message crossed from one side to the other for a while.
    Partition,
    /// A connection ended, and came back.
    Flapping,
    /// A peer never answered.
    Stall,
    /// An answer came just before its deadline.
    Drip,
    /// A summary was wrong.
    FalseSummary,
    /// A summary promised what its maker does not have.
    BrokenPromise,
    /// Batches were changed, left out, or not the requested ones.
    FalseRange,
    /// A peer sent changed deltas.
    FalseDelta,
    /// A proof or a certificate did not fit.
    FalseProof,
    /// Hints were useless or huge.
    BadHints,
    /// Hints named rows with false values.
    FalseValues,
    /// The beginning of a snapshot (its offer or headers) was wrong.
    FalseOffer,
    /// Rows of a snapshot were changed or hidden, or the siblings of a range were wrong.
    FalseChunk,
    /// Code differed from what was requested.
    FalseCode,
    /// Range deltas were wrong.
    FalseRangeDelta,
    /// Epoch ends were wrong.
    FalseEpochs,
    /// An announcement was wrong.
    FalseAnnouncement,
    /// An answer was random bytes.
    Garbage,
    /// More liars than honest peers showed the same forged ledger.
    Collusion,
    /// A peer had pruned what it was asked for.
    Pruning,
    /// A node died at a named point of its store.
    CrashPoint,
    /// A node died at a random moment.
    RandomCrash,
    /// A power cut took writes that were not synced.
    PowerCut,
    /// An epoch brought other validators.
    NewValidators,
    /// Batches were certified while a node was behind.
    MovingTarget,
    /// A node continued a restore with a newer snapshot.
    Retarget,
    /// An operator gave a waypoint of another ledger.
    WrongWaypoint,
    /// The power failed right after a commit was acknowledged.
    CutAfterCommit,
    /// Validators of a past epoch signed something later.
    ExpiredKeys,
    /// A range delta named rows that did not change.
    PaddedDelta,
    /// Blobs came uncompressed.
    LiteralOnly,
    /// Hints came without being requested.
    UnaskedHints,
    /// A peer offered an impossible snapshot, held each request until just before its deadline, and then refused it as
    /// busy.
    Pretence,
    /// A peer sent chunks as rarely as it could without the restore counting as stalled.
    Trickle,
    /// A peer refused every request as busy.
    EndlessBusy,
    /// A peer sent useless announcements without end.
    Flood,
    /// A peer came back under another key.
    FreshKey,
}

impl Fault {
    /// Every kind of fault.
    pub const ALL: &'static [Fault] = <Fault as strum::VariantArray>::VARIANTS;
}

/// The faults that occurred in one run.
pub(super) type Fired = BTreeSet<Fault>;

/// The share of the runs in which each kind must occur. Worlds are drawn so that each occurs in at least 8 %.
pub const SHARE_MIN: f64 = 0.05;
/// A campaign fails if a kind occurs so rarely that the probability of that, at a share of [`SHARE_MIN`], is at most
/// this. That is 0 of 200 runs, or 5 of 400. Chance alone fails one campaign in 10,000 for each kind whose share is 5
/// %, and practically none where it is 8 %.
const CHANCE_MAX: f64 = 1e-4;

/// The number of runs in which each kind occurred.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    runs: u64,
    fired: BTreeMap<Fault, u64>,
}

impl Coverage {
    pub(super) fn add(&mut self, fired: &Fired) {
        self.runs += 1;
        for fault in fired {
            *self.fired.entry(*fault).or_default() += 1;
        }
    }

    /// Returns the share of the runs in which a kind occurred.
    pub fn share(&self, fault: Fault) -> f64 {
        self.fired.get(&fault).copied().unwrap_or_default() as f64 / self.runs.max(1) as f64
    }

    /// Returns the kinds that occurred too rarely for a campaign to cover them: never, or in fewer runs than chance
    /// explains.
    pub fn missing(&self) -> Vec<Fault> {
        let runs = |fault: &Fault| self.fired.get(fault).copied().unwrap_or_default();
        Fault::ALL.iter().copied().filter(|fault| is_rare(runs(fault), self.runs)).collect()
    }
}

/// Whether `hits` in `runs` is too rare to count as covered.
pub(super) fn is_rare(hits: u64, runs: u64) -> bool {
    hits == 0 || at_most(hits, runs, SHARE_MIN) <= CHANCE_MAX
}

/// Returns the probability that at most `hits` of `runs` independent runs succeed, where each does with probability
/// `share`.
fn at_most(hits: u64, runs: u64, share: f64) -> f64 {
    let odds = (share / (1.0 - share)).ln();
    let mut log = runs as f64 * (1.0 - share).ln();
    let mut sum = log.exp();
    for hit in 1..=hits.min(runs) {
        log += ((runs - hit + 1) as f64 / hit as f64).ln() + odds;
        sum += log.exp();
    }
    sum.min(1.0)
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {:>8} {:>7}", "fault", "runs", "share")?;
        for &fault in Fault::ALL {
            let runs = self.fired.get(&fault).copied().unwrap_or_default();
            writeln!(f, "{:<18} {runs:>8} {:>6.1}%", format!("{fault:?}"), self.share(fault) * 100.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn campaign(runs: u64, drips: u64) -> Coverage {
        let mut coverage = Coverage::default();
        for run in 0..runs {
            let mut fired: Fired = Fault::ALL.iter().copied().collect();
            if run >= drips {
                fired.remove(&Fault::Drip);
            }
            coverage.add(&fired);
        }
        coverage
    }

    #[test]
    fn a_kind_that_is_rare_is_missing() {
        for (runs, drips) in [(200, 0), (400, 5), (2_000, 60), (10_000, 400)] {
            let coverage = campaign(runs, drips);
            assert_eq!(coverage.missing(), [Fault::Drip], "{drips} of {runs}");
            assert!(coverage.to_string().contains("Drip"));
        }
    }

    /// Goal: a campaign does not fail by chance: a kind with a share of 5 % occurs in 4 % of some campaigns' runs.
    #[test]
    fn a_kind_that_is_a_little_below_its_share_is_not_missing() {
        for (runs, drips) in [(200, 1), (400, 6), (2_000, 75), (10_000, 450)] {
            assert_eq!(campaign(runs, drips).missing(), [], "{drips} of {runs}");
        }
    }

    #[test]
    fn chances_are_those_of_the_binomial_distribution() {
        let near =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-3, "{found} {expected}");
        near(at_most(0, 200, 0.05), 0.95f64.powi(200));
        near(at_most(1, 2, 0.5), 0.75);
        near(at_most(2, 4, 0.5), 11.0 / 16.0);
        near(at_most(5, 400, 0.05), 5.340e-5);
        near(at_most(6, 400, 0.05), 1.965e-4);
        near(at_most(10_000, 10_000, 0.05), 1.0);
    }
}
