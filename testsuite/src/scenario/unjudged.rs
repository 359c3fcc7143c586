//! [`unjudged`]: the criteria that cannot be judged from outside the scenario's nodes, and why.

use super::{
    criteria::{Criterion, counts_liars, names_of},
    export,
    fault::PeerLie,
    model::Scenario,
    names::{Names, Place, may_validate},
    plan::{Action, Event, Harm, Who, plan},
};
use crate::report::Unjudged;

/// Returns the unjudged criteria of the files for other machines. `has_lists` says whether loads have their access
/// lists there. Parts that the files leave out have no figures, and their criteria would fail for that reason alone.
pub(super) fn unjudged(scenario: &Scenario, has_lists: bool) -> Vec<Unjudged> {
    let names = Names::of(scenario);
    let (done, undone): (Vec<Event>, Vec<Event>) =
        plan(scenario).into_iter().partition(|event| export::is_done(scenario, event));
    let has_load = |phase: &str| export::has_load(scenario, phase, has_lists);
    let why = |criterion: &Criterion| match criterion.phase().filter(|phase| !has_load(phase)) {
        Some(phase) => Some(format!("the load {phase} is left out")),
        None => why(criterion, scenario, &names, (&done, &undone)),
    };
    let named = scenario.criteria.iter().zip(names_of(&scenario.criteria));
    named.filter_map(|(criterion, name)| Some(Unjudged { name, why: why(criterion)? })).collect()
}

/// Returns the scenario with only the criteria that are judged, and the loads that the files include.
pub(super) fn judged(scenario: &Scenario, has_lists: bool) -> Scenario {
    let unjudged = unjudged(scenario, has_lists);
    let whole = scenario;
    let mut scenario = whole.clone();
    scenario.workload.retain(|phase| export::has_load(whole, &phase.name, has_lists));
    // Criteria with the same name are judged together or not at all, so the rest keep their names.
    let mut names = names_of(&whole.criteria).into_iter();
    scenario.criteria.retain(|_| names.next().is_some_and(|name| unjudged.iter().all(|it| it.name != name)));
    scenario
}

fn why(
    criterion: &Criterion,
    scenario: &Scenario,
    names: &Names,
    (done, undone): (&[Event], &[Event]),
) -> Option<String> {
    match criterion {
        Criterion::LiarsBanned { lie, .. } => {
            let mut faults = scenario.faults.iter();
            faults.find(|fault| counts_liars(*lie, &fault.what))?;
            let node = two_kinds_at_once(scenario, names, done)?;
            Some(format!("liars of two kinds come to {} at once", names.name(node)))
        }
        Criterion::Convicted { nodes, .. } => {
            let liars = names.find_all(nodes);
            let lies = |event: &Event| match &event.action {
                Action::Node { harm: Harm::Twin(_) | Harm::OldState | Harm::Liar(_), who } => match who {
                    Who::Node(place) => liars.contains(place),
                    Who::Primary => true,
                },
                _ => false,
            };
            undone.iter().any(lies).then(|| "lies of these validators are left out".to_owned())
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

/// Returns a node that gets liars of one kind while it has liars of another: from outside they cannot be told apart.
/// The primary may be any validator.
fn two_kinds_at_once(scenario: &Scenario, names: &Names, done: &[Event]) -> Option<Place> {
    let given = |event: &Event| {
        let (lie, whom) = match event.action {
            Action::LyingPeers { lie, who: Who::Node(place), .. } => (lie, vec![place]),
            Action::LyingPeers { lie, who: Who::Primary, .. } => {
                let may_be = |place: &Place| may_validate(&scenario.topology, names, *place);
                (lie, names.all().filter(may_be).collect())
            }
            _ => return Vec::new(),
        };
        let (from, until) = (event.at_ms, event.until_ms.unwrap_or(u64::MAX));
        whom.into_iter().map(|place| (place, lie, from, until)).collect::<Vec<_>>()
    };
    let all: Vec<_> = done.iter().flat_map(given).collect();
    let meets_another = |(place, lie, from, until): &(Place, PeerLie, u64, u64)| {
        all.iter().any(|(other, another, since, end)| {
            place == other && lie != another && from < end && since < until
        })
    };
    all.iter().find(|it| meets_another(it)).map(|(place, ..)| *place)
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
- { at: 10s, for: 5s, what: { lying_validator: { who: { nodes: [validator-1] }, lie: { twin: { heard_by: [validator-0] } } } } }
- { at: 10s, for: 5s, what: { kill: { nodes: [validator-2] } } }
- { at: 20s, for: 20s, what: { lying_validator: { who: { nodes: [validator-3] }, lie: { twin: { heard_by: [validator-0] } } } } }
- { at: 30s, for: 20s, what: { lying_peers: { who: { nodes: [near] }, lie: forged_heads } } }
- { at: 35s, for: 5s, what: { lying_peers: { who: { nodes: [near] }, lie: garbage_answers } } }
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

    /// Goal: every criterion that depends on a part left out is reported with its name and reason, and the rest are
    /// judged.
    #[test]
    fn what_is_left_out_is_not_judged() {
        let scenario = Scenario::parse(TEXT, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let told: Vec<String> =
            unjudged(&scenario, false).into_iter().map(|it| format!("{}: {}", it.name, it.why)).collect();
        assert_eq!(
            told,
            [
                "catch_up of validator-1: what makes validator-1 come back is left out",
                "convicted of validator-3: lies of these validators are left out",
                "liars_banned of near: liars of two kinds come to near at once",
                "commit p50 of main: the load main is left out",
            ]
        );
        let names = names_of(&judged(&scenario, false).criteria);
        assert_eq!(names, ["equal_roots", "catch_up of validator-2", "commit p50 of other", "no_alarm"]);
        let loads = |has_lists| judged(&scenario, has_lists).workload.len();
        assert_eq!([loads(false), loads(true)], [1, 2], "a load that is left out lacks nothing");
        assert!(judged(&scenario, true).criteria.iter().any(|it| it.name() == "commit p50 of main"));
    }

    /// Goal: liars of two kinds are not judged, even if one kind comes to whichever node is primary.
    #[test]
    fn the_primary_may_be_any_validator() {
        let text = |peers: &str| {
            format!(
                "name: a\ndescription: b\nduration: 60s\ncriteria:\n- liars_banned: {{ nodes: [validators], at_most: 10s }}\n\
                 topology: {{ groups: [{{ name: near }}] }}\nfaults:\n\
                 - {{ at: 10s, for: 9s, what: {{ lying_peers: {{ who: {{ nodes: [primary] }}, lie: forged_heads }} }} }}\n\
                 - {{ at: 15s, for: 9s, what: {{ lying_peers: {{ who: {{ nodes: [{peers}] }}, lie: garbage_answers }} }} }}\n"
            )
        };
        for (peers, is_judged) in [("validator-2", false), ("near", true)] {
            let scenario =
                Scenario::parse(&text(peers), Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(unjudged(&scenario, true).is_empty(), is_judged, "{peers}");
        }
    }

    /// Goal: most criteria of the built-in scenarios are judged wherever they run.
    #[test]
    fn most_of_what_ships_is_judged() {
        let (mut all, mut unseen) = (0, 0);
        for shipped in shipped::ALL {
            let scenario = shipped.scenario().unwrap();
            all += scenario.criteria.len();
            unseen += unjudged(&scenario, false).len();
        }
        assert!(all > 50 && unseen * 5 < all, "{unseen} of {all} are not judged");
    }
}
