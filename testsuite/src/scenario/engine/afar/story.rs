//! [`Story`]: what a scenario's files do to the nodes, as somebody knows it who only looks on. Pure.
//!
//! The plan says when and to whom. Two things it does not say: which validator took an order to the primary, and when a process that
//! was stopped began again. Nodes tell the second, by when their process started, and mostly the first with it. Of an order to lie, or to
//! hear liars, whoever takes it tells.

use std::collections::{BTreeMap, BTreeSet};

use super::meeting::{Meeting, SKEW_MS, meetings};
use crate::{
    report::FaultMark,
    scenario::{
        engine::{act::described, catch::Behind},
        export,
        model::Scenario,
        names::{Names, Place},
        plan::{Event, Who, plan},
    },
};

/// Beyond the time that a node has to become ready, what its container takes to begin again.
const CONTAINER_MS: u64 = 60_000;

/// When each process of each node was first seen, in ms after the clock started.
pub(super) type Starts = BTreeMap<String, Vec<u64>>;

/// See the module.
pub(super) struct Story<'a> {
    scenario: &'a Scenario,
    names: &'a Names,
    events: Vec<Event>,
    meetings: Vec<Meeting>,
}

impl<'a> Story<'a> {
    /// Of the events that are in the files.
    pub(super) fn of(scenario: &'a Scenario, names: &'a Names) -> Story<'a> {
        let mut events: Vec<Event> =
            plan(scenario).into_iter().filter(|event| export::is_done(scenario, event)).collect();
        for event in &mut events {
            event.until_ms = export::until_ms(scenario, event);
        }
        let meetings = events.iter().flat_map(|event| meetings(scenario, names, event)).collect();
        Story { scenario, names, events, meetings }
    }

    pub(super) fn meetings(&self) -> &[Meeting] {
        &self.meetings
    }

    /// The orders of which the nodes tell that take them.
    pub(super) fn orders(&self) -> BTreeSet<String> {
        self.meetings.iter().filter_map(|meeting| meeting.told.clone()).collect()
    }

    /// What was done, for a report. Whom an order to the primary met nobody knows for certain.
    pub(super) fn marks(&self) -> Vec<FaultMark> {
        let node = |event: &Event| {
            event.action.whom().map(|who| match who {
                Who::Primary => "the primary".to_owned(),
                Who::Node(place) => self.names.name(place).to_owned(),
            })
        };
        let mark = |event: &Event| FaultMark {
            at_ms: event.at_ms,
            until_ms: event.until_ms,
            what: described(&event.action),
            node: node(event),
        };
        self.events.iter().map(mark).collect()
    }

    /// Nodes that joined or came back, from when they were to.
    pub(super) fn behind(&self, starts: &Starts) -> Vec<Behind> {
        let mut behind = Vec::new();
        for (index, meeting) in self.meetings.iter().enumerate() {
            let Some(from_ms) = meeting.until_ms.filter(|_| meeting.liars.is_none()) else { continue };
            for place in &meeting.whom {
                // Whoever another fault meets then is behind when that has ended; whoever joins later, from then on.
                if self.is_met(*place, from_ms, index) || self.joins_after(*place, from_ms) {
                    continue;
                }
                let seen_ms = match (meeting.restarts, self.started(*place, meeting.from_ms, starts)) {
                    (false, _) => from_ms,
                    (true, Some(seen_ms)) if meeting.is_drawn && self.is_of_later(*place, index, seen_ms) => {
                        continue;
                    }
                    (true, Some(seen_ms)) => seen_ms,
                    // Another validator was the primary.
                    (true, None) if meeting.is_drawn => continue,
                    // It did not come back at all.
                    (true, None) => u64::MAX,
                };
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

    /// Processes that began for no event: a node, or its container, ended by itself and was started again.
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
            // The first process is the one that the files start.
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

    /// Nodes that a fault holds when the clock ends, and how many more it holds of those that may be the primary.
    pub(super) fn held_at_end(&self) -> (BTreeSet<Place>, usize) {
        let end_ms = self.scenario.duration.ms();
        let holds = |meeting: &&Meeting| meeting.holds && meeting.until_ms.is_none_or(|until| until > end_ms);
        let (drawn, certain): (Vec<&Meeting>, Vec<&Meeting>) =
            self.meetings.iter().filter(holds).partition(|meeting| meeting.is_drawn);
        (certain.iter().flat_map(|meeting| meeting.whom.iter().copied()).collect(), drawn.len())
    }

    /// Whether another event than the one at `index` may hold a node at a moment, or ends later, as a cut of its links.
    fn is_met(&self, place: Place, at_ms: u64, index: usize) -> bool {
        let mut others = self.meetings.iter().enumerate().filter(|(other, _)| *other != index);
        others.any(|(_, meeting)| {
            (meeting.holds || meeting.until_ms.is_some())
                && meeting.liars.is_none()
                && meeting.whom.contains(&place)
                && meeting.from_ms <= at_ms
                && meeting.until_ms.is_none_or(|until| at_ms < until)
        })
    }

    /// Whether a node is not there yet: a cut of its links may end before it joins.
    fn joins_after(&self, place: Place, at_ms: u64) -> bool {
        let mut joins = self.meetings.iter().filter(|meeting| meeting.is_join);
        joins.any(|meeting| meeting.whom.contains(&place) && meeting.from_ms > at_ms)
    }

    /// When the next event takes a node down, or makes it slow for a while. Of those to the primary nobody knows.
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

    /// Whether a process comes of an event that began after the one at `index`.
    fn is_of_later(&self, place: Place, index: usize, seen_ms: u64) -> bool {
        let from_ms = self.meetings[index].from_ms;
        self.meetings.iter().any(|meeting| {
            meeting.restarts
                && meeting.whom.contains(&place)
                && meeting.from_ms > from_ms
                && meeting.from_ms <= seen_ms.saturating_add(SKEW_MS)
        })
    }

    /// When the process was first seen that an event of this moment started.
    fn started(&self, place: Place, from_ms: u64, starts: &Starts) -> Option<u64> {
        let seen = starts.get(self.names.name(place))?;
        seen.iter().copied().find(|seen_ms| seen_ms.saturating_add(SKEW_MS) >= from_ms)
    }

    fn mode(&self, place: Place) -> &'static str {
        let group = self.names.group(place).map(|group| &self.scenario.topology.groups[group]);
        group.map_or("auto", |group| group.mode.name())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::engine::blame::Cause;

    const TEXT: &str = "\
name: a
description: b
duration: 100s
topology:
  validators: 2
  ready_within: 10s
  groups:
  - { name: near, mode: delta }
  - { name: late, joins: 20s }
faults:
- { at: 30s, for: 10s, what: { kill: { nodes: [near] } } }
- { at: 35s, for: 10s, what: { pause: { nodes: [near] } } }
- { at: 50s, what: { restart: { nodes: [near] } } }
- { at: 60s, for: 5s, what: { kill: { nodes: [primary] } } }
- { at: 70s, for: 5s, what: { slow_disk: { who: { nodes: [late] }, delay: 50ms } } }
- { at: 80s, for: 10s, what: { lying_peers: { who: { nodes: [near] }, lie: forged_heads } } }
- { at: 80s, for: 10s, what: { lying_validator: { who: { nodes: [validator-0] }, lie: garbage } } }
- { at: 98s, for: 20s, what: { kill: { nodes: [late] } } }
- { at: 99s, what: { pause: { nodes: [primary] } } }
- { at: 99s, what: { kill: { nodes: [near] } } }
criteria: [equal_roots]
";

    fn scenario() -> Scenario {
        Scenario::parse(TEXT, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"))
    }

    fn starts(of: &[(&str, &[u64])]) -> Starts {
        of.iter().map(|(name, seen)| ((*name).to_owned(), seen.to_vec())).collect()
    }

    /// Goal: a node is behind once nothing holds it any more, and what the process before showed does not count. Of the validators
    /// only those count that came back.
    #[test]
    fn who_came_back_is_behind() {
        let scenario = scenario();
        let names = Names::of(&scenario);
        let story = Story::of(&scenario, &names);
        let seen = starts(&[
            ("validator-0", &[0, 91_000]),
            ("validator-1", &[0, 66_000]),
            ("near", &[0, 46_000, 52_000]),
            ("late", &[21_500]),
        ]);
        let behind = story.behind(&seen);
        let untils: Vec<Option<u64>> = behind.iter().map(|it| it.until_ms).collect();
        // The slow disk of `late`, the restart of `near`, and its last kill.
        let next = [Some(70_000), Some(50_000), Some(99_000), None, Some(98_000), None, None];
        assert_eq!(untils, next);
        let told: Vec<(&str, &str, u64, u64)> =
            behind.iter().map(|it| (it.name.as_str(), it.mode, it.from_ms, it.seen_ms)).collect();
        assert_eq!(
            told,
            [
                ("late", "auto", 20_000, 21_500),
                // The kill ends at 40 s, while the pause holds it.
                ("near", "delta", 45_000, 45_000),
                ("near", "delta", 50_000, 52_000),
                ("validator-1", "auto", 65_000, 66_000),
                ("late", "auto", 75_000, 75_000),
                // The liar has gone from its place.
                ("validator-0", "auto", 90_000, 91_000),
                // It never came back; the scenario ends what lasts longer than itself.
                ("late", "auto", 100_000, u64::MAX),
            ]
        );
    }

    /// Goal: a process that no event started is told, with its time; one that an event started, or whose container began again
    /// because of one, is not.
    #[test]
    fn processes_that_nobody_ordered_are_told() {
        let scenario = scenario();
        let names = Names::of(&scenario);
        let story = Story::of(&scenario, &names);
        let seen = starts(&[
            ("validator-0", &[0, 10_000, 61_000]),
            ("near", &[0, 41_000, 49_500, 52_000]),
            ("late", &[21_000]),
        ]);
        let told = story.surprises(&seen);
        assert_eq!(told, ["validator-0 was started again at 10.0 s, and no event did that"]);
    }

    /// Goal: a lie of the primary, and liars among its peers, are of whoever says that it took the order, in the words of `slipnet operate`.
    #[test]
    fn whoever_takes_an_order_to_lie_tells() {
        let text = "name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\n\
            topology: { validators: 3, groups: [{ name: near }] }\n\
            faults:\n- { at: 5s, for: 4s, what: { lying_validator: { who: { nodes: [primary] }, lie: garbage } } }\n\
            - { at: 12s, what: { lying_peers: { who: { nodes: [primary] }, lie: forged_heads, count: 2 } } }\n\
            - { at: 20s, for: 1s, what: { kill: { nodes: [primary] } } }\n";
        let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let names = Names::of(&scenario);
        let story = Story::of(&scenario, &names);
        let told: Vec<_> = story.meetings().iter().map(|meeting| meeting.told.as_deref()).collect();
        let lies =
            ["5000ms..9000ms,lie=garbage,primary", "12000ms..30000ms,lying-peers=forged-heads:2,primary"];
        assert_eq!(told, [Some(lies[0]), Some(lies[1]), None]);
        // Nobody who tells of it then is excused: liars leave sooner than that is certain, and a lie ends later.
        for (index, over_ms) in [(0, 10_000), (1, 29_000)] {
            let meeting = &story.meetings()[index];
            assert_eq!([meeting.is_over(over_ms - 1), meeting.is_over(over_ms)], [false, true]);
        }
        assert_eq!(story.orders(), BTreeSet::from(lies.map(str::to_owned)));
        assert!(story.meetings().iter().all(|it| it.is_drawn && it.whom == [Place(0), Place(1), Place(2)]));
        let seen =
            starts(&[("validator-0", &[0]), ("validator-1", &[0, 9_500]), ("validator-2", &[0, 21_200])]);
        let behind: Vec<_> =
            story.behind(&seen).into_iter().map(|it| (it.name, it.from_ms, it.seen_ms)).collect();
        assert_eq!(
            behind,
            [("validator-1".to_owned(), 9_000, 9_500), ("validator-2".to_owned(), 21_000, 21_200)]
        );
        assert!(story.surprises(&seen).is_empty());
    }

    /// Goal: a node that comes back while its disk is slow is behind once that is over, until its clock jumps for a while. Liars change
    /// nothing of that.
    #[test]
    fn who_is_slow_is_not_behind_yet() {
        let text = "name: a\ndescription: b\nduration: 60s\ncriteria: [equal_roots]\n\
            topology: { validators: 2, groups: [{ name: near }] }\n\
            faults:\n- { at: 5s, for: 5s, what: { kill: { nodes: [near] } } }\n\
            - { at: 8s, for: 6s, what: { slow_disk: { who: { nodes: [near] }, delay: 50ms } } }\n\
            - { at: 20s, for: 5s, what: { clock_jump: { who: { nodes: [near] }, ahead: 1m } } }\n\
            - { at: 16s, for: 30s, what: { lying_peers: { who: { nodes: [near] }, lie: forged_heads } } }\n";
        let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let names = Names::of(&scenario);
        let seen = starts(&[("near", &[0, 10_500])]);
        let behind = Story::of(&scenario, &names).behind(&seen);
        let told: Vec<_> = behind.iter().map(|it| (it.from_ms, it.seen_ms, it.until_ms)).collect();
        assert_eq!(told, [(14_000, 14_000, Some(20_000)), (25_000, 25_000, None)]);
    }

    /// Goal: a node that joins behind a partition is behind from the partition's end on. One that ends before it joins does not matter.
    #[test]
    fn a_join_behind_a_cut_is_measured_from_its_end() {
        let text = "name: a\ndescription: b\nduration: 60s\ncriteria: [equal_roots]\n\
            topology: { validators: 2, groups: [{ name: late, joins: 20s }] }\n\
            faults:\n- { at: 5s, for: 5s, what: { partition: { between: [[late], [validators]] } } }\n\
            - { at: 15s, for: 25s, what: { partition: { between: [[late], [validators]] } } }\n";
        let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let names = Names::of(&scenario);
        let behind = Story::of(&scenario, &names).behind(&starts(&[("late", &[21_000])]));
        let late = behind.iter().filter(|it| it.name == "late");
        let told: Vec<_> = late.map(|it| (it.from_ms, it.seen_ms, it.until_ms)).collect();
        assert_eq!(told, [(40_000, 40_000, None)]);
    }

    /// Goal: a node with old data starts twice, and lies from the second time on.
    #[test]
    fn old_data_are_a_lie_once_they_are_back() {
        let text = "name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\n\
            topology: { validators: 2 }\n\
            faults:\n- { at: 5s, for: 4s, what: { lying_validator: { who: { nodes: [validator-0] }, lie: old_state } } }\n";
        let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let names = Names::of(&scenario);
        let story = Story::of(&scenario, &names);
        let told: Vec<_> = story
            .meetings()
            .iter()
            .map(|it| (it.from_ms, it.until_ms, it.cause, it.restarts, it.holds))
            .collect();
        assert_eq!(
            told,
            [(5_000, Some(5_000), Cause::Away, true, false), (9_000, Some(9_000), Cause::Lies, true, false)]
        );
        let seen = starts(&[("validator-0", &[0, 5_600, 9_700])]);
        let behind: Vec<_> = story.behind(&seen).into_iter().map(|it| (it.from_ms, it.seen_ms)).collect();
        assert_eq!(behind, [(5_000, 5_600), (9_000, 9_700)]);
        assert!(story.surprises(&seen).is_empty() && story.marks().len() == 1);
    }

    #[test]
    fn who_is_held_at_the_end_is_known_but_for_the_primary() {
        let scenario = scenario();
        let names = Names::of(&scenario);
        let (held, drawn) = Story::of(&scenario, &names).held_at_end();
        assert_eq!((held.into_iter().collect::<Vec<_>>(), drawn), (vec![Place(2)], 1));
    }

    /// Goal: a report marks each event with its node, and what lasts longer than the scenario ends with it.
    #[test]
    fn marks_are_those_of_the_plan() {
        let scenario = scenario();
        let names = Names::of(&scenario);
        let marks = Story::of(&scenario, &names).marks();
        let told: Vec<_> =
            marks.iter().map(|it| (it.at_ms, it.until_ms, it.what.as_str(), it.node.as_deref())).collect();
        assert_eq!(told[0], (20_000, None, "join", Some("late")));
        assert_eq!(told[4], (60_000, Some(65_000), "kill", Some("the primary")));
        assert!(told.contains(&(98_000, Some(100_000), "kill", Some("late"))), "{told:?}");
        assert_eq!(told.len(), 11);
        let liars: Vec<_> =
            Story::of(&scenario, &names).meetings().iter().filter_map(|it| it.liars.clone()).collect();
        assert_eq!(liars, ["forged_heads"]);
    }
}
