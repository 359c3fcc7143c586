//! [`Over`]: what faults lay over the links between nodes. Several may lie over one link: it is cut while one of them cuts it, and has the
//! shape of the last one that came.

use anyhow::Result;

use super::{Stage, setup};
use crate::scenario::{model::LinkShape, names::Place};

/// What one fault lays over links.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Over {
    pub(super) by: By,
    pub(super) pairs: Vec<(Place, Place)>,
    /// None is a cut.
    pub(super) shape: Option<LinkShape>,
}

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// An event, by its place in the plan.
    Event(usize),
    /// The twin of this node.
    Twin(Place),
}

impl Over {
    fn lies_between(&self, one: Place, other: Place) -> bool {
        self.pairs.contains(&(one, other)) || self.pairs.contains(&(other, one))
    }
}

/// The shape that the last fault gave the links between two nodes, and whether one of them cuts these.
fn between(over: &[Over], one: Place, other: Place) -> (Option<LinkShape>, bool) {
    let mine = move || over.iter().filter(move |over| over.lies_between(one, other));
    (mine().rev().find_map(|over| over.shape), mine().any(|over| over.shape.is_none()))
}

impl Stage<'_> {
    /// Lays something over links, also over those that are laid later.
    pub(super) fn lay_over(&mut self, over: Over) -> Result<()> {
        let pairs = over.pairs.clone();
        self.over.push(over);
        self.settle(&pairs)
    }

    /// Takes away what somebody laid over links.
    pub(super) fn take_off(&mut self, by: By) -> Result<()> {
        let (gone, stays): (Vec<Over>, Vec<Over>) =
            std::mem::take(&mut self.over).into_iter().partition(|over| over.by == by);
        self.over = stays;
        gone.iter().try_for_each(|over| self.settle(&over.pairs))
    }

    /// Gives links what lies over them, or else what the topology says.
    pub(super) fn settle(&self, pairs: &[(Place, Place)]) -> Result<()> {
        let Some(links) = &self.links else { return Ok(()) };
        for (one, other) in pairs {
            let (shape, is_cut) = between(&self.over, *one, *other);
            let usual = || setup::shape(self.scenario, &self.names, *one, *other);
            links.reshape(one.0, other.0, shape.as_ref().map_or_else(usual, setup::relayed))?;
            links.cut(one.0, other.0, is_cut);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: of two faults over one link the one that ends first does not end the other.
    #[test]
    fn faults_over_one_link_end_each_for_itself() {
        let slow = LinkShape { loss: 0.5, ..LinkShape::default() };
        let pairs = vec![(Place(0), Place(1))];
        let over = |index, shape| Over { by: By::Event(index), pairs: pairs.clone(), shape };
        let all = [over(0, None), over(1, Some(slow)), over(2, None)];
        let at = |over: &[Over]| between(over, Place(1), Place(0));
        assert_eq!(at(&all), (Some(slow), true));
        assert_eq!(at(&all[1..]), (Some(slow), true));
        assert_eq!(at(&all[1..2]), (Some(slow), false));
        assert_eq!(at(&[]), (None, false));
        assert_eq!(between(&all, Place(0), Place(2)), (None, false));
    }
}
