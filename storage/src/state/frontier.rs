//! A tree's upper part as bytes: the part that [`super::budget`] would leave if everything were cold.
//!
//! ```text
//!  slot      0 │ nothing
//!            1 │ path [32] value hash [32]             a leaf
//!            2 │ leaves u16, hash [32]                 a subtree of up to 256 leaves, known as a whole
//!            3 │ four quarters                         a node
//!            4 │ path [32] depth u8, four quarters     a run
//!            5 │                                       the next part
//!  quarter   0, 1 or 2 as of a slot, or 3 and its four slots
//! ```
//! Every hash in it lies below the root, so folding it against the root is proof enough. The counts are not covered
//! by the root; the file's digests vouch for them ([`crate::frontier`]).

use std::sync::Arc;

use rayon::prelude::*;
use slipstream_types::{
    Digest, Path,
    tree::{Leaf, Subtree},
};

use super::{
    Tree,
    budget::{STUB, STUB_LEAVES_MAX, WHOLE_LEAVES_MAX},
    hollow::quarter_of,
    nibbles::nibble,
    node::{ARITY, Node, Quarters},
    slot::{Child, Counts, Link, Slot, SlotRef},
};

/// Depth of the parts, in nibbles: 256 parts keep all cores busy.
const PARTS_DEPTH: usize = 2;
/// Nibbles of a path.
const PATH_NIBBLES: usize = 64;
const EMPTY: u8 = 0;
const LEAF: u8 = 1;
const WHOLE: u8 = 2;
const NODE: u8 = 3;
const RUN: u8 = 4;
const PART: u8 = 5;

/// The upper part of one version of a tree. It holds on to the nodes, but to no rows.
pub(crate) struct Frontier {
    root: Slot,
}

/// The subtree at one place of [`PARTS_DEPTH`].
pub(crate) struct FrontierPart(Slot);

impl Tree {
    /// Returns the tree's upper part as it is now.
    pub(crate) fn frontier(&self) -> Frontier {
        Frontier { root: self.root.clone() }
    }

    /// Estimates the size of the upper part on disk, in bytes.
    pub(crate) fn frontier_bytes(&self) -> u64 {
        3 * self.leaves()
    }

    /// Rebuilds a tree from a frontier alone. Returns `None` for malformed bytes. The caller checks the root.
    pub(crate) fn of_frontier(top: &[u8], parts: Vec<FrontierPart>) -> Option<Tree> {
        let parts: Vec<Slot> = parts.into_iter().map(|part| part.0).collect();
        let root = Decoder { bytes: top, parts: parts.into_iter() }.all(0)?;
        Some(Tree { root, ..Tree::default() })
    }
}

impl FrontierPart {
    /// Decodes parts; returns `None` for malformed bytes.
    pub(crate) fn decode(parts: &[Vec<u8>]) -> Option<Vec<FrontierPart>> {
        let decode = |part: &Vec<u8>| Decoder { bytes: part, parts: Vec::new().into_iter() }.all(PARTS_DEPTH);
        parts.par_iter().map(|part| decode(part).map(FrontierPart)).collect()
    }
}

impl Frontier {
    /// Writes the top, and then the parts one by one. It uses the calling thread alone, because commits need the
    /// others.
    ///
    /// # Errors
    /// Fails with the errors of `write`.
    pub(crate) fn encode<E>(&self, mut write: impl FnMut(Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        let mut parts = Vec::new();
        let mut top = Encoder { bytes: Vec::new(), parts: Some(&mut parts) };
        top.slot(self.root.as_ref(), 0);
        write(top.bytes)?;
        for child in parts {
            let mut part = Encoder { bytes: Vec::new(), parts: None };
            part.child(child, PARTS_DEPTH);
            write(part.bytes)?;
        }
        Ok(())
    }
}

struct Encoder<'a, 'p> {
    bytes: Vec<u8>,
    /// Receives the children at [`PARTS_DEPTH`].
    parts: Option<&'p mut Vec<&'a Child>>,
}

impl<'a> Encoder<'a, '_> {
    fn slot(&mut self, slot: SlotRef<'a>, depth: usize) {
        match slot {
            SlotRef::Empty => self.bytes.push(EMPTY),
            SlotRef::Leaf(leaf) => self.leaf(leaf),
            SlotRef::Child(child) => match &mut self.parts {
                Some(parts) if depth == PARTS_DEPTH => {
                    parts.push(child);
                    self.bytes.push(PART);
                }
                _ => self.child(child, depth),
            },
        }
    }

    fn leaf(&mut self, leaf: &Leaf) {
        self.bytes.push(LEAF);
        self.bytes.extend(leaf.path.0);
        self.bytes.extend(leaf.value_hash.0);
    }

    fn whole(&mut self, leaves: u32, hash: &Digest) {
        self.bytes.push(WHOLE);
        self.bytes.extend((leaves as u16).to_le_bytes());
        self.bytes.extend(hash.0);
    }

    fn child(&mut self, child: &'a Child, depth: usize) {
        let leaves = child.counts.leaves;
        match &child.link {
            Link::Stub => self.whole(leaves, &child.hash),
            _ if leaves <= WHOLE_LEAVES_MAX => self.whole(leaves, &child.hash),
            Link::Node(node) => {
                self.bytes.push(NODE);
                self.quarters(node, leaves, depth);
            }
            Link::Run(run) => {
                self.bytes.push(RUN);
                self.bytes.extend(run.path.0);
                self.bytes.push(run.depth as u8);
                self.quarters(&run.node, leaves, run.depth);
            }
        }
    }

    /// Writes the quarters of a node with `leaves` leaves.
    fn quarters(&mut self, node: &'a Node, leaves: u32, depth: usize) {
        for quarter in 0..4 {
            let first = 4 * quarter;
            match node.fold(first, 4) {
                Subtree::Empty => self.bytes.push(EMPTY),
                Subtree::Leaf(_) => node.lone_leaf(first, 4).into_iter().for_each(|leaf| self.leaf(leaf)),
                Subtree::Inner(hash) if leaves <= STUB_LEAVES_MAX || node.is_hidden(quarter) => {
                    self.whole(node.leaves_of(quarter), &hash);
                }
                Subtree::Inner(_) => {
                    self.bytes.push(NODE);
                    (first..first + 4).for_each(|slot| self.slot(node.slot(slot), depth + 1));
                }
            }
        }
    }
}

struct Decoder<'a> {
    bytes: &'a [u8],
    parts: std::vec::IntoIter<Slot>,
}

impl Decoder<'_> {
    /// Decodes all bytes as one slot, which must use all parts.
    fn all(mut self, depth: usize) -> Option<Slot> {
        let slot = self.slot(depth)?;
        (self.bytes.is_empty() && self.parts.as_slice().is_empty()).then_some(slot)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(*array)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn slot(&mut self, depth: usize) -> Option<Slot> {
        match self.byte()? {
            EMPTY => Some(Slot::Empty),
            LEAF => self.leaf().map(Slot::Leaf),
            WHOLE => {
                let (leaves, hash) = self.whole()?;
                let counts = Counts { leaves: leaves.into(), resident: STUB };
                Some(Slot::Child(Child { hash, counts, link: Link::Stub }))
            }
            NODE => Some(Slot::Child(self.node(depth)?)),
            RUN => {
                let path = Path(self.array()?);
                let below = usize::from(self.byte()?);
                (below > depth).then_some(())?;
                Some(Slot::Child(self.node(below)?).lift(&path, below, depth))
            }
            PART => self.parts.next(),
            _ => None,
        }
    }

    fn leaf(&mut self) -> Option<Leaf> {
        Some(Leaf { path: Path(self.array()?), value_hash: Digest(self.array()?) })
    }

    fn whole(&mut self) -> Option<(u16, Digest)> {
        let leaves = u16::from_le_bytes(self.array()?);
        let is_dropped = (2..=STUB_LEAVES_MAX).contains(&leaves.into());
        Some((leaves, Digest(self.array()?))).filter(|_| is_dropped)
    }

    fn node(&mut self, depth: usize) -> Option<Child> {
        (depth < PATH_NIBBLES).then_some(())?;
        let mut slots = <[Slot; ARITY]>::default();
        let mut quarters = Quarters::default();
        for quarter in 0..4 {
            match self.byte()? {
                EMPTY => {}
                LEAF => {
                    let leaf = self.leaf()?;
                    (quarter_of(&leaf.path, depth) == quarter).then_some(())?;
                    slots[nibble(&leaf.path, depth)] = Slot::Leaf(leaf);
                }
                WHOLE => (quarters.hidden[quarter], quarters.hashes[quarter]) = self.whole()?,
                NODE => {
                    for slot in &mut slots[4 * quarter..4 * (quarter + 1)] {
                        *slot = self.slot(depth + 1)?;
                    }
                }
                _ => return None,
            }
        }
        Some(Child::of(Arc::new(Node::new(slots, Some(Box::new(quarters)), u16::MAX, 0))))
    }
}
