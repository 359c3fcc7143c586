//! [`WorldFault`]: the faults among validators, and [`Table`]: in how many worlds each of them occurred.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::super::fault::is_rare;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, strum::VariantArray)]
pub enum WorldFault {
    /// A message was lost.
    Loss,
    /// A message came twice.
    Repetition,
    /// A message overtook an earlier one of the same link.
    Overtaking,
    /// The network split for a while.
    Partition,
    /// A process died at a random moment.
    Crash,
    /// A process died right before or after a write of its store.
    CrashPoint,
    /// The power of all machines failed at once.
    Blackout,
    /// A validator lost its data.
    Wipe,
    /// A clock was off by more than the protocol tolerates.
    WrongClock,
    /// A machine executed a batch wrongly.
    WrongExecution,
    /// A machine began to execute a batch that takes longer than the view allows.
    SlowExecution,
    /// A machine dropped a transaction that takes longer than any batch may.
    TooSlow,
    /// A machine fetched a batch from others, because its own outcome differed or was missing.
    Fetched,
    /// A primary was replaced.
    NewView,
    /// The set of validators changed.
    NewValidators,
    /// A machine joined the validators.
    Joined,
    /// A machine left the validators.
    Left,
    /// A primary ordered two batches of one number.
    TwoOrders,
    /// A validator voted twice.
    TwoVotes,
    /// A validator reported an outcome that its batch does not have.
    FalseOutcome,
    /// An order came with a body other than the one that it names.
    FalseBody,
    /// A primary ordered a batch with a time that no clock shows.
    FalseTime,
    /// A validator showed an outcome other than the requested one.
    FalseShown,
    /// A validator hid that it had seen an outcome prepared.
    Hidden,
    /// A validator complained without end.
    Complaints,
    /// A validator stayed silent.
    Silence,
    /// A validator was convicted.
    Conviction,
}

impl WorldFault {
    /// Every kind of fault.
    pub const ALL: &'static [WorldFault] = <WorldFault as strum::VariantArray>::VARIANTS;
}

/// The faults that occurred in one world.
pub(super) type Troubles = BTreeSet<WorldFault>;

/// The number of worlds in which each kind occurred.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {
    runs: u64,
    troubles: BTreeMap<WorldFault, u64>,
}

impl Table {
    pub(super) fn add(&mut self, troubles: &Troubles) {
        self.runs += 1;
        for trouble in troubles {
            *self.troubles.entry(*trouble).or_default() += 1;
        }
    }

    /// Returns the kinds that occurred in no more worlds than chance would explain if their share were
    /// [`SHARE_MIN`](super::super::SHARE_MIN).
    pub fn missing(&self) -> Vec<WorldFault> {
        WorldFault::ALL.iter().copied().filter(|trouble| is_rare(self.worlds(*trouble), self.runs)).collect()
    }

    fn worlds(&self, trouble: WorldFault) -> u64 {
        self.troubles.get(&trouble).copied().unwrap_or_default()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {:>8} {:>7}", "trouble", "runs", "share")?;
        for &trouble in WorldFault::ALL {
            let runs = self.worlds(trouble);
            let share = runs as f64 / self.runs.max(1) as f64 * 100.0;
            writeln!(f, "{:<18} {runs:>8} {share:>6.1}%", format!("{trouble:?}"))?;
        }
        Ok(())
    }
}
