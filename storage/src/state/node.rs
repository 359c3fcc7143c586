//! [`Node`]: the slots at one depth and their hashes.
//!
//! A [`Node`] stands at a depth counted in nibbles and has 16 slots, which span 4 binary levels. Its arrays hold only
//! the occupied slots: about 125 bytes a key in all. A node keeps no hashes of leaves: recomputing one is cheaper
//! than copying and fetching 32 more bytes. A full node keeps the hashes of its quarters, so a change of one slot
//! costs 6 joins instead of 15. A quarter can also be known by its hash alone: see [`super::hollow`].

use std::sync::Arc;

use slipstream_types::{
    Digest, Path,
    tree::{Leaf, Subtree},
};

use super::{
    nibbles::with_nibble,
    slot::{Child, Counts, Slot, SlotRef},
};

pub(super) const ARITY: usize = 16;
/// Occupied slots from which on a node keeps the hashes of its quarters. With fewer, folding all of them costs about
/// the same.
const QUARTERS_SLOTS_MIN: u32 = 6;

/// Slots as a structure of arrays: a bit per occupied slot, and the occupied slots in order.
#[derive(Clone, Default)]
pub(super) struct Node {
    leaf_map: u16,
    child_map: u16,
    /// The tree's generation when the node last changed.
    pub(super) touched: u32,
    pub(super) quarters: Option<Box<Quarters>>,
    pub(super) leaves: Box<[Leaf]>,
    pub(super) children: Box<[Child]>,
}

/// The hashes of a node's quarters, each of four slots.
#[derive(Clone, Copy, Default)]
pub(super) struct Quarters {
    pub(super) hashes: [Digest; 4],
    /// Leaves of a quarter that is known by its hash alone, two or more; its slots are empty. 0 for any other
    /// quarter.
    pub(super) hidden: [u16; 4],
}

impl Node {
    /// Takes over the hashes of quarters that have no `changed` slot.
    pub(super) fn new(
        slots: [Slot; ARITY],
        quarters: Option<Box<Quarters>>,
        changed: u16,
        touched: u32,
    ) -> Node {
        let (mut leaf_map, mut child_map) = (0, 0);
        for (i, slot) in slots.iter().enumerate() {
            match slot {
                Slot::Empty => {}
                Slot::Leaf(_) => leaf_map |= 1 << i,
                Slot::Child(_) => child_map |= 1 << i,
            }
        }
        let mut leaves = Vec::with_capacity(u16::count_ones(leaf_map) as usize);
        let mut children = Vec::with_capacity(u16::count_ones(child_map) as usize);
        for slot in slots {
            match slot {
                Slot::Empty => {}
                Slot::Leaf(leaf) => leaves.push(leaf),
                Slot::Child(child) => children.push(child),
            }
        }
        let (leaves, children) = (leaves.into_boxed_slice(), children.into_boxed_slice());
        let mut node = Node { leaf_map, child_map, touched, quarters, leaves, children };
        node.rehash(changed);
        node
    }

    fn taken(&self) -> u16 {
        self.leaf_map | self.child_map
    }

    fn rank(map: u16, slot: usize) -> usize {
        (map & ((1 << slot) - 1)).count_ones() as usize
    }

    pub(super) fn slot(&self, slot: usize) -> SlotRef<'_> {
        if self.child_map >> slot & 1 == 1 {
            SlotRef::Child(&self.children[Self::rank(self.child_map, slot)])
        } else if self.leaf_map >> slot & 1 == 1 {
            SlotRef::Leaf(&self.leaves[Self::rank(self.leaf_map, slot)])
        } else {
            SlotRef::Empty
        }
    }

    /// Reads a byte of everything that a change of the slot touches; see [`super::warm`].
    pub(super) fn peek(&self, slot: usize) -> u8 {
        let kept = self.quarters.as_ref().map_or(0, |quarters| quarters.hashes[slot / 4].0[0]);
        let taken = match self.slot(slot) {
            SlotRef::Empty => 0,
            SlotRef::Leaf(leaf) => leaf.value_hash.0[0],
            SlotRef::Child(child) => child.hash.0[0] ^ child.counts.leaves as u8,
        };
        kept ^ taken
    }

    /// Moves a slot out, to be changed and put back.
    pub(super) fn take(&mut self, slot: usize) -> Slot {
        if self.child_map >> slot & 1 == 1 {
            Slot::Child(self.children[Self::rank(self.child_map, slot)].take())
        } else if self.leaf_map >> slot & 1 == 1 {
            Slot::Leaf(self.leaves[Self::rank(self.leaf_map, slot)])
        } else {
            Slot::Empty
        }
    }

    /// Puts a slot back. If its kind changed, returns it for [`Node::reshaped`] instead.
    pub(super) fn put(&mut self, slot: usize, changed: Slot) -> Option<Slot> {
        match changed {
            Slot::Child(child) if self.child_map >> slot & 1 == 1 => {
                self.children[Self::rank(self.child_map, slot)] = child;
                None
            }
            Slot::Leaf(leaf) if self.leaf_map >> slot & 1 == 1 => {
                self.leaves[Self::rank(self.leaf_map, slot)] = leaf;
                None
            }
            Slot::Empty if self.taken() >> slot & 1 == 0 => None,
            other => Some(other),
        }
    }

    /// Rebuilds the slot at `depth` after some of its slots changed their kind. All leaves below share the nibbles of
    /// `path` before `depth`.
    pub(super) fn reshaped(
        &mut self,
        reshaped: Vec<(usize, Slot)>,
        changed: u16,
        path: &Path,
        depth: usize,
    ) -> Slot {
        let mut node = std::mem::take(self);
        let (kept, touched) = (node.quarters.take(), node.touched);
        let mut slots = node.into_slots();
        for (i, slot) in reshaped {
            slots[i] = slot;
        }
        assemble_from(slots, kept, changed, path, depth, touched)
    }

    pub(super) fn into_slots(self) -> [Slot; ARITY] {
        let mut leaves = self.leaves.into_iter();
        let mut children = self.children.into_iter();
        std::array::from_fn(|i| {
            if self.child_map >> i & 1 == 1 {
                children.next().map_or(Slot::Empty, Slot::Child)
            } else if self.leaf_map >> i & 1 == 1 {
                leaves.next().map_or(Slot::Empty, Slot::Leaf)
            } else {
                Slot::Empty
            }
        })
    }

    /// Updates the kept hashes after the slots of `changed` changed.
    pub(super) fn rehash(&mut self, changed: u16) {
        if self.taken().count_ones() < QUARTERS_SLOTS_MIN && !self.is_hollow() {
            self.quarters = None;
            return;
        }
        let kept = self.quarters.take();
        let changed = if kept.is_some() { changed } else { u16::MAX };
        let mut quarters = kept.unwrap_or_default();
        for quarter in 0..4 {
            if changed >> (4 * quarter) & 0xf != 0 && quarters.hidden[quarter] == 0 {
                quarters.hashes[quarter] = self.fold_slots(4 * quarter, 4).hash();
            }
        }
        self.quarters = Some(quarters);
    }

    /// Returns the subtree of `len` slots (a power of two) from `first` on. Fewer than four slots must not lie in a
    /// hidden quarter.
    pub(super) fn fold(&self, first: usize, len: usize) -> Subtree {
        match len {
            ..4 => self.fold_slots(first, len),
            4 => self.fold_quarter(first / 4),
            _ => {
                let mut quarters: [Subtree; 4] = Default::default();
                let quarters = &mut quarters[..len / 4];
                for (quarter, of) in quarters.iter_mut().enumerate() {
                    *of = self.fold_quarter(first / 4 + quarter);
                }
                Subtree::fold(quarters)
            }
        }
    }

    fn fold_quarter(&self, quarter: usize) -> Subtree {
        let Some(quarters) = &self.quarters else { return self.fold_slots(4 * quarter, 4) };
        let taken = self.taken() >> (4 * quarter) & 0xf;
        let is_lone_leaf = taken.count_ones() == 1 && self.child_map >> (4 * quarter) & 0xf == 0;
        match (taken, quarters.hidden[quarter]) {
            (0, 0) => Subtree::Empty,
            (_, 0) if is_lone_leaf => self.fold_slots(4 * quarter, 4),
            _ => Subtree::Inner(quarters.hashes[quarter]),
        }
    }

    /// Folds up to four slots without the kept hashes. Leaves and joins are hashed two at a time.
    fn fold_slots(&self, first: usize, len: usize) -> Subtree {
        let mut subtrees: [Subtree; 4] = Default::default();
        let mut waiting: Option<(usize, &Leaf)> = None;
        for at in 0..len {
            match self.slot(first + at) {
                SlotRef::Empty => {}
                SlotRef::Child(child) => subtrees[at] = Subtree::Inner(child.hash),
                SlotRef::Leaf(leaf) => {
                    let Some((before, other)) = waiting.take() else {
                        waiting = Some((at, leaf));
                        continue;
                    };
                    let [other, hash] = Leaf::hash_pair([other, leaf]);
                    subtrees[at] = Subtree::Leaf(hash);
                    subtrees[before] = Subtree::Leaf(other);
                }
            }
        }
        if let Some((at, leaf)) = waiting {
            subtrees[at] = Subtree::Leaf(leaf.hash());
        }
        Subtree::fold(&mut subtrees[..len])
    }

    /// Returns the leaf of a fold that is a lone leaf.
    pub(super) fn lone_leaf(&self, first: usize, len: usize) -> Option<&Leaf> {
        (first..first + len).find_map(|slot| match self.slot(slot) {
            SlotRef::Leaf(leaf) => Some(leaf),
            _ => None,
        })
    }

    /// Hash of the subtree at its own depth.
    pub(super) fn hash(&self) -> Digest {
        self.fold(0, ARITY).hash()
    }

    pub(super) fn counts(&self) -> Counts {
        let own = self.leaves.len() as u32;
        let own = Counts { leaves: own, resident: own };
        self.children.iter().fold(own + self.hidden_counts(), |sum, child| sum + child.counts)
    }
}

/// Builds the slot at `depth` from 16 slots. A lone leaf moves up, a lone child becomes a run, and a node needs two
/// slots or more.
pub(super) fn assemble(slots: [Slot; ARITY], path: &Path, depth: usize, touched: u32) -> Slot {
    assemble_from(slots, None, u16::MAX, path, depth, touched)
}

fn assemble_from(
    mut slots: [Slot; ARITY],
    quarters: Option<Box<Quarters>>,
    changed: u16,
    path: &Path,
    depth: usize,
    touched: u32,
) -> Slot {
    if quarters.as_ref().is_some_and(|quarters| quarters.hidden != [0; 4]) {
        return Slot::Child(Child::of(Arc::new(Node::new(slots, quarters, changed, touched))));
    }
    let mut taken = (0..ARITY).filter(|i| !matches!(slots[*i], Slot::Empty));
    match (taken.next(), taken.next()) {
        (None, _) => Slot::Empty,
        (Some(lone), None) => {
            let path = with_nibble(path, depth, lone);
            std::mem::take(&mut slots[lone]).lift(&path, depth + 1, depth)
        }
        _ => Slot::Child(Child::of(Arc::new(Node::new(slots, quarters, changed, touched)))),
    }
}
