//! How nodes that joined or came back caught up.

use crate::{
    report::{CatchUp, NodeSeries, Series},
    scenario::{criteria::Criterion, model::Scenario, names::Names},
};

/// A node that is behind from a moment on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Behind {
    pub(super) name: String,
    /// The sync mode's name in node.yaml.
    pub(super) mode: &'static str,
    /// The moment, in milliseconds after the clock started.
    pub(super) from_ms: u64,
    /// Samples before this moment do not count: they come from an earlier process.
    pub(super) seen_ms: u64,
    /// When another fault affected the node, if one did. From then on its time no longer counts.
    pub(super) until_ms: Option<u64>,
}

impl Behind {
    /// Makes an entry that begins at `from_ms`.
    pub(super) fn new(name: &str, mode: &'static str, from_ms: u64) -> Behind {
        Behind { name: name.to_owned(), mode, from_ms, seen_ms: from_ms, until_ms: None }
    }

    /// Records that another fault affects the node. The first one counts.
    pub(super) fn interrupt(&mut self, now_ms: u64) {
        self.until_ms.get_or_insert(now_ms);
    }
}

/// Returns the shortest catch-up limit of the criteria that name this node, in milliseconds; `None` if none does.
pub(super) fn given_ms(scenario: &Scenario, names: &Names, name: &str) -> Option<u64> {
    let given = scenario.criteria.iter().filter_map(|criterion| match criterion {
        Criterion::CatchUp { nodes, at_most } => {
            let mut named = names.find_all(nodes).into_iter();
            named.any(|place| names.name(place) == name).then(|| at_most.ms())
        }
        _ => None,
    });
    given.min()
}

/// Returns each node's curve relative to the highest head of all nodes at the time, in the order of `behind`.
///
/// If a fault affects a node again before it reached the head and before its time was over (`given_ms`), only the curve
/// after that fault counts.
pub(super) fn curves(
    behind: &[Behind],
    nodes: &[NodeSeries],
    given_ms: impl Fn(&str) -> Option<u64>,
) -> Vec<CatchUp> {
    let Some(leader) = leader(nodes) else { return Vec::new() };
    let counted = |(index, one): (usize, &Behind)| {
        let curve = curve(one, nodes, &leader);
        let had_its_time = one.until_ms.is_none_or(|until_ms| {
            until_ms.saturating_sub(one.from_ms) >= given_ms(&one.name).unwrap_or(u64::MAX)
        });
        let begins_again = behind[index + 1..].iter().any(|later| later.name == one.name);
        (curve.seconds.is_some() || had_its_time || !begins_again).then_some(curve)
    };
    behind.iter().enumerate().filter_map(counted).collect()
}

fn curve(behind: &Behind, nodes: &[NodeSeries], leader: &NodeSeries) -> CatchUp {
    let Behind { name, mode, from_ms, seen_ms, until_ms } = behind;
    match nodes.iter().find(|node| node.name == *name) {
        Some(node) => {
            let mut node = node.clone();
            let counts = |at_ms: u64| at_ms >= *seen_ms && until_ms.is_none_or(|until_ms| at_ms < until_ms);
            node.head.points.retain(|(at_ms, _)| counts(*at_ms));
            CatchUp::of(&node, mode, leader, *from_ms)
        }
        // The node could not even be started.
        None => {
            let behind = Series::new("batches");
            CatchUp { node: name.clone(), mode: (*mode).to_owned(), seconds: None, behind }
        }
    }
}

/// Returns a virtual node that always has the highest head of all: any real one may be down.
fn leader(nodes: &[NodeSeries]) -> Option<NodeSeries> {
    let mut leader = nodes.first()?.clone();
    let mut heads: Vec<(u64, f64)> = nodes.iter().flat_map(|node| node.head.points.iter().copied()).collect();
    heads.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut highest = 0.0_f64;
    for (_, head) in &mut heads {
        highest = highest.max(*head);
        *head = highest;
    }
    leader.head.points = heads;
    Some(leader)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, points: &[(u64, f64)]) -> NodeSeries {
        NodeSeries {
            name: name.to_owned(),
            head: Series { unit: String::new(), points: points.to_vec() },
            ..NodeSeries::default()
        }
    }

    /// Goal: a node is measured against the highest head, even while the first node is down, and separately each time
    /// that it is behind.
    #[test]
    fn the_highest_head_of_all_is_the_measure() {
        let nodes = [
            node("killed", &[(0, 10.0), (9_000, 20.0)]),
            node("ahead", &[(1_000, 50.0), (5_000, 90.0)]),
            node("late", &[(2_000, 0.0), (4_000, 50.0), (6_000, 80.0), (7_000, 90.0)]),
        ];
        let late = |from_ms| Behind::new("late", "auto", from_ms);
        let seconds = |behind: &[Behind]| {
            curves(behind, &nodes, |_| None).into_iter().map(|curve| curve.seconds).collect::<Vec<_>>()
        };
        assert_eq!(seconds(&[late(1_500), late(5_500)]), [Some(2.5), Some(1.5)]);
        // Samples before its restart do not count as catching up.
        assert_eq!(seconds(&[Behind { seen_ms: 6_500, ..late(1_500) }]), [Some(5.5)]);
        let stuck = Behind::new("killed", "auto", 8_000);
        assert_eq!(seconds(&[stuck]), [None]);
        let never_started = Behind::new("never-started", "auto", 0);
        assert_eq!(seconds(&[never_started]), [None], "it did not catch up, and must not be left out");
        assert!(curves(&[late(0)], &[], |_| None).is_empty());
    }

    /// Goal: if a node is killed again before it reached the head, only the time after the last kill counts, not both
    /// downtimes. A node that had its full time before, or does not come back, still counts.
    #[test]
    fn the_next_fault_is_no_slowness() {
        let nodes = [
            node("ahead", &[(0, 100.0), (40_000, 100.0)]),
            node("late", &[(1_000, 10.0), (2_000, 20.0), (30_000, 30.0), (31_000, 100.0)]),
        ];
        let killed_at = |until_ms| {
            let mut behind = Behind::new("late", "auto", 1_000);
            behind.interrupt(until_ms);
            behind.interrupt(until_ms + 1);
            behind
        };
        let back = Behind::new("late", "auto", 30_000);
        let seconds = |behind: &[Behind], given_ms| {
            let all = curves(behind, &nodes, |name| (name == "late").then_some(given_ms));
            all.into_iter().map(|curve| curve.seconds).collect::<Vec<_>>()
        };
        assert_eq!(seconds(&[killed_at(3_000), back.clone()], 12_000), [Some(1.0)]);
        assert_eq!(seconds(&[killed_at(13_000), back.clone()], 12_000), [None, Some(1.0)]);
        assert_eq!(seconds(&[killed_at(3_000)], 12_000), [None], "it never came back");
        // It reached the head before the second fault.
        assert_eq!(seconds(&[killed_at(32_000), Behind::new("late", "auto", 33_000)], 12_000)[0], Some(30.0));
    }

    /// Goal: a node that joins while a partition cuts it off is measured only from the partition's end. If it never
    /// reaches the head, it did not catch up.
    #[test]
    fn a_join_behind_a_cut_is_measured_from_its_end() {
        let nodes = [
            node("ahead", &[(0, 100.0), (40_000, 100.0)]),
            node("late", &[(1_000, 0.0), (20_000, 0.0), (31_000, 100.0)]),
        ];
        let mut joined = Behind::new("late", "auto", 1_000);
        joined.interrupt(joined.from_ms);
        let seconds = |behind: &[Behind]| {
            let all = curves(behind, &nodes, |_| Some(5_000));
            all.into_iter().map(|curve| curve.seconds).collect::<Vec<_>>()
        };
        assert_eq!(seconds(&[joined.clone(), Behind::new("late", "auto", 30_000)]), [Some(1.0)]);
        assert_eq!(seconds(&[joined]), [None]);
    }

    #[test]
    fn the_least_time_of_all_criteria_is_what_a_node_has() {
        let text = "name: a\ndescription: b\nduration: 60s\ntopology: { groups: [{ name: f, joins: 1s }, { name: g, joins: 1s }, { name: h }] }\n\
                    criteria: [{ catch_up: { nodes: [f, g], at_most: 20s } }, { catch_up: { nodes: [g], at_most: 5s } }]\n";
        let scenario =
            Scenario::parse(text, std::path::Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let names = Names::of(&scenario);
        let given = ["f", "g", "h"].map(|name| given_ms(&scenario, &names, name));
        assert_eq!(given, [Some(20_000), Some(5_000), None]);
    }
}
