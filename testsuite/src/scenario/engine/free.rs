//! Whether faults let a node take part in the chain for as long as a transaction waits for its batch.

use crate::scenario::{
    engine::act::is_moment,
    model::Scenario,
    names::{Names, NodeIndex, may_validate},
    plan::{Action, Event, Harm, PlannedNode},
};

/// Milliseconds that such a transaction may wait for its batch.
const WAIT_MS: u64 = 60_000;
/// Milliseconds until a node that was started or released answers and knows the newest batches.
const BACK_MS: u64 = 10_000;

/// Returns whether no event keeps a node from the chain from `at_ms` until a change that it sends then has its batch.
pub(super) fn stays_free(
    scenario: &Scenario,
    names: &Names,
    events: &[Event],
    at_ms: u64,
    place: NodeIndex,
) -> bool {
    let joins = names.group(place).and_then(|group| scenario.topology.groups[group].joins);
    let starts_ms = joins.map_or(0, |joins| joins.ms());
    let is_there = starts_ms == 0 || starts_ms.saturating_add(BACK_MS) < at_ms;
    let goes_on = |event: &&Event| {
        event.at_ms <= at_ms.saturating_add(WAIT_MS)
            && end_ms(event).is_none_or(|until_ms| until_ms.saturating_add(BACK_MS) > at_ms)
    };
    is_there && !events.iter().filter(goes_on).any(|event| keeps_away(scenario, names, event, place))
}

/// When an event releases its node; `None` if it never does.
fn end_ms(event: &Event) -> Option<u64> {
    match &event.action {
        Action::Node { harm, .. } if is_moment(harm, event.until_ms.is_some()) => Some(event.at_ms),
        Action::AddValidator(_) | Action::RemoveValidator(_) => Some(event.at_ms.saturating_add(WAIT_MS)),
        _ => event.until_ms,
    }
}

/// Returns whether an event keeps a node from the chain. An event at the primary counts for no node, because the plan
/// does not know which node that will be. Of two changes close in time, neither is sent by the node that the other one
/// is about. So one node sends both, and knows the owner's next nonce.
fn keeps_away(scenario: &Scenario, names: &Names, event: &Event, place: NodeIndex) -> bool {
    match &event.action {
        // The node keeps running with these.
        Action::Node { harm: Harm::SlowDisk(_) | Harm::ClockJump(_), .. } => false,
        Action::Node { who: PlannedNode::Node(node), .. }
        | Action::AddValidator(node)
        | Action::RemoveValidator(node) => *node == place,
        Action::Links { pairs, shape: None } => {
            let is_validator = |other: &NodeIndex| may_validate(&scenario.topology, names, *other);
            let validators: Vec<NodeIndex> = names.all().filter(is_validator).collect();
            let is_cut =
                |other: &&NodeIndex| pairs.contains(&(place, **other)) || pairs.contains(&(**other, place));
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

    /// The nodes beside validator 0 that stay free from that second on.
    fn free_at(faults: &str, at_s: u64) -> Vec<usize> {
        let text = format!(
            "name: a\ndescription: b\nduration: 10m\ncriteria: [equal_roots]\n\
             topology: {{ groups: [{{ name: next, part: candidate }}, {{ name: late, joins: 200s }}] }}\nfaults:\n{faults}\
             - {{ at: {at_s}s, what: {{ remove_validator: validator-0 }} }}\n"
        );
        let scenario = Scenario::parse(&text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let (names, events) = (Names::of(&scenario), plan(&scenario));
        let is_free = |place: &NodeIndex| stays_free(&scenario, &names, &events, at_s * 1_000, *place);
        names.all().filter(|place| place.0 != 0).filter(is_free).map(|place| place.0).collect()
    }

    /// Goal: a node that is down, cut off or not started yet is not free; one that is back for a while is.
    #[test]
    fn faults_keep_nodes_from_the_chain() {
        assert_eq!(free_at("", 100), [1, 2, 3, 4]);
        assert_eq!(free_at("", 300), [1, 2, 3, 4, 5]);
        let down = "- { at: 90s, for: 20s, what: { kill: { nodes: [validator-1] } } }\n";
        assert_eq!(free_at(down, 100), [2, 3, 4]);
        assert_eq!(free_at(down, 60), [2, 3, 4], "it goes down while the transaction waits");
        assert_eq!(free_at(down, 121), [1, 2, 3, 4], "it is back");
        assert_eq!(free_at(down, 20), [1, 2, 3, 4], "the fault is far away");
        let cut = "- { at: 90s, for: 20s, what: { partition: { between: [[validator-1], [validator-0, validator-2, validator-3, next]] } } }\n";
        assert_eq!(free_at(cut, 100), [2, 3, 4], "the others have each other");
        let gone = "- { at: 20s, what: { kill: { nodes: [validator-1] } } }\n";
        assert_eq!(free_at(gone, 500), [2, 3, 4, 5]);
    }

    /// Goal: a fault that takes effect at once passes, and one during which the node keeps running does not count.
    #[test]
    fn harmless_faults_do_not_count() {
        let moments = "- { at: 5s, what: { restart: { nodes: [validator-1] } } }\n\
                       - { at: 6s, what: { wipe: { nodes: [validator-1] } } }\n";
        assert_eq!(free_at(moments, 100), [1, 2, 3, 4]);
        assert_eq!(free_at(moments, 12), [2, 3, 4], "it has just been started");
        let runs_on = "- { at: 90s, for: 20s, what: { slow_disk: { who: { nodes: [validator-1] }, delay: 5ms } } }\n\
                       - { at: 90s, for: 20s, what: { clock_jump: { who: { nodes: [validator-1] }, back: 1m } } }\n";
        assert_eq!(free_at(runs_on, 100), [1, 2, 3, 4]);
    }

    /// Goal: the node that the next change is about sends none, so that one node sends both.
    #[test]
    fn a_node_that_is_changed_soon_is_not_free() {
        let next = "- { at: 120s, what: { remove_validator: validator-1 } }\n";
        assert_eq!([free_at(next, 100), free_at(next, 140)], [[2, 3, 4]; 2]);
        assert_eq!(free_at(next, 20), [1, 2, 3, 4]);
    }
}
