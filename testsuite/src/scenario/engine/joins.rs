//! [`Joins`]: nodes that were started while the clock runs, until they answer. The clock does not wait for them.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, anyhow};
use tokio::task::JoinSet;

use super::{LOOK, Stage};
use crate::{rpc::Rpc, scenario::names::NodeIndex};

/// The interval between two polls of a node.
const POLL: Duration = Duration::from_millis(100);

/// Nodes that have not answered yet. Dropping it stops the polling.
#[derive(Default)]
pub(super) struct Joins {
    /// A task per node, with its event and whether it answered in time.
    asked: JoinSet<(usize, bool)>,
    /// The joining nodes, by event.
    places: BTreeMap<usize, NodeIndex>,
}

impl Joins {
    /// Polls a started node until it answers, while the clock continues.
    fn wait_for(&mut self, event: usize, place: NodeIndex, rpc: Rpc, within: Duration) {
        self.places.insert(event, place);
        self.asked.spawn(async move { (event, tokio::time::timeout(within, answer(rpc)).await.is_ok()) });
    }

    /// Returns the joins that have settled since the last call, with whether the node answered.
    fn take_settled(&mut self) -> Result<Vec<(usize, NodeIndex, bool)>> {
        let mut settled = Vec::new();
        while let Some(end) = self.asked.try_join_next() {
            let (event, has_answered) = end?;
            // A node that had ended is already reported.
            settled.extend(self.places.remove(&event).map(|place| (event, place, has_answered)));
        }
        Ok(settled)
    }
}

/// Polls until the node answers.
async fn answer(rpc: Rpc) {
    while rpc.page("/v1/status").await.is_err() {
        tokio::time::sleep(POLL).await;
    }
}

impl Stage<'_> {
    /// Expects a started node to answer in time. The clock continues meanwhile.
    pub(super) fn await_join(&mut self, event: usize, place: NodeIndex) -> Result<()> {
        let rpc = self.node(place)?.rpc().clone();
        let within = self.scenario.topology.ready_within.duration();
        self.joins.wait_for(event, place, rpc, within);
        Ok(())
    }

    /// Records the nodes that have joined, and those that failed to.
    pub(super) fn note_joins(&mut self) -> Result<()> {
        for (event, place, has_answered) in self.joins.take_settled()? {
            // A node that a fault holds down at that moment did not get its full time.
            let is_late = !has_answered && !self.held.contains(place);
            let within = self.scenario.topology.ready_within;
            let why = self.node(place)?.log_end();
            self.end_join(event, place, is_late.then(|| format!("it did not answer within {within}. {why}")));
        }
        let waiting: Vec<(usize, NodeIndex)> =
            self.joins.places.iter().map(|(event, place)| (*event, *place)).collect();
        for (event, place) in waiting {
            if self.node(place)?.pid().is_none() && !self.held.contains(place) {
                self.joins.places.remove(&event);
                self.end_join(event, place, Some("it ended before it answered".to_owned()));
            }
        }
        Ok(())
    }

    fn end_join(&mut self, event: usize, place: NodeIndex, failure: Option<String>) {
        if let Some(why) = failure {
            let name = self.names.name(place).to_owned();
            self.note_failure(Err(anyhow!("{name} did not join: {why}")));
        }
        self.end_excuses(event);
    }

    /// Waits until each node has answered, or its time is over, which for the last ones may be after the clock.
    pub(super) async fn wait_joins(&mut self) -> Result<()> {
        while !self.joins.places.is_empty() {
            self.note_ended()?;
            self.note_joins()?;
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Goal: a silent node is given up when its time is over, and never before; each join is reported once.
    #[tokio::test]
    async fn a_join_has_its_time_and_no_more() {
        // Nobody can listen at port 0.
        let rpc = Rpc::new("http://127.0.0.1:0").unwrap();
        let (mut joins, within, begin) = (Joins::default(), Duration::from_millis(400), Instant::now());
        joins.wait_for(3, NodeIndex(7), rpc, within);
        let settled = loop {
            let settled = joins.take_settled().unwrap();
            if !settled.is_empty() {
                break settled;
            }
            assert_eq!(joins.places.get(&3), Some(&NodeIndex(7)));
            tokio::time::sleep(POLL).await;
        };
        assert!(begin.elapsed() >= within);
        assert_eq!(settled, [(3, NodeIndex(7), false)]);
        assert!(joins.take_settled().unwrap().is_empty() && joins.places.is_empty());
    }
}
