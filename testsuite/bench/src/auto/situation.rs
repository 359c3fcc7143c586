//! [`Situation`]: the circumstances in which a node starts, as data.

use super::chain::Recipe;
use crate::harness::{chain::Stretch, workload::Workload};

/// The circumstances of a start.
#[derive(Debug)]
pub(super) struct Situation {
    /// The name in figures.
    pub(super) name: &'static str,
    pub(super) chain: &'static Recipe,
    pub(super) start: Start,
    pub(super) suppliers: &'static [Supplier],
    /// Threads of other work, each of which occupies a core.
    pub(super) busy_threads: usize,
    /// `sync.history`.
    pub(super) history: bool,
}

/// A node's data when it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// Nothing.
    Empty,
    /// All batches up to this many before the head. The chain's recipe has a stop there.
    Stopped(u64),
}

/// A source of the chain, and its link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Supplier {
    pub(super) keeps: Keeps,
    pub(super) round_trip_ms: u64,
    /// The bandwidth of each direction; 0 is unlimited.
    pub(super) mbit_per_s: u64,
}

/// The part of the chain that a supplier keeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Keeps {
    /// Everything, and the two newest snapshots.
    All,
    /// Bodies, receipts and hints.
    Bodies,
    /// Deltas.
    Deltas,
    /// The two newest snapshots, and the batches after the older one.
    Snapshots,
    /// The newest snapshot as an archive on disk, without a link.
    Archive,
}

impl Keeps {
    const fn near(self) -> Supplier {
        Supplier { keeps: self, round_trip_ms: 0, mbit_per_s: 0 }
    }

    const fn over(self, round_trip_ms: u64, mbit_per_s: u64) -> Supplier {
        Supplier { keeps: self, round_trip_ms, mbit_per_s }
    }
}

const fn of(batches: u64, transactions: usize) -> Stretch {
    Stretch { batches, transactions }
}

const NEAR: &[Supplier] = &[Keeps::All.near()];

/// 20,000 small batches among 200 accounts.
static LONG: Recipe = Recipe {
    name: "long",
    workload: Workload::Hot,
    senders: 0,
    rows: 10_000,
    stretches: &[of(20_120, 10)],
    stops: &[50, 500, 2_000, 20_000],
};

/// The state of `LONG`, after 500 batches.
static SHORT: Recipe = Recipe {
    name: "short",
    workload: Workload::Hot,
    senders: 0,
    rows: 10_000,
    stretches: &[of(520, 10)],
    stops: &[],
};

/// 2,000 batches with 680,000 transactions.
pub(super) static FULL: Recipe = Recipe {
    name: "full",
    workload: Workload::Transfers,
    senders: 10_000,
    rows: 0,
    stretches: &[of(2_020, 340)],
    stops: &[500],
};

static TOKEN: Recipe = Recipe {
    name: "token",
    workload: Workload::Erc20,
    senders: 10_000,
    rows: 0,
    stretches: &[of(620, 250)],
    stops: &[500],
};

static LARGE: Recipe = Recipe {
    name: "large",
    workload: Workload::Transfers,
    senders: 10_000,
    rows: 10_000,
    stretches: &[of(120, 1_000)],
    stops: &[50],
};

static MILLION: Recipe = Recipe {
    name: "million",
    workload: Workload::Transfers,
    senders: 10_000,
    rows: 1_000_000,
    stretches: &[of(720, 100)],
    stops: &[500],
};

static TWENTY_MILLION: Recipe = Recipe {
    name: "twenty_million",
    workload: Workload::Transfers,
    senders: 10_000,
    rows: 20_000_000,
    stretches: &[of(3_320, 100)],
    stops: &[500],
};

static LATE: Recipe = Recipe {
    name: "late",
    workload: Workload::Transfers,
    senders: 10_000,
    rows: 0,
    stretches: &[of(1_000, 0), of(1_020, 250)],
    stops: &[],
};

static BURST: Recipe = Recipe {
    name: "burst",
    workload: Workload::Transfers,
    senders: 10_000,
    rows: 10_000,
    stretches: &[of(500, 5), of(200, 1_000), of(520, 5)],
    stops: &[1_000],
};

const fn new(
    name: &'static str,
    chain: &'static Recipe,
    start: Start,
    suppliers: &'static [Supplier],
) -> Situation {
    Situation { name, chain, start, suppliers, busy_threads: 0, history: true }
}

use Start::{Empty, Stopped};

/// The situations of a full run.
pub(super) static FULL_RUN: [Situation; 27] = [
    new("full", &FULL, Empty, NEAR),
    Situation { history: false, ..new("full.no_history", &FULL, Empty, NEAR) },
    Situation { busy_threads: 2, ..new("full.busy", &FULL, Empty, NEAR) },
    new("full.stopped", &FULL, Stopped(500), NEAR),
    new("full.20mbit", &FULL, Empty, &[Keeps::All.over(20, 20)]),
    new("full.archive", &FULL, Empty, &[Keeps::All.over(20, 20), Keeps::Archive.near()]),
    new("full.snapshots_alone", &FULL, Empty, &[Keeps::All.over(20, 20), Keeps::Snapshots.over(20, 0)]),
    new("gap.50", &LONG, Stopped(50), NEAR),
    new("gap.500", &LONG, Stopped(500), NEAR),
    new("gap.2000", &LONG, Stopped(2_000), NEAR),
    new("gap.20000", &LONG, Stopped(20_000), NEAR),
    Situation { history: false, ..new("gap.2000.no_history", &LONG, Stopped(2_000), NEAR) },
    new("gap.2000.2mbit", &LONG, Stopped(2_000), &[Keeps::All.over(50, 2)]),
    new("token", &TOKEN, Empty, NEAR),
    new("token.stopped", &TOKEN, Stopped(500), NEAR),
    new("token.150ms", &TOKEN, Stopped(500), &[Keeps::All.over(150, 0)]),
    new("token.four_peers", &TOKEN, Stopped(500), &[Keeps::All.over(20, 1_000); 4]),
    Situation {
        history: false,
        ..new("token.apart", &TOKEN, Empty, &[Keeps::Bodies.over(20, 0), Keeps::Deltas.over(20, 20)])
    },
    new("large", &LARGE, Empty, NEAR),
    new("large.stopped", &LARGE, Stopped(50), NEAR),
    new("million", &MILLION, Empty, NEAR),
    new("million.stopped", &MILLION, Stopped(500), NEAR),
    new("million.2mbit", &MILLION, Stopped(500), &[Keeps::All.over(50, 2)]),
    new("late", &LATE, Empty, NEAR),
    new("late.bodies_alone", &LATE, Empty, &[Keeps::Bodies.near()]),
    Situation { history: false, ..new("late.deltas_alone", &LATE, Empty, &[Keeps::Deltas.over(20, 8)]) },
    new("burst.stopped", &BURST, Stopped(1_000), NEAR),
];

/// Two situations with the same state, after 20,000 batches and after 500, to compare their times to the head.
pub(super) static LENGTHS: [Situation; 2] =
    [new("length.20000", &LONG, Empty, NEAR), new("length.500", &SHORT, Empty, NEAR)];

/// Situations that run only if they are named: filling their chains takes minutes.
pub(super) static ONLY_NAMED: [Situation; 2] = [
    new("twenty_million", &TWENTY_MILLION, Empty, NEAR),
    new("twenty_million.stopped", &TWENTY_MILLION, Stopped(500), NEAR),
];

static LOOK: Recipe = Recipe {
    name: "look",
    workload: Workload::Transfers,
    senders: 1_000,
    rows: 2_000,
    stretches: &[of(100, 0), of(520, 60)],
    stops: &[50, 420],
};

/// The situations of a quick run.
pub(super) static QUICK_RUN: [Situation; 6] = [
    new("look", &LOOK, Empty, NEAR),
    Situation { history: false, ..new("look.150ms", &LOOK, Empty, &[Keeps::All.over(150, 0)]) },
    new("look.gap.50", &LOOK, Stopped(50), NEAR),
    new("look.gap.420.20mbit", &LOOK, Stopped(420), &[Keeps::All.over(20, 20)]),
    Situation {
        history: false,
        ..new("look.apart", &LOOK, Empty, &[Keeps::Bodies.near(), Keeps::Deltas.over(20, 20)])
    },
    new("look.archive", &LOOK, Empty, &[Keeps::All.over(20, 2), Keeps::Archive.near()]),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn all() -> impl Iterator<Item = &'static Situation> {
        FULL_RUN.iter().chain(&LENGTHS).chain(&ONLY_NAMED).chain(&QUICK_RUN)
    }

    #[test]
    fn situations_have_names_of_their_own_and_start_where_a_node_stopped() {
        let names: BTreeSet<_> = all().map(|situation| situation.name).collect();
        assert_eq!(names.len(), all().count());
        for Situation { name, chain, start, suppliers, .. } in all() {
            assert!(!matches!(start, Stopped(behind) if !chain.stops.contains(behind)), "{name}");
            assert!(suppliers.iter().any(|supplier| supplier.keeps != Keeps::Archive), "{name}");
        }
    }

    /// Goal: each chain ends between two snapshots, so that batches follow its last snapshot.
    #[test]
    fn chains_end_behind_a_snapshot() {
        for Situation { chain, .. } in all() {
            assert_eq!(chain.batches() % super::super::chain::SNAPSHOT_INTERVAL, 20, "{}", chain.name);
        }
    }
}
