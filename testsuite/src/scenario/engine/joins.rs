//! [`Joins`]: nodes that were started while the clock runs, until they answer. The clock waits for none of them.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, anyhow};
use tokio::task::JoinSet;

use super::{LOOK, Stage};
use crate::{rpc::Rpc, scenario::names::Place};

/// Between two questions whether a node is there.
const POLL: Duration = Duration::from_millis(100);

/// Nodes that have not answered yet. Dropped, it asks none of them any more.
#[derive(Default)]
pub(super) struct Joins {
    /// Each asks one node: the event, and whether it answered in time.
    asked: JoinSet<(usize, bool)>,
    /// Who joins, by the place of the event.
    places: BTreeMap<usize, Place>,
}

impl Joins {
    /// Waits beside the clock for the answer of a node that was started.
    fn wait_for(&mut self, event: usize, place: Place, rpc: Rpc, within: Duration) {
        self.places.insert(event, place);
        self.asked.spawn(async move { (event, tokio::time::timeout(within, answer(rpc)).await.is_ok()) });
    }

    /// The joins that have come to an end since the last call, with whether the node answered.
    fn take_settled(&mut self) -> Result<Vec<(usize, Place, bool)>> {
        let mut settled = Vec::new();
        while let Some(end) = self.asked.try_join_next() {
            let (event, has_answered) = end?;
            // One that had ended is told already.
            settled.extend(self.places.remove(&event).map(|place| (event, place, has_answered)));
        }
        Ok(settled)
    }
}

/// Asks again and again, until the node answers.
async fn answer(rpc: Rpc) {
    while rpc.page("/v1/status").await.is_err() {
        tokio::time::sleep(POLL).await;
    }
}

impl Stage<'_> {
    /// A node that was started is to answer in time. The clock goes on meanwhile.
    pub(super) fn await_join(&mut self, event: usize, place: Place) -> Result<()> {
        let rpc = self.node(place)?.rpc().clone();
        let within = self.scenario.topology.ready_within.duration();
        self.joins.wait_for(event, place, rpc, within);
        Ok(())
    }

    /// Takes note of nodes that have joined, and of those that did not.
    pub(super) fn note_joins(&mut self) -> Result<()> {
        for (event, place, has_answered) in self.joins.take_settled()? {
            // One that a fault holds down at that moment had no fair time.
            let is_late = !has_answered && !self.held.contains(place);
            let within = self.scenario.topology.ready_within;
            let why = self.node(place)?.log_end();
            self.end_join(event, place, is_late.then(|| format!("it did not answer within {within}. {why}")));
        }
        let waiting: Vec<(usize, Place)> =
            self.joins.places.iter().map(|(event, place)| (*event, *place)).collect();
        for (event, place) in waiting {
            if self.node(place)?.pid().is_none() && !self.held.contains(place) {
                self.joins.places.remove(&event);
                self.end_join(event, place, Some("it ended before it answered".to_owned()));
            }
        }
        Ok(())
    }

    fn end_join(&mut self, event: usize, place: Place, failure: Option<String>) {
        if let Some(why) = failure {
            let name = self.names.name(place).to_owned();
            self.note_failure(Err(anyhow!("{name} did not join: {why}")));
        }
        self.end_excuses(event);
    }

    /// Waits until each node has answered, or has had its time: those that joined last get theirs beyond the clock.
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

    /// Goal: a node that nobody answers for is given up when its time is over, and never before; each join is told once.
    #[tokio::test]
    async fn a_join_has_its_time_and_no_more() {
        // Nobody can listen at port 0.
        let rpc = Rpc::new("http://127.0.0.1:0").unwrap();
        let (mut joins, within, begin) = (Joins::default(), Duration::from_millis(400), Instant::now());
        joins.wait_for(3, Place(7), rpc, within);
        let settled = loop {
            let settled = joins.take_settled().unwrap();
            if !settled.is_empty() {
                break settled;
            }
            assert_eq!(joins.places.get(&3), Some(&Place(7)));
            tokio::time::sleep(POLL).await;
        };
        assert!(begin.elapsed() >= within);
        assert_eq!(settled, [(3, Place(7), false)]);
        assert!(joins.take_settled().unwrap().is_empty() && joins.places.is_empty());
    }
}
