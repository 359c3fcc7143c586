//! Who takes a transaction of the chain's owner: a node that stays what it is, and that no fault keeps from the chain then.

use super::starts_ms;
use crate::scenario::{
    engine::act::is_moment,
    model::Scenario,
    names::{Names, Place, may_validate},
    plan::{Action, Event, Harm, Who},
};

/// How long such a transaction may wait for its batch: a fault within this time may keep its taker from telling of it.
const TAKES_MS: u64 = 60_000;
/// What a node takes to answer, and to know the newest batches, once it is started or let go.
const BACK_MS: u64 = 10_000;

/// The node that takes a change of the validators about this one at this moment. If events meet all others meanwhile, the first that is
/// there then, or else the first; none if there is no other.
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

/// Whether no event keeps a node from the chain for as long as a change that it takes at this moment may wait for its batch.
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

/// When an event lets a node go; none if it never does.
fn lets_go_ms(event: &Event) -> Option<u64> {
    match &event.action {
        Action::Node { harm, .. } if is_moment(harm, event.until_ms.is_some()) => Some(event.at_ms),
        Action::AddValidator(_) | Action::RemoveValidator(_) => Some(event.at_ms.saturating_add(TAKES_MS)),
        _ => event.until_ms,
    }
}

/// Whether an event keeps a node from the chain, as far as the plan says: whoever is primary then is nobody's name. Two changes that are
/// close to each other are about none of those that take them: one node takes both, and knows the number of the owner's next transaction.
fn keeps_away(scenario: &Scenario, names: &Names, event: &Event, place: Place) -> bool {
    match &event.action {
        // It runs on with these.
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

    /// Goal: a change is brought by a node that is neither down nor cut off meanwhile, and by the first where no other is left.
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

    /// Goal: what a node was over with long ago does not keep it from bringing a change, nor does what it runs on with. One that is down
    /// for good brings none, though all others are restarted meanwhile.
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

    /// Goal: whom the next change is about takes none, so that one node takes both.
    #[test]
    fn one_node_takes_changes_that_are_close() {
        let next = "- { at: 120s, what: { remove_validator: validator-1 } }\n";
        assert_eq!(taker_at(next, 100), Some(2));
        assert_eq!(taker_at(next, 140), Some(2));
        assert_eq!([taker_at(next, 20), taker_at(next, 300)], [Some(1); 2]);
    }
}
