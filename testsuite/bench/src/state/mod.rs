//! The cost of committing certified state. The store's first rival is the same rows in RocksDB without a tree. Two more
//! are other trees: the `jmt` crate over the same RocksDB, and `nomt`.
//!
//! The clock covers one durable commit after another. Each goes from a decoded, sorted delta in memory until the state
//! root is checked or computed ([`Way`]) and the rows are written and synced. Deltas and the floor's rows are made
//! before the clock starts. Contenders take turns, round by round, on separate directories that were filled with the
//! same keys in the order of the table.

mod child;
mod contender;
mod curve;
mod dir;
mod filled;
mod jmt;
mod meter;
mod nomt;
mod size;
mod workload;

use anyhow::Result;

pub(super) use self::{
    child::{CommitOptions, OpenOptions, OpenReport},
    contender::{OwnStore, Way, config, measure, next_header},
    dir::SizeDir,
    filled::Filled,
    meter::Cost,
    workload::{Choice, Initial, Workload},
};
use self::{curve::Curve, nomt::Caches, size::SizeRun};
use super::{Aim, BenchOptions, Figure, Report, harness::kept::WorkDir, size::short};
use slipnet::progress::Progress;

/// The measurements of one size.
struct SizePlan {
    keys: u64,
    rounds: usize,
    /// Warm-up rounds before those that count.
    warm_rounds: usize,
    cases: Vec<Case>,
    /// How the store gets the batches for the figures beside the floor.
    way: Way,
    /// The ways in which the main case is also measured.
    other_ways: &'static [Way],
    tree_memory_mib: u64,
    with_jmt: bool,
    nomt: Option<Caches>,
    curve: Option<Curve>,
    /// Whether the store is also measured in its own process, which shows its memory.
    alone: bool,
}

/// Batches of one kind.
#[derive(Clone, Copy)]
struct Case {
    updates: usize,
    choice: Choice,
    /// Batches in a round.
    batches: usize,
}

/// The case of the aims.
const MAIN: Case = Case { updates: 10_000, choice: Choice::Uniform, batches: 10 };
/// From this many keys on, the memory holds only a part of the tree, and one case is measured.
const LARGE_KEYS: u64 = 50_000_000;
/// The largest size of the aims.
pub(super) const KEPT_KEYS: u64 = 100_000_000;
/// Memory for a large tree.
const LARGE_TREE_MIB: u64 = 1_024;
/// Everything fits: the bench measures committing, not reading.
const ALL_CACHED: Caches = Caches { pages_mib: 1_024, leaves_mib: 1_024 };
/// As much as our store has: the pages of `nomt` get as much as our tree, its leaves as much as our block cache.
const LARGE_CACHES: Caches = Caches { pages_mib: 1_024, leaves_mib: 256 };
const CURVE: Curve =
    Curve { tree_memory_mib: &[0, 1_024, 512, 256, 128, 64], passes: 2, warm_rounds: 10, rounds: 5 };
const QUICK_CURVE: Curve = Curve { tree_memory_mib: &[0, 64, 8], passes: 1, warm_rounds: 2, rounds: 3 };

/// Returns the memory for the tree of a store with `keys` keys.
pub(super) fn tree_memory_mib(keys: u64) -> u64 {
    if keys >= LARGE_KEYS { LARGE_TREE_MIB } else { config(true).tree_memory_mib }
}

/// Returns the requested sizes, or the defaults, with the largest one if its store is kept.
pub(super) fn sizes(options: &BenchOptions, place: &WorkDir, full: &[u64], quick: &[u64]) -> Vec<u64> {
    match (&options.keys[..], options.quick) {
        ([], true) => quick.to_vec(),
        ([], false) => {
            let kept = SizeDir::keeps_store(place.dir(), KEPT_KEYS).then_some(KEPT_KEYS);
            full.iter().copied().chain(kept).collect()
        }
        (keys, _) => keys.to_vec(),
    }
}

impl SizePlan {
    fn new(quick: bool, keys: u64) -> SizePlan {
        let is_large = keys >= LARGE_KEYS;
        let mut cases = vec![MAIN];
        if !quick && !is_large {
            cases.extend([
                Case { updates: 1_000, batches: 30, ..MAIN },
                Case { updates: 50_000, batches: 4, ..MAIN },
                Case { choice: Choice::Zipf, ..MAIN },
            ]);
        }
        let is_small = if quick { keys <= 100_000 } else { keys <= 1_000_000 };
        SizePlan {
            keys,
            rounds: match (quick, is_large) {
                (true, _) => 3,
                (false, true) => 5,
                (false, false) => 9,
            },
            warm_rounds: if is_large { 3 } else { 1 },
            cases,
            way: if is_large { Way::Fresh } else { Way::Given },
            other_ways: if is_large { &[Way::Ahead] } else { &[Way::Fresh, Way::Ahead] },
            tree_memory_mib: tree_memory_mib(keys),
            with_jmt: is_small,
            nomt: match (is_small, is_large) {
                (true, _) => Some(ALL_CACHED),
                (_, true) => Some(LARGE_CACHES),
                _ => None,
            },
            curve: match (quick, keys) {
                (true, 1_000_000) => Some(QUICK_CURVE),
                (false, 10_000_000) => Some(CURVE),
                _ => None,
            },
            alone: is_large,
        }
    }
}

impl Case {
    fn label(&self, keys: u64) -> String {
        let zipf = if self.choice == Choice::Zipf { ".zipf" } else { "" };
        format!("{}.{}{zipf}", short(keys), short(self.updates as u64))
    }

    fn is_main(&self) -> bool {
        self.updates == MAIN.updates && self.choice == MAIN.choice
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let place = WorkDir::of(options)?;
    let sizes = sizes(options, &place, &[1_000_000, 10_000_000], &[100_000, 1_000_000]);
    let plans: Vec<SizePlan> = sizes.iter().map(|keys| SizePlan::new(options.quick, *keys)).collect();
    let mut figures = Vec::new();
    let mut notes = notes(options.quick);
    let mut costs = Vec::new();
    for plan in &plans {
        let measured = SizeRun::new(plan, &place, progress)?.run()?;
        figures.extend(measured.figures);
        notes.extend(measured.notes);
        costs.push((plan.keys, measured.main));
    }
    for pair in costs.windows(2) {
        let [(small, small_costs), (large, large_costs)] = pair else { continue };
        // The first way in which both sizes were measured.
        let both = small_costs.iter().find_map(|(way, costs)| Some((costs, large_costs.get(way)?)));
        if let Some((small_costs, large_costs)) = both {
            let us = |costs: &[Cost]| costs.iter().map(Cost::cpu_us_per_update).collect::<Vec<_>>();
            let growth =
                us(large_costs).iter().zip(us(small_costs)).map(|(large, small)| large / small).collect();
            let name = format!("cost_growth.{}_to_{}", short(*small), short(*large));
            figures.push(aimed(Figure::new(name, "ratio", growth)));
        }
    }
    let runs = plans.first().map_or(0, |plan| plan.rounds);
    Ok(Report { bench: "state", runs, figures, notes })
}

/// The aims of this bench; a figure of another size has none.
fn aimed(figure: Figure) -> Figure {
    let aim = match figure.name() {
        "updates_per_s.1m.10k" => Aim::AtLeast(450_000.0),
        "updates_per_s.10m.10k" => Aim::AtLeast(250_000.0),
        "updates_per_s.100m.10k" => Aim::AtLeast(100_000.0),
        "cpu_per_update.100m.10k" => Aim::AtMost(12.0),
        "time_vs_floor.1m.10k" => Aim::AtMost(1.5),
        "speed_vs_jmt.1m.10k" => Aim::AtLeast(12.0),
        "speed_vs_nomt.100m.10k" => Aim::AtLeast(2.0),
        "cost_growth.1m_to_10m" => Aim::AtMost(1.5),
        name => match open_aim(name) {
            Some(aim) => aim,
            None => return figure,
        },
    };
    figure.aim(aim)
}

/// The aims of opening, which two benches measure.
pub(super) fn open_aim(name: &str) -> Option<Aim> {
    match name {
        "open_s.10m" => Some(Aim::AtMost(1.0)),
        "open_s.100m" => Some(Aim::AtMost(3.0)),
        "open_killed_s.100m" => Some(Aim::AtMost(10.0)),
        _ => None,
    }
}

fn notes(quick: bool) -> Vec<String> {
    let mut notes = vec![
        "ours: fsync per batch. given: Store::commit_run of headers and deltas, one batch hashed while the one before is written; the roots in \
         the headers were computed before the clock started, which touched the keys. fresh: Store::speculate, the root put into the header, \
         Store::commit, all timed; no key was touched before. ahead: as fresh, the next root computed while a batch is written"
            .to_owned(),
        format!(
            "beside the floor ours is measured as given, from {} keys on as fresh; figures of other ways carry their name in front",
            short(LARGE_KEYS)
        ),
        "floor: the same rows, encoded beforehand, as one synced WriteBatch to the same column of an equally configured RocksDB, no tree, no \
         header"
            .to_owned(),
        "jmt: the crate over an equally configured RocksDB, all its nodes and values written and synced per batch, stale \
         nodes left to lie"
            .to_owned(),
        "keys: half accounts, half slots of 64 contracts; a batch has each key once, Zipf ones too; CPU and bytes are the \
         whole process's, RocksDB's background work included; bytes read are those that the operating system did not have in its cache"
            .to_owned(),
        format!(
            "nomt: pages of its tree and of its values written by io_uring, five files synced per batch; caches that hold all of it, from {} keys \
             on {} MiB of pages and {} MiB of values beside our {LARGE_TREE_MIB} MiB of tree and {} MiB of blocks; paths that share 8 bytes, as \
             a contract's slots do, cost it a quarter of its bytes",
            short(LARGE_KEYS),
            LARGE_CACHES.pages_mib,
            LARGE_CACHES.leaves_mib,
            config(true).block_cache_mib
        ),
        "curve.SIZE.MIB: fresh batches of 10k uniform updates with so much memory for the tree (0: no limit), in processes of their own; \
         block_reads: data blocks that were not in the block cache"
            .to_owned(),
        "commonware-storage's qmdb is not measured here: it links aws-lc-rs, which deny.toml bans".to_owned(),
    ];
    if quick {
        notes.push("--quick: a look, on smaller trees and with fewer runs".to_owned());
    }
    notes
}
