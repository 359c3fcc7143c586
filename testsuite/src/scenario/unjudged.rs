//! [`unjudged`]: the criteria that nobody can judge who sees a scenario's nodes from outside alone, and why.

use super::{
    criteria::{Criterion, counts_liars},
    export,
    fault::What,
    model::Scenario,
    names::{Names, Place, may_validate},
    plan::{Action, Event, Who, plan},
};
use crate::report::Unjudged;

/// Of the files that other machines run a scenario with. What is missing in them has no figures, and would fail for want of these.
pub(super) fn unjudged(scenario: &Scenario) -> Vec<Unjudged> {
    let names = Names::of(scenario);
    let (done, undone): (Vec<Event>, Vec<Event>) =
        plan(scenario).into_iter().partition(|event| export::is_done(scenario, event));
    let why = |criterion: &Criterion| why(criterion, scenario, &names, (&done, &undone));
    let unjudged = |criterion: &Criterion| Some(Unjudged { name: criterion.name(), why: why(criterion)? });
    scenario.criteria.iter().filter_map(unjudged).collect()
}

/// The scenario with those criteria alone that are judged.
pub(super) fn judged(scenario: &Scenario) -> Scenario {
    let unjudged = unjudged(scenario);
    let mut scenario = scenario.clone();
    scenario.criteria.retain(|criterion| unjudged.iter().all(|it| it.name != criterion.name()));
    scenario
}

fn why(
    criterion: &Criterion,
    scenario: &Scenario,
    names: &Names,
    (done, undone): (&[Event], &[Event]),
) -> Option<String> {
    if let Some(phase) = criterion.phase().filter(|phase| !export::has_load(scenario, phase)) {
        return Some(format!("the load {phase} is left out"));
    }
    match criterion {
        Criterion::LiarsBanned { lie, .. } => {
            let mut faults = scenario.faults.iter().filter(|fault| counts_liars(*lie, &fault.what));
            let is_left_out = undone.iter().any(|event| matches!(event.action, Action::LyingPeers { .. }));
            (is_left_out && faults.next().is_some()).then(|| "the lying peers are left out".to_owned())
        }
        Criterion::Convicted { .. } => {
            let mut faults = scenario.faults.iter();
            let lies = faults.any(|fault| matches!(fault.what, What::LyingValidator { .. }));
            lies.then(|| "the lying validators are left out".to_owned())
        }
        Criterion::CatchUp { nodes, .. } => {
            let is_met = |place: Place, events: &[Event]| {
                events.iter().any(|event| meets(scenario, names, event, place))
            };
            let mut missed = names.find_all(nodes).into_iter();
            let missed = missed.find(|place| is_met(*place, undone) && !is_met(*place, done));
            missed.map(|place| format!("what makes {} come back is left out", names.name(place)))
        }
        _ => None,
    }
}

/// Whether an event may leave a node behind.
fn meets(scenario: &Scenario, names: &Names, event: &Event, place: Place) -> bool {
    match &event.action {
        Action::Join(node) | Action::Node { who: Who::Node(node), .. } => *node == place,
        Action::Node { who: Who::Primary, .. } => may_validate(&scenario.topology, names, place),
        Action::Links { pairs, .. } => pairs.iter().any(|(one, other)| *one == place || *other == place),
        Action::LyingPeers { .. }
        | Action::Attack { .. }
        | Action::ExportSnapshot(_)
        | Action::AddValidator(_)
        | Action::RemoveValidator(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::shipped;

    const TEXT: &str = "\
name: a
description: b
duration: 60s
topology:
  groups:
  - { name: near }
workload:
- { name: main, for: 10s, rate: { constant: 20 }, mix: { access-lists: 1 }, access_lists: lists }
- { name: other, for: 10s, rate: { constant: 20 } }
faults:
- { at: 10s, what: { upgrade: { who: { nodes: [validator-1] }, to: current } } }
- { at: 10s, for: 5s, what: { kill: { nodes: [validator-2] } } }
- { at: 20s, for: 20s, what: { lying_validator: { who: { nodes: [validator-3] }, lie: double_vote } } }
- { at: 30s, for: 20s, what: { lying_peers: { who: { nodes: [near] }, lie: forged_heads } } }
criteria:
- equal_roots
- catch_up: { nodes: [validator-1], at_most: 10s }
- catch_up: { nodes: [validator-2], at_most: 10s }
- convicted: { nodes: [validator-3] }
- liars_banned: { nodes: [near], at_most: 10s }
- commit: { phase: main, percentile: p50, at_most: 1s }
- commit: { phase: other, percentile: p50, at_most: 1s }
- no_alarm
";

    /// Goal: whatever needs what the files leave out is told by its name and its reason, and the rest is judged.
    #[test]
    fn what_is_left_out_is_not_judged() {
        let scenario = Scenario::parse(TEXT, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let told: Vec<String> =
            unjudged(&scenario).into_iter().map(|it| format!("{}: {}", it.name, it.why)).collect();
        assert_eq!(
            told,
            [
                "catch_up of validator-1: what makes validator-1 come back is left out",
                "convicted of validator-3: the lying validators are left out",
                "liars_banned of near: the lying peers are left out",
                "commit p50 of main: the load main is left out",
            ]
        );
        let names: Vec<String> = judged(&scenario).criteria.iter().map(Criterion::name).collect();
        assert_eq!(names, ["equal_roots", "catch_up of validator-2", "commit p50 of other", "no_alarm"]);
    }

    /// Goal: most of what ships asks for is judged wherever it runs.
    #[test]
    fn most_of_what_ships_is_judged() {
        let (mut all, mut unseen) = (0, 0);
        for shipped in shipped::ALL {
            let scenario = shipped.scenario().unwrap();
            all += scenario.criteria.len();
            unseen += unjudged(&scenario).len();
        }
        assert!(all > 50 && unseen * 5 < all, "{unseen} of {all} are not judged");
    }
}
