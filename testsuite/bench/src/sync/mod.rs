//! `slipnet bench sync`: catching up with a chain, in each mode. It is compared with the v1 protocol and with the same
//! work on data in memory, and repeated with hostile peers.
//!
//! A chain is made in process and a real node serves it. Fresh followers catch up with it through a relay that adds
//! latency, or none. Modes take turns, and so do latencies.

mod figures;
mod floor;
mod follow;
mod hostile;
mod mixed;
mod mode;
mod peers;
mod v1;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::BatchNumber;

use self::{
    figures::Samples,
    floor::{Floor, Loaded},
    follow::{Supply, directory},
    mode::Mode,
};
use super::{
    BenchOptions, Report,
    harness::{
        ONE_WAY,
        chain::Source,
        node::{NodeOptions, NodeProcess, database},
        relay::Relay,
        workload::Workload,
    },
};
pub(super) use peers::Peers;
use slipnet::{accounts::node_key, progress::Progress};
pub(super) use v1::{V1Options, run as run_v1};

/// Batches between two snapshots of a source. Each chain ends between two of them, so that batches follow its last
/// snapshot.
const SNAPSHOT_INTERVAL: u64 = 100;
const SERVER_SEED: &str = "slipnet-bench-server";

/// One chain, and its followers.
#[derive(Clone, Debug)]
struct Case {
    workload: Workload,
    batches: u64,
    modes: Vec<Mode>,
    /// Whether the chain is measured without latency too.
    both_latencies: bool,
    /// Whether the chain is followed from hostile peers too.
    hostile: bool,
    /// Whether the chain is followed from peers that serve different things, too.
    mixed: bool,
}

#[derive(Debug)]
struct Plan {
    runs: usize,
    /// Whether the floors are measured.
    floors: bool,
    senders: u32,
    cases: Vec<Case>,
    /// Batches that the baseline follows: its rate does not depend on their number.
    v1_batches: u64,
}

impl Plan {
    fn new(quick: bool) -> Plan {
        use Mode::{
            Auto, AutoHistory, Delta, DeltaHistory, RangeDelta, Replay, ReplayUnhinted, Snapshot, V1,
        };
        // Each of the first two takes at least ten seconds without latency, in deltas and in replay.
        let (long, short, erc20) = if quick { (120, 60, 110) } else { (9_020, 1_420, 620) };
        let contracts: &[Mode] = match quick {
            true => &[V1, Replay, Delta, AutoHistory],
            false => {
                &[V1, ReplayUnhinted, Replay, Delta, DeltaHistory, RangeDelta, Snapshot, Auto, AutoHistory]
            }
        };
        let case = |workload, batches, modes: &[Mode]| Case {
            workload,
            batches,
            modes: modes.to_vec(),
            both_latencies: false,
            hostile: false,
            mixed: false,
        };
        // Two chains of transfers: deltas take some seconds on the first, and replay does on the second.
        let deltas = case(Workload::Transfers, long, &[Delta, DeltaHistory, RangeDelta, Snapshot, Auto]);
        let replays = case(Workload::Transfers, short, &[V1, ReplayUnhinted, Replay, AutoHistory]);
        let cases = vec![
            Case { both_latencies: true, hostile: true, ..deltas },
            Case { both_latencies: true, ..replays },
            Case { mixed: true, ..case(Workload::Erc20, erc20, contracts) },
            case(Workload::Hot, long, &[Delta, RangeDelta, Auto]),
        ];
        match quick {
            true => Plan { runs: 1, floors: true, senders: 1_000, cases, v1_batches: 16 },
            false => Plan { runs: 3, floors: true, senders: 10_000, cases, v1_batches: 160 },
        }
    }
}

impl Plan {
    /// Leaves out all labels that are not named: `transfers.delta`, `erc20.v1`, `floor`, `hostile`, `mixed`.
    fn retain(&mut self, labels: &[String]) {
        let named = |label: &str| labels.iter().any(|named| named == label);
        for case in &mut self.cases {
            let workload = case.workload.name();
            case.modes.retain(|mode| named(&format!("{workload}.{}", mode.name())));
            case.hostile &= named("hostile");
            case.mixed &= named("mixed");
        }
        self.cases.retain(|case| case.hostile || case.mixed || !case.modes.is_empty());
        self.floors = named("floor");
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let mut plan = Plan::new(options.quick);
    if !options.only.is_empty() {
        plan.retain(&options.only);
    }
    let dir = options.temporary_dir()?;
    run_in(&plan, dir.path(), progress).map_err(|error| {
        let dir = dir.keep();
        error.context(format!("the bench failed; the nodes' files and logs are in {}", dir.display()))
    })
}

fn run_in(plan: &Plan, dir: &Path, progress: Progress) -> Result<Report> {
    let mut samples = Samples::default();
    let runtime = tokio::runtime::Handle::current();
    for (index, case) in plan.cases.iter().enumerate() {
        let bench = CaseBench { plan, case, dir: dir.join(index.to_string()), progress };
        runtime.block_on(bench.run(&mut samples))?;
        fs::remove_dir_all(&bench.dir)?;
    }
    Ok(figures::report(plan, &samples))
}

/// The measurement of one chain.
struct CaseBench<'a> {
    plan: &'a Plan,
    case: &'a Case,
    dir: PathBuf,
    progress: Progress,
}

impl CaseBench<'_> {
    async fn run(&self, samples: &mut Samples) -> Result<()> {
        let name = self.case.workload.name();
        let made =
            MadeChain::new(self.case.workload, self.case.batches, self.plan, &self.dir, self.progress)?;
        let floor_of = |mode| self.plan.floors && self.case.modes.contains(&mode);
        if floor_of(Mode::Replay) {
            self.progress.step(&format!("floor of replay, {name}"));
            for _ in 0..self.plan.runs {
                let floor = self.floor(|dir| made.loaded.replay(&made.source, dir))?;
                samples.add_floor(self.case.workload, "replay", &made.source, floor);
            }
        }
        if floor_of(Mode::Delta) {
            self.progress.step(&format!("floor of delta, {name}"));
            for _ in 0..self.plan.runs {
                let floor = self.floor(|dir| made.loaded.delta(&made.source, dir))?;
                samples.add_floor(self.case.workload, "delta", &made.source, floor);
            }
        }
        let MadeChain { source, genesis, v1_root, loaded } = made;
        drop(loaded);
        let options =
            NodeOptions { mode: "auto", snapshot_interval: SNAPSHOT_INTERVAL, ..NodeOptions::default() };
        let server =
            NodeProcess::start(&source_dir(&self.dir), &genesis, &node_key(SERVER_SEED, 0), &options).await?;
        for run in 1..=self.plan.runs {
            let latencies =
                if self.case.both_latencies { &[ONE_WAY, Duration::ZERO][..] } else { &[ONE_WAY] };
            for &one_way in latencies {
                let mut modes = self.case.modes.clone();
                // The baseline is measured only with latency; the order rotates from run to run.
                modes.retain(|mode| *mode != Mode::V1 || one_way > Duration::ZERO);
                let len = modes.len();
                modes.rotate_left(run % len.max(1));
                for mode in modes {
                    let ms = 2 * one_way.as_millis();
                    self.progress.step(&format!(
                        "{name}, {} at {ms} ms, run {run} of {}",
                        mode.name(),
                        self.plan.runs
                    ));
                    let relay = Relay::start(server.address(), one_way)?;
                    let supply = Supply {
                        source: &source,
                        genesis: &genesis,
                        server: Some(&server),
                        peers: vec![server.peer_at(relay.address())],
                        relay: Some(&relay),
                    };
                    let dir = directory(&self.dir);
                    let followed = match mode {
                        Mode::V1 => supply.follow_v1(self.v1_batches(), &v1_root, &dir).await?,
                        mode => supply.follow(mode, &dir).await?,
                    };
                    anyhow::ensure!(relay.dropped() == 0, "the relay dropped datagrams");
                    samples.add(self.case.workload, mode, one_way, followed);
                }
            }
        }
        if self.case.mixed {
            samples.mixed =
                mixed::run(&source, &genesis, &server, self.plan.runs, &self.dir, self.progress).await?;
        }
        server.stop().await?;
        if self.case.hostile {
            samples.hostile =
                hostile::run(&source, &genesis, self.plan.runs, &self.dir, self.progress).await?;
        }
        Ok(())
    }

    fn v1_batches(&self) -> u64 {
        self.plan.v1_batches.min(self.case.batches)
    }

    fn floor(&self, work: impl FnOnce(&Path) -> Result<Floor>) -> Result<Floor> {
        let dir = self.dir.join("floor");
        let floor = tokio::task::block_in_place(|| work(&dir))?;
        fs::remove_dir_all(&dir)?;
        rustix::fs::sync();
        Ok(floor)
    }
}

/// A chain in a directory that a node can start on.
struct MadeChain {
    source: Source,
    /// The chain's genesis file.
    genesis: PathBuf,
    loaded: Loaded,
    /// The state root at the baseline's target.
    v1_root: String,
}

fn source_dir(dir: &Path) -> PathBuf {
    dir.join("source")
}

impl MadeChain {
    fn new(
        workload: Workload,
        batches: u64,
        plan: &Plan,
        dir: &Path,
        progress: Progress,
    ) -> Result<MadeChain> {
        progress.step(&format!("making a chain of {batches} batches, {}", workload.name()));
        let database = database(&source_dir(dir));
        fs::create_dir_all(&database)?;
        let config = StorageConfig {
            fsync: false,
            snapshot_interval_batches: SNAPSHOT_INTERVAL,
            ..Default::default()
        };
        let store = Store::open(&config, &database)?;
        let source = Source::make(&store, workload, batches, plan.senders, progress)?;
        let genesis = dir.join("genesis.json");
        fs::write(&genesis, serde_json::to_string(&source.genesis)?)?;
        let loaded = Loaded::read(&store)?;
        let v1_last = BatchNumber::new(plan.v1_batches.min(batches));
        let v1_root =
            store.header(v1_last)?.context("the batch where v1 stops is missing")?.state_root.to_string();
        store.close();
        Ok(MadeChain { source, genesis, loaded, v1_root })
    }
}
