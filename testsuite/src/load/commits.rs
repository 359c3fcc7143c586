//! [`Commits`]: joins the generators' transactions with the nodes' batches, and computes latencies and rates. Sans-I/O.

use std::{collections::HashMap, time::Duration};

use alloy_primitives::B256;
use serde::{Deserialize, Serialize};

use super::{
    percentiles::{Latencies, Percentiles},
    plan::Plan,
    stretches,
    track::{Contents, Heads},
};

/// One time slice of a run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Milliseconds from the start of the run to the end of the slice.
    pub at_ms: u64,
    /// Transactions per second that were due.
    pub due_per_second: f64,
    /// Transactions per second that were committed; for a follower, those that the follower showed.
    pub committed_per_second: f64,
    /// Commit latency, in milliseconds, of the transactions due in this slice. A missing transaction counts with its
    /// waiting time at the end of the run.
    pub commit_ms: Option<Percentiles>,
}

/// The committed transactions: their indices in the plan, and their batches.
pub(super) struct Commits(pub(super) Vec<(u32, u64)>);

impl Commits {
    /// Finds the plan's transactions in the batches read, in the order of the plan.
    pub(super) fn of(contents: &Contents, known: &HashMap<B256, u32>) -> Commits {
        let batches = contents.full().flat_map(|(number, hashes)| {
            hashes.iter().filter_map(move |hash| Some((*known.get(hash)?, number)))
        });
        let mut all: Vec<_> = batches.collect();
        all.sort_unstable();
        all.dedup_by_key(|(index, _)| *index);
        Commits(all)
    }

    /// Returns, for each transaction of the plan, when it was due, and when a node showed its batch, if it did.
    fn shown<'a>(
        &'a self,
        plan: &'a Plan,
        heads: &'a Heads,
    ) -> impl Iterator<Item = (Duration, Option<Duration>)> + 'a {
        let mut commits = self.0.iter().peekable();
        (0..plan.len()).map(move |index| {
            let batch = commits.next_if(|(place, _)| *place as usize == index).map(|(_, batch)| *batch);
            (plan.due(index), batch.and_then(|batch| heads.at(batch)))
        })
    }

    /// Returns the latencies from the due time to the time at which a node showed the batch. A transaction that the
    /// node did not show has waited at least until the watch ended. It counts: otherwise a chain that loses its slowest
    /// transactions would look faster. Empty for a node that showed nothing.
    pub(super) fn latencies(&self, plan: &Plan, heads: &Heads, watched: Duration) -> Latencies {
        let mut latencies = Latencies::default();
        if heads.seen.is_empty() {
            return latencies;
        }
        for (due, at) in self.shown(plan, heads) {
            latencies.record(at.unwrap_or(watched).saturating_sub(due));
        }
        latencies
    }

    /// Splits the run into slices of equal length, at least a second each.
    pub(super) fn points(&self, plan: &Plan, heads: &Heads, end: Duration, watched: Duration) -> Vec<Point> {
        let width_ms = stretches::width_ms(end);
        let count = (end.as_millis() as u64 / width_ms + 1) as usize;
        let place = |at: Duration| ((at.as_millis() as u64 / width_ms) as usize).min(count - 1);
        let (mut due, mut committed) = (vec![0u64; count], vec![0u64; count]);
        let mut latencies: Vec<Option<Latencies>> = vec![None; count];
        let has_shown = !heads.seen.is_empty();
        for (asked, at) in self.shown(plan, heads) {
            due[place(asked)] += 1;
            if let Some(at) = at {
                committed[place(at)] += 1;
            }
            if let Some(until) = at.or(has_shown.then_some(watched)) {
                latencies[place(asked)].get_or_insert_default().record(until.saturating_sub(asked));
            }
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
        let (end, watched) = (Duration::from_secs(3), Duration::from_secs(9));
        assert!(commits.latencies(&plan, &Heads { first: 5, ..Heads::default() }, watched).is_empty());
        let points = commits.points(&plan, &Heads::default(), end, watched);
        assert_eq!(points.iter().map(|point| point.committed_per_second).sum::<f64>(), 0.0);
        assert!(points.iter().all(|point| point.commit_ms.is_none()));
    }

    /// Goal: a chain that loses half of its transactions does not look fast because of the other half.
    #[test]
    fn what_never_came_has_waited_to_the_end() {
        let plan = plan("transfers");
        let commits = Commits((0..15).map(|index| (index, 5)).collect());
        let heads = Heads { first: 5, seen: vec![Duration::from_secs(2)], ..Heads::default() };
        let (end, watched) = (Duration::from_secs(3), Duration::from_secs(13));
        let found = commits.latencies(&plan, &heads, watched).percentiles().unwrap();
        // A transaction is due every 100 ms: the last after 2.9 s, the first missing one after 1.5 s.
        assert!(found.count == 30 && found.p99 > 11_000.0 && found.max < 11_600.0, "{found}");
        let points = commits.points(&plan, &heads, end, watched);
        assert!(points[2].commit_ms.unwrap().p50 > 10_000.0, "{points:?}");
        assert_eq!(points.iter().map(|point| point.committed_per_second).sum::<f64>(), 15.0);
    }
}
