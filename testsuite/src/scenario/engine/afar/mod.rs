//! `slipnet judge`: watches a scenario's nodes on other machines, by the clock that all containers have in common, and judges its
//! criteria at the end.
//!
//! ```text
//!  scenario.yaml ─▶ Story (who is met when) ─┐
//!  nodes' APIs ───▶ Collector, Watch, audit ─┼─▶ judge ─▶ RunReport, exit code
//!  loads, orders ─▶ Inbox ───────────────────┘
//! ```
//!
//! It sees what anybody sees who may ask the nodes. What needs more is not judged, and told by its name: see
//! [`unjudged`](crate::scenario::unjudged).
//!
//! Invariants:
//! * What was not seen is not met: a scenario of which nothing can be judged, a load without figures, orders of which nobody tells, an order to lie
//!   that not exactly one node took, a node that never answered, a judge that came late.
//! * A fault excuses the nodes that it may meet. Of an order to the primary those are all that may be primary then. An order to lie excuses
//!   whoever tells that it took it, and nobody else.

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

/// A judge that begins later than this after the clock did not see what came before.
const LATE: Duration = Duration::from_secs(1);
/// What a load that has ended takes to bring its figures.
const BRINGS_WITHIN: Duration = Duration::from_secs(20);
/// Beside every figure of memory.
const SAMPLED: &str = "; by samples of the node's own figure: a peak between two of them is not seen";

/// `slipnet judge`.
#[derive(Args, Clone, Debug)]
pub struct JudgeOptions {
    /// The scenario, as `slipnet up --target compose|kubernetes --scenario` wrote it beside its files.
    #[arg(long)]
    pub scenario: PathBuf,
    /// The API of a node, as NAME=URL; once for each node of the scenario.
    #[arg(long = "node", value_name = "NAME=URL", value_parser = node)]
    pub nodes: Vec<(String, String)>,
    /// When the scenario's clock starts, in seconds since 1970, as for all containers.
    #[arg(long)]
    pub start: u64,
    /// Where loads bring their figures, and nodes what came of their orders, with the secret in SLIPNET_JUDGE_SECRET if that is set.
    #[arg(long, default_value = "0.0.0.0:9100")]
    pub listen: SocketAddr,
    /// Loads have their access lists; without it, those of the kind `access-lists` are not waited for.
    #[arg(long)]
    pub access_lists: bool,
    /// Where report.json, report.md and report.html go.
    #[arg(long)]
    pub dir: PathBuf,
    /// Also print the report as Markdown.
    #[arg(long)]
    pub markdown: bool,
}

fn node(text: &str) -> Result<(String, String), String> {
    let (name, url) = text
        .split_once('=')
        .ok_or_else(|| format!("{text}: write NAME=URL, such as near=http://near:8545"))?;
    Ok((name.to_owned(), url.to_owned()))
}

/// Who looks on.
struct Judge<'a> {
    scenario: &'a Scenario,
    /// Whether loads have their access lists.
    has_lists: bool,
    names: &'a Names,
    story: Story<'a>,
    /// By the places of the nodes.
    nodes: Vec<Rpc>,
    begin: Instant,
    collector: Collector,
    watch: Watch,
    /// Meetings that are over once another process runs: until when at the latest.
    awaited: BTreeMap<usize, u64>,
    /// Who told that it takes the order of a meeting that has not begun.
    takers: BTreeMap<usize, BTreeSet<String>>,
    /// Who told that it took an order, of each that anybody took.
    heard: BTreeMap<String, BTreeSet<String>>,
}

impl JudgeOptions {
    /// Watches until the scenario's clock is over, judges, and writes the report.
    ///
    /// # Errors
    /// If the scenario cannot be read or is of other nodes, the report cannot be written, or a criterion fails; then the message names it.
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
        // Beside them is what no scenario asks for.
        ensure!(
            report.criteria.len() > 1,
            "none of the scenario's criteria can be judged from outside: the report says why"
        );
        Ok(())
    }

    /// The APIs of all nodes, by their places.
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

    /// From the clock's start to the report.
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

    /// Reads one more node from now on.
    fn look_at(&mut self, place: Place) -> Result<()> {
        let (name, rpc) = (self.names.name(place), &self.nodes[place.0]);
        // Nobody here can ask the kernel of that machine.
        self.collector.add(name, rpc, &MemoryPeak::default());
        let key = node_key(&self.scenario.seed, u32::try_from(place.0)?);
        self.watch.look_at(name, key.public().to_string(), rpc.clone());
        Ok(())
    }

    /// Reads a node that joins, which may have attackers among its peers.
    fn join(&mut self, place: Place) -> Result<()> {
        let group = self.names.group(place).map(|group| &self.scenario.topology.groups[group]);
        if let Some(attack) = group.and_then(|group| group.among.as_ref()) {
            let name = self.names.name(place);
            self.watch.expect(name, attack, name);
        }
        self.look_at(place)
    }

    /// Waits for the figures of the loads, and puts together what they did.
    async fn gather(
        &mut self,
        inbox: Inbox,
        report: &mut RunReport,
        findings: &mut Findings,
        ended: &mut Vec<String>,
    ) {
        let deadline = tokio::time::Instant::now() + PHASE_GRACE + BRINGS_WITHIN;
        inbox.wait(deadline).await;
        // An order may begin, and be told, as the clock ends.
        self.note_taken(&inbox);
        ended.extend(not_taken_once(&self.story.orders(), &self.heard));
        let mut came = inbox.close(deadline).await;
        let urls: BTreeMap<&str, &str> =
            self.names.all().map(|place| (self.nodes[place.0].url(), self.names.name(place))).collect();
        let mut ends = Vec::new();
        for phase in &self.scenario.workload {
            // One that is left out of the files is not awaited.
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

    /// Looks at the nodes that no fault holds; those that do not answer and should.
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

/// Nodes that tell what came of their orders.
fn operated(scenario: &Scenario, names: &Names) -> impl Iterator<Item = Source> {
    let operated = export::operated(scenario, names).into_iter();
    operated.map(move |place| Source::Node(names.name(place).to_owned()))
}

/// Results as they are, and of memory with a word on what nobody here could see.
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
