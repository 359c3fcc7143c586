//! [`Story`]: the effects of a scenario's files on the nodes, as far as an observer knows them. Pure.
//!
//! The plan gives the time and the node of each event. It does not say which validator carried out an order to the
//! primary, or when a stopped process started again. Nodes show the second by the start time of their process, and
//! usually the first with it. For an order to lie, or to accept liars, the node that carries it out reports it.

use std::collections::{BTreeMap, BTreeSet};

use super::meeting::{Meeting, SKEW_MS, meetings};
use crate::{
    report::FaultMark,
    scenario::{
        engine::{
            act::{CUT_SHORT, described, is_cut_short},
            catch::Behind,
        },
        export,
        model::Scenario,
        names::{Names, Place},
        plan::{Event, Who, plan},
    },
};

/// The time for a container to start again, in addition to the node's own time to become ready.
const CONTAINER_MS: u64 = 60_000;

/// The times at which each process of each node was first seen, in ms after the clock started.
pub(super) type Starts = BTreeMap<String, Vec<u64>>;

/// The effects of a scenario's files on its nodes.
pub(super) struct Story<'a> {
    scenario: &'a Scenario,
    names: &'a Names,
    events: Vec<Event>,
    /// For each event, whether it is planned to last longer than the scenario.
    cut_short: Vec<bool>,
    meetings: Vec<Meeting>,
}

impl<'a> Story<'a> {
    /// Makes the story of the events that the files carry out.
    pub(super) fn of(scenario: &'a Scenario, names: &'a Names) -> Story<'a> {
        let mut events: Vec<Event> =
            plan(scenario).into_iter().filter(|event| export::is_done(scenario, event)).collect();
        let cut_short = events.iter().map(|event| is_cut_short(scenario, event)).collect();
        for event in &mut events {
            event.until_ms = export::until_ms(scenario, event);
        }
        let meetings = events.iter().flat_map(|event| meetings(scenario, names, event)).collect();
        Story { scenario, names, events, cut_short, meetings }
    }

    pub(super) fn meetings(&self) -> &[Meeting] {
        &self.meetings
    }

    /// Returns the orders that nodes announce.
    pub(super) fn orders(&self) -> BTreeSet<String> {
        self.meetings.iter().filter_map(|meeting| meeting.told.clone()).collect()
    }

    /// Returns the marks for a report. The node of an order to the primary is not certain.
    pub(super) fn marks(&self) -> Vec<FaultMark> {
        let node = |event: &Event| {
            event.action.whom().map(|who| match who {
                Who::Primary => "the primary".to_owned(),
                Who::Node(place) => self.names.name(place).to_owned(),
            })
        };
        let mark = |(event, is_cut_short): (&Event, &bool)| FaultMark {
            at_ms: event.at_ms,
            until_ms: event.until_ms,
            what: described(&event.action) + if *is_cut_short { CUT_SHORT } else { "" },
            node: node(event),
        };
        self.events.iter().zip(&self.cut_short).map(mark).collect()
    }

    /// Returns the nodes that joined or came back, from their planned times.
    pub(super) fn behind(&self, starts: &Starts) -> Vec<Behind> {
        let mut behind = Vec::new();
        for (index, meeting) in self.meetings.iter().enumerate() {
            let Some(from_ms) = meeting.until_ms.filter(|_| meeting.liars.is_none()) else { continue };
            for place in &meeting.whom {
                // If another fault affects the node then, it is behind from that fault's end; if it joins later, from
                // the join.
                if self.is_met(*place, from_ms, index) || self.joins_after(*place, from_ms) {
                    continue;
                }
                let seen = starts.get(self.names.name(*place)).map(Vec::as_slice).unwrap_or_default();
                let seen_ms = match (meeting.restarts, meeting.started_at_last(seen)) {
                    (false, _) => from_ms,
                    (true, Some(seen_ms)) if meeting.is_drawn && self.is_of_later(*place, index, seen_ms) => {
                        continue;
                    }
                    (true, Some(seen_ms)) => seen_ms,
                    // Another validator was the primary.
                    (true, None) if meeting.is_drawn => continue,
                    // The node did not come back at all.
                    (true, None) => u64::MAX,
                };
                // The copy outlasted its order, and the data should have returned at once.
                if self.is_followed_by(index, seen_ms) {
                    continue;
                }
                behind.push(Behind {
                    name: self.names.name(*place).to_owned(),
                    mode: self.mode(*place),
                    from_ms,
                    seen_ms,
                    until_ms: self.next_ms(*place, from_ms),
                });
            }
        }
        behind.sort_by_key(|behind| behind.from_ms);
        behind
    }

    /// Returns the processes that no event started: a node or its container ended by itself and was started again.
    pub(super) fn surprises(&self, starts: &Starts) -> Vec<String> {
        let late_ms = self.scenario.topology.ready_within.ms() + CONTAINER_MS;
        let mut surprises = Vec::new();
        for place in self.names.all() {
            let name = self.names.name(place);
            let explains = |seen_ms: u64, meeting: &Meeting| {
                meeting.whom.contains(&place)
                    && (meeting.restarts || meeting.holds)
                    && meeting.from_ms <= seen_ms.saturating_add(SKEW_MS)
                    && meeting.until_ms.is_none_or(|until| seen_ms <= until.saturating_add(late_ms))
            };
            // The first process is started by the files.
            for seen_ms in starts.get(name).into_iter().flatten().skip(1) {
                if !self.meetings.iter().any(|meeting| explains(*seen_ms, meeting)) {
                    let seconds = *seen_ms as f64 / 1_000.0;
                    surprises
                        .push(format!("{name} was started again at {seconds:.1} s, and no event did that"));
                }
            }
        }
        surprises
    }

    /// Returns the nodes that a fault keeps down when the clock ends, and how many more such faults affect whichever
    /// node was primary.
    pub(super) fn held_at_end(&self) -> (BTreeSet<Place>, usize) {
        let end_ms = self.scenario.duration.ms();
        let holds = |meeting: &&Meeting| meeting.holds && meeting.until_ms.is_none_or(|until| until > end_ms);
        let (drawn, certain): (Vec<&Meeting>, Vec<&Meeting>) =
            self.meetings.iter().filter(holds).partition(|meeting| meeting.is_drawn);
        (certain.iter().flat_map(|meeting| meeting.whom.iter().copied()).collect(), drawn.len())
    }

    /// Whether another event than the one at `index` keeps a node down at a moment, or ends later, like a cut of its
    /// links. Slow links prevent no join.
    fn is_met(&self, place: Place, at_ms: u64, index: usize) -> bool {
        let is_join = self.meetings[index].is_join;
        let mut others = self.meetings.iter().enumerate().filter(|(other, _)| *other != index);
        others.any(|(_, meeting)| {
            (meeting.holds || meeting.until_ms.is_some())
                && meeting.liars.is_none()
                && !(is_join && meeting.is_slow_link)
                && meeting.whom.contains(&place)
                && meeting.from_ms <= at_ms
                && meeting.until_ms.is_none_or(|until| at_ms < until)
        })
    }

    /// Whether a node has not joined yet: a cut of its links may end before it joins.
    fn joins_after(&self, place: Place, at_ms: u64) -> bool {
        let mut joins = self.meetings.iter().filter(|meeting| meeting.is_join);
        joins.any(|meeting| meeting.whom.contains(&place) && meeting.from_ms > at_ms)
    }

    /// Whether the second process of the event at `index` is due by then.
    fn is_followed_by(&self, index: usize, seen_ms: u64) -> bool {
        let from_ms = self.meetings[index].from_ms;
        let second = self.meetings.get(index + 1).filter(|second| second.before_ms == Some(from_ms));
        second.is_some_and(|second| second.from_ms <= seen_ms)
    }

    /// Returns when the next event takes a node down, or slows it down for a while. Events for the primary are not
    /// known.
    fn next_ms(&self, place: Place, from_ms: u64) -> Option<u64> {
        let interrupts = |meeting: &&Meeting| {
            (meeting.holds || meeting.restarts || meeting.until_ms.is_some())
                && meeting.liars.is_none()
                && !meeting.is_drawn
                && meeting.whom.contains(&place)
        };
        let all = self.meetings.iter().filter(interrupts).map(|meeting| meeting.from_ms);
        all.filter(|next_ms| *next_ms > from_ms).min()
    }

    /// Whether a process was started by an event that began after the one at `index`.
    fn is_of_later(&self, place: Place, index: usize, seen_ms: u64) -> bool {
        let from_ms = self.meetings[index].from_ms;
        self.meetings.iter().any(|meeting| {
            meeting.restarts
                && meeting.whom.contains(&place)
                && meeting.from_ms > from_ms
                && meeting.from_ms <= seen_ms.saturating_add(SKEW_MS)
        })
    }

    fn mode(&self, place: Place) -> &'static str {
        let group = self.names.group(place).map(|group| &self.scenario.topology.groups[group]);
        group.map_or("auto", |group| group.mode.name())
    }
}

#[cfg(test)]
mod tests;
