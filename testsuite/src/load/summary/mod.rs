//! [`LoadSummary`]: a run's figures, and how they are computed; `table` formats them.

mod table;

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use serde::{Deserialize, Serialize};

use super::{
    audit::Audit,
    commits::{Commits, Point},
    feed::{HeadAnnouncements, HeadNews},
    percentiles::Percentiles,
    plan::Plan,
    protocol::{Outcome, ReadWay},
    saturation::Step,
    stretches::ReadPoint,
    track::{Contents, Heads},
};

/// The largest share of the generators' proved capacity that a load may use. Beyond it they have no reserve, and may be
/// the limit.
const CAPACITY_SHARE_MAX: f64 = 0.8;
/// The highest 99th percentile of the generators' own delays, in milliseconds. Above it, the generators count as late.
const OWN_P99_MS_MAX: f64 = 50.0;
/// The least share of the offered transactions that a chain must commit. Below it, the chain is the limit.
const ACHIEVED_SHARE_MIN: f64 = 0.98;

/// What limited the rate, if not the schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The generators: the figures say nothing about the chain.
    Generators,
    /// The nodes: they committed less than was due.
    Node,
}

/// The reads at one node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reads {
    /// The node's name, or the URL of its API.
    pub node: String,
    /// The transport of the reads.
    pub way: ReadWay,
    /// Latency from the due time to the answer, in milliseconds; at least ten seconds for a missing answer. `None` if
    /// no read was due.
    pub read_ms: Option<Percentiles>,
    /// Reads without an answer, or with an error.
    pub failed: u64,
    /// The reads over time.
    #[serde(default)]
    pub points: Vec<ReadPoint>,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadSummary {
    /// The workload, in the format of `--mix`.
    pub workload: String,
    /// The rate, in words.
    pub rate: String,
    /// The API of the node whose commits count: the first that answered among those that accept transactions.
    #[serde(default)]
    pub commits_from: String,
    /// Milliseconds from the start of the preparation until the first transaction was due.
    #[serde(default)]
    pub prepared_ms: u64,
    /// The length of the schedule in seconds.
    pub duration_seconds: f64,
    /// Transactions that were due.
    pub offered: u64,
    /// Transactions per second that were due, over the whole schedule.
    pub offered_per_second: f64,
    /// Committed transactions per second, from the first due time to the last commit.
    pub achieved_per_second: f64,
    /// Transactions per second that all generators together sent to a sink before the run.
    pub capacity_per_second: f64,
    /// The number of generator processes.
    pub generators: usize,
    /// What limited the rate; `None` if the schedule did.
    pub limited_by: Option<Limit>,
    /// Transactions that were sent.
    pub sent: u64,
    /// Transactions per second that were sent by the end of the schedule, over the whole schedule: how well the
    /// generators kept to it.
    pub sent_per_second: f64,
    /// Transactions that a node accepted.
    pub accepted: u64,
    /// Transactions that no node accepted, even after retries.
    pub given_up: u64,
    /// Refusals by reason; one transaction may be refused several times.
    pub refused: BTreeMap<String, u64>,
    /// Nonces of given-up transactions that were plugged.
    pub plugged: u64,
    /// Transactions that were resent because the chain did not execute them.
    pub resent: u64,
    /// Transactions that got another nonce because another program used theirs.
    pub displaced: u64,
    /// Transactions that were committed.
    pub committed: u64,
    /// The committed transactions shown by the end of the schedule plus a grace: one second, or a twentieth of the
    /// schedule if that is longer.
    pub committed_in_time: u64,
    /// The committed transactions that every other node showed.
    pub followed: Option<u64>,
    /// Transactions that were accepted but not yet committed when the last one was due.
    pub backlog: u64,
    /// Batches that contain transactions of the load.
    pub batches: u64,
    /// The last batch that was read.
    pub head: u64,
    /// Latency from the due time until the first node showed the batch, or until the watch ended without it: all due
    /// transactions count.
    pub commit_ms: Option<Percentiles>,
    /// The same for every other node, by name.
    pub follow_ms: BTreeMap<String, Option<Percentiles>>,
    /// Transactions per second that every other node showed, by name: up to the last of them, or to the end of the
    /// schedule.
    #[serde(default)]
    pub follow_per_second: BTreeMap<String, f64>,
    /// The mean interval between two polls of the node whose commits count, in milliseconds. If the polls are even,
    /// latencies are at most this much too long.
    pub resolution_ms: f64,
    /// The reads that accompanied the writes.
    pub reads: Vec<Reads>,
    /// The announcements of subscriptions to heads, for the nodes that were read from.
    #[serde(default)]
    pub news: Vec<HeadNews>,
    /// The generators' own delays.
    pub generator_late_ms: Option<Percentiles>,
    /// How long transactions waited in a generator for a node's answer to the previous batch.
    pub generator_blocked_ms: Option<Percentiles>,
    /// The figures over time.
    pub points: Vec<Point>,
    /// The figures over time at every other node, by name: transactions that it showed.
    #[serde(default)]
    pub follow_points: BTreeMap<String, Vec<Point>>,
    /// The audit of receipts and balances.
    pub audit: Audit,
    /// When the first transaction was due; set only for runs of this process.
    #[serde(skip)]
    pub begin: Option<Instant>,
}

/// The inputs of a summary.
pub(super) struct SummaryInput<'a> {
    pub(super) workload: String,
    pub(super) rate: String,
    pub(super) prepared: Duration,
    pub(super) plan: &'a Plan,
    /// Indices in the plan by hash, including transactions that were signed again.
    pub(super) hashes: &'a HashMap<B256, u32>,
    pub(super) capacity_per_second: f64,
    pub(super) generators: usize,
    pub(super) outcome: &'a Outcome,
    pub(super) contents: &'a Contents,
    /// The heads of all nodes, first those of the node whose commits count.
    pub(super) heads: &'a [Heads],
    pub(super) told: &'a [HeadAnnouncements],
    pub(super) resolution: Duration,
    pub(super) backlog: u64,
    /// Transactions that were sent by the end of the schedule.
    pub(super) sent_in_time: u64,
    pub(super) begin: Instant,
    /// When the watch of the nodes ended, after the start.
    pub(super) watched: Duration,
    pub(super) audit: Audit,
}

/// Returns what limited the rate. Generators are checked first: the chain cannot commit transactions that they did not
/// send.
fn limit(
    peak_per_second: f64,
    capacity_per_second: f64,
    own: Option<Percentiles>,
    achieved: f64,
) -> Option<Limit> {
    let has_no_reserve = peak_per_second > capacity_per_second * CAPACITY_SHARE_MAX;
    if has_no_reserve || own.is_some_and(|late| late.p99 > OWN_P99_MS_MAX) {
        return Some(Limit::Generators);
    }
    (achieved < ACHIEVED_SHARE_MIN).then_some(Limit::Node)
}

impl LoadSummary {
    pub(super) fn new(facts: SummaryInput<'_>) -> LoadSummary {
        let commits = Commits::of(facts.contents, facts.hashes);
        let SummaryInput { plan, outcome, contents, heads, watched, .. } = facts;
        let none = Heads::default();
        let (first, others) = heads.split_first().unwrap_or((&none, &[]));
        let duration = plan.schedule().duration();
        let end = |heads: &Heads| {
            let shown = commits.0.iter().filter_map(|(_, batch)| heads.at(*batch));
            shown.max().unwrap_or_default().max(duration)
        };
        let points = |heads: &Heads| commits.points(plan, heads, end(heads), watched);
        let committed = commits.0.len() as u64;
        let followed =
            |heads: &Heads| commits.0.iter().filter(|(_, batch)| heads.at(*batch).is_some()).count() as u64;
        // The share of due transactions that were committed within the schedule and a grace of a batch or two.
        let in_time = commits.0.iter().filter(|(_, batch)| {
            first.at(*batch).is_some_and(|at| at <= duration + Duration::from_secs(1).max(duration / 20))
        });
        let committed_in_time = in_time.count() as u64;
        let share = committed_in_time as f64 / plan.len() as f64;
        let own = outcome.own.percentiles();
        // On a machine without a free core, polls are further apart than planned.
        let looked = u32::try_from(first.looks).unwrap_or(u32::MAX);
        let resolution = watched.checked_div(looked).unwrap_or_default().max(facts.resolution);
        let mut batches: Vec<u64> = commits.0.iter().map(|(_, batch)| *batch).collect();
        batches.sort_unstable();
        batches.dedup();
        let reads = outcome.reads.iter().map(|read| Reads {
            node: read.node.clone(),
            way: read.way,
            read_ms: read.latencies.percentiles(),
            failed: read.failed,
            points: read.stretches.points(duration),
        });
        LoadSummary {
            commits_from: first.name.clone(),
            prepared_ms: facts.prepared.as_millis() as u64,
            duration_seconds: duration.as_secs_f64(),
            offered: plan.len() as u64,
            offered_per_second: plan.schedule().mean_per_second(),
            achieved_per_second: committed as f64 / end(first).as_secs_f64(),
            capacity_per_second: facts.capacity_per_second,
            generators: facts.generators,
            limited_by: limit(plan.schedule().peak_per_second(), facts.capacity_per_second, own, share),
            sent: outcome.tally.sent,
            sent_per_second: facts.sent_in_time as f64 / duration.as_secs_f64(),
            accepted: outcome.tally.accepted,
            given_up: outcome.tally.given_up,
            refused: outcome.refused.clone(),
            plugged: outcome.plugged,
            resent: outcome.resent,
            displaced: outcome.displaced,
            committed,
            committed_in_time,
            followed: others.iter().map(followed).min(),
            backlog: facts.backlog,
            batches: batches.len() as u64,
            head: contents.head(),
            commit_ms: commits.latencies(plan, first, watched).percentiles(),
            follow_ms: others
                .iter()
                .map(|heads| (heads.name.clone(), commits.latencies(plan, heads, watched).percentiles()))
                .collect(),
            follow_per_second: others
                .iter()
                .map(|heads| (heads.name.clone(), followed(heads) as f64 / end(heads).as_secs_f64()))
                .collect(),
            resolution_ms: resolution.as_secs_f64() * 1_000.0,
            reads: reads.collect(),
            news: facts.told.iter().map(|told| told.judged(heads, duration, watched)).collect(),
            generator_late_ms: own,
            generator_blocked_ms: outcome.blocked.percentiles(),
            points: points(first),
            follow_points: others.iter().map(|heads| (heads.name.clone(), points(heads))).collect(),
            workload: facts.workload,
            rate: facts.rate,
            begin: Some(facts.begin),
            audit: facts.audit,
        }
    }
}

impl LoadSummary {
    /// Returns the run as a step of a search for the chain's limit.
    pub(super) fn step(&self, rate: u32) -> Step {
        Step {
            rate,
            offered: self.offered,
            committed: self.committed_in_time,
            given_up: self.given_up,
            backlog: self.backlog,
            commit_ms: self.commit_ms,
            is_limited_by_generators: self.limited_by == Some(Limit::Generators),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::plan::tests::plan;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A run of 30 transactions at 10 per second, the first ten in batch 5 and the others in batch 6, as two nodes
    /// showed them.
    fn summary() -> LoadSummary {
        let plan = plan("transfers");
        let hash = |index: u32| B256::from(alloy_primitives::U256::from(index));
        let hashes = (0..30).map(|index| (hash(index), index)).collect();
        let batches = vec![(0..10).map(hash).collect(), (10..30).map(hash).collect()];
        // The nodes were polled six times, instead of every 5 ms.
        let heads = |name: &str, seen| Heads { name: name.to_owned(), first: 5, seen, looks: 6 };
        LoadSummary::new(SummaryInput {
            workload: "transfers".to_owned(),
            rate: "10 tx/s".to_owned(),
            prepared: ms(700),
            plan: &plan,
            hashes: &hashes,
            capacity_per_second: 1_000.0,
            generators: 2,
            outcome: &Outcome::default(),
            contents: &Contents { first: 5, batches },
            heads: &[heads("a", vec![ms(1_000), ms(5_000)]), heads("b", vec![ms(1_500)])],
            told: &[HeadAnnouncements::default()],
            resolution: ms(5),
            backlog: 20,
            sent_in_time: 27,
            begin: Instant::now(),
            watched: ms(6_000),
            audit: Audit::default(),
        })
    }

    /// Goal: in an open loop, a late batch is late for each of its transactions since that transaction was due.
    #[test]
    fn latencies_count_from_the_due_time() {
        let summary = summary();
        let commit = summary.commit_ms.unwrap();
        assert_eq!((summary.committed, summary.batches, commit.count), (30, 2, 30));
        assert_eq!(summary.prepared_ms, 700);
        // The eleventh was due after one second, and shown after five.
        assert!((3_990.0..=4_010.0).contains(&commit.max), "{commit}");
        assert_eq!(summary.achieved_per_second, 6.0);
        assert_eq!(summary.followed, Some(10));
        // The other node did not show twenty of them. The first of these had waited for five seconds when the watch
        // ended.
        let follow = summary.follow_ms["b"].unwrap();
        assert!(follow.count == 30 && (4_990.0..=5_010.0).contains(&follow.max), "{follow}");
        // The last of the ten that it showed came before the schedule ended after three seconds.
        assert!((summary.follow_per_second["b"] - 10.0 / 3.0).abs() < 1e-9);
        assert_eq!(summary.resolution_ms, 1_000.0);
        assert_eq!((summary.offered_per_second, summary.sent_per_second), (10.0, 9.0));
    }

    #[test]
    fn the_timeline_adds_up() {
        let summary = summary();
        let points = &summary.points;
        assert_eq!(points.len(), 6);
        assert_eq!(points.iter().map(|point| point.due_per_second).sum::<f64>(), 30.0);
        assert_eq!(points.iter().map(|point| point.committed_per_second).sum::<f64>(), 30.0);
        assert_eq!((points[1].committed_per_second, points[5].committed_per_second), (10.0, 20.0));
        assert_eq!(points[4].commit_ms, None);
        // The other node showed ten of them, all in the second slice. Those that it did not show count as late in the
        // slice in which they were due.
        let points = &summary.follow_points["b"];
        assert_eq!(
            points.iter().map(|point| point.committed_per_second).collect::<Vec<_>>(),
            [0.0, 10.0, 0.0, 0.0]
        );
        let late = [0, 1].map(|stretch| points[stretch].commit_ms.unwrap().max);
        assert!((1_490.0..1_510.0).contains(&late[0]) && (4_990.0..5_010.0).contains(&late[1]), "{late:?}");
    }

    #[test]
    fn generators_say_when_they_are_the_limit() {
        let late = |p99| Some(Percentiles { count: 1, p50: 0.0, p90: 0.0, p95: 0.0, p99, max: p99 });
        assert_eq!(limit(100.0, 1_000.0, late(5.0), 1.0), None);
        assert_eq!(limit(100.0, 1_000.0, late(5.0), 0.9), Some(Limit::Node));
        assert_eq!(limit(100.0, 1_000.0, late(51.0), 0.9), Some(Limit::Generators));
        assert_eq!(limit(801.0, 1_000.0, None, 1.0), Some(Limit::Generators));
        assert_eq!(summary().limited_by, Some(Limit::Node), "20 of 30 came too late");
    }

    #[test]
    fn a_summary_survives_its_json_and_names_every_node() {
        let summary = summary();
        let text = serde_json::to_string(&summary).unwrap();
        let again: LoadSummary = serde_json::from_str(&text).unwrap();
        assert_eq!(again.to_string(), summary.to_string());
        let table = summary.to_string();
        assert!(table.contains("proved 1000 tx/s") && table.contains("  b\n"), "{table}");
        // Batch 5, which existed after a second, was not announced; batch 6 came after the schedule.
        assert!(table.contains("by websocket, 1 missed"), "{table}");
    }
}
