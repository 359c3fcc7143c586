//! Who takes a transaction of the chain's owner: a node that stays what it is, and that no fault keeps from the chain then.

use super::starts_ms;
use crate::scenario::{
    model::Scenario,
    names::{Names, Place, may_validate},
    plan::{Action, Event, Who},
};

/// How long such a transaction may wait for its batch: a fault within this time may keep its taker from telling of it.
const TAKES_MS: u64 = 60_000;

/// The node that takes a change of the validators about this one at this moment. The first one if faults meet all others; none if there
/// is no other.
pub(super) fn taker(
    scenario: &Scenario,
    names: &Names,
    events: &[Event],
    (node, at_ms): (Place, u64),
) -> Option<Place> {
    let goes_on = |event: &&Event| {
        event.at_ms <= at_ms.saturating_add(TAKES_MS) && event.until_ms.is_none_or(|until| until >= at_ms)
    };
    let meanwhile: Vec<&Event> = events.iter().filter(goes_on).collect();
    let is_free = |place: &Place| {
        starts_ms(scenario, names, *place) < at_ms
            && !meanwhile.iter().any(|event| keeps_away(scenario, names, event, *place))
    };
    let others = || names.all().filter(move |other| *other != node);
    others().find(is_free).or_else(|| others().next())
}

/// Whether an event keeps a node from the chain, as far as the plan says: whoever is primary then is nobody's name.
fn keeps_away(scenario: &Scenario, names: &Names, event: &Event, place: Place) -> bool {
    match &event.action {
        Action::Node { who: Who::Node(node), .. } => *node == place,
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
}
