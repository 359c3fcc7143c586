//! [`Held`] and [`Lasting`]: what faults do to nodes at a time, each for itself. Pure.
//!
//! A node runs again once no fault holds it any more. Of several slow disks of one node the slowest counts, and jumps of its clock add up.

use std::collections::{BTreeMap, BTreeSet};

use crate::scenario::{names::Place, plan::Harm};

/// Nodes that faults hold down, with the faults by their places in the plan.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<Place, BTreeSet<usize>>);

impl Held {
    /// This event holds a node from now on.
    pub(super) fn hold(&mut self, place: Place, event: usize) {
        self.0.entry(place).or_default().insert(event);
    }

    /// An event lets a node go. Whether nothing holds it any more because of that: false too if the event did not hold it.
    pub(super) fn release(&mut self, place: Place, event: usize) -> bool {
        let Some(events) = self.0.get_mut(&place) else { return false };
        if !events.remove(&event) || !events.is_empty() {
            return false;
        }
        self.0.remove(&place);
        true
    }

    pub(super) fn contains(&self, place: Place) -> bool {
        self.0.contains_key(&place)
    }

    pub(super) fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.0.keys().copied()
    }
}

/// What goes on at nodes, by the places of its events in the plan: at most 500.
#[derive(Debug, Default)]
pub(super) struct Lasting(BTreeMap<usize, Last>);

/// What one event does to a node.
#[derive(Debug)]
struct Last {
    place: Place,
    harm: Harm,
    /// Whether the scenario ends it.
    ends: bool,
}

impl Lasting {
    pub(super) fn begin(&mut self, event: usize, place: Place, harm: &Harm, ends: bool) {
        self.0.insert(event, Last { place, harm: harm.clone(), ends });
    }

    pub(super) fn end(&mut self, event: usize) {
        self.0.remove(&event);
    }

    /// Whether this goes on at a node, by whatever fault.
    pub(super) fn has(&self, place: Place, harm: &Harm) -> bool {
        self.at(place).any(|other| other == harm)
    }

    /// How many milliseconds longer a node's flushes take.
    pub(super) fn delay_ms(&self, place: Place) -> u64 {
        let delays = self.at(place).filter_map(|harm| match harm {
            Harm::SlowDisk(delay_ms) => Some(*delay_ms),
            _ => None,
        });
        delays.max().unwrap_or_default()
    }

    /// By how many milliseconds a node's clock is ahead, negative if it is behind.
    pub(super) fn jump_ms(&self, place: Place) -> i64 {
        let jumps = self.at(place).filter_map(|harm| match harm {
            Harm::ClockJump(by_ms) => Some(*by_ms),
            _ => None,
        });
        jumps.fold(0, i64::saturating_add)
    }

    /// Whether a slow disk or a wrong clock, with which a node runs on, has an end yet to come: the node is behind from that end on. All
    /// others hold the node until they leave it behind.
    pub(super) fn ends_later(&self, place: Place) -> bool {
        let runs_on = |harm: &Harm| matches!(harm, Harm::SlowDisk(_) | Harm::ClockJump(_));
        self.0.values().any(|last| last.place == place && last.ends && runs_on(&last.harm))
    }

    fn at(&self, place: Place) -> impl Iterator<Item = &Harm> {
        self.0.values().filter(move |last| last.place == place).map(|last| &last.harm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Place = Place(3);

    /// Goal: a node is free once all have let it go, and whoever does not hold it frees nobody, also if it lets go twice.
    #[test]
    fn a_node_is_free_once_nobody_holds_it() {
        let mut held = Held::default();
        held.hold(NODE, 1);
        held.hold(NODE, 2);
        assert!(!held.release(NODE, 1));
        assert!(!held.release(NODE, 1) && held.contains(NODE), "one fault has only one hold");
        assert!(!held.release(NODE, 7) && !held.release(Place(0), 2));
        assert_eq!(held.places().collect::<Vec<_>>(), [NODE]);
        assert!(held.release(NODE, 2) && !held.contains(NODE));
        assert!(!held.release(NODE, 2));
    }

    /// Goal: of two faults of one kind at one node the one that ends first does not end the other.
    #[test]
    fn faults_of_one_kind_end_each_for_itself() {
        let mut lasting = Lasting::default();
        let harms = [
            Harm::SlowDisk(100),
            Harm::SlowDisk(400),
            Harm::ClockJump(600_000),
            Harm::ClockJump(-60_000),
            Harm::Pause,
            Harm::Pause,
        ];
        harms.iter().enumerate().for_each(|(event, harm)| lasting.begin(event, NODE, harm, true));
        lasting.begin(9, Place(0), &Harm::SlowDisk(9_000), true);
        assert_eq!((lasting.delay_ms(NODE), lasting.jump_ms(NODE)), (400, 540_000));
        [0, 2, 4].iter().for_each(|event| lasting.end(*event));
        assert_eq!((lasting.delay_ms(NODE), lasting.jump_ms(NODE)), (400, -60_000));
        assert!(lasting.has(NODE, &Harm::Pause) && !lasting.has(Place(0), &Harm::Pause));
        [1, 3, 5].iter().for_each(|event| lasting.end(*event));
        assert_eq!((lasting.delay_ms(NODE), lasting.jump_ms(NODE)), (0, 0));
        assert!(!lasting.has(NODE, &Harm::Pause) && !lasting.has(NODE, &Harm::FullDisk));
        assert_eq!(lasting.delay_ms(Place(0)), 9_000);
    }

    /// Goal: of two slow disks of one node the last that ends leaves it behind. One without an end never does, nor what holds a node.
    #[test]
    fn a_node_is_behind_from_the_last_end_on() {
        let mut lasting = Lasting::default();
        lasting.begin(0, NODE, &Harm::SlowDisk(100), true);
        lasting.begin(1, NODE, &Harm::ClockJump(60_000), true);
        lasting.begin(2, NODE, &Harm::SlowDisk(400), false);
        lasting.begin(3, NODE, &Harm::OldState, true);
        assert!(lasting.ends_later(NODE) && !lasting.ends_later(Place(0)));
        lasting.end(0);
        assert!(lasting.ends_later(NODE));
        lasting.end(1);
        assert!(!lasting.ends_later(NODE));
    }
}
