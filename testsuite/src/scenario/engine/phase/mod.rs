//! Phases of load. Each is a task that runs while the clock continues.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::task::JoinHandle;

use super::{Stage, curves::curves, setup};
use crate::{
    accounts::{self, Account},
    load::{
        self, Found, Limit, LoadOptions, LoadSummary, Mix, Percentiles, ReadWay, Rule, Saturation,
        SaturationOptions,
    },
    progress::Progress,
    report::{HarnessFigures, LoadSeries, PhaseFigures, SearchFigures, Total},
    rpc::Rpc,
    scenario::{
        criteria::{PhaseTotals, Quantiles, ReadTotals, Way},
        model::{Phase, PhaseRate, Topology},
    },
};

/// How many batches behind the head audits run in a network that prunes. A network that keeps fewer receipts cannot be
/// audited.
const AUDIT_BEHIND_PRUNED: u64 = 50;
/// The section of node.yaml with the pruning settings.
const PRUNE: &str = "storage.prune";

/// The result of a phase.
pub(super) struct PhaseEnd {
    pub(super) totals: PhaseTotals,
    /// Transactions that were due.
    pub(super) due: f64,
    /// The due transactions that were sent in time.
    pub(super) sent: f64,
    /// The times in which transactions were due, from and until, in ms after the clock started.
    pub(super) spans: Vec<(u64, u64)>,
    pub(super) curves: Vec<LoadSeries>,
    /// The figures of the load, or of each step of a search.
    pub(super) figures: Vec<PhaseFigures>,
    pub(super) search: Option<SearchFigures>,
}

impl Stage<'_> {
    /// Starts a task for each phase, which waits until the phase begins. If a phase's nodes are missing, only that
    /// phase fails.
    pub(super) fn start_phases(&self) -> Vec<(String, JoinHandle<Result<PhaseEnd>>)> {
        let phases = &self.scenario.workload;
        // Each phase has its own accounts: phases may overlap, and two loads would take each other's nonces.
        let share = self.scenario.topology.accounts as usize / phases.len().max(1);
        let accounts = self.devnet.accounts().chunks(share.max(1));
        let task = |(phase, accounts): (&Phase, &[Account])| {
            let task = match self.load_of(phase, accounts) {
                Ok((options, taking)) => {
                    let begin = self.begin + phase.at.duration();
                    tokio::spawn(perform(phase.clone(), options, begin.into(), taking))
                }
                Err(error) => tokio::spawn(async move { Err(error) }),
            };
            (phase.name.clone(), task)
        };
        phases.iter().zip(accounts).map(task).collect()
    }

    /// Returns the load of a phase, and the names of the nodes that get its transactions, by API address.
    fn load_of(
        &self,
        phase: &Phase,
        accounts: &[Account],
    ) -> Result<(LoadOptions, BTreeMap<String, String>)> {
        // Commits are read from the first that answers.
        let named: Vec<String> = phase.read_from.iter().chain(&phase.to).cloned().collect();
        let (mut submit, mut taking) = (Vec::<Rpc>::new(), BTreeMap::new());
        for place in self.names.find_all(&named) {
            let node = self.node(place).context("a load needs nodes that run from the start")?;
            taking.insert(node.rpc().url().to_owned(), self.names.name(place).to_owned());
            submit.push(node.rpc().clone());
        }
        let followers = self.names.find_all(&phase.followers).into_iter().map(|place| {
            let node = self.node(place).context("a load's followers must run from the start")?;
            Ok((self.names.name(place).to_owned(), node.rpc().clone()))
        });
        let mix = phase.mix.iter().map(|(kind, weight)| format!("{kind}={weight}"));
        let options = LoadOptions {
            workload: mix.collect::<Vec<_>>().join(",").parse::<Mix>()?,
            duration: phase.lasts.duration(),
            accounts: accounts.to_vec(),
            submit,
            followers: followers.collect::<Result<_>>()?,
            reads_per_second: phase.reads_per_second,
            audit_behind: audit_behind(&self.scenario.topology),
            access_lists: phase.access_lists.as_ref().map(PathBuf::from),
            seed: accounts::number(&self.scenario.seed, &format!("load {}", phase.name)),
            ..LoadOptions::default()
        };
        Ok((options, taking))
    }
}

/// Returns how many batches behind the head receipts are audited. If nodes prune, the audit comes before the receipts
/// are gone.
pub(in crate::scenario) fn audit_behind(topology: &Topology) -> u64 {
    let settings = topology.settings.iter().map(|settings| &settings.config);
    let mut entries = settings.chain([&topology.config]).flatten();
    // The key may be set by itself, or in the value of a section around it.
    match entries.any(|(key, value)| key.starts_with(PRUNE) || setup::sets(key, value, PRUNE)) {
        true => AUDIT_BEHIND_PRUNED,
        false => LoadOptions::default().audit_behind,
    }
}

/// Performs a phase. `taking` has the names of the nodes that get its transactions, by API address.
async fn perform(
    phase: Phase,
    options: LoadOptions,
    begin: tokio::time::Instant,
    taking: BTreeMap<String, String>,
) -> Result<PhaseEnd> {
    tokio::time::sleep_until(begin).await;
    let followers: BTreeSet<String> = options.followers.iter().map(|(name, _)| name.clone()).collect();
    let named = |summary: &mut LoadSummary| {
        let url = summary.commits_from.clone();
        let first = taking.get(&url).unwrap_or(&url);
        name_first(summary, &url, first, followers.contains(first));
    };
    if let PhaseRate::Saturation { from, step_seconds } = phase.rate {
        let step = Duration::from_secs(step_seconds);
        let until = Some((begin + phase.lasts.duration()).into_std());
        let search = SaturationOptions { rule: Rule::default(), start: from, step, until };
        let mut saturation = load::saturate(&options, search, Progress::Quiet).await?;
        saturation.steps.iter_mut().for_each(named);
        let begins_ms: Vec<u64> = saturation.steps.iter().map(|step| begin_ms(&phase, begin, step)).collect();
        return Ok(searched(&phase, &begins_ms, &saturation));
    }
    let rate = phase.rate.known().context("a search ends otherwise")?;
    let mut summary = load::run(&LoadOptions { rate, ..options }, Progress::Quiet).await?;
    named(&mut summary);
    Ok(ran(&phase, begin_ms(&phase, begin, &summary), &summary))
}

/// Returns the result of a phase's single load, whose first transaction was due at `begin_ms`.
pub(super) fn ran(phase: &Phase, begin_ms: u64, summary: &LoadSummary) -> PhaseEnd {
    let mut totals = PhaseTotals { name: phase.name.clone(), ..PhaseTotals::default() };
    add(&mut totals, summary);
    totals.given_up = summary.given_up;
    totals.committed_per_second = summary.achieved_per_second;
    latencies(&mut totals, summary);
    answers(&mut totals, summary);
    let total = Total { per_second: summary.achieved_per_second, latency_ms: summary.commit_ms };
    end(totals, phase, &[(begin_ms, summary)], (total, Some(summary)))
}

/// Replaces the API address of the node from which commits are read with its name. If it is also a follower, it follows
/// itself.
pub(super) fn name_first(summary: &mut LoadSummary, url: &str, first: &str, follows_itself: bool) {
    for reads in summary.reads.iter_mut().filter(|reads| reads.node == url) {
        first.clone_into(&mut reads.node);
    }
    for news in summary.news.iter_mut().filter(|news| news.node == url) {
        first.clone_into(&mut news.node);
    }
    if follows_itself {
        summary.follow_ms.insert(first.to_owned(), summary.commit_ms);
        summary.follow_per_second.insert(first.to_owned(), summary.achieved_per_second);
        summary.follow_points.insert(first.to_owned(), summary.points.clone());
    }
}

/// Returns when the first transaction of a load was due, in ms after the scenario's clock started. Its preparation
/// takes time after `begin`, at which the phase began.
fn begin_ms(phase: &Phase, begin: tokio::time::Instant, summary: &LoadSummary) -> u64 {
    let prepared = summary.begin.map(|at| at.saturating_duration_since(begin.into_std())).unwrap_or_default();
    phase.at.ms() + u64::try_from(prepared.as_millis()).unwrap_or_default()
}

/// Combines a phase's loads to its result. `runs` has each load with its beginning; `whole` is the phase's total, with
/// the load from which it comes.
fn end(
    totals: PhaseTotals,
    phase: &Phase,
    runs: &[(u64, &LoadSummary)],
    whole: (Total, Option<&LoadSummary>),
) -> PhaseEnd {
    let sent = |run: &LoadSummary| run.sent_per_second * run.duration_seconds;
    let until = |run: &LoadSummary| (run.duration_seconds * 1_000.0) as u64;
    PhaseEnd {
        due: runs.iter().map(|(_, run)| run.offered as f64).sum(),
        sent: runs.iter().map(|(_, run)| sent(run)).sum(),
        spans: runs.iter().map(|(begin_ms, run)| (*begin_ms, begin_ms.saturating_add(until(run)))).collect(),
        curves: curves(&phase.name, runs, whole),
        figures: runs.iter().map(|(_, run)| PhaseFigures::of(&phase.name, run)).collect(),
        search: None,
        totals,
    }
}

/// Returns the offered and sent transactions per second of the time in which any transaction was due: phases may
/// overlap, or follow each other.
pub(super) fn harness(ends: &[PhaseEnd]) -> HarnessFigures {
    let mut spans: Vec<(u64, u64)> = ends.iter().flat_map(|end| end.spans.iter().copied()).collect();
    spans.sort_unstable();
    let (mut busy_ms, mut reached) = (0, 0);
    for (from, until) in spans {
        busy_ms += until.saturating_sub(from.max(reached));
        reached = reached.max(until);
    }
    let per_second = |of: fn(&PhaseEnd) -> f64| match busy_ms {
        0 => 0.0,
        busy_ms => ends.iter().map(of).sum::<f64>() * 1_000.0 / busy_ms as f64,
    };
    HarnessFigures {
        offered: per_second(|end| end.due),
        achieved: per_second(|end| end.sent),
        generators_limit: ends.iter().any(|end| end.totals.is_limited_by_generators),
        ..HarnessFigures::default()
    }
}

/// Returns the result of a search. The sustained rate is the phase's throughput; its latencies and reads are those of
/// the step at that rate. Steps beyond it overload the chain on purpose: refusals in such a step only mean that the
/// step does not count. Accepted transactions count in all steps. The first transaction of each step was due at
/// `begins_ms`.
pub(super) fn searched(phase: &Phase, begins_ms: &[u64], saturation: &Saturation) -> PhaseEnd {
    let rate = match saturation.found {
        Found::Sustained { rate, .. } | Found::AtLeast { rate } => rate,
        Found::Nothing { .. } => 0,
    };
    let mut totals = PhaseTotals { name: phase.name.clone(), ..PhaseTotals::default() };
    saturation.steps.iter().for_each(|step| add(&mut totals, step));
    // A step limited by the generators does not count. The search itself was limited by them only if they ended it.
    let last = saturation.steps.last().and_then(|step| step.limited_by);
    let has_no_limit = matches!(saturation.found, Found::AtLeast { .. });
    totals.is_limited_by_generators = has_no_limit && last == Some(Limit::Generators);
    totals.committed_per_second = f64::from(rate);
    let is_at_rate = |step: &&LoadSummary| (step.offered_per_second - f64::from(rate)).abs() < 1.0;
    let best = saturation.steps.iter().rev().find(is_at_rate);
    let latency_ms = best.and_then(|step| step.commit_ms);
    if let Some(best) = best {
        latencies(&mut totals, best);
        answers(&mut totals, best);
    }
    let runs: Vec<_> = begins_ms.iter().copied().zip(&saturation.steps).collect();
    let total = Total { per_second: f64::from(rate), latency_ms };
    let end = end(totals, phase, &runs, (total, best));
    PhaseEnd { search: Some(SearchFigures::of(&phase.name, saturation)), ..end }
}

/// Adds the accepted transactions and their outcome.
fn add(totals: &mut PhaseTotals, summary: &LoadSummary) {
    totals.accepted += summary.accepted;
    totals.committed += summary.committed;
    totals.is_limited_by_generators |= summary.limited_by == Some(Limit::Generators);
    totals.audit.add(summary.audit.figures);
}

/// Adds the figures of reads and of heads, at the slowest node.
fn answers(totals: &mut PhaseTotals, summary: &LoadSummary) {
    for reads in &summary.reads {
        let way = match reads.way {
            ReadWay::Http => Way::Http,
            ReadWay::WebSocket => Way::Websocket,
        };
        // The latencies include failed reads, at the time at which they were given up.
        let all = reads.read_ms.map_or(0, |all| all.count).max(1);
        let these =
            ReadTotals { ms: reads.read_ms.map(quantiles), failed_share: reads.failed as f64 / all as f64 };
        let sum = totals.reads.entry(way).or_default();
        *sum = sum.worse(these);
    }
    for news in &summary.news {
        // As with reads, the latencies include missed heads.
        let all = news.news_ms.map_or(0, |all| all.count).max(1);
        let failed_share = news.missed as f64 / all as f64;
        totals.new_heads =
            totals.new_heads.worse(ReadTotals { ms: news.news_ms.map(quantiles), failed_share });
    }
}

/// Sets the latencies of commits, and of the slowest follower.
fn latencies(totals: &mut PhaseTotals, summary: &LoadSummary) {
    let missing = |came: Option<Percentiles>| {
        let came = came.map_or(0, |came| came.count);
        summary.offered.saturating_sub(came) as f64 / summary.offered.max(1) as f64
    };
    (totals.commit_ms, totals.commit_missing_share) =
        (summary.commit_ms.map(quantiles), missing(summary.commit_ms));
    totals.follow_ms = summary.follow_ms.values().flatten().copied().map(quantiles).reduce(Quantiles::worse);
    totals.follow_missing_share = summary.follow_ms.values().copied().map(missing).fold(0.0, f64::max);
}

fn quantiles(percentiles: Percentiles) -> Quantiles {
    let Percentiles { p50, p90, p95, p99, max, .. } = percentiles;
    Quantiles { p50, p90, p95, p99, max }
}

#[cfg(test)]
mod tests;
