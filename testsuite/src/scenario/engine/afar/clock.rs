//! The judge's clock: while an event affects a node, it excuses the node.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Result;

use super::{Judge, inbox::Inbox, meeting::SKEW_MS};
use crate::scenario::engine::LOOK;

impl Judge<'_> {
    /// Runs until the scenario's time is over, and registers each event's excuses while it affects nodes.
    pub(super) async fn pass(&mut self, inbox: &Inbox) -> Result<()> {
        let mut agenda: BTreeSet<(u64, bool, usize)> = BTreeSet::new();
        for (index, meeting) in self.story.meetings().iter().enumerate() {
            agenda.insert((meeting.from_ms.saturating_sub(SKEW_MS), true, index));
            agenda.extend(meeting.over_ms().map(|over_ms| (over_ms, false, index)));
        }
        let end_ms = self.scenario.duration.ms();
        while let Some((at_ms, begins, index)) = agenda.pop_first() {
            if at_ms > end_ms {
                break;
            }
            self.wait_until(at_ms, inbox).await;
            if begins { self.begin(index)? } else { self.end(index) }
        }
        self.wait_until(end_ms, inbox).await;
        Ok(())
    }

    pub(super) fn begin(&mut self, index: usize) -> Result<()> {
        let meeting = self.story.meetings()[index].clone();
        if meeting.is_join {
            meeting.whom.iter().try_for_each(|place| self.join(*place))?;
        }
        // If nodes report who carries out the order, only these nodes are affected.
        for place in meeting.whom.iter().filter(|_| meeting.told.is_none()) {
            self.meet(index, self.names.name(*place));
        }
        for name in self.takers.remove(&index).into_iter().flatten() {
            self.meet(index, &name);
        }
        Ok(())
    }

    fn meet(&self, index: usize, name: &str) {
        let meeting = &self.story.meetings()[index];
        match &meeting.liars {
            None => self.watch.begin_excuse(index, name, meeting.cause),
            Some(lie) => self.watch.expect(name, lie, &index.to_string()),
        }
    }

    pub(super) fn note_taken(&mut self, inbox: &Inbox) {
        let now_ms = self.elapsed_ms();
        for (node, order) in inbox.taken() {
            self.heard.entry(order.clone()).or_default().insert(node.clone());
            for (index, meeting) in self.story.meetings().iter().enumerate() {
                // A report after the end would excuse the node forever.
                if meeting.told.as_ref() != Some(&order) || meeting.is_over(now_ms) {
                    continue;
                }
                if meeting.from_ms <= now_ms.saturating_add(SKEW_MS) {
                    self.meet(index, &node);
                } else {
                    self.takers.entry(index).or_default().insert(node.clone());
                }
            }
        }
    }

    /// Ends a meeting. One that starts a process ends only when the process answers: its container and its store take
    /// time.
    fn end(&mut self, index: usize) {
        let meeting = &self.story.meetings()[index];
        if meeting.liars.is_some() {
            self.watch.part(Some(&index.to_string()));
        } else if meeting.restarts {
            let until_ms = self.elapsed_ms().saturating_add(self.scenario.topology.ready_within.ms());
            self.awaited.insert(index, until_ms);
        } else {
            self.watch.end_excuses(index);
        }
    }

    async fn wait_until(&mut self, at_ms: u64, inbox: &Inbox) {
        loop {
            self.note_taken(inbox);
            self.note_answers();
            let left = Duration::from_millis(at_ms).saturating_sub(self.begin.elapsed());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
    }

    fn note_answers(&mut self) {
        let now_ms = self.elapsed_ms();
        let (story, watch, names) = (&self.story, &self.watch, self.names);
        self.awaited.retain(|index, until_ms| {
            let meeting = &story.meetings()[*index];
            let mut whom = meeting.whom.iter();
            let answers = whom.any(|place| meeting.started(&watch.starts(names.name(*place))).is_some());
            let is_over = answers || now_ms >= *until_ms;
            if is_over {
                watch.end_excuses(*index);
            }
            !is_over
        });
    }
}
