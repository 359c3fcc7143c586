//! A tree of stubs: hashes alone, for leaves whose rows are on disk and that nobody has asked for yet.
//!
//! A restore verifies millions of nodes, and so may a load beyond the budget; most of them would be evicted at once.
//! So only their hashes are computed here. A part gets its nodes when it is touched, as after [`Tree::shrink`].

use std::sync::Arc;

use slipstream_types::{
    Digest, Path,
    tree::{self, Leaf, Subtree},
};

use super::{
    Tree,
    budget::{STUB, STUB_LEAVES_MAX, WHOLE_LEAVES_MAX},
    hollow::quarter_of,
    nibbles::{first_nibble, nibble},
    node::{ARITY, Node, Quarters, assemble},
    slot::{Child, Counts, Link, Slot},
};

impl Tree {
    /// Builds the tree of all leaves between two paths, sorted by path, each path once. Only the ways to both paths
    /// have nodes, so that [`Tree::join`] can attach a neighbour there.
    pub(crate) fn sketch(leaves: &[Leaf], first: &Path, last: &Path) -> Tree {
        // All at once: no hash depends on another.
        let mut hashes = Leaf::hashes(leaves);
        let part = Part { leaves, hashes: &mut hashes };
        Tree { root: part.slot(0, Some(first), Some(last)), ..Tree::default() }
    }
}

/// Leaves with their hashes, which folding consumes.
struct Part<'a> {
    leaves: &'a [Leaf],
    hashes: &'a mut [Digest],
}

impl<'a> Part<'a> {
    /// Splits off the first leaves that are inside.
    fn take(&mut self, is_inside: impl Fn(&Leaf) -> bool) -> Part<'a> {
        let count = self.leaves.partition_point(is_inside);
        let (leaves, more_leaves) = self.leaves.split_at(count);
        let (hashes, more_hashes) = std::mem::take(&mut self.hashes).split_at_mut(count);
        *self = Part { leaves: more_leaves, hashes: more_hashes };
        Part { leaves, hashes }
    }

    /// Builds the slot at `depth`, with nodes on the way to each given path.
    fn slot(self, depth: usize, first: Option<&Path>, last: Option<&Path>) -> Slot {
        let (start, end) = match self.leaves {
            [] => return Slot::Empty,
            [leaf] => return Slot::Leaf(*leaf),
            [start, .., end] => (&start.path, &end.path),
        };
        let count = self.leaves.len() as u32;
        let is_off = first.is_none() && last.is_none();
        if is_off && count <= WHOLE_LEAVES_MAX {
            let counts = Counts { leaves: count, resident: STUB };
            return Slot::Child(Child { hash: self.subtree(4 * depth).hash(), counts, link: Link::Stub });
        }
        let parting = first_nibble(start, end);
        if is_off && count <= STUB_LEAVES_MAX {
            return self.hollow(parting).lift(start, parting, depth);
        }
        let through = |path: &&Path| first_nibble(path, start) >= parting;
        let (first, last) = (first.filter(through), last.filter(through));
        let mut rest = self;
        let slots = std::array::from_fn::<_, ARITY, _>(|i| {
            let slot = rest.take(|leaf| nibble(&leaf.path, parting) <= i);
            let at = |path: &&Path| nibble(path, parting) == i;
            slot.slot(parting + 1, first.filter(at), last.filter(at))
        });
        assemble(slots, start, parting, 0).lift(start, parting, depth)
    }

    /// Builds the node at `depth`. Quarters of two leaves or more are hidden.
    fn hollow(self, depth: usize) -> Slot {
        let mut slots = <[Slot; ARITY]>::default();
        let mut quarters = Quarters::default();
        let mut rest = self;
        for quarter in 0..4 {
            let part = rest.take(|leaf| quarter_of(&leaf.path, depth) <= quarter);
            match part.leaves {
                [] => {}
                [leaf] => slots[nibble(&leaf.path, depth)] = Slot::Leaf(*leaf),
                leaves => {
                    quarters.hashes[quarter] = part.subtree(4 * depth + 2).hash();
                    quarters.hidden[quarter] = leaves.len() as u16;
                }
            }
        }
        Slot::Child(Child::of(Arc::new(Node::new(slots, Some(Box::new(quarters)), 0, 0))))
    }

    /// As [`slipstream_types::tree::subtree`].
    fn subtree(self, bit: usize) -> Subtree {
        tree::fold_leaves(self.leaves, self.hashes, bit)
    }
}
