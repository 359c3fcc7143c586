//! [`LinkOverlay`]: overlays of faults on the links between nodes. A link may have several: it is cut while one of them
//! cuts it, and has the shape of the latest one.

use anyhow::Result;

use super::{Stage, setup};
use crate::scenario::{model::LinkShape, names::NodeIndex};

/// The overlay of one fault on links.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LinkOverlay {
    pub(super) by: OverlayOwner,
    pub(super) pairs: Vec<(NodeIndex, NodeIndex)>,
    /// The shape of the links; `None` cuts them.
    pub(super) shape: Option<LinkShape>,
    /// Whether the scenario ends it, so that the nodes are behind from its end.
    pub(super) ends: bool,
}

/// The owner of an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverlayOwner {
    /// An event, by its index in the plan.
    Event(usize),
    /// The twin of an event, by the event's index in the plan. This overlay keeps the twin's two instances apart.
    Twin(usize),
}

impl LinkOverlay {
    fn lies_between(&self, one: NodeIndex, other: NodeIndex) -> bool {
        self.pairs.contains(&(one, other)) || self.pairs.contains(&(other, one))
    }
}

/// Whether an overlay with an end affects links of a node: the node is behind from that end, and not before.
pub(super) fn ends_later(over: &[LinkOverlay], place: NodeIndex) -> bool {
    let meets = |over: &LinkOverlay| over.pairs.iter().any(|(one, other)| *one == place || *other == place);
    over.iter().any(|over| over.ends && meets(over))
}

/// Whether an overlay with an end cuts links of a node. Over slow links, a node still reaches the head, if later.
pub(super) fn is_cut_until_later(over: &[LinkOverlay], place: NodeIndex) -> bool {
    over.iter().any(|over| over.shape.is_none() && ends_later(std::slice::from_ref(over), place))
}

/// Returns the shape that the latest overlay gave the link between two nodes, and whether an overlay cuts it.
fn between<'a>(
    over: impl DoubleEndedIterator<Item = &'a LinkOverlay> + Clone,
    one: NodeIndex,
    other: NodeIndex,
) -> (Option<LinkShape>, bool) {
    let mut mine = over.filter(|over| over.lies_between(one, other));
    (mine.clone().rev().find_map(|over| over.shape), mine.any(|over| over.shape.is_none()))
}

/// As [`between`], for a twin's own links: the overlay that keeps the first instance from the twin's hearers does not
/// cut these links.
fn of_twins(over: &[LinkOverlay], one: NodeIndex, other: NodeIndex) -> (Option<LinkShape>, bool) {
    between(over.iter().filter(|over| matches!(over.by, OverlayOwner::Event(_))), one, other)
}

/// Returns the twins of either node that the other node hears, each by its event, with the node that hears it.
fn twins_between(
    over: &[LinkOverlay],
    one: NodeIndex,
    other: NodeIndex,
) -> impl Iterator<Item = (usize, NodeIndex)> {
    over.iter().filter_map(move |over| {
        let OverlayOwner::Twin(event) = over.by else { return None };
        let pair = over.pairs.iter().find(|pair| **pair == (one, other) || **pair == (other, one));
        pair.map(|(_, hears)| (event, *hears))
    })
}

/// Returns the nodes among these that can reach most of these validators despite cuts, in order; all of them if none
/// can.
pub(super) fn reach_most(
    over: &[LinkOverlay],
    nodes: &[NodeIndex],
    validators: &[NodeIndex],
) -> Vec<NodeIndex> {
    let reaches = |node: NodeIndex, other: NodeIndex| node == other || !between(over.iter(), node, other).1;
    let reaches_most = |node: &NodeIndex| {
        let reached = validators.iter().filter(|other| reaches(*node, **other)).count();
        2 * reached > validators.len()
    };
    let found: Vec<NodeIndex> = nodes.iter().copied().filter(reaches_most).collect();
    if found.is_empty() { nodes.to_vec() } else { found }
}

impl Stage<'_> {
    /// Adds an overlay to links, including those that are created later.
    pub(super) fn lay_over(&mut self, over: LinkOverlay) -> Result<()> {
        let pairs = over.pairs.clone();
        self.over.push(over);
        self.settle(&pairs)
    }

    /// Removes the overlays of an owner.
    pub(super) fn take_off(&mut self, by: OverlayOwner) -> Result<()> {
        let (gone, stays): (Vec<LinkOverlay>, Vec<LinkOverlay>) =
            std::mem::take(&mut self.over).into_iter().partition(|over| over.by == by);
        self.over = stays;
        gone.iter().try_for_each(|over| self.settle(&over.pairs))
    }

    /// Sets links to their overlays' shape, or else to the topology's shape.
    pub(super) fn settle(&self, pairs: &[(NodeIndex, NodeIndex)]) -> Result<()> {
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

    /// Returns the index of an event's twin among the ends of links: twins come after all nodes.
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
        let pairs = vec![(NodeIndex(0), NodeIndex(1))];
        let over = |index, shape| LinkOverlay {
            by: OverlayOwner::Event(index),
            pairs: pairs.clone(),
            shape,
            ends: true,
        };
        let all = [over(0, None), over(1, Some(slow)), over(2, None)];
        let at = |over: &[LinkOverlay]| between(over.iter(), NodeIndex(1), NodeIndex(0));
        assert_eq!(at(&all), (Some(slow), true));
        assert_eq!(at(&all[1..]), (Some(slow), true));
        assert_eq!(at(&all[1..2]), (Some(slow), false));
        assert_eq!(at(&[]), (None, false));
        assert_eq!(between(all.iter(), NodeIndex(0), NodeIndex(2)), (None, false));
    }

    /// Goal: with two partitions and a slow link at one node, the node is behind from the last end. Overlays without an
    /// end, and those between a twin's instances, leave it behind at once.
    #[test]
    fn a_node_is_behind_from_the_last_end_on() {
        let over =
            |by, shape, ends| LinkOverlay { by, pairs: vec![(NodeIndex(0), NodeIndex(1))], shape, ends };
        let (first, second) =
            (over(OverlayOwner::Event(0), None, true), over(OverlayOwner::Event(1), None, true));
        let slow = over(OverlayOwner::Event(2), Some(LinkShape::default()), true);
        let (forever, twin) =
            (over(OverlayOwner::Event(3), None, false), over(OverlayOwner::Twin(4), None, false));
        let ends_later = |over: &[&LinkOverlay], place| {
            let over: Vec<LinkOverlay> = over.iter().copied().cloned().collect();
            ends_later(&over, NodeIndex(place))
        };
        let found = [0, 1, 2].map(|place| ends_later(&[&first, &second], place));
        assert_eq!(found, [true, true, false], "both ends of its links, and nobody else");
        assert!(ends_later(&[&second], 0) && ends_later(&[&forever, &slow], 0));
        assert!(!ends_later(&[&forever, &twin], 0) && !ends_later(&[], 0));
    }

    /// Goal: the catch-up time of a node that joins over slow links counts from its join. That of a node that joins
    /// behind a cut counts only from the cut's end.
    #[test]
    fn slow_links_keep_nobody_from_joining() {
        let over = |shape, ends| LinkOverlay {
            by: OverlayOwner::Event(0),
            pairs: vec![(NodeIndex(0), NodeIndex(1))],
            shape,
            ends,
        };
        let slow = Some(LinkShape::default());
        let cut_later = |over: LinkOverlay| is_cut_until_later(&[over], NodeIndex(1));
        assert!(cut_later(over(None, true)));
        assert!(!cut_later(over(slow, true)) && !cut_later(over(None, false)));
        assert!(!is_cut_until_later(&[over(None, true)], NodeIndex(2)));
    }

    /// Goal: a node that is cut off from most validators is not asked about the chain, unless all are. Slow links do
    /// not cut nodes off.
    #[test]
    fn who_is_cut_off_from_most_is_known() {
        let places = |list: &[usize]| list.iter().copied().map(NodeIndex).collect::<Vec<_>>();
        let cut = |one: usize, others: &[usize]| {
            let pairs = others.iter().map(|other| (NodeIndex(one), NodeIndex(*other))).collect();
            LinkOverlay { by: OverlayOwner::Event(one), pairs, shape: None, ends: true }
        };
        let (all, validators) = (places(&[0, 1, 2, 3, 4]), places(&[0, 1, 2, 3]));
        let near = |over: &[LinkOverlay]| reach_most(over, &all, &validators);
        let away = cut(0, &[1, 2, 3, 4]);
        assert_eq!(near(std::slice::from_ref(&away)), places(&[1, 2, 3, 4]));
        assert_eq!(near(&[LinkOverlay { shape: Some(LinkShape::default()), ..away }]), all);
        assert_eq!(near(&[cut(4, &[0, 1])]), places(&[0, 1, 2, 3]), "two of four are not most");
        assert_eq!(near(&[cut(0, &[2, 3]), cut(1, &[2, 3])]), places(&[4]), "a reader reaches both halves");
        assert_eq!(near(&[cut(0, &[2, 3]), cut(1, &[2, 3]), cut(4, &[2, 3])]), all);
        assert_eq!(reach_most(&[], &all, &[]), all);
    }

    /// Goal: a partition of a validator also applies to its twin, and the overlay between the twin's instances does not
    /// cut off the twin itself.
    #[test]
    fn a_partition_holds_for_both_selves_of_a_twin() {
        let pairs = vec![(NodeIndex(0), NodeIndex(1)), (NodeIndex(0), NodeIndex(2))];
        let twin = LinkOverlay { by: OverlayOwner::Twin(4), pairs, shape: None, ends: false };
        let pairs = vec![(NodeIndex(1), NodeIndex(0))];
        let cut = LinkOverlay { by: OverlayOwner::Event(7), pairs, shape: None, ends: true };
        let alone = [twin.clone()];
        assert_eq!(between(alone.iter(), NodeIndex(0), NodeIndex(1)), (None, true));
        assert_eq!(of_twins(&alone, NodeIndex(0), NodeIndex(1)), (None, false));
        let both = [twin, cut];
        assert_eq!(of_twins(&both, NodeIndex(0), NodeIndex(1)), (None, true));
        assert_eq!(of_twins(&both, NodeIndex(0), NodeIndex(2)), (None, false));
        let twins = |one, other| twins_between(&both, one, other).collect::<Vec<_>>();
        assert_eq!(twins(NodeIndex(1), NodeIndex(0)), [(4, NodeIndex(1))]);
        assert!(twins(NodeIndex(1), NodeIndex(2)).is_empty());
    }
}
