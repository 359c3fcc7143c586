//! Range proofs from a [`Tree`]: the siblings beside the way from the root to each end of a range.

use slipstream_types::{
    Path,
    bounded::BoundedVec,
    limits,
    tree::{Sibling, SiblingNode, StateRangeProof, Subtree},
};

use super::{
    RowSource, Tree,
    nibbles::{lift_hash, nibble},
    node::{ARITY, Node},
    slot::{Child, Link, SlotRef},
    tree::resolve,
};
use crate::error::StorageError;

impl Tree {
    /// Proves what the tree holds from `first` to `last`, both included.
    ///
    /// # Errors
    /// If the rows of a stub cannot be read.
    pub(crate) fn prove(&self, first: &Path, last: &Path) -> Result<StateRangeProof, StorageError> {
        Ok(StateRangeProof { left: self.siblings(first, true)?, right: self.siblings(last, false)? })
    }

    /// Returns the siblings on the way to `end`, by ascending depth. Either those before it (where its bit is 1), or
    /// those after it (where its bit is 0).
    fn siblings(
        &self,
        end: &Path,
        before: bool,
    ) -> Result<BoundedVec<Sibling, { limits::PROOF_SIDE_MAX }>, StorageError> {
        let mut way = SiblingWalk { end, before, rows: &self.source(), siblings: Vec::new() };
        way.pass(self.root.as_ref(), 0)?;
        Ok(BoundedVec::new(way.siblings)?)
    }
}

struct SiblingWalk<'a> {
    end: &'a Path,
    before: bool,
    rows: &'a dyn RowSource,
    siblings: Vec<Sibling>,
}

impl SiblingWalk<'_> {
    /// Adds a subtree that branches off the way at `bit`, if it is on the proved side.
    fn beside(&mut self, bit: usize, node: impl FnOnce() -> SiblingNode) {
        if self.end.bit(bit) == self.before {
            self.siblings.push(Sibling { depth: bit as u8, node: node() });
        }
    }

    fn pass(&mut self, slot: SlotRef<'_>, depth: usize) -> Result<(), StorageError> {
        match slot {
            SlotRef::Empty => Ok(()),
            SlotRef::Leaf(leaf) => {
                let parting = leaf.path.common_bits(self.end);
                if parting < 256 {
                    self.beside(parting, || SiblingNode::Leaf(*leaf));
                }
                Ok(())
            }
            SlotRef::Child(child) => self.pass_child(child, depth),
        }
    }

    fn pass_child(&mut self, child: &Child, depth: usize) -> Result<(), StorageError> {
        match &child.link {
            Link::Stub => {
                let slot = resolve(child, self.end, depth, self.rows, 0)?;
                self.pass(slot.as_ref(), depth)
            }
            Link::Node(node) => self.pass_node(node, depth),
            Link::Run(run) => {
                let parting = run.path.common_bits(self.end);
                if parting >= 4 * run.depth {
                    return self.pass_node(&run.node, run.depth);
                }
                self.beside(parting, || {
                    SiblingNode::Inner(lift_hash(run.node.hash(), &run.path, 4 * run.depth, parting + 1))
                });
                Ok(())
            }
        }
    }

    fn pass_node(&mut self, node: &Node, depth: usize) -> Result<(), StorageError> {
        if let Some(shown) = node.shown(self.end, depth, self.rows)? {
            return self.pass_node(&shown, depth);
        }
        let slot = nibble(self.end, depth);
        for bit in 0..4 {
            let len = ARITY >> (bit + 1);
            let first = ((slot / len) ^ 1) * len;
            match node.fold(first, len) {
                Subtree::Empty => {}
                Subtree::Leaf(_) => {
                    if let Some(leaf) = node.lone_leaf(first, len) {
                        self.beside(4 * depth + bit, || SiblingNode::Leaf(*leaf));
                    }
                }
                Subtree::Inner(hash) => self.beside(4 * depth + bit, || SiblingNode::Inner(hash)),
            }
        }
        self.pass(node.slot(slot), depth + 1)
    }
}
