//! Phases of load, each a task beside the clock.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use tokio::task::JoinHandle;

use super::Stage;
use crate::{
    accounts,
    load::{
        self, Audit, Found, Limit, LoadOptions, LoadSummary, Mix, Percentiles, Point, Rate, ReadWay, Rule,
        SaturationOptions,
    },
    progress::Progress,
    report::{LoadSeries, PhaseFigures, Series},
    rpc::Rpc,
    scenario::{
        criteria::{PhaseTotals, Quantiles, ReadTotals, Way},
        model::{Phase, PhaseRate},
    },
};

/// What a phase came to.
pub(super) struct PhaseEnd {
    pub(super) totals: PhaseTotals,
    /// Transactions that were due, and those of them that left, over so many seconds.
    pub(super) offered: u64,
    pub(super) sent: u64,
    pub(super) seconds: f64,
    pub(super) series: Vec<LoadSeries>,
    /// Of a search each step's.
    pub(super) figures: Vec<PhaseFigures>,
}

impl PhaseEnd {
    fn of(totals: PhaseTotals, series: Vec<LoadSeries>, summaries: &[LoadSummary]) -> PhaseEnd {
        PhaseEnd {
            offered: summaries.iter().map(|summary| summary.offered).sum(),
            // What was sent again left twice, and was due once.
            sent: summaries.iter().map(|summary| summary.sent.min(summary.offered)).sum(),
            seconds: summaries.iter().map(|summary| summary.duration_seconds).sum(),
            figures: summaries.iter().map(|summary| PhaseFigures::of(&totals.name, summary)).collect(),
            series,
            totals,
        }
    }
}

impl Stage<'_> {
    /// Starts a task for each phase; it waits until the phase begins.
    pub(super) fn start_phases(&self) -> Result<Vec<(String, JoinHandle<Result<PhaseEnd>>)>> {
        let phases = &self.scenario.workload;
        // Each phase has accounts of its own: phases may overlap, and two loads would take each other's nonces.
        let share = self.scenario.topology.accounts as usize / phases.len().max(1);
        let accounts = self.devnet.accounts().chunks(share.max(1));
        let mut tasks = Vec::with_capacity(phases.len());
        for (phase, accounts) in phases.iter().zip(accounts) {
            let at =
                |name: &String| -> Result<Rpc> { Ok(self.node(self.names.find(name)[0])?.rpc().clone()) };
            // Commits are read from the first.
            let mut submit: Vec<Rpc> = phase.read_from.iter().map(at).collect::<Result<_>>()?;
            let read_from = phase.read_from.as_ref().map(|name| self.names.find(name)[0]);
            for place in self.names.find_all(&phase.to).into_iter().filter(|place| Some(*place) != read_from)
            {
                submit.push(
                    self.node(place)
                        .context("a load goes to nodes that are there from the start")?
                        .rpc()
                        .clone(),
                );
            }
            let followers = phase.follower.iter().map(|name| Ok((name.clone(), at(name)?)));
            let mix = phase.mix.iter().map(|(kind, weight)| format!("{kind}={weight}"));
            let options = LoadOptions {
                workload: mix.collect::<Vec<_>>().join(",").parse::<Mix>()?,
                duration: phase.lasts.duration(),
                accounts: accounts.to_vec(),
                submit,
                followers: followers.collect::<Result<_>>()?,
                reads_per_second: phase.reads_per_second,
                access_lists: phase.access_lists.as_ref().map(PathBuf::from),
                seed: accounts::number(&self.scenario.seed, &format!("load {}", phase.name)),
                ..LoadOptions::default()
            };
            let begin = self.begin + phase.at.duration();
            tasks.push((phase.name.clone(), tokio::spawn(perform(phase.clone(), options, begin.into()))));
        }
        Ok(tasks)
    }
}

async fn perform(phase: Phase, options: LoadOptions, begin: tokio::time::Instant) -> Result<PhaseEnd> {
    tokio::time::sleep_until(begin).await;
    let until = (begin + phase.lasts.duration()).into_std();
    let rate = match phase.rate {
        PhaseRate::Constant(per_second) => Rate::Constant { per_second },
        PhaseRate::Ramp { from, to } => Rate::Ramp { from, to },
        PhaseRate::Burst { base, peak, period, peak_lasts } => {
            Rate::Burst { base, peak, period_ms: period.ms(), peak_ms: peak_lasts.ms() }
        }
        PhaseRate::Saturation { from, step_seconds } => {
            let step = Duration::from_secs(step_seconds);
            let search = SaturationOptions { rule: Rule::default(), start: from, step, until: Some(until) };
            return self::search(&phase, &options, search).await;
        }
    };
    let summary = load::run(&LoadOptions { rate, ..options }, Progress::Quiet).await?;
    let mut totals = PhaseTotals { name: phase.name.clone(), ..PhaseTotals::default() };
    add(&mut totals, &summary);
    totals.committed_per_second = summary.achieved_per_second;
    latencies(&mut totals, &phase, &summary);
    let series = series(&phase.name, phase.at.ms() + summary.prepared_ms, &summary.points);
    Ok(PhaseEnd::of(totals, vec![series], &[summary]))
}

/// The rate that the chain sustains is the phase's throughput; its latencies are those of the step at that rate.
async fn search(phase: &Phase, options: &LoadOptions, search: SaturationOptions) -> Result<PhaseEnd> {
    let saturation = load::saturate(options, search, Progress::Quiet).await?;
    let rate = match saturation.found {
        Found::Sustained { rate, .. } | Found::AtLeast { rate } => rate,
        Found::Nothing { .. } => 0,
    };
    let mut totals = PhaseTotals { name: phase.name.clone(), ..PhaseTotals::default() };
    saturation.steps.iter().for_each(|step| add(&mut totals, step));
    totals.committed_per_second = f64::from(rate);
    let is_at_rate = |step: &&LoadSummary| (step.offered_per_second - f64::from(rate)).abs() < 1.0;
    if let Some(best) = saturation.steps.iter().rev().find(is_at_rate) {
        latencies(&mut totals, phase, best);
    }
    Ok(PhaseEnd::of(totals, Vec::new(), &saturation.steps))
}

fn add(totals: &mut PhaseTotals, summary: &LoadSummary) {
    totals.accepted += summary.accepted;
    totals.given_up += summary.given_up;
    totals.committed += summary.committed;
    let Audit { receipts_failed, receipts_wrong, duplicates, balances_wrong, .. } = summary.audit;
    totals.is_limited_by_generators |= summary.limited_by == Some(Limit::Generators);
    for reads in &summary.reads {
        let way = match reads.way {
            ReadWay::Http => Way::Http,
            ReadWay::WebSocket => Way::Websocket,
        };
        let answered = reads.read_ms.map_or(0, |answered| answered.count);
        let all = (answered + reads.failed).max(1);
        let these =
            ReadTotals { ms: reads.read_ms.map(quantiles), failed_share: reads.failed as f64 / all as f64 };
        let sum = totals.reads.entry(way).or_default();
        *sum = sum.worse(these);
    }
    totals.wrong += receipts_failed + receipts_wrong + duplicates + balances_wrong;
}

/// Of commits, and of the phase's follower.
fn latencies(totals: &mut PhaseTotals, phase: &Phase, summary: &LoadSummary) {
    let missing = |came: Option<Percentiles>| {
        let came = came.map_or(0, |came| came.count);
        summary.offered.saturating_sub(came) as f64 / summary.offered.max(1) as f64
    };
    (totals.commit_ms, totals.commit_missing_share) =
        (summary.commit_ms.map(quantiles), missing(summary.commit_ms));
    let Some(follower) = &phase.follower else { return };
    // Commits are read from it if it is not among the load's followers.
    let follow = summary.follow_ms.get(follower).copied().unwrap_or(summary.commit_ms);
    (totals.follow_ms, totals.follow_missing_share) = (follow.map(quantiles), missing(follow));
}

fn quantiles(percentiles: Percentiles) -> Quantiles {
    let Percentiles { p50, p90, p95, p99, max, .. } = percentiles;
    Quantiles { p50, p90, p95, p99, max }
}

/// A load over time; `begin_ms` is when its first transaction was due.
fn series(name: &str, begin_ms: u64, points: &[Point]) -> LoadSeries {
    let [mut p50, mut p90, mut p99] = ["ms"; 3].map(Series::new);
    let mut per_second = Series::new("1/s");
    for point in points {
        let at_ms = begin_ms + point.at_ms;
        per_second.push(at_ms, point.committed_per_second);
        if let Some(latency) = point.commit_ms {
            p50.push(at_ms, latency.p50);
            p90.push(at_ms, latency.p90);
            p99.push(at_ms, latency.p99);
        }
    }
    LoadSeries { name: format!("commit {name}"), per_second, p50, p90, p99 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_gaps_where_nothing_was_committed() {
        let latency = Percentiles { count: 1, p50: 1.0, p90: 2.0, p95: 3.0, p99: 4.0, max: 5.0 };
        let point =
            |at_ms, commit_ms| Point { at_ms, due_per_second: 1.0, committed_per_second: 2.0, commit_ms };
        let series = series("main", 10_000, &[point(1_000, Some(latency)), point(2_000, None)]);
        assert_eq!(series.per_second.points, [(11_000, 2.0), (12_000, 2.0)]);
        assert_eq!(series.p99.points, [(11_000, 4.0)]);
        assert_eq!(series.name, "commit main");
    }
}
