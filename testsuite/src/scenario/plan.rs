//! [`plan`]: what happens when, determined by a scenario and its seed alone.

use std::collections::BTreeSet;

use rand::{Rng, SeedableRng, rngs::StdRng};
use slipstream_types::Digest;

use super::{
    fault::{Fault, Lie, PeerLie, Target, What},
    model::{LinkShape, Scenario},
    names::{Names, NodeIndex, PRIMARY, VALIDATORS},
    span::Span,
};

/// An event that affects nodes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    /// Milliseconds after the clock starts.
    pub(super) at_ms: u64,
    /// When it ends; `None` if nothing ends it.
    pub(super) until_ms: Option<u64>,
    pub(super) action: Action,
}

/// The action of an event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// The node starts for the first time.
    Join(NodeIndex),
    /// One node is harmed.
    Node {
        harm: Harm,
        who: PlannedNode,
    },
    /// The links between these pairs change; `None` cuts them.
    Links {
        pairs: Vec<(NodeIndex, NodeIndex)>,
        shape: Option<LinkShape>,
    },
    /// A node gets `count` lying peers.
    LyingPeers {
        lie: PeerLie,
        count: u32,
        who: PlannedNode,
    },
    /// Attackers of the siege start.
    Attack {
        name: String,
        victim: NodeIndex,
    },
    ExportSnapshot(NodeIndex),
    AddValidator(NodeIndex),
    RemoveValidator(NodeIndex),
}

impl Action {
    /// Returns the affected node; `None` if it affects links.
    pub(super) fn whom(&self) -> Option<PlannedNode> {
        match self {
            Action::Node { who, .. } | Action::LyingPeers { who, .. } => Some(*who),
            Action::Join(place)
            | Action::ExportSnapshot(place)
            | Action::AddValidator(place)
            | Action::RemoveValidator(place)
            | Action::Attack { victim: place, .. } => Some(PlannedNode::Node(*place)),
            Action::Links { .. } => None,
        }
    }
}

/// What happens to one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Harm {
    Kill,
    Pause,
    Restart,
    Wipe,
    /// The number determines the bit.
    BitFlip(u64),
    FullDisk,
    /// The additional milliseconds of each flush.
    SlowDisk(u64),
    /// The jump in milliseconds, negative for a jump back.
    ClockJump(i64),
    /// The nodes that hear the second instance.
    Twin(Vec<NodeIndex>),
    OldState,
    /// The lie of the program that replaces the validator.
    Liar(&'static str),
    /// The new program.
    Upgrade(String),
}

/// The affected node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlannedNode {
    Node(NodeIndex),
    /// The node that is primary at that time.
    Primary,
}

/// Returns all events of a scenario, in time order. The same scenario gives the same plan.
pub(super) fn plan(scenario: &Scenario) -> Vec<Event> {
    let names = Names::of(scenario);
    let mut events = Vec::new();
    for place in names.all() {
        let group = names.group(place).map(|group| &scenario.topology.groups[group]);
        if let Some(joins) = group.and_then(|group| group.joins) {
            events.push(Event { at_ms: joins.ms(), until_ms: None, action: Action::Join(place) });
        }
    }
    events.extend((0..scenario.faults.len()).flat_map(|index| of_fault(scenario, &names, index)));
    events.sort_by_key(|event| event.at_ms);
    events
}

/// Returns the validators at the end of the clock, if the chain accepts each change.
pub(super) fn validators_at_end(scenario: &Scenario, names: &Names) -> BTreeSet<NodeIndex> {
    let mut validators: BTreeSet<NodeIndex> = names.find(VALIDATORS).into_iter().collect();
    for event in plan(scenario) {
        match event.action {
            Action::AddValidator(place) => {
                validators.insert(place);
            }
            Action::RemoveValidator(place) => {
                validators.remove(&place);
            }
            _ => {}
        }
    }
    validators
}

/// Returns the events of the fault with this index, for each draw.
pub(super) fn of_fault(scenario: &Scenario, names: &Names, index: usize) -> Vec<Event> {
    let fault = &scenario.faults[index];
    // Each fault has its own random generator: adding one does not move the others.
    let seed = Digest::tagged("slipnet/faults/1", format!("{}/{index}", scenario.seed).as_bytes());
    let mut random = StdRng::from_seed(seed.0);
    let mut events = Vec::new();
    for _ in 0..fault.times {
        let at_ms = match (fault.at, fault.between) {
            (Some(at), _) => at.ms(),
            (None, Some([from, to])) => random.random_range(from.ms()..=to.ms()),
            (None, None) => 0,
        };
        events.extend(events_of(fault, at_ms, names, &mut random));
    }
    events
}

fn events_of(fault: &Fault, at_ms: u64, names: &Names, random: &mut StdRng) -> Vec<Event> {
    let event = |at_ms: u64, action| {
        let until_ms = fault.lasts.map(|lasts| at_ms + lasts.ms());
        Event { at_ms, until_ms, action }
    };
    let place = |name: &String| names.find(name)[0];
    let pairs = |between: &[Vec<String>; 2]| {
        let [one, other] = between.each_ref().map(|side| names.find_all(side));
        one.iter().flat_map(|one| other.iter().map(|other| (*one, *other))).collect::<Vec<_>>()
    };
    let action = match &fault.what {
        What::Link { between, shape } => Action::Links { pairs: pairs(between), shape: Some(*shape) },
        What::Partition { between } => Action::Links { pairs: pairs(between), shape: None },
        What::Attack { name, victim } => Action::Attack { name: name.clone(), victim: place(victim) },
        What::ExportSnapshot(name) => Action::ExportSnapshot(place(name)),
        What::AddValidator(name) => Action::AddValidator(place(name)),
        What::RemoveValidator(name) => Action::RemoveValidator(place(name)),
        what => {
            let Some(target) = what.target() else { return Vec::new() };
            return hit(target, names, random)
                .into_iter()
                .filter_map(|(later_ms, who)| {
                    let action = match what {
                        What::LyingPeers { lie, count, .. } => {
                            Action::LyingPeers { lie: *lie, count: *count, who }
                        }
                        what => Action::Node { harm: harm(what, names, random)?, who },
                    };
                    Some(event(at_ms + later_ms, action))
                })
                .collect();
        }
    };
    vec![event(at_ms, action)]
}

fn harm(what: &What, names: &Names, random: &mut StdRng) -> Option<Harm> {
    match what {
        What::Kill(_) => Some(Harm::Kill),
        What::Pause(_) => Some(Harm::Pause),
        What::Restart(_) => Some(Harm::Restart),
        What::Wipe(_) => Some(Harm::Wipe),
        What::BitFlip(_) => Some(Harm::BitFlip(random.random())),
        What::FullDisk(_) => Some(Harm::FullDisk),
        What::SlowDisk { delay, .. } => Some(Harm::SlowDisk(delay.ms())),
        What::ClockJump { ahead, back, .. } => {
            let ms =
                |span: &Option<Span>| span.map_or(0, |span| i64::try_from(span.ms()).unwrap_or(i64::MAX));
            Some(Harm::ClockJump(ms(ahead) - ms(back)))
        }
        What::LyingValidator { lie, .. } => Some(match lie {
            Lie::Twin { heard_by } => Harm::Twin(names.find_all(heard_by)),
            lie => lie.of_program().map_or(Harm::OldState, Harm::Liar),
        }),
        What::Upgrade { to, .. } => Some(Harm::Upgrade(to.clone())),
        _ => None,
    }
}

/// Returns the nodes that a fault affects, each with the milliseconds after the fault's beginning.
fn hit(target: &Target, names: &Names, random: &mut StdRng) -> Vec<(u64, PlannedNode)> {
    let found = names.find_all(target.names());
    match target {
        Target::Nodes(list) if list.len() == 1 && list[0] == PRIMARY => vec![(0, PlannedNode::Primary)],
        Target::Nodes(_) => found.into_iter().map(|place| (0, PlannedNode::Node(place))).collect(),
        Target::Rolling { every, .. } => {
            (0..).zip(found).map(|(turn, place)| (turn * every.ms(), PlannedNode::Node(place))).collect()
        }
        Target::OneOf(_) => {
            // The list is sorted, so that the same seed draws the same node whatever the order in the file.
            let mut found = found;
            found.sort();
            let drawn = (!found.is_empty()).then(|| found[random.random_range(0..found.len())]);
            drawn.into_iter().map(|place| (0, PlannedNode::Node(place))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn scenario(seed: &str, faults: &str) -> Scenario {
        let text = format!(
            "name: a\ndescription: b\nseed: {seed}\nduration: 60s\ncriteria: [equal_roots]\n\
             topology:\n  groups:\n  - {{ name: late, count: 2, joins: 5s }}\nfaults:\n{faults}"
        );
        Scenario::parse(&text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Goal: the seed alone determines when faults come and whom they affect, and added faults do not move the others.
    #[test]
    fn a_seed_gives_one_plan() {
        let drawn =
            "- { between: [10s, 50s], times: 5, for: 2s, what: { kill: { one_of: [validators] } } }\n";
        let more = format!("{drawn}- {{ at: 20s, what: {{ pause: {{ nodes: [late-1] }} }} }}\n");
        let first = plan(&scenario("x", drawn));
        assert_eq!(first, plan(&scenario("x", drawn)));
        assert_ne!(first, plan(&scenario("y", drawn)));
        assert_eq!(first.len(), 2 + 5);
        assert!(first.is_sorted_by_key(|event| event.at_ms));
        assert!(first.iter().skip(2).all(|event| event.until_ms == Some(event.at_ms + 2_000)));
        let with_more = plan(&scenario("x", &more));
        assert!(first.iter().all(|event| with_more.contains(event)));
    }

    #[test]
    fn targets_are_all_one_after_another_or_the_primary() {
        let faults = "- { at: 10s, what: { restart: { rolling: { nodes: [validators], every: 3s } } } }\n\
                      - { at: 30s, what: { kill: { nodes: [primary] } } }\n\
                      - { at: 40s, for: 5s, what: { partition: { between: [[validator-0], [late]] } } }\n";
        let events = plan(&scenario("x", faults));
        let times: Vec<u64> = events.iter().map(|event| event.at_ms / 1_000).collect();
        assert_eq!(times, [5, 5, 10, 13, 16, 19, 30, 40]);
        assert_eq!(events[6].action, Action::Node { harm: Harm::Kill, who: PlannedNode::Primary });
        let pairs = vec![(NodeIndex(0), NodeIndex(4)), (NodeIndex(0), NodeIndex(5))];
        assert_eq!(events[7].action, Action::Links { pairs, shape: None });
    }

    /// Goal: turns come in the order of the file, and the seed's draws do not depend on that order.
    #[test]
    fn turns_come_in_the_order_of_the_file() {
        let met = |what: &str| {
            let events = plan(&scenario("x", &format!("- {{ at: 10s, what: {{ restart: {what} }} }}\n")));
            let whom = |event: &Event| match event.action {
                Action::Node { who: PlannedNode::Node(place), .. } => Some((event.at_ms / 1_000, place.0)),
                _ => None,
            };
            events.iter().filter_map(whom).collect::<Vec<_>>()
        };
        let rolling = met("{ rolling: { nodes: [late, validator-2, validators], every: 3s } }");
        assert_eq!(rolling, [(10, 4), (13, 5), (16, 2), (19, 0), (22, 1), (25, 3)]);
        assert_eq!(met("{ one_of: [late, validators] }"), met("{ one_of: [validators, late] }"));
    }

    /// Goal: clocks jump in both directions, disks become slower, and each lie is planned as such.
    #[test]
    fn clocks_disks_and_lies_are_planned() {
        let faults = "\
- { at: 10s, what: { slow_disk: { who: { nodes: [late] }, delay: 200ms } } }
- { at: 11s, for: 5s, what: { clock_jump: { who: { nodes: [primary] }, ahead: 1h } } }
- { at: 12s, for: 5s, what: { clock_jump: { who: { nodes: [validator-1] }, back: 90s } } }
- { at: 13s, for: 5s, what: { lying_validator: { who: { nodes: [validator-0] }, lie: { twin: { heard_by: [validator-1, validator-3] } } } } }
- { at: 14s, for: 5s, what: { lying_validator: { who: { nodes: [validator-0] }, lie: old_state } } }
- { at: 15s, what: { lying_validator: { who: { one_of: [validators] }, lie: double_vote } } }
";
        let events = plan(&scenario("x", faults));
        let harms: Vec<&Harm> = events
            .iter()
            .filter_map(|event| match &event.action {
                Action::Node { harm, .. } => Some(harm),
                _ => None,
            })
            .collect();
        let wanted = [
            Harm::SlowDisk(200),
            Harm::SlowDisk(200),
            Harm::ClockJump(3_600_000),
            Harm::ClockJump(-90_000),
            Harm::Twin(vec![NodeIndex(1), NodeIndex(3)]),
            Harm::OldState,
            Harm::Liar("double-vote"),
        ];
        assert_eq!(harms, wanted.iter().collect::<Vec<_>>());
        assert_eq!(events[4].until_ms, Some(16_000));
    }
    /// Goal: each node that a fault of lying peers affects has its own liars, including nodes and times that the seed
    /// draws.
    #[test]
    fn lying_peers_are_planned_for_each_node() {
        let faults = "\
- { at: 10s, for: 5s, what: { lying_peers: { who: { nodes: [late, validator-0] }, lie: forged_heads, count: 3 } } }
- { between: [20s, 40s], times: 2, for: 1s, what: { lying_peers: { who: { one_of: [validators] }, lie: snapshot_lure } } }
- { at: 50s, what: { lying_peers: { who: { nodes: [primary] }, lie: unasked_hints } } }
";
        let events = plan(&scenario("x", faults));
        let told = |event: &Event| match event.action {
            Action::LyingPeers { lie, count, who } => Some((lie, count, who, event.until_ms)),
            _ => None,
        };
        let told: Vec<_> = events.iter().filter_map(told).collect();
        let whom = [4, 5, 0].map(|place| PlannedNode::Node(NodeIndex(place)));
        for (told, who) in told.iter().zip(whom) {
            assert_eq!(*told, (PeerLie::ForgedHeads, 3, who, Some(15_000)));
        }
        let drawn = &told[3..5];
        assert!(drawn.iter().all(|(lie, count, ..)| (*lie, *count) == (PeerLie::SnapshotLure, 1)));
        assert!(
            drawn.iter().all(|(.., who, _)| matches!(who, PlannedNode::Node(NodeIndex(place)) if *place < 4))
        );
        assert_eq!(told[5], (PeerLie::UnaskedHints, 1, PlannedNode::Primary, None));
        assert_eq!(plan(&scenario("x", faults)), events);
    }
}
