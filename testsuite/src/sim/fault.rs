//! [`Fault`]: the kinds of trouble that worlds make, and [`Coverage`]: in how many runs each came about.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A kind of trouble.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// A message was lost, and sent again or not.
    Loss,
    /// A message overtook an earlier one of the same link.
    Reordering,
    /// Nobody of one side reached anybody of the other for a while.
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
    /// Batches were changed, left out or others than asked for.
    FalseRange,
    /// Deltas were changed.
    FalseDelta,
    /// A proof or a certificate did not fit.
    FalseProof,
    /// Hints were useless or huge.
    BadHints,
    /// Hints told other rows than there were.
    FalseValues,
    /// The beginning of a snapshot was wrong.
    FalseOffer,
    /// Rows of a snapshot were changed or hidden, or the siblings of a range were wrong.
    FalseChunk,
    /// Code was not what was asked for.
    FalseCode,
    /// Range deltas were wrong.
    FalseNetChange,
    /// Epoch ends were wrong.
    FalseEpochs,
    /// An announcement was wrong.
    FalseAnnouncement,
    /// Bytes of no meaning.
    Garbage,
    /// More liars than honest peers showed the same forged ledger.
    Collusion,
    /// A peer no longer had what it was asked for.
    Pruning,
    /// A node died at a named point of its store.
    CrashPoint,
    /// A node died at a random moment.
    RandomCrash,
    /// A power cut took writes that were not synced.
    PowerCut,
    /// The validators changed.
    NewValidators,
    /// Batches were certified while a node was behind.
    MovingTarget,
    /// A node took up a restore with a newer snapshot.
    Retarget,
    /// An operator gave a waypoint of another ledger.
    WrongWaypoint,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Fault; 29] = [
        Fault::Loss,
        Fault::Reordering,
        Fault::Partition,
        Fault::Flapping,
        Fault::Stall,
        Fault::Drip,
        Fault::FalseSummary,
        Fault::BrokenPromise,
        Fault::FalseRange,
        Fault::FalseDelta,
        Fault::FalseProof,
        Fault::BadHints,
        Fault::FalseValues,
        Fault::FalseOffer,
        Fault::FalseChunk,
        Fault::FalseCode,
        Fault::FalseNetChange,
        Fault::FalseEpochs,
        Fault::FalseAnnouncement,
        Fault::Garbage,
        Fault::Collusion,
        Fault::Pruning,
        Fault::CrashPoint,
        Fault::RandomCrash,
        Fault::PowerCut,
        Fault::NewValidators,
        Fault::MovingTarget,
        Fault::Retarget,
        Fault::WrongWaypoint,
    ];
}

/// What came about in one run.
pub(super) type Fired = BTreeSet<Fault>;

/// Each kind must have come about in this share of the runs of a campaign.
pub const SHARE_MIN: f64 = 0.05;

/// In how many runs each kind came about.
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

    /// The share of the runs in which a kind came about.
    pub fn share(&self, fault: Fault) -> f64 {
        self.fired.get(&fault).copied().unwrap_or_default() as f64 / self.runs.max(1) as f64
    }

    /// The kinds that came about too seldom for a campaign to say anything about them.
    pub fn missing(&self) -> Vec<Fault> {
        Fault::ALL.into_iter().filter(|fault| self.share(*fault) < SHARE_MIN).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {:>8} {:>7}", "fault", "runs", "share")?;
        for fault in Fault::ALL {
            let runs = self.fired.get(&fault).copied().unwrap_or_default();
            writeln!(f, "{:<18} {runs:>8} {:>6.1}%", format!("{fault:?}"), self.share(fault) * 100.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_is_rare_is_missing() {
        let mut coverage = Coverage::default();
        for run in 0..40 {
            let mut fired: Fired = Fault::ALL.into_iter().collect();
            if run > 0 {
                fired.remove(&Fault::Drip);
            }
            coverage.add(&fired);
        }
        assert_eq!(coverage.missing(), [Fault::Drip]);
        assert!(coverage.to_string().contains("Drip"));
    }
}
