//! [`Commits`]: the join of what generators sent with what nodes showed, and the figures of it. Sans-I/O.

use std::{collections::HashMap, time::Duration};

use alloy_primitives::B256;
use serde::{Deserialize, Serialize};

use super::{
    percentiles::{Latencies, Percentiles},
    plan::Plan,
    track::{Contents, Heads},
};

/// Points of the timeline: enough for a chart, few enough for a report.
const POINTS_MAX: u64 = 600;

/// A stretch of a run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Milliseconds from the start of the run to the end of the stretch.
    pub at_ms: u64,
    /// Transactions per second that were due.
    pub due_per_second: f64,
    /// Transactions per second that were committed.
    pub committed_per_second: f64,
    /// Commit latency of those that were due, in milliseconds.
    pub commit_ms: Option<Percentiles>,
}

/// The committed transactions: places in the plan and batches.
pub(super) struct Commits(pub(super) Vec<(u32, u64)>);

impl Commits {
    /// Of what was read, in the order of the plan.
    pub(super) fn of(contents: &Contents, known: &HashMap<B256, u32>) -> Commits {
        let batches = contents.full().flat_map(|(number, hashes)| {
            hashes.iter().filter_map(move |hash| Some((*known.get(hash)?, number)))
        });
        let mut all: Vec<_> = batches.collect();
        all.sort_unstable();
        all.dedup_by_key(|(index, _)| *index);
        Commits(all)
    }

    /// From the due time to the time at which a node showed the batch.
    pub(super) fn latencies(&self, plan: &Plan, heads: &Heads) -> Latencies {
        let mut latencies = Latencies::default();
        for (index, batch) in &self.0 {
            if let Some(at) = heads.at(*batch) {
                latencies.record(at.saturating_sub(plan.due(*index as usize)));
            }
        }
        latencies
    }

    /// The run in stretches of equal length, of a second at least.
    pub(super) fn points(&self, plan: &Plan, heads: &Heads, end: Duration) -> Vec<Point> {
        let width_ms = (end.as_millis() as u64).div_ceil(POINTS_MAX).max(1_000);
        let count = (end.as_millis() as u64 / width_ms + 1) as usize;
        let place = |at: Duration| ((at.as_millis() as u64 / width_ms) as usize).min(count - 1);
        let (mut due, mut committed) = (vec![0u64; count], vec![0u64; count]);
        let mut latencies: Vec<Option<Latencies>> = vec![None; count];
        for index in 0..plan.len() {
            due[place(plan.due(index))] += 1;
        }
        for (index, batch) in &self.0 {
            let Some(at) = heads.at(*batch) else { continue };
            let asked = plan.due(*index as usize);
            committed[place(at)] += 1;
            latencies[place(asked)].get_or_insert_default().record(at.saturating_sub(asked));
        }
        let per_second = |count: u64| count as f64 * 1_000.0 / width_ms as f64;
        let point = |index: usize| Point {
            at_ms: (index as u64 + 1) * width_ms,
            due_per_second: per_second(due[index]),
            committed_per_second: per_second(committed[index]),
            commit_ms: latencies[index].as_ref().and_then(Latencies::percentiles),
        };
        (0..count).map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::plan::tests::plan;

    #[test]
    fn a_transaction_counts_once_also_if_two_batches_show_it() {
        let hash = B256::repeat_byte(1);
        let contents =
            Contents { first: 5, batches: vec![vec![hash], vec![B256::repeat_byte(2)], vec![hash]] };
        let commits = Commits::of(&contents, &HashMap::from([(hash, 7)]));
        assert_eq!(commits.0, [(7, 5)]);
    }

    #[test]
    fn a_node_that_saw_nothing_has_no_latency() {
        let (plan, commits) = (plan("transfers"), Commits(vec![(0, 5), (1, 6)]));
        assert!(commits.latencies(&plan, &Heads { first: 5, ..Heads::default() }).is_empty());
        let points = commits.points(&plan, &Heads::default(), Duration::from_secs(3));
        assert_eq!(points.iter().map(|point| point.committed_per_second).sum::<f64>(), 0.0);
    }
}
