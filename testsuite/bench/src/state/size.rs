//! [`SizeRun`]: all measurements of one size.

use std::{collections::BTreeMap, path::Path, time::Instant};

use anyhow::{Context, Result};
use slipstream_storage::StorageConfig;
use tempfile::TempDir;

use super::{
    Case, SizePlan, aimed,
    child::CommitOptions,
    contender::{Floor, OwnStore, Way, config, measure},
    dir::SizeDir,
    filled::Filled,
    jmt::Jmt,
    meter::Cost,
    nomt::{Caches, NomtPeer},
    workload::{Initial, Round, Workload},
};
use crate::{
    Figure,
    harness::{kept::WorkDir, ratios},
    size::short,
};
use slipnet::progress::Progress;

/// Batches for `jmt`, which is slower by an order of magnitude: fewer suffice.
const JMT_BATCHES: usize = 3;
/// The names of [`Peers`] in figures.
const PEERS: [&str; 2] = ["jmt", "nomt"];
/// More batches than a run makes.
const RUN_BATCHES: u64 = 10_000;
/// Warm-up rounds of a process with only our store: enough to fill the memory of the tree.
const ALONE_WARM_ROUNDS: usize = 5;
/// The disk space that must stay free beside a rival.
const FREE_BYTES: u64 = 4 << 30;

/// The measurements of one size.
pub(super) struct Measured {
    pub(super) figures: Vec<Figure>,
    pub(super) notes: Vec<String>,
    /// The costs of the main case, by way.
    pub(super) main: BTreeMap<Way, Vec<Cost>>,
}

/// The run of one size.
pub(super) struct SizeRun<'a> {
    plan: &'a SizePlan,
    size_dir: SizeDir,
    place: &'a WorkDir,
    progress: Progress,
}

/// The other trees that are measured.
#[derive(Default)]
struct Peers {
    jmt: Option<Jmt>,
    nomt: Option<NomtPeer>,
    /// The directory of jmt, which each run fills again.
    _temporary: Option<TempDir>,
}

impl Peers {
    fn measure(&mut self, round: &Round, samples: &mut BTreeMap<&str, Vec<Cost>>) -> Result<()> {
        let few = Round { batches: round.batches[..JMT_BATCHES.min(round.batches.len())].to_vec() };
        if let Some(jmt) = &mut self.jmt {
            samples.entry(PEERS[0]).or_default().push(measure(jmt, &few)?);
        }
        if let Some(nomt) = &mut self.nomt {
            samples.entry(PEERS[1]).or_default().push(measure(nomt, round)?);
        }
        Ok(())
    }
}

/// Samples of one case, round by round.
#[derive(Default)]
struct Samples {
    ways: BTreeMap<Way, Vec<Cost>>,
    floor: Vec<Cost>,
    peers: BTreeMap<&'static str, Vec<Cost>>,
}

impl Samples {
    /// Drops the warm-up rounds.
    fn skip(&mut self, warm_rounds: usize) {
        let all = self.ways.values_mut().chain([&mut self.floor]).chain(self.peers.values_mut());
        all.for_each(|costs| _ = costs.drain(..warm_rounds));
    }
}

fn of(costs: &[Cost], figure: impl Fn(&Cost) -> f64) -> Vec<f64> {
    costs.iter().map(figure).collect()
}

impl<'a> SizeRun<'a> {
    pub(super) fn new(plan: &'a SizePlan, place: &'a WorkDir, progress: Progress) -> Result<SizeRun<'a>> {
        let size_dir = SizeDir::open(place.dir(), plan.keys)?;
        Ok(SizeRun { plan, size_dir, place, progress })
    }

    pub(super) fn run(&self) -> Result<Measured> {
        let SizePlan { keys, tree_memory_mib, .. } = *self.plan;
        let size = short(keys);
        let (mut figures, mut notes) = (Vec::new(), Vec::new());
        let mut initial = None;
        let store = self.size_dir.fill_once("ours", &mut initial, self.progress, |dir, initial| {
            OwnStore::fill(dir, initial, self.progress)
        })?;
        let floor = self.size_dir.fill_once("floor", &mut initial, self.progress, Floor::fill)?;
        let mut peers = self.peers(&mut initial, &mut notes)?;
        drop(initial);
        if self.plan.alone {
            figures.extend(self.alone(&store)?);
        }
        let start = Instant::now();
        let ours = OwnStore::open(&StorageConfig { tree_memory_mib, ..config(true) }, &store)?;
        figures.push(aimed(Figure::new(format!("open_s.{size}"), "s", vec![start.elapsed().as_secs_f64()])));
        let mut floor = Floor::open(&floor)?;
        let mut workload = self.size_dir.take(RUN_BATCHES)?;
        let mut main = BTreeMap::new();
        for case in &self.plan.cases {
            let label = case.label(keys);
            self.progress.step(&format!("measuring {label}"));
            let peers = case.is_main().then_some(&mut peers);
            let samples = self.case(case, &mut workload, &ours, &mut floor, peers)?;
            figures.extend(self.figures(&label, &samples));
            if case.is_main() {
                main = samples.ways;
            }
        }
        ours.store().close();
        drop((ours, floor, peers));
        if let Some(curve) = &self.plan.curve {
            figures.extend(curve.measure(&self.size_dir, (&store, keys), self.progress)?);
        }
        Ok(Measured { figures, notes, main })
    }

    fn peers(&self, initial: &mut Option<Initial>, notes: &mut Vec<String>) -> Result<Peers> {
        let mut peers = Peers::default();
        if self.plan.with_jmt {
            let size = short(self.plan.keys);
            self.progress.step(&format!("filling jmt with {size} keys"));
            let initial = initial.get_or_insert_with(|| Initial::new(self.plan.keys));
            let temporary = tempfile::tempdir_in(self.place.dir())?;
            peers.jmt = Some(Jmt::fill(temporary.path(), initial, self.progress)?);
            peers._temporary = Some(temporary);
        }
        if let Some(caches) = self.plan.nomt {
            peers.nomt = self.nomt(caches, initial, notes)?;
        }
        Ok(peers)
    }

    /// Measures nomt; `None`, with a note, if the disk is too full.
    fn nomt(
        &self,
        caches: Caches,
        initial: &mut Option<Initial>,
        notes: &mut Vec<String>,
    ) -> Result<Option<NomtPeer>> {
        let keys = self.plan.keys;
        let (needed, free) = (NomtPeer::disk_bytes(keys) + FREE_BYTES, free_bytes(self.place.dir())?);
        if needed > free && !self.size_dir.keeps("nomt") {
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            notes.push(format!(
                "nomt with {} keys was left out: it takes {:.0} GiB with what should stay free, the disk has {:.0}",
                short(keys),
                gib(needed),
                gib(free)
            ));
            return Ok(None);
        }
        let dir = self.size_dir.fill_once("nomt", initial, self.progress, |dir, initial| {
            NomtPeer::fill(dir, caches, initial, self.progress)
        })?;
        Ok(Some(NomtPeer::open(&dir, caches, keys)?))
    }

    /// Measures our store in its own process.
    fn alone(&self, store: &Path) -> Result<Vec<Figure>> {
        let case = self.plan.cases.first().context("a size has no case")?;
        let label = case.label(self.plan.keys);
        self.progress.step(&format!("measuring {label} in a process of its own"));
        let filled = Filled {
            dir: store.to_owned(),
            keys: self.plan.keys,
            after: 0,
            tree_memory_mib: self.plan.tree_memory_mib,
            updates: case.updates,
            batches: case.batches,
        };
        let options = CommitOptions { filled, warm_rounds: ALONE_WARM_ROUNDS, rounds: self.plan.rounds };
        let after = self.size_dir.take_number(options.total_batches())?;
        let filled = Filled { after, ..options.filled };
        let report = CommitOptions { filled, ..options }.in_child()?;
        let figure = |name: &str, unit, samples| Figure::new(format!("{name}.{label}"), unit, samples);
        Ok(vec![
            figure("alone_updates_per_s", "1/s", of(&report.costs, Cost::updates_per_s)),
            figure("alone_cpu_per_update", "us", of(&report.costs, Cost::cpu_us_per_update)),
            figure("alone_read_bytes_per_update", "bytes", of(&report.costs, Cost::read_bytes_per_update)),
            figure("block_reads_per_update", "", vec![report.block_reads_per_update]),
            figure("peak_mib", "MiB", vec![report.peak_mib]),
        ])
    }

    fn case(
        &self,
        case: &Case,
        workload: &mut Workload,
        ours: &OwnStore,
        floor: &mut Floor,
        mut peers: Option<&mut Peers>,
    ) -> Result<Samples> {
        let mut samples = Samples::default();
        for _ in 0..self.plan.warm_rounds + self.plan.rounds {
            let round = workload.round(case.batches, case.updates, case.choice)?;
            let way = self.plan.way;
            samples.ways.entry(way).or_default().push(measure(&mut ours.by(way), &round)?);
            samples.floor.push(measure(floor, &round)?);
            if let Some(peers) = &mut peers {
                peers.measure(&round, &mut samples.peers)?;
            }
            for &way in self.plan.other_ways.iter().filter(|_| case.is_main()) {
                // New keys: those of the round above were touched.
                let round = workload.round(case.batches, case.updates, case.choice)?;
                samples.ways.entry(way).or_default().push(measure(&mut ours.by(way), &round)?);
            }
        }
        samples.skip(self.plan.warm_rounds);
        Ok(samples)
    }

    fn figures(&self, label: &str, samples: &Samples) -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut add = |name: &str, unit, samples: Vec<f64>| {
            figures.push(aimed(Figure::new(format!("{name}.{label}"), unit, samples)));
        };
        let (ours, floor) = (&samples.ways[&self.plan.way], &samples.floor);
        let speeds = of(ours, Cost::updates_per_s);
        add("updates_per_s", "1/s", speeds.clone());
        add("floor_updates_per_s", "1/s", of(floor, Cost::updates_per_s));
        add("time_vs_floor", "ratio", ratios(&of(floor, Cost::updates_per_s), &speeds));
        for (way, costs) in samples.ways.iter().filter(|(way, _)| **way != self.plan.way) {
            let name = way.name();
            add(&format!("{name}_updates_per_s"), "1/s", of(costs, Cost::updates_per_s));
            let against = ratios(&of(floor, Cost::updates_per_s), &of(costs, Cost::updates_per_s));
            add(&format!("{name}_time_vs_floor"), "ratio", against);
            add(&format!("{name}_cpu_per_update"), "us", of(costs, Cost::cpu_us_per_update));
        }
        for (name, costs) in &samples.peers {
            add(&format!("{name}_updates_per_s"), "1/s", of(costs, Cost::updates_per_s));
            add(&format!("speed_vs_{name}"), "ratio", ratios(&speeds, &of(costs, Cost::updates_per_s)));
            add(&format!("{name}_bytes_per_update"), "bytes", of(costs, Cost::bytes_per_update));
            add(&format!("{name}_read_bytes_per_update"), "bytes", of(costs, Cost::read_bytes_per_update));
        }
        add("cpu_per_update", "us", of(ours, Cost::cpu_us_per_update));
        add("floor_cpu_per_update", "us", of(floor, Cost::cpu_us_per_update));
        add("bytes_per_update", "bytes", of(ours, Cost::bytes_per_update));
        add("floor_bytes_per_update", "bytes", of(floor, Cost::bytes_per_update));
        add("read_bytes_per_update", "bytes", of(ours, Cost::read_bytes_per_update));
        figures
    }
}

/// Returns the free bytes of a directory's file system.
fn free_bytes(dir: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(dir)
        .with_context(|| format!("cannot read the free space of {}", dir.display()))?;
    Ok(found.f_bavail * found.f_frsize)
}
