//! Names of nodes, and the nodes that a name in a scenario matches.

use std::collections::BTreeSet;

use super::model::{Part, Scenario, Topology};

/// The name of all nodes.
pub(super) const ALL: &str = "all";
/// The name of the initial validators.
pub(super) const VALIDATORS: &str = "validators";
/// The name of all other nodes.
pub(super) const FULLNODES: &str = "fullnodes";
/// The name of the node that is primary at the time of a fault.
pub(super) const PRIMARY: &str = "primary";

/// A node of a scenario, by its index among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeIndex(pub(super) usize);

/// The nodes of a scenario, validators first.
#[derive(Clone, Debug)]
pub(super) struct Names {
    names: Vec<String>,
    /// The group of each node; `None` for a validator.
    groups: Vec<Option<usize>>,
    group_names: Vec<String>,
}

impl Names {
    pub(super) fn of(scenario: &Scenario) -> Names {
        Names::of_topology(&scenario.topology)
    }

    /// Makes a name for every node. Call it only after the counts have been checked.
    pub(super) fn of_topology(topology: &Topology) -> Names {
        let mut names: Vec<String> =
            (0..topology.validators).map(|index| format!("validator-{index}")).collect();
        let mut groups = vec![None; names.len()];
        for (place, group) in topology.groups.iter().enumerate() {
            for index in 0..group.count {
                names.push(match group.count {
                    1 => group.name.clone(),
                    _ => format!("{}-{index}", group.name),
                });
                groups.push(Some(place));
            }
        }
        let group_names = topology.groups.iter().map(|group| group.name.clone()).collect();
        Names { names, groups, group_names }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn name(&self, place: NodeIndex) -> &str {
        &self.names[place.0]
    }

    /// Returns the group of a node; `None` for a validator.
    pub(super) fn group(&self, place: NodeIndex) -> Option<usize> {
        self.groups[place.0]
    }

    pub(super) fn all(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        (0..self.len()).map(NodeIndex)
    }

    /// Returns the nodes that a name matches, in node order; empty for an unknown name.
    pub(super) fn find(&self, name: &str) -> Vec<NodeIndex> {
        let is_it = |place: &NodeIndex| match name {
            ALL => true,
            VALIDATORS => self.group(*place).is_none(),
            FULLNODES => self.group(*place).is_some(),
            _ => {
                self.name(*place) == name
                    || self.group(*place).is_some_and(|group| self.group_names[group] == name)
            }
        };
        self.all().filter(is_it).collect()
    }

    /// Returns the nodes that several names match, each once. They are in the order of the names, and in node order
    /// within a name.
    pub(super) fn find_all(&self, names: &[String]) -> Vec<NodeIndex> {
        let mut found: Vec<NodeIndex> = names.iter().flat_map(|name| self.find(name)).collect();
        let mut seen = BTreeSet::new();
        found.retain(|place| seen.insert(*place));
        found
    }

    /// Returns names of nodes or groups that an error can suggest, limited in number. All of them exist.
    pub(super) fn offered(&self) -> String {
        let mut offered = vec![ALL, VALIDATORS];
        if !self.group_names.is_empty() {
            offered.push(FULLNODES);
        }
        offered.extend(self.group_names.iter().map(String::as_str));
        let is_group = |name: &&str| self.group_names.iter().any(|group| group == name);
        offered.extend(self.names.iter().map(String::as_str).filter(|name| !is_group(name)));
        listed(offered)
    }

    /// Returns names of single nodes that an error can suggest, limited in number.
    pub(super) fn offered_nodes(&self) -> String {
        listed(self.names.iter().map(String::as_str).collect())
    }
}

/// Joins the first names of a list; more would hide what is wrong.
fn listed(mut names: Vec<&str>) -> String {
    const OFFERED_MAX: usize = 12;
    let rest = if names.len() > OFFERED_MAX { ", …" } else { "" };
    names.truncate(OFFERED_MAX);
    format!("{}{rest}", names.join(", "))
}

/// Whether a node may be added to the validators.
pub(super) fn is_candidate(topology: &Topology, names: &Names, place: NodeIndex) -> bool {
    names.group(place).is_some_and(|group| topology.groups[group].part == Part::Candidate)
}

/// Whether a node validates from the first batch on, or may be added.
pub(super) fn may_validate(topology: &Topology, names: &Names, place: NodeIndex) -> bool {
    names.group(place).is_none() || is_candidate(topology, names, place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::model::Group;

    fn group(name: &str, count: u32) -> Group {
        serde_json::from_value(serde_json::json!({ "name": name, "count": count })).unwrap()
    }

    #[test]
    fn names_stand_for_nodes_groups_and_parts() {
        let groups = vec![group("alone", 1), group("fan", 3)];
        let names = Names::of_topology(&Topology { validators: 2, groups, ..Topology::default() });
        let found = |name: &str| names.find(name).into_iter().map(|place| place.0).collect::<Vec<_>>();
        assert_eq!(found("all"), [0, 1, 2, 3, 4, 5]);
        assert_eq!(found("validators"), [0, 1]);
        assert_eq!(found("fullnodes"), [2, 3, 4, 5]);
        assert_eq!((found("alone"), found("fan"), found("fan-1")), (vec![2], vec![3, 4, 5], vec![4]));
        assert!(found("nobody").is_empty());
        assert!(names.offered().contains("fan"), "{}", names.offered());
    }

    /// Goal: the order of the file counts: for the node from which commits are read, and for turns.
    #[test]
    fn several_names_keep_their_order() {
        let groups = vec![group("alone", 1), group("fan", 3)];
        let names = Names::of_topology(&Topology { validators: 2, groups, ..Topology::default() });
        let together = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|name| (*name).to_owned()).collect();
            names.find_all(&list).into_iter().map(|place| place.0).collect::<Vec<_>>()
        };
        assert_eq!(together(&["fan-1", "fan"]), [4, 3, 5]);
        assert_eq!(together(&["fan", "validators", "all"]), [3, 4, 5, 0, 1, 2]);
        assert_eq!(together(&["validator-1", "nobody", "validator-1", "alone"]), [1, 2]);
    }

    /// Goal: an error suggests names that exist, and only single nodes where one is required.
    #[test]
    fn names_that_are_offered_are_somebodys() {
        let alone = Names::of_topology(&Topology { validators: 2, ..Topology::default() });
        assert_eq!(alone.offered(), "all, validators, validator-0, validator-1");
        let groups = vec![group("reader", 2)];
        let names = Names::of_topology(&Topology { validators: 1, groups, ..Topology::default() });
        assert_eq!(names.offered(), "all, validators, fullnodes, reader, validator-0, reader-0, reader-1");
        assert_eq!(names.offered_nodes(), "validator-0, reader-0, reader-1");
        let many = Names::of_topology(&Topology { validators: 20, ..Topology::default() });
        assert!(many.offered_nodes().ends_with("validator-11, …"), "{}", many.offered_nodes());
    }
}
