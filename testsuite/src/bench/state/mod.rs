//! What it costs to commit certified state: `Store::commit_run` beside the same rows written to RocksDB with no tree, and
//! beside other people's trees: the `jmt` crate over the same RocksDB, and `nomt`.
//!
//! What is timed is one durable commit after the other: from a decoded, sorted delta in memory to the state root checked,
//! the rows written and synced. Deltas, headers and the floor's rows are made before the clock starts. Contenders take
//! turns, round by round, on directories of their own that were filled with the same keys.

mod contender;
mod jmt;
mod meter;
mod nomt;
mod workload;

use std::{path::Path, time::Instant};

use anyhow::Result;

use self::{
    contender::{Committed, Contender, Floor, Ours},
    jmt::Jmt,
    meter::{Cost, Meter},
    nomt::NomtPeer,
    workload::{Choice, Round, Workload},
};
use super::{Aim, BenchOptions, Figure, Report};
use crate::progress::Progress;

/// Keys of the trees, and how often each case is measured on them.
struct Plan {
    sizes: Vec<u64>,
    rounds: usize,
    cases: Vec<Case>,
}

/// Batches of one kind.
#[derive(Clone, Copy)]
struct Case {
    updates: usize,
    choice: Choice,
    /// Batches in a round.
    batches: usize,
}

/// The case that the aims are about.
const MAIN: Case = Case { updates: 10_000, choice: Choice::Uniform, batches: 10 };
/// `jmt` is slower by an order of magnitude: fewer batches tell as much.
const JMT_BATCHES: usize = 3;
/// Names of [`Peers`] in the figures.
const PEERS: [&str; 2] = ["jmt", "nomt"];

impl Plan {
    fn new(quick: bool) -> Plan {
        if quick {
            return Plan { sizes: vec![100_000, 1_000_000], rounds: 3, cases: vec![MAIN] };
        }
        let cases = vec![
            MAIN,
            Case { updates: 1_000, batches: 30, ..MAIN },
            Case { updates: 50_000, batches: 4, ..MAIN },
            Case { choice: Choice::Zipf, ..MAIN },
        ];
        Plan { sizes: vec![1_000_000, 10_000_000], rounds: 9, cases }
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

/// 1000 as 1k, 1000000 as 1m.
fn short(number: u64) -> String {
    match number {
        n if n >= 1_000_000 => format!("{}m", n / 1_000_000),
        n => format!("{}k", n / 1_000),
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let plan = Plan::new(options.quick);
    let dir = tempfile::tempdir_in(&options.dir)?;
    let mut figures = Vec::new();
    let mut main_cpu = Vec::new();
    for (index, &keys) in plan.sizes.iter().enumerate() {
        let bench = Size { keys, plan: &plan, progress, with_peers: index == 0 };
        let (size_figures, cpu_us) = bench.run(&dir.path().join(short(keys)))?;
        figures.extend(size_figures);
        main_cpu.push((keys, cpu_us));
    }
    if let [(small, small_us), (large, large_us)] = &main_cpu[..] {
        let growth = large_us.iter().zip(small_us).map(|(large, small)| large / small).collect();
        let name = format!("cost_growth.{}_to_{}", short(*small), short(*large));
        figures.push(aimed(Figure::new(name, "ratio", growth)));
    }
    Ok(Report { bench: "state", runs: plan.rounds, figures, notes: notes(options.quick) })
}

/// The aims of this bench; a figure of another size has none.
fn aimed(figure: Figure) -> Figure {
    let aim = match figure.name() {
        "updates_per_s.1m.10k" => Aim::AtLeast(450_000.0),
        "updates_per_s.10m.10k" => Aim::AtLeast(250_000.0),
        "time_vs_floor.1m.10k" => Aim::AtMost(1.6),
        "speed_vs_jmt.1m.10k" => Aim::AtLeast(12.0),
        "cost_growth.1m_to_10m" => Aim::AtMost(1.5),
        _ => return figure,
    };
    figure.aim(aim)
}

fn notes(quick: bool) -> Vec<String> {
    let mut notes = vec![
        "ours: Store::commit_run of headers and deltas, fsync per batch, one batch hashed while the one before is written; floor: the same rows, encoded beforehand, as one \
         synced WriteBatch to the same column of an equally configured RocksDB, no tree, no header"
            .to_owned(),
        "jmt: the crate over an equally configured RocksDB, all its nodes and values written and synced per batch, stale \
         nodes left to lie"
            .to_owned(),
        "keys: half accounts, half slots of 64 contracts; a batch has each key once, Zipf ones too; CPU and bytes are the \
         whole process's, RocksDB's background work included"
            .to_owned(),
        "nomt: pages of its tree and of its values written by io_uring, five files synced per batch; caches that hold all \
         of it; paths that share 8 bytes, as a contract's slots do, cost it a quarter of its bytes"
            .to_owned(),
        "commonware-storage's qmdb is not measured here: it links aws-lc-rs, which deny.toml bans; docs/benchmarks.md has \
         figures from a build outside the project"
            .to_owned(),
    ];
    if quick {
        notes.push("--quick: a look, on smaller trees and with fewer runs".to_owned());
    }
    notes
}

/// All cases on trees of one size.
struct Size<'a> {
    keys: u64,
    plan: &'a Plan,
    progress: Progress,
    with_peers: bool,
}

/// Other people's trees.
struct Peers {
    jmt: Jmt,
    nomt: NomtPeer,
}

impl Peers {
    fn fill(dir: &Path, workload: &Workload, progress: Progress) -> Result<Peers> {
        let say = |name: &str| progress.step(&format!("filling {name} with {} keys", short(workload.keys())));
        say("jmt");
        let jmt = Jmt::fill(&dir.join("jmt"), workload, progress)?;
        say("nomt");
        let nomt = NomtPeer::fill(&dir.join("nomt"), workload, progress)?;
        Ok(Peers { jmt, nomt })
    }

    /// In the order of [`PEERS`].
    fn measure(&mut self, round: &Round) -> Result<[Cost; PEERS.len()]> {
        let few = Round { batches: round.batches[..JMT_BATCHES.min(round.batches.len())].to_vec() };
        Ok([measure(&mut self.jmt, &few)?, measure(&mut self.nomt, round)?])
    }
}

/// Samples of one contender.
#[derive(Default)]
struct Samples {
    costs: Vec<Cost>,
}

impl Samples {
    fn of(&self, figure: impl Fn(&Cost) -> f64) -> Vec<f64> {
        self.costs.iter().map(figure).collect()
    }
}

impl Size<'_> {
    /// Its figures, and the CPU per update of the main case in microseconds.
    fn run(&self, dir: &Path) -> Result<(Vec<Figure>, Vec<f64>)> {
        let size = short(self.keys);
        let mut workload = Workload::new(self.keys);
        self.progress.step(&format!("filling a store of {size} keys"));
        let ours_dir = dir.join("ours");
        Ours::fill(&ours_dir, &workload, self.progress)?;
        let start = Instant::now();
        let mut ours = Ours::open(&ours_dir)?;
        let open_s = start.elapsed().as_secs_f64();
        self.progress.step(&format!("filling RocksDB with {size} rows"));
        let mut floor = Floor::fill(&dir.join("floor"), &workload)?;
        let mut peers = self.with_peers.then(|| Peers::fill(dir, &workload, self.progress)).transpose()?;
        let mut figures = vec![Figure::new(format!("open_s.{size}"), "s", vec![open_s])];
        let mut main_cpu_us = Vec::new();
        for case in &self.plan.cases {
            let label = case.label(self.keys);
            self.progress.step(&format!("measuring {label}"));
            let peers = peers.as_mut().filter(|_| case.is_main());
            let [ours, floor, peers @ ..] = self.case(case, &mut workload, &mut ours, &mut floor, peers)?;
            let ratio = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>();
            let mut add = |name: &str, unit, samples: Vec<f64>| {
                figures.push(aimed(Figure::new(format!("{name}.{label}"), unit, samples)));
            };
            add("updates_per_s", "1/s", ours.of(Cost::updates_per_s));
            add("floor_updates_per_s", "1/s", floor.of(Cost::updates_per_s));
            add("time_vs_floor", "ratio", ratio(floor.of(Cost::updates_per_s), ours.of(Cost::updates_per_s)));
            for (name, peer) in PEERS.iter().zip(&peers).filter(|(_, peer)| !peer.costs.is_empty()) {
                add(&format!("{name}_updates_per_s"), "1/s", peer.of(Cost::updates_per_s));
                let speeds = (ours.of(Cost::updates_per_s), peer.of(Cost::updates_per_s));
                add(&format!("speed_vs_{name}"), "ratio", ratio(speeds.0, speeds.1));
                add(&format!("{name}_bytes_per_update"), "bytes", peer.of(Cost::bytes_per_update));
            }
            add("cpu_per_update", "us", ours.of(Cost::cpu_us_per_update));
            add("floor_cpu_per_update", "us", floor.of(Cost::cpu_us_per_update));
            add("bytes_per_update", "bytes", ours.of(Cost::bytes_per_update));
            add("floor_bytes_per_update", "bytes", floor.of(Cost::bytes_per_update));
            if case.is_main() {
                main_cpu_us = ours.of(Cost::cpu_us_per_update);
            }
        }
        Ok((figures, main_cpu_us))
    }

    /// One round more than is counted: the first one warms everybody up.
    fn case(
        &self,
        case: &Case,
        workload: &mut Workload,
        ours: &mut Ours,
        floor: &mut Floor,
        mut peers: Option<&mut Peers>,
    ) -> Result<[Samples; 2 + PEERS.len()]> {
        let mut samples = <[Samples; 2 + PEERS.len()]>::default();
        for index in 0..=self.plan.rounds {
            let round = workload.round(case.batches, case.updates, case.choice)?;
            let mut costs = vec![measure(ours, &round)?, measure(floor, &round)?];
            if let Some(peers) = &mut peers {
                costs.extend(peers.measure(&round)?);
            }
            if index > 0 {
                samples.iter_mut().zip(costs).for_each(|(samples, cost)| samples.costs.push(cost));
            }
        }
        Ok(samples)
    }
}

fn measure<C: Contender>(contender: &mut C, round: &Round) -> Result<Cost> {
    let prepared = contender.prepare(round)?;
    let meter = Meter::start()?;
    let Committed { updates } = contender.commit(prepared)?;
    meter.stop(updates)
}
