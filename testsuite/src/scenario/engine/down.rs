//! [`DownNodes`] and [`ActiveHarms`]: the current faults of each node, tracked separately. Pure.
//!
//! A node runs again once no fault holds it. If several faults slow a node's disk, the slowest counts; jumps of its
//! clock add up.

use std::collections::{BTreeMap, BTreeSet};

use crate::scenario::{names::NodeIndex, plan::Harm};

/// Nodes that faults hold down, with the faults' indices in the plan.
#[derive(Debug, Default)]
pub(super) struct DownNodes(BTreeMap<NodeIndex, BTreeSet<usize>>);

impl DownNodes {
    /// Registers that this event holds a node.
    pub(super) fn hold(&mut self, place: NodeIndex, event: usize) {
        self.0.entry(place).or_default().insert(event);
    }

    /// Releases an event's hold of a node. Returns whether this freed the node: false if the event did not hold it.
    pub(super) fn release(&mut self, place: NodeIndex, event: usize) -> bool {
        let Some(events) = self.0.get_mut(&place) else { return false };
        if !events.remove(&event) || !events.is_empty() {
            return false;
        }
        self.0.remove(&place);
        true
    }

    pub(super) fn contains(&self, place: NodeIndex) -> bool {
        self.0.contains_key(&place)
    }

    pub(super) fn places(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        self.0.keys().copied()
    }
}

/// The current harms, by their events' indices in the plan: at most 500.
#[derive(Debug, Default)]
pub(super) struct ActiveHarms(BTreeMap<usize, Last>);

/// The harm of one event to a node.
#[derive(Debug)]
struct Last {
    place: NodeIndex,
    harm: Harm,
    /// Whether the scenario ends it.
    ends: bool,
}

impl ActiveHarms {
    pub(super) fn begin(&mut self, event: usize, place: NodeIndex, harm: &Harm, ends: bool) {
        self.0.insert(event, Last { place, harm: harm.clone(), ends });
    }

    pub(super) fn end(&mut self, event: usize) {
        self.0.remove(&event);
    }

    /// Whether any fault currently does this harm to a node.
    pub(super) fn has(&self, place: NodeIndex, harm: &Harm) -> bool {
        self.at(place).any(|other| other == harm)
    }

    /// Returns the additional milliseconds of a node's flushes.
    pub(super) fn delay_ms(&self, place: NodeIndex) -> u64 {
        let delays = self.at(place).filter_map(|harm| match harm {
            Harm::SlowDisk(delay_ms) => Some(*delay_ms),
            _ => None,
        });
        delays.max().unwrap_or_default()
    }

    /// Returns the milliseconds by which a node's clock is ahead, negative if it is behind.
    pub(super) fn jump_ms(&self, place: NodeIndex) -> i64 {
        let jumps = self.at(place).filter_map(|harm| match harm {
            Harm::ClockJump(by_ms) => Some(*by_ms),
            _ => None,
        });
        jumps.fold(0, i64::saturating_add)
    }

    /// Whether a slow disk or a wrong clock of the node has an end yet to come. From that end on, the node counts as
    /// behind. All other harms hold the node until it counts as behind.
    pub(super) fn ends_later(&self, place: NodeIndex) -> bool {
        let runs_on = |harm: &Harm| matches!(harm, Harm::SlowDisk(_) | Harm::ClockJump(_));
        self.0.values().any(|last| last.place == place && last.ends && runs_on(&last.harm))
    }

    fn at(&self, place: NodeIndex) -> impl Iterator<Item = &Harm> {
        self.0.values().filter(move |last| last.place == place).map(|last| &last.harm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeIndex = NodeIndex(3);

    /// Goal: a node is free once all events have released it. An event that does not hold it, or has released it, frees
    /// nothing.
    #[test]
    fn a_node_is_free_once_nobody_holds_it() {
        let mut held = DownNodes::default();
        held.hold(NODE, 1);
        held.hold(NODE, 2);
        assert!(!held.release(NODE, 1));
        assert!(!held.release(NODE, 1) && held.contains(NODE), "one fault has only one hold");
        assert!(!held.release(NODE, 7) && !held.release(NodeIndex(0), 2));
        assert_eq!(held.places().collect::<Vec<_>>(), [NODE]);
        assert!(held.release(NODE, 2) && !held.contains(NODE));
        assert!(!held.release(NODE, 2));
    }

    /// Goal: if two faults of one kind affect a node, the end of one does not end the other.
    #[test]
    fn faults_of_one_kind_end_each_for_itself() {
        let mut lasting = ActiveHarms::default();
        let harms = [
            Harm::SlowDisk(100),
            Harm::SlowDisk(400),
            Harm::ClockJump(600_000),
            Harm::ClockJump(-60_000),
            Harm::Pause,
            Harm::Pause,
        ];
        harms.iter().enumerate().for_each(|(event, harm)| lasting.begin(event, NODE, harm, true));
        lasting.begin(9, NodeIndex(0), &Harm::SlowDisk(9_000), true);
        assert_eq!((lasting.delay_ms(NODE), lasting.jump_ms(NODE)), (400, 540_000));
        [0, 2, 4].iter().for_each(|event| lasting.end(*event));
        assert_eq!((lasting.delay_ms(NODE), lasting.jump_ms(NODE)), (400, -60_000));
        assert!(lasting.has(NODE, &Harm::Pause) && !lasting.has(NodeIndex(0), &Harm::Pause));
        [1, 3, 5].iter().for_each(|event| lasting.end(*event));
        assert_eq!((lasting.delay_ms(NODE), lasting.jump_ms(NODE)), (0, 0));
        assert!(!lasting.has(NODE, &Harm::Pause) && !lasting.has(NODE, &Harm::FullDisk));
        assert_eq!(lasting.delay_ms(NodeIndex(0)), 9_000);
    }

    /// Goal: with two slow disks of one node, the node is behind from the last end. Faults without an end, and those
    /// that hold the node, do not count.
    #[test]
    fn a_node_is_behind_from_the_last_end_on() {
        let mut lasting = ActiveHarms::default();
        lasting.begin(0, NODE, &Harm::SlowDisk(100), true);
        lasting.begin(1, NODE, &Harm::ClockJump(60_000), true);
        lasting.begin(2, NODE, &Harm::SlowDisk(400), false);
        lasting.begin(3, NODE, &Harm::OldState, true);
        assert!(lasting.ends_later(NODE) && !lasting.ends_later(NodeIndex(0)));
        lasting.end(0);
        assert!(lasting.ends_later(NODE));
        lasting.end(1);
        assert!(!lasting.ends_later(NODE));
    }
}
