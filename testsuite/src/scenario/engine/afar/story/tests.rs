//! Tests the stories of short scenarios.

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

/// Goal: a node is behind from when nothing affects it any more, and its previous process does not count. Among
/// possible primaries, only the validator that came back counts.
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
            // The kill ends at 40 s, but the pause lasts.
            ("near", "delta", 45_000, 45_000),
            ("near", "delta", 50_000, 52_000),
            ("validator-1", "auto", 65_000, 66_000),
            ("late", "auto", 75_000, 75_000),
            // The liar has left its place.
            ("validator-0", "auto", 90_000, 91_000),
            // It never came back; a fault that is planned to last longer ends with the scenario.
            ("late", "auto", 100_000, u64::MAX),
        ]
    );
}

/// Goal: a process that no event started is reported with its time. A process started by an event, or by a container
/// that restarted because of one, is not.
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

/// Goal: a lie of the primary, or liars among its peers, are attributed to the node that reports the order, in the
/// words of `slipnet operate`.
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
    let lies = ["5000ms..9000ms,lie=garbage,primary", "12000ms..30000ms,lying-peers=forged-heads:2,primary"];
    assert_eq!(told, [Some(lies[0]), Some(lies[1]), None]);
    // A report after that excuses nobody. Liars leave before the skew of clocks, and a lie ends after it.
    for (index, over_ms) in [(0, 10_000), (1, 29_000)] {
        let meeting = &story.meetings()[index];
        assert_eq!([meeting.is_over(over_ms - 1), meeting.is_over(over_ms)], [false, true]);
    }
    assert_eq!(story.orders(), BTreeSet::from(lies.map(str::to_owned)));
    assert!(story.meetings().iter().all(|it| it.is_drawn && it.whom == [Place(0), Place(1), Place(2)]));
    let seen = starts(&[("validator-0", &[0]), ("validator-1", &[0, 9_500]), ("validator-2", &[0, 21_200])]);
    let behind: Vec<_> =
        story.behind(&seen).into_iter().map(|it| (it.name, it.from_ms, it.seen_ms)).collect();
    assert_eq!(
        behind,
        [("validator-1".to_owned(), 9_000, 9_500), ("validator-2".to_owned(), 21_000, 21_200)]
    );
    assert!(story.surprises(&seen).is_empty());
}

/// Goal: a node that comes back while its disk is slow is behind from the end of that, until its clock jumps for a
/// while. Liars do not change this.
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

/// Goal: a node that joins behind a partition is behind from the partition's end. A partition that ends before the join
/// does not matter.
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

/// Goal: a node that joins over slow links is behind from its join, and once more from when the links are fast.
#[test]
fn a_join_over_slow_links_is_measured() {
    let text = "name: a\ndescription: b\nduration: 60s\ncriteria: [equal_roots]\n\
        topology: { validators: 2, groups: [{ name: late, joins: 20s }] }\n\
        faults: [{ at: 15s, for: 25s, what: { link: { between: [[late], [validators]], shape: { delay: 90ms } } } }]\n";
    let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let names = Names::of(&scenario);
    let behind = Story::of(&scenario, &names).behind(&starts(&[("late", &[21_000])]));
    let late = behind.iter().filter(|it| it.name == "late");
    let told: Vec<_> = late.map(|it| (it.from_ms, it.seen_ms, it.until_ms)).collect();
    assert_eq!(told, [(20_000, 21_000, None), (40_000, 40_000, None)]);
}

/// Goal: a node with old data starts twice, and lies from the second start on.
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
    assert_eq!(story.meetings()[1].started(&[0, 5_600, 9_700]), Some(9_700));
}

/// Goal: if the copy of old data outlasts the order, the second of the two processes has the old data. The first may
/// never be seen.
#[test]
fn old_data_come_back_with_the_second_process() {
    let text = "name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\n\
        topology: { validators: 2 }\n\
        faults:\n- { at: 5s, for: 4s, what: { lying_validator: { who: { nodes: [validator-0] }, lie: old_state } } }\n";
    let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let names = Names::of(&scenario);
    let story = Story::of(&scenario, &names);
    for seen in [&[0, 12_100, 13_600][..], &[0, 8_500, 13_600], &[0, 13_600]] {
        let behind = story.behind(&starts(&[("validator-0", seen)]));
        let put_back: Vec<_> = behind.iter().filter(|it| it.from_ms == 9_000).map(|it| it.seen_ms).collect();
        assert_eq!(put_back, [13_600], "{seen:?}");
        // The first process counts only if it started before the order's end.
        assert_eq!(behind.len(), 1 + usize::from(seen[1] < 9_000), "{seen:?}");
    }
    let [copied, put_back] = story.meetings() else { panic!("two processes start") };
    assert_eq!([copied, put_back].map(|it| it.started(&[0, 12_100])), [Some(12_100), None]);
    assert_eq!(put_back.started(&[0, 12_100, 13_600]), Some(13_600));
}

#[test]
fn who_is_held_at_the_end_is_known_but_for_the_primary() {
    let scenario = scenario();
    let names = Names::of(&scenario);
    let (held, drawn) = Story::of(&scenario, &names).held_at_end();
    assert_eq!((held.into_iter().collect::<Vec<_>>(), drawn), (vec![Place(2)], 1));
}

/// Goal: a report marks each event with its node, and an event planned to last longer ends with the scenario.
#[test]
fn marks_are_those_of_the_plan() {
    let scenario = scenario();
    let names = Names::of(&scenario);
    let marks = Story::of(&scenario, &names).marks();
    let told: Vec<_> =
        marks.iter().map(|it| (it.at_ms, it.until_ms, it.what.as_str(), it.node.as_deref())).collect();
    assert_eq!(told[0], (20_000, None, "join", Some("late")));
    assert_eq!(told[4], (60_000, Some(65_000), "kill", Some("the primary")));
    let cut = "kill (cut short by the scenario's end)";
    assert!(told.contains(&(98_000, Some(100_000), cut, Some("late"))), "{told:?}");
    assert_eq!(told.len(), 11);
    let liars: Vec<_> =
        Story::of(&scenario, &names).meetings().iter().filter_map(|it| it.liars.clone()).collect();
    assert_eq!(liars, ["forged_heads"]);
}
