//! [`run`]: runs a scenario on a devnet of real processes.
//!
//! ```text
//!  Scenario ─▶ plan (events by time) ─┐
//!     │                               ▼
//!     └─▶ setup ─▶ Devnet ─▶ clock: events begin and end ─▶ audit ─▶ judge ─▶ RunReport
//!                    │        phases of load, each a task        ▲
//!                    └─ Collector and Watch observe ─────────────┘
//! ```
//!
//! Invariants: if an unharmed node ends, that is a finding, whatever the criteria say. So is anything that the engine
//! failed to do: validators that never become ready, a failed join, an impossible fault. The report is written in any
//! case. Everything that the engine started ends with it. Times in the report count from the clock's start, when the
//! first nodes are ready.

pub(super) mod act;
mod assault;
mod audit;
mod blame;
mod catch;
mod changes;
mod clock;
mod curves;
mod disk;
mod down;
mod flip;
mod free;
mod harm;
mod joins;
mod lies;
mod lying_peers;
mod nodes;
mod overlays;
pub(super) mod phase;
mod preload;
mod primary;
pub(super) mod setup;
mod sieges;
mod unbegun;
mod watch;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::task::JoinHandle;

use self::{
    assault::Assault,
    catch::Behind,
    changes::Changes,
    disk::SmallDisk,
    down::{ActiveHarms, DownNodes},
    joins::Joins,
    lies::Lies,
    lying_peers::LyingPeers,
    overlays::LinkOverlay,
    phase::PhaseEnd,
    preload::Knobs,
    watch::Watch,
};
use super::{
    criteria::{Criterion, Findings, judge},
    model::Scenario,
    names::{Names, NodeIndex},
    plan::plan,
};
use crate::{
    devnet::Devnet,
    progress::Progress,
    relay::{Links, Terrain},
    report::{Collector, CriterionResult, Environment, FaultMark, HarnessFigures, RunReport},
};

/// The interval at which ended nodes are detected, and the shortest delay of an event.
const LOOK: Duration = Duration::from_millis(250);
/// The least time between two samples of a node.
const SAMPLE: Duration = Duration::from_millis(500);
/// The most samples of each node over a scenario. A series of more than 4,096 is thinned, and a peak that is thinned
/// out would pass every limit.
const SAMPLES_MAX: u32 = 3_500;
/// The time that a phase gets after the scenario's end. Until then its last transactions are committed, or given up as
/// lost.
const PHASE_GRACE: Duration = Duration::from_secs(60);

/// The options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The directory of the nodes' files and logs.
    pub dir: PathBuf,
    /// Programs by their names in the scenario.
    pub programs: BTreeMap<String, PathBuf>,
    /// The command line that repeats the run.
    pub command: String,
}

/// Runs a scenario. A failed criterion, or a run that could not begin, is no error: the report says so.
///
/// # Errors
/// If something outside all criteria fails once the clock runs.
pub async fn run(scenario: &Scenario, options: &RunOptions, progress: Progress) -> Result<RunReport> {
    let (begin, started_ms) = (Instant::now(), now_ms());
    let mut stage = match Stage::open(scenario, options, progress).await {
        Ok(stage) => stage,
        Err(error) => {
            progress.step(&format!("{}: the clock did not start: {error:#}", scenario.name));
            return Ok(unbegun::report(scenario, options, (started_ms, begin.elapsed()), &error));
        }
    };
    match stage.perform().await {
        Ok((report, findings)) => stage.close(report, findings).await,
        Err(error) => {
            let dir = stage.devnet.keep_directory();
            Err(error.context(format!(
                "the scenario {} stopped before its end; files and logs are in {}",
                scenario.name,
                dir.display()
            )))
        }
    }
}

/// The nodes of a scenario, and everything that observes them.
struct Stage<'a> {
    scenario: &'a Scenario,
    options: &'a RunOptions,
    names: Names,
    progress: Progress,
    // The devnet comes before the disks: fields drop in order, and a process must end before its disk is unmounted.
    devnet: Devnet,
    /// Each node's index in the devnet, once it was started.
    indices: Vec<Option<usize>>,
    /// Nodes that faults hold down.
    held: DownNodes,
    /// The current harms of nodes.
    lasting: ActiveHarms,
    links: Option<Links>,
    /// Nodes that have not answered yet.
    joins: Joins,
    /// Changes of the validators that are not settled.
    changes: Changes,
    /// The current overlays of links, in the order in which they came.
    over: Vec<LinkOverlay>,
    /// The knobs of nodes whose clock may jump, or whose disk may become slow.
    knobs: BTreeMap<NodeIndex, Knobs>,
    lies: Lies,
    lying_peers: LyingPeers,
    disks: Vec<SmallDisk>,
    /// Attackers with their victims, by event or by the node among whose peers they are.
    assaults: BTreeMap<String, (NodeIndex, Assault)>,
    collector: Option<Collector>,
    watch: Option<Watch>,
    /// Nodes that joined or came back.
    behind: Vec<Behind>,
    marks: Vec<FaultMark>,
    /// Nodes that ended by themselves or stopped badly, failed loads, and failed commands.
    ended: Vec<String>,
    begin: Instant,
}

impl Stage<'_> {
    /// Starts the validators and the groups that are there from the start.
    async fn open<'a>(
        scenario: &'a Scenario,
        options: &'a RunOptions,
        progress: Progress,
    ) -> Result<Stage<'a>> {
        setup::check_programs(scenario, &options.programs)?;
        let names = Names::of(scenario);
        let links = setup::needs_links(scenario)
            .then(|| Links::new(&scenario.seed, Terrain::Plain(crate::relay::Shape::default())));
        let disks = nodes::mount_disks(scenario, &names, options)?;
        let knobs = preload::lay(scenario, &names, options)?;
        let devnet_options = setup::devnet(scenario, &names, options)?;
        setup::check(&devnet_options, scenario, &names, options).await?;
        assault::check(scenario).await?;
        progress.step(&format!("{}: starting {} nodes", scenario.name, names.len()));
        let lay = |from: usize, to: usize, peer: String| match &links {
            Some(links) => nodes::lay(links, scenario, &names, (NodeIndex(from), NodeIndex(to)), &peer),
            None => Ok(peer),
        };
        let devnet = Devnet::start_routed(devnet_options, &lay).await?;
        let begin = Instant::now();
        let mut stage = Stage {
            scenario,
            options,
            indices: vec![None; names.len()],
            names,
            progress,
            devnet,
            held: DownNodes::default(),
            lasting: ActiveHarms::default(),
            links,
            joins: Joins::default(),
            changes: Changes::default(),
            over: Vec::new(),
            knobs,
            lies: Lies::default(),
            lying_peers: LyingPeers::new(),
            disks,
            assaults: BTreeMap::new(),
            collector: None,
            watch: None,
            behind: Vec::new(),
            marks: Vec::new(),
            ended: Vec::new(),
            begin,
        };
        for index in 0..scenario.topology.validators as usize {
            stage.indices[index] = Some(index);
        }
        let from_start: Vec<NodeIndex> = stage
            .names
            .all()
            .filter(|place| stage.group(*place).is_some_and(|it| it.joins.is_none()))
            .collect();
        for place in from_start {
            // The clock runs without the node, and the report says so, as for a node that joins.
            let started = match stage.start_node(place).await {
                Ok(()) => stage.wait_node(place).await,
                failed => failed,
            };
            let name = stage.names.name(place).to_owned();
            stage.note_failure(started.with_context(|| format!("{name} did not start")));
        }
        Ok(stage)
    }

    /// Runs from the clock's start to the last audit.
    async fn perform(&mut self) -> Result<(RunReport, Findings)> {
        self.begin = Instant::now();
        let started_ms = now_ms();
        let every = SAMPLE.max(self.scenario.duration.duration() / SAMPLES_MAX);
        let mut collector = Collector::new(self.begin, every);
        let watch = Watch::start(self.begin, catch_up_ms(self.scenario));
        for place in self.started() {
            let node = self.node(place)?;
            collector.add(node.name(), node.rpc(), node.memory_peak());
            watch.add(node);
        }
        (self.collector, self.watch) = (Some(collector), Some(watch));
        self.behind.clear();
        let phases = self.start_phases();
        self.progress.step(&format!("the clock runs for {}", self.scenario.duration));
        let passed = self.pass(&plan(self.scenario)).await;
        // The observations until then are worth a report, which says what went wrong.
        self.note_failure(passed.context("the clock stopped early"));
        let mut findings = Findings::default();
        let mut report = RunReport {
            scenario: self.scenario.name.clone(),
            command: self.options.command.clone(),
            environment: Environment::detect(),
            started_ms,
            ..RunReport::default()
        };
        report.harness = self.gather(phases, &mut report, &mut findings).await;
        for event in self.lying_peers.keys().copied().collect::<Vec<_>>() {
            let ended = self.end_lying_peers(event).await;
            self.note_failure(ended);
        }
        self.end_assaults();
        self.end_lies();
        report.seconds = self.begin.elapsed().as_secs_f64();
        self.progress.step("comparing states");
        self.audit(&mut findings).await;
        // This includes nodes that ended after the clock.
        let noted = self.note_ended();
        self.note_failure(noted);
        if let Some(collector) = self.collector.take() {
            let read = collector.finish().await.map(|nodes| report.nodes = nodes);
            self.note_failure(read);
            let given_ms = |name: &str| catch::given_ms(self.scenario, &self.names, name);
            report.catch_up = catch::curves(&self.behind, &report.nodes, given_ms);
        }
        if let Some(watch) = self.watch.take() {
            let seen = watch.end();
            (findings.blamed, findings.alarms) = (seen.blamed, seen.alarms);
            (findings.unseen, findings.convictions) = (seen.unseen, seen.convictions);
            report.liars = seen.liars;
        }
        report.faults = std::mem::take(&mut self.marks);
        Ok((report, findings))
    }

    /// Waits for the loads, and combines their results.
    async fn gather(
        &mut self,
        phases: Vec<(String, JoinHandle<Result<PhaseEnd>>)>,
        report: &mut RunReport,
        findings: &mut Findings,
    ) -> HarnessFigures {
        let deadline = tokio::time::Instant::now() + PHASE_GRACE;
        let mut ends = Vec::with_capacity(phases.len());
        for (name, mut task) in phases {
            let end = match tokio::time::timeout_at(deadline, &mut task).await {
                Ok(Ok(end)) => end,
                Ok(Err(error)) => Err(error.into()),
                Err(_) => {
                    task.abort();
                    Err(anyhow::anyhow!(
                        "it did not end within {} s after the scenario",
                        PHASE_GRACE.as_secs()
                    ))
                }
            };
            match end {
                Ok(end) => ends.push(end),
                Err(error) => self.ended.push(format!("the load {name}: {error:#}")),
            }
        }
        let relay_overhead_us = self.links.as_ref().map(|links| links.stats().overhead_us_p99 as f64);
        let figures = HarnessFigures { relay_overhead_us, ..phase::harness(&ends) };
        for end in ends {
            report.load.extend(end.curves);
            report.searches.extend(end.search);
            report.phases.extend(end.figures);
            findings.phases.push(end.totals);
        }
        figures
    }

    /// Stops the nodes, and judges.
    async fn close(mut self, mut report: RunReport, findings: Findings) -> Result<RunReport> {
        // A node with a slow disk would stop too late. A node that never started has no knobs to set.
        for knobs in self.knobs.values() {
            let _ = knobs.slow_down(0);
        }
        // Nodes that a fault holds down, such as paused ones or those with a full disk, are killed instead of stopped
        // gracefully.
        for place in self.held.places().collect::<Vec<_>>() {
            if let Ok(node) = self.node_mut(place) {
                node.kill();
            }
        }
        let mut ended = std::mem::take(&mut self.ended);
        if let Err(error) = self.devnet.stop().await {
            ended.push(format!("{error:#}"));
        }
        report.criteria = judge(self.scenario, &report, &findings);
        report.criteria.push(nothing_ended(&ended));
        Ok(report)
    }
}

/// Returns the criterion that applies to every run.
fn nothing_ended(ended: &[String]) -> CriterionResult {
    CriterionResult {
        name: "nothing_ended".to_owned(),
        passed: ended.is_empty(),
        measured: if ended.is_empty() { "nothing".to_owned() } else { ended.join("; ") },
        wanted: "no node or load ends by itself, and each does what the scenario asks".to_owned(),
    }
}

/// Returns the longest catch-up time that a criterion allows; 0 without one.
fn catch_up_ms(scenario: &Scenario) -> u64 {
    let at_most = scenario.criteria.iter().filter_map(|criterion| match criterion {
        Criterion::CatchUp { at_most, .. } => Some(at_most.ms()),
        _ => None,
    });
    at_most.max().unwrap_or_default()
}

/// Returns milliseconds since 1970, for people; no duration is measured with it.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1_000
        + u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000_000
}
