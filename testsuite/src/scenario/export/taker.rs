//! Chooses the node that submits a transaction of the chain's owner: one that is not part of the change, and that no
//! fault keeps from the chain at that time.

use super::starts_ms;
use crate::scenario::{
    engine::act::is_moment,
    model::Scenario,
    names::{Names, Place, may_validate},
    plan::{Action, Event, Harm, Who},
};

/// How long such a transaction may wait for its batch: a fault within this time may keep its node from reporting the
/// result.
const TAKES_MS: u64 = 60_000;
/// How long a node takes to answer, and to know the newest batches, after its start or release.
const BACK_MS: u64 = 10_000;

/// Returns the node that submits a change of validator `node` at `at_ms`. If events affect all others meanwhile, it is
/// the first that is up then, or else the first; `None` if there is no other.
pub(super) fn taker(
    scenario: &Scenario,
    names: &Names,
    events: &[Event],
    (node, at_ms): (Place, u64),
) -> Option<Place> {
    let others = || names.all().filter(move |other| *other != node);
    let free =
        |within_ms: u64| others().find(|place| is_free(scenario, names, events, (at_ms, within_ms), *place));
    free(TAKES_MS).or_else(|| free(0)).or_else(|| others().next())
}

/// Whether no event keeps a node from the chain while a change that it submits at this moment may wait for its batch.
pub(in crate::scenario) fn stays_free(
    scenario: &Scenario,
    names: &Names,
    events: &[Event],
    at_ms: u64,
    place: Place,
) -> bool {
    is_free(scenario, names, events, (at_ms, TAKES_MS), place)
}

fn is_free(
    scenario: &Scenario,
    names: &Names,
    events: &[Event],
    (at_ms, within_ms): (u64, u64),
    place: Place,
) -> bool {
    let starts_ms = starts_ms(scenario, names, place);
    let is_there = starts_ms == 0 || starts_ms.saturating_add(BACK_MS) < at_ms;
    let goes_on = |event: &&Event| {
        event.at_ms <= at_ms.saturating_add(within_ms)
            && lets_go_ms(event).is_none_or(|until_ms| until_ms.saturating_add(BACK_MS) > at_ms)
    };
    is_there && !events.iter().filter(goes_on).any(|event| keeps_away(scenario, names, event, place))
}

/// Returns when an event releases a node; `None` if it never does.
fn lets_go_ms(event: &Event) -> Option<u64> {
    match &event.action {
        Action::Node { harm, .. } if is_moment(harm, event.until_ms.is_some()) => Some(event.at_ms),
        Action::AddValidator(_) | Action::RemoveValidator(_) => Some(event.at_ms.saturating_add(TAKES_MS)),
        _ => event.until_ms,
    }
}

/// Whether an event keeps a node from the chain, as far as the plan says; events for the primary name no node. A change
/// also counts for the node that it is about: so one node submits both of two close changes, and knows the owner's next
/// nonce.
fn keeps_away(scenario: &Scenario, names: &Names, event: &Event, place: Place) -> bool {
    match &event.action {
        // The node keeps running with these.
        Action::Node { harm: Harm::SlowDisk(_) | Harm::ClockJump(_), .. } => false,
        Action::Node { who: Who::Node(node), .. }
        | Action::AddValidator(node)
        | Action::RemoveValidator(node) => *node == place,
        Action::Links { pairs, shape: None } => {
            let is_validator = |other: &Place| may_validate(&scenario.topology, names, *other);
            let validators: Vec<Place> = names.all().filter(is_validator).collect();
            let is_cut =
                |other: &&Place| pairs.contains(&(place, **other)) || pairs.contains(&(**other, place));
            2 * validators.iter().filter(is_cut).count() >= validators.len()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::plan::plan;

    fn taker_at(faults: &str, at_s: u64) -> Option<usize> {
        let text = format!(
            "name: a\ndescription: b\nduration: 10m\ncriteria: [equal_roots]\n\
             topology: {{ groups: [{{ name: next, part: candidate }}, {{ name: late, joins: 200s }}] }}\nfaults:\n{faults}\
             - {{ at: {at_s}s, what: {{ remove_validator: validator-0 }} }}\n"
        );
        let scenario = Scenario::parse(&text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let names = Names::of(&scenario);
        taker(&scenario, &names, &plan(&scenario), (Place(0), at_s * 1_000)).map(|place| place.0)
    }

    /// Goal: a change is submitted by a node that is neither down nor cut off meanwhile, and by the first if there is
    /// no other.
    #[test]
    fn who_is_away_brings_no_change() {
        assert_eq!(taker_at("", 100), Some(1));
        let down = "- { at: 90s, for: 20s, what: { kill: { nodes: [validator-1] } } }\n";
        assert_eq!(taker_at(down, 100), Some(2));
        assert_eq!(taker_at(down, 120), Some(1), "it is back");
        assert_eq!(taker_at(down, 20), Some(1), "it is long there");
        let cut = "- { at: 90s, for: 20s, what: { partition: { between: [[validator-1], [validator-0, validator-2, validator-3, next]] } } }\n";
        assert_eq!(taker_at(cut, 100), Some(2), "the others have each other");
        let all = "- { at: 90s, for: 20s, what: { pause: { nodes: [validators, next] } } }\n";
        assert_eq!(taker_at(all, 100), Some(1), "the last one is not there yet");
    }

    /// Goal: a node may submit a change if its faults ended long ago, or if it keeps running with them. A node that is
    /// down for good may not, even if all others are restarted meanwhile.
    #[test]
    fn who_is_back_brings_a_change() {
        let moments = "- { at: 5s, what: { restart: { nodes: [validator-1] } } }\n\
                       - { at: 6s, what: { wipe: { nodes: [validator-1] } } }\n";
        assert_eq!(taker_at(moments, 100), Some(1));
        assert_eq!(taker_at(moments, 12), Some(2), "it has just been started");
        let runs_on = "- { at: 90s, for: 20s, what: { slow_disk: { who: { nodes: [validator-1] }, delay: 5ms } } }\n\
                       - { at: 90s, for: 20s, what: { clock_jump: { who: { nodes: [validator-1] }, back: 1m } } }\n";
        assert_eq!(taker_at(runs_on, 100), Some(1));
        let gone = "- { at: 20s, what: { kill: { nodes: [validator-1] } } }\n";
        assert_eq!(taker_at(gone, 100), Some(2));
        let rest = "- { at: 150s, what: { restart: { nodes: [validator-2, validator-3, next] } } }\n";
        assert_eq!(taker_at(&format!("{gone}{rest}"), 100), Some(2), "the first that is there");
    }

    /// Goal: the validator that the next change is about does not submit one, so that one node submits both.
    #[test]
    fn one_node_takes_changes_that_are_close() {
        let next = "- { at: 120s, what: { remove_validator: validator-1 } }\n";
        assert_eq!(taker_at(next, 100), Some(2));
        assert_eq!(taker_at(next, 140), Some(2));
        assert_eq!([taker_at(next, 20), taker_at(next, 300)], [Some(1); 2]);
    }
}
