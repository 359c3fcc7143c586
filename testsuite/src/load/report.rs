//! [`Report`]: a run's figures, as a table and as JSON.

use std::{collections::BTreeMap, fmt};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{LoadOptions, Workload, send::Outcome, track::Tracked};

/// Percentiles in milliseconds, counted from the scheduled time of each transaction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Half of all are faster.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 95 %.
    pub p95: f64,
    /// 99 %.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Option<Latency> {
        if histogram.is_empty() {
            return None;
        }
        let ms = |quantile| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
        let max = histogram.max() as f64 / 1_000.0;
        Some(Latency { p50: ms(0.5), p90: ms(0.9), p95: ms(0.95), p99: ms(0.99), max })
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency { p50, p90, p95, p99, max } = self;
        write!(f, "p50 {p50:.1}  p90 {p90:.1}  p95 {p95:.1}  p99 {p99:.1}  max {max:.1} ms")
    }
}

/// What a run did.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was sent.
    pub workload: Workload,
    /// Transactions per second that were asked for.
    pub target_tps: u32,
    /// Seconds that were asked for.
    pub duration_seconds: f64,
    /// Transactions that left.
    pub sent: u64,
    /// Transactions that a node took.
    pub accepted: u64,
    /// Transactions that no node took, however often they were sent.
    pub given_up: u64,
    /// Refusals by reason; one transaction may be refused several times.
    pub rejected: BTreeMap<String, u64>,
    /// Transactions in batches of the validator.
    pub committed: u64,
    /// Of them, those that the follower showed.
    pub followed: Option<u64>,
    /// Committed transactions per second, from the first due time to the last commit.
    pub effective_tps: f64,
    /// Batches that held them.
    pub batches: u64,
    /// The validator's head at the end.
    pub head: u64,
    /// Receipts that were read.
    pub receipts_checked: u64,
    /// Of them, those of failed transactions.
    pub receipts_failed: u64,
    /// Until the validator showed the batch.
    pub commit_latency_ms: Option<Latency>,
    /// Until the follower showed it.
    pub follow_latency_ms: Option<Latency>,
}

impl Report {
    pub(super) fn new(
        options: &LoadOptions,
        outcome: Outcome,
        commits: &Tracked,
        follower: Option<&Tracked>,
        receipts_checked: u64,
        receipts_failed: u64,
    ) -> Report {
        let committed = commits.seen.len() as u64;
        let seconds = commits.last.max(options.duration).as_secs_f64();
        Report {
            workload: options.workload,
            target_tps: options.tps,
            duration_seconds: options.duration.as_secs_f64(),
            sent: outcome.sent,
            accepted: outcome.accepted,
            given_up: outcome.given_up,
            rejected: outcome.rejected,
            committed,
            followed: follower.map(|follower| follower.seen.len() as u64),
            effective_tps: committed as f64 / seconds,
            batches: commits.batches,
            head: commits.head,
            receipts_checked,
            receipts_failed,
            commit_latency_ms: Latency::of(&commits.latency),
            follow_latency_ms: follower.and_then(|follower| Latency::of(&follower.latency)),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, seconds) = (self.workload.name(), self.duration_seconds);
        writeln!(f, "workload        {name}, {} tx/s for {seconds:.1} s", self.target_tps)?;
        writeln!(f, "sent            {}", self.sent)?;
        writeln!(f, "accepted        {} ({} given up)", self.accepted, self.given_up)?;
        for (reason, count) in &self.rejected {
            writeln!(f, "refused         {count} times: {reason}")?;
        }
        let rate = self.effective_tps;
        writeln!(f, "committed       {} in {} batches, {rate:.1} tx/s", self.committed, self.batches)?;
        if let Some(followed) = self.followed {
            writeln!(f, "followed        {followed}")?;
        }
        writeln!(f, "failed receipts {} of {} checked", self.receipts_failed, self.receipts_checked)?;
        if let Some(latency) = &self.commit_latency_ms {
            writeln!(f, "commit latency  {latency}")?;
        }
        if let Some(latency) = &self.follow_latency_ms {
            writeln!(f, "follow latency  {latency}")?;
        }
        Ok(())
    }
}
