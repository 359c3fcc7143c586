//! [`Over`]: overlays of faults on the links between nodes. A link may have several: it is cut while one of them cuts
//! it, and has the shape of the latest one.

use anyhow::Result;

use super::{Stage, setup};
use crate::scenario::{model::LinkShape, names::Place};

/// The overlay of one fault on links.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Over {
    pub(super) by: By,
    pub(super) pairs: Vec<(Place, Place)>,
    /// The shape of the links; `None` cuts them.
    pub(super) shape: Option<LinkShape>,
    /// Whether the scenario ends it, so that the nodes are behind from its end.
    pub(super) ends: bool,
}

/// The owner of an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// An event, by its index in the plan.
    Event(usize),
    /// The twin of an event, by the event's index in the plan. This overlay keeps the twin's two instances apart.
    Twin(usize),
}

impl Over {
    fn lies_between(&self, one: Place, other: Place) -> bool {
        self.pairs.contains(&(one, other)) || self.pairs.contains(&(other, one))
    }
}

/// Whether an overlay with an end affects links of a node: the node is behind from that end, and not before.
pub(super) fn ends_later(over: &[Over], place: Place) -> bool {
    let meets = |over: &Over| over.pairs.iter().any(|(one, other)| *one == place || *other == place);
    over.iter().any(|over| over.ends && meets(over))
}

/// Whether such an overlay cuts links of a node. Over slow links, a node still reaches the head, if later.
pub(super) fn is_cut_until_later(over: &[Over], place: Place) -> bool {
    over.iter().any(|over| over.shape.is_none() && ends_later(std::slice::from_ref(over), place))
}

/// Returns the shape that the latest overlay gave the link between two nodes, and whether an overlay cuts it.
fn between<'a>(
    over: impl DoubleEndedIterator<Item = &'a Over> + Clone,
    one: Place,
    other: Place,
) -> (Option<LinkShape>, bool) {
    let mut mine = over.filter(|over| over.lies_between(one, other));
    (mine.clone().rev().find_map(|over| over.shape), mine.any(|over| over.shape.is_none()))
}

/// As [`between`], for a twin's own links: the overlay that keeps the first instance from its hearers does not cut
/// these.
fn of_twins(over: &[Over], one: Place, other: Place) -> (Option<LinkShape>, bool) {
    between(over.iter().filter(|over| matches!(over.by, By::Event(_))), one, other)
}

/// Returns the twins of one of two nodes that the other one hears: their events, and the hearers.
fn twins_between(over: &[Over], one: Place, other: Place) -> impl Iterator<Item = (usize, Place)> {
    over.iter().filter_map(move |over| {
        let By::Twin(event) = over.by else { return None };
        let pair = over.pairs.iter().find(|pair| **pair == (one, other) || **pair == (other, one));
        pair.map(|(_, hears)| (event, *hears))
    })
}

/// Returns the nodes among these that can reach most of these validators despite cuts, in order; all of them if none
/// can.
pub(super) fn reach_most(over: &[Over], nodes: &[Place], validators: &[Place]) -> Vec<Place> {
    let reaches = |node: Place, other: Place| node == other || !between(over.iter(), node, other).1;
    let reaches_most = |node: &Place| {
        let reached = validators.iter().filter(|other| reaches(*node, **other)).count();
        2 * reached > validators.len()
    };
    let found: Vec<Place> = nodes.iter().copied().filter(reaches_most).collect();
    if found.is_empty() { nodes.to_vec() } else { found }
}

impl Stage<'_> {
    /// Adds an overlay to links, including those that are created later.
    pub(super) fn lay_over(&mut self, over: Over) -> Result<()> {
        let pairs = over.pairs.clone();
        self.over.push(over);
        self.settle(&pairs)
    }

    /// Removes the overlays of an owner.
    pub(super) fn take_off(&mut self, by: By) -> Result<()> {
        let (gone, stays): (Vec<Over>, Vec<Over>) =
            std::mem::take(&mut self.over).into_iter().partition(|over| over.by == by);
        self.over = stays;
        gone.iter().try_for_each(|over| self.settle(&over.pairs))
    }

    /// Sets links to their overlays' shape, or else to that of the topology.
    pub(super) fn settle(&self, pairs: &[(Place, Place)]) -> Result<()> {
        let Some(links) = &self.links else { return Ok(()) };
        for (one, other) in pairs {
            let usual = || setup::shape(self.scenario, &self.names, *one, *other);
            let (shape, is_cut) = between(self.over.iter(), *one, *other);
            links.reshape(one.0, other.0, shape.as_ref().map_or_else(usual, setup::relayed))?;
            links.cut(one.0, other.0, is_cut);
            let (shape, is_cut) = of_twins(&self.over, *one, *other);
            for (event, hears) in twins_between(&self.over, *one, *other) {
                let seat = self.twin_seat(event);
                links.reshape(seat, hears.0, shape.as_ref().map_or_else(usual, setup::relayed))?;
                links.cut(seat, hears.0, is_cut);
            }
        }
        Ok(())
    }

    /// Returns the place of an event's twin among the ends of links: after all nodes.
    pub(super) fn twin_seat(&self, event: usize) -> usize {
        self.names.len() + event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: if two faults affect one link, the end of one does not end the other.
    #[test]
    fn faults_over_one_link_end_each_for_itself() {
        let slow = LinkShape { loss: 0.5, ..LinkShape::default() };
        let pairs = vec![(Place(0), Place(1))];
        let over = |index, shape| Over { by: By::Event(index), pairs: pairs.clone(), shape, ends: true };
        let all = [over(0, None), over(1, Some(slow)), over(2, None)];
        let at = |over: &[Over]| between(over.iter(), Place(1), Place(0));
        assert_eq!(at(&all), (Some(slow), true));
        assert_eq!(at(&all[1..]), (Some(slow), true));
        assert_eq!(at(&all[1..2]), (Some(slow), false));
        assert_eq!(at(&[]), (None, false));
        assert_eq!(between(all.iter(), Place(0), Place(2)), (None, false));
    }

    /// Goal: with two partitions and a slow link at one node, the node is behind from the last end. Overlays without an
    /// end, and those between a twin's instances, leave it behind at once.
    #[test]
    fn a_node_is_behind_from_the_last_end_on() {
        let over = |by, shape, ends| Over { by, pairs: vec![(Place(0), Place(1))], shape, ends };
        let (first, second) = (over(By::Event(0), None, true), over(By::Event(1), None, true));
        let slow = over(By::Event(2), Some(LinkShape::default()), true);
        let (forever, twin) = (over(By::Event(3), None, false), over(By::Twin(4), None, false));
        let ends_later = |over: &[&Over], place| {
            let over: Vec<Over> = over.iter().copied().cloned().collect();
            ends_later(&over, Place(place))
        };
        let found = [0, 1, 2].map(|place| ends_later(&[&first, &second], place));
        assert_eq!(found, [true, true, false], "both ends of its links, and nobody else");
        assert!(ends_later(&[&second], 0) && ends_later(&[&forever, &slow], 0));
        assert!(!ends_later(&[&forever, &twin], 0) && !ends_later(&[], 0));
    }

    /// Goal: the time of a node that joins over slow links counts from its join; that of one that joins behind a cut
    /// with an end does not.
    #[test]
    fn slow_links_keep_nobody_from_joining() {
        let over = |shape, ends| Over { by: By::Event(0), pairs: vec![(Place(0), Place(1))], shape, ends };
        let slow = Some(LinkShape::default());
        let cut_later = |over: Over| is_cut_until_later(&[over], Place(1));
        assert!(cut_later(over(None, true)));
        assert!(!cut_later(over(slow, true)) && !cut_later(over(None, false)));
        assert!(!is_cut_until_later(&[over(None, true)], Place(2)));
    }

    /// Goal: a node that is cut off from most validators is not asked about the chain, unless all are. Slow links do
    /// not cut nodes off.
    #[test]
    fn who_is_cut_off_from_most_is_known() {
        let places = |list: &[usize]| list.iter().copied().map(Place).collect::<Vec<_>>();
        let cut = |one: usize, others: &[usize]| {
            let pairs = others.iter().map(|other| (Place(one), Place(*other))).collect();
            Over { by: By::Event(one), pairs, shape: None, ends: true }
        };
        let (all, validators) = (places(&[0, 1, 2, 3, 4]), places(&[0, 1, 2, 3]));
        let near = |over: &[Over]| reach_most(over, &all, &validators);
        let away = cut(0, &[1, 2, 3, 4]);
        assert_eq!(near(std::slice::from_ref(&away)), places(&[1, 2, 3, 4]));
        assert_eq!(near(&[Over { shape: Some(LinkShape::default()), ..away }]), all);
        assert_eq!(near(&[cut(4, &[0, 1])]), places(&[0, 1, 2, 3]), "two of four are not most");
        assert_eq!(near(&[cut(0, &[2, 3]), cut(1, &[2, 3])]), places(&[4]), "a reader reaches both halves");
        assert_eq!(near(&[cut(0, &[2, 3]), cut(1, &[2, 3]), cut(4, &[2, 3])]), all);
        assert_eq!(reach_most(&[], &all, &[]), all);
    }

    /// Goal: a partition of a validator also applies to its twin, and the overlay between the twin's instances does not
    /// cut off the twin itself.
    #[test]
    fn a_partition_holds_for_both_selves_of_a_twin() {
        let pairs = vec![(Place(0), Place(1)), (Place(0), Place(2))];
        let twin = Over { by: By::Twin(4), pairs, shape: None, ends: false };
        let pairs = vec![(Place(1), Place(0))];
        let cut = Over { by: By::Event(7), pairs, shape: None, ends: true };
        let alone = [twin.clone()];
        assert_eq!(between(alone.iter(), Place(0), Place(1)), (None, true));
        assert_eq!(of_twins(&alone, Place(0), Place(1)), (None, false));
        let both = [twin, cut];
        assert_eq!(of_twins(&both, Place(0), Place(1)), (None, true));
        assert_eq!(of_twins(&both, Place(0), Place(2)), (None, false));
        let twins = |one, other| twins_between(&both, one, other).collect::<Vec<_>>();
        assert_eq!(twins(Place(1), Place(0)), [(4, Place(1))]);
        assert!(twins(Place(1), Place(2)).is_empty());
    }
}
