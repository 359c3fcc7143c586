//! `slipnet judge`: watches a scenario's nodes on other machines, by the clock that all containers share, and judges
//! its criteria at the end.
//!
//! ```text
//!  scenario.yaml ─▶ Story (nodes and times) ─┐
//!  nodes' APIs ───▶ Collector, Watch, audit ─┼─▶ judge ─▶ RunReport, exit code
//!  loads, orders ─▶ Inbox ───────────────────┘
//! ```
//!
//! It sees only what any client of the nodes' APIs sees. Criteria that need more are not judged, and are reported by
//! name: see [`unjudged`](crate::scenario::unjudged).
//!
//! Invariants:
//! * Whatever was not seen counts as not met: a scenario without a criterion that can be judged, a load without
//!   figures, orders without a report, an order to lie that not exactly one node carried out, a node that never
//!   answered, a judge that started late.
//! * A fault excuses the nodes that it may affect. For an order to the primary, these are all that may be primary at
//!   that time. An order to lie excuses only the node that reports that it carries it out.

mod audit;
mod clock;
mod inbox;
mod loads;
mod meeting;
mod story;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::{
    audit::Asked,
    inbox::Inbox,
    loads::{not_taken_once, phase_end, undone},
    story::Story,
};
use super::{
    PHASE_GRACE, SAMPLE, SAMPLES_MAX, catch, catch_up_ms, nothing_ended, now_ms, phase,
    watch::{Seen, Watch},
};
use crate::{
    accounts::node_key,
    devnet::MemoryPeak,
    load::{JUDGE_SECRET, Source, given_secret},
    output::print,
    progress::Progress,
    report::{Collector, CriterionResult, Environment, RunReport},
    rpc::Rpc,
    scenario::{
        cli::{names_failed, table},
        criteria::{Criterion, Findings, judge},
        export,
        model::Scenario,
        names::{Names, Place},
        unjudged::{judged, unjudged},
    },
    time::StartClock,
};

/// A judge that starts later than this after the clock has missed earlier events.
const LATE: Duration = Duration::from_secs(1);
/// The time limit for a load that has ended to deliver its figures.
const BRINGS_WITHIN: Duration = Duration::from_secs(20);
/// The note on every figure of memory.
const SAMPLED: &str = "; by samples of the node's own figure: a peak between two of them is not seen";

/// The arguments of `slipnet judge`.
#[derive(Args, Clone, Debug)]
pub struct JudgeOptions {
    /// The scenario, as written by `slipnet up --target compose|kubernetes --scenario` beside its files.
    #[arg(long)]
    pub scenario: PathBuf,
    /// The API of a node, as NAME=URL; once for each node of the scenario.
    #[arg(long = "node", value_name = "NAME=URL", value_parser = node)]
    pub nodes: Vec<(String, String)>,
    /// When the scenario's clock starts, in seconds since 1970; the same for all containers.
    #[arg(long)]
    pub start: u64,
    /// The address at which loads deliver their figures and nodes the results of their orders, with the secret in
    /// SLIPNET_JUDGE_SECRET if that is set.
    #[arg(long, default_value = "0.0.0.0:9100")]
    pub listen: SocketAddr,
    /// Loads have their access lists. Without it, loads of the kind `access-lists` are not expected.
    #[arg(long)]
    pub access_lists: bool,
    /// The directory of report.json, report.md and report.html.
    #[arg(long)]
    pub dir: PathBuf,
    /// Also prints the report as Markdown.
    #[arg(long)]
    pub markdown: bool,
}

fn node(text: &str) -> Result<(String, String), String> {
    let (name, url) = text
        .split_once('=')
        .ok_or_else(|| format!("{text}: write NAME=URL, such as near=http://near:8545"))?;
    Ok((name.to_owned(), url.to_owned()))
}

/// The observer of a run.
struct Judge<'a> {
    scenario: &'a Scenario,
    /// Whether loads have their access lists.
    has_lists: bool,
    names: &'a Names,
    story: Story<'a>,
    /// The nodes' APIs, by place.
    nodes: Vec<Rpc>,
    begin: Instant,
    collector: Collector,
    watch: Watch,
    /// Meetings that are over once a new process runs, with the latest time for it.
    awaited: BTreeMap<usize, u64>,
    /// The nodes that announced an order whose meeting has not begun.
    takers: BTreeMap<usize, BTreeSet<String>>,
    /// The nodes that announced each order.
    heard: BTreeMap<String, BTreeSet<String>>,
}

impl JudgeOptions {
    /// Watches until the scenario's clock is over, judges, and writes the report.
    ///
    /// # Errors
    /// If the scenario cannot be read or has other nodes, the report cannot be written, or a criterion fails; then the
    /// message names it.
    pub async fn run(&self, progress: Progress) -> Result<()> {
        let scenario = Scenario::load(&self.scenario)?;
        let names = Names::of(&scenario);
        let nodes = self.rpcs(&names)?;
        let loaded = scenario
            .workload
            .iter()
            .filter(|phase| export::has_load(&scenario, &phase.name, self.access_lists));
        let loaded = loaded.map(|phase| Source::Phase(phase.name.clone()));
        let orders = Story::of(&scenario, &names).orders();
        let secret = given_secret();
        let heard =
            if secret.is_empty() { "nobody needs the secret" } else { "who gives the secret is heard" };
        let sources = loaded.chain(operated(&scenario, &names));
        let inbox = Inbox::open(self.listen, secret, sources, orders).await?;
        let clock = StartClock::new(Some(self.start));
        progress.step(&format!(
            "{}: loads and nodes bring what they have to tell to {}; {heard} ({JUDGE_SECRET})",
            scenario.name,
            inbox.address()
        ));
        clock.wait_until(Duration::ZERO).await;
        let passed = clock.passed().unwrap_or_default();
        let mut ended = Vec::new();
        if passed >= LATE {
            ended.push(format!("the judge began {} s late: what came before was not seen", passed.as_secs()));
        }
        progress.step(&format!("the clock runs for {}", scenario.duration));
        let begin = Instant::now().checked_sub(passed).context("the start is before this machine's")?;
        let judge = Judge::new((&scenario, self.access_lists), &names, nodes, begin);
        let report = judge.perform(inbox, ended).await?;
        report.write(&self.dir)?;
        print(&table(&report))?;
        if self.markdown {
            print(&format!("\n{}", report.to_markdown()))?;
        }
        let failed = names_failed(&report);
        ensure!(failed.is_empty(), "failed: {}", failed.join("; "));
        // The other one is `nothing_ended`, which every run has.
        ensure!(
            report.criteria.len() > 1,
            "none of the scenario's criteria can be judged from outside: the report says why"
        );
        Ok(())
    }

    /// Returns the APIs of all nodes, by place.
    fn rpcs(&self, names: &Names) -> Result<Vec<Rpc>> {
        let urls: BTreeMap<&str, &str> =
            self.nodes.iter().map(|(name, url)| (name.as_str(), url.as_str())).collect();
        for name in urls.keys() {
            ensure!(
                names.all().any(|place| names.name(place) == *name),
                "--node {name}: the scenario has no such node"
            );
        }
        let rpc = |place: Place| {
            let name = names.name(place);
            let url = urls.get(name).with_context(|| format!("name the API of {name}: --node {name}=URL"))?;
            Rpc::new(url)
        };
        names.all().map(rpc).collect()
    }
}

impl<'a> Judge<'a> {
    fn new(
        (scenario, has_lists): (&'a Scenario, bool),
        names: &'a Names,
        nodes: Vec<Rpc>,
        begin: Instant,
    ) -> Judge<'a> {
        let every = SAMPLE.max(scenario.duration.duration() / SAMPLES_MAX);
        Judge {
            scenario,
            has_lists,
            names,
            story: Story::of(scenario, names),
            nodes,
            begin,
            collector: Collector::new(begin, every),
            watch: Watch::start(begin, catch_up_ms(scenario)),
            awaited: BTreeMap::new(),
            takers: BTreeMap::new(),
            heard: BTreeMap::new(),
        }
    }

    /// Runs from the clock's start to the report.
    async fn perform(mut self, inbox: Inbox, mut ended: Vec<String>) -> Result<RunReport> {
        let started_ms = now_ms().saturating_sub(self.elapsed_ms());
        let joins: BTreeSet<Place> = self
            .story
            .meetings()
            .iter()
            .filter(|meeting| meeting.is_join)
            .flat_map(|meeting| meeting.whom.clone())
            .collect();
        let names = self.names;
        for place in names.all().filter(|place| !joins.contains(place)) {
            self.look_at(place)?;
        }
        self.pass(&inbox).await?;
        let mut report = RunReport {
            scenario: self.scenario.name.clone(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            environment: Environment::detect(),
            started_ms,
            faults: self.story.marks(),
            unjudged: unjudged(self.scenario, self.has_lists),
            ..RunReport::default()
        };
        let mut findings = Findings::default();
        self.gather(inbox, &mut report, &mut findings, &mut ended).await;
        report.seconds = self.begin.elapsed().as_secs_f64();
        ended.extend(self.audit(&mut findings).await);
        let Judge { scenario, has_lists, names, story, collector, watch, .. } = self;
        report.nodes = collector.finish().await?;
        let Seen { blamed, alarms, unseen, convictions, liars, starts } = watch.end();
        let given_ms = |name: &str| catch::given_ms(scenario, names, name);
        report.catch_up = catch::curves(&story.behind(&starts), &report.nodes, given_ms);
        report.liars = liars;
        ended.extend(story.surprises(&starts));
        let findings = Findings { blamed, alarms, unseen, convictions, ..findings };
        let judged = judged(scenario, has_lists);
        report.criteria = with_samples(&judged, judge(&judged, &report, &findings));
        report.criteria.push(nothing_ended(&ended));
        Ok(report)
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Starts to watch one more node.
    fn look_at(&mut self, place: Place) -> Result<()> {
        let (name, rpc) = (self.names.name(place), &self.nodes[place.0]);
        // The kernel of that machine is out of reach.
        self.collector.add(name, rpc, &MemoryPeak::default());
        let key = node_key(&self.scenario.seed, u32::try_from(place.0)?);
        self.watch.look_at(name, key.public().to_string(), rpc.clone());
        Ok(())
    }

    /// Starts to watch a node that joins, which may have attackers among its peers.
    fn join(&mut self, place: Place) -> Result<()> {
        let group = self.names.group(place).map(|group| &self.scenario.topology.groups[group]);
        if let Some(attack) = group.and_then(|group| group.among.as_ref()) {
            let name = self.names.name(place);
            self.watch.expect(name, attack, name);
        }
        self.look_at(place)
    }

    /// Waits for the loads' figures, and combines them.
    async fn gather(
        &mut self,
        inbox: Inbox,
        report: &mut RunReport,
        findings: &mut Findings,
        ended: &mut Vec<String>,
    ) {
        let deadline = tokio::time::Instant::now() + PHASE_GRACE + BRINGS_WITHIN;
        inbox.wait(deadline).await;
        // An order may begin, and be announced, as the clock ends.
        self.note_taken(&inbox);
        ended.extend(not_taken_once(&self.story.orders(), &self.heard));
        let mut came = inbox.close(deadline).await;
        let urls: BTreeMap<&str, &str> =
            self.names.all().map(|place| (self.nodes[place.0].url(), self.names.name(place))).collect();
        let mut ends = Vec::new();
        for phase in &self.scenario.workload {
            // A load that the files leave out is not expected.
            let Some(ending) = came.remove(&Source::Phase(phase.name.clone())) else { continue };
            match ending.map(|ending| phase_end(phase, self.names, &urls, ending)) {
                Some(Ok(end)) => ends.push(end),
                Some(Err(why)) => ended.push(format!("the load {}: {why}", phase.name)),
                None => ended.push(format!("the load {}: it brought no figures", phase.name)),
            }
        }
        ended.extend(came.into_iter().filter_map(|(node, ending)| undone(&node, ending)));
        report.harness = phase::harness(&ends);
        for end in ends {
            report.load.extend(end.curves);
            report.searches.extend(end.search);
            report.phases.extend(end.figures);
            findings.phases.push(end.totals);
        }
    }

    /// Audits the nodes that no fault keeps down; returns those that do not answer and should.
    async fn audit(&self, findings: &mut Findings) -> Vec<String> {
        let (held, mut drawn) = self.story.held_at_end();
        let nodes = self.names.all().filter(|place| !held.contains(place));
        let asked = |place: Place| Asked { place, name: self.names.name(place), rpc: &self.nodes[place.0] };
        let may_be_held = |name: &str| {
            let mut meetings = self.story.meetings().iter().filter(|meeting| meeting.is_drawn);
            meetings.any(|meeting| meeting.whom.iter().any(|place| self.names.name(*place) == name))
        };
        let within = self.scenario.topology.ready_within.duration();
        let (there, silent) =
            audit::answering(nodes.map(asked).collect(), (drawn, may_be_held), within).await;
        audit::audit(self.scenario, self.names, &there, findings).await;
        findings.held = held.iter().map(|place| self.names.name(*place).to_owned()).collect();
        let mut missing = Vec::new();
        for name in silent {
            if drawn > 0 && may_be_held(name) {
                drawn -= 1;
                findings.held.insert(name.to_owned());
                continue;
            }
            findings.apart.push(format!("{name} does not answer"));
            missing.push(format!("{name} does not answer at the end"));
        }
        missing
    }
}

/// Returns the nodes that deliver the results of their orders.
fn operated(scenario: &Scenario, names: &Names) -> impl Iterator<Item = Source> {
    let operated = export::operated(scenario, names).into_iter();
    operated.map(move |place| Source::Node(names.name(place).to_owned()))
}

/// Adds to results about memory that a peak between samples is not seen.
fn with_samples(scenario: &Scenario, mut results: Vec<CriterionResult>) -> Vec<CriterionResult> {
    for (criterion, result) in scenario.criteria.iter().zip(&mut results) {
        if matches!(criterion, Criterion::Memory { .. }) {
            result.measured += SAMPLED;
        }
    }
    results
}

#[cfg(test)]
mod tests;
