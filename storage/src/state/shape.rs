//! Describes the leaves of a [`Tree`] that share some first bits: none, one, or two parts and the bit at which they
//! diverge.

use slipstream_types::{
    Path,
    tree::{Leaf, Subtree},
};

use super::{
    RowSource, Tree,
    nibbles::{nibble, with_nibble},
    node::{ARITY, Node},
    slot::{Link, SlotRef},
    tree::resolve,
};
use crate::error::StorageError;

/// The leaves that share some first bits, in the detail that a subtree above them needs when it is opened further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// No leaf.
    Empty,
    /// One leaf.
    Leaf(Leaf),
    /// Two leaves or more, which share the bits of `path` before `bit` and diverge there. Later bits of `path` mean
    /// nothing.
    Fork { path: Path, bit: usize, left: Subtree, right: Subtree },
}

impl Tree {
    /// Returns the shape of the leaves that share the first `bits` bits of `path`.
    ///
    /// # Errors
    /// If the rows of a stub cannot be read.
    pub(crate) fn shape(&self, path: &Path, bits: usize) -> Result<Shape, StorageError> {
        shape(self.root.as_ref(), path, bits, 0, &self.source())
    }
}

/// The shape of a slot at `depth`, to which the first nibbles of `path` lead.
fn shape(
    slot: SlotRef<'_>,
    path: &Path,
    bits: usize,
    depth: usize,
    rows: &dyn RowSource,
) -> Result<Shape, StorageError> {
    let child = match slot {
        SlotRef::Empty => return Ok(Shape::Empty),
        SlotRef::Leaf(leaf) => {
            let inside = leaf.path.common_bits(path) >= bits;
            return Ok(if inside { Shape::Leaf(*leaf) } else { Shape::Empty });
        }
        SlotRef::Child(child) => child,
    };
    match &child.link {
        Link::Stub => shape(resolve(child, path, depth, rows, 0)?.as_ref(), path, bits, depth, rows),
        Link::Node(node) => in_node(node, path, bits, depth, rows),
        Link::Run(run) => {
            let end = 4 * run.depth;
            if run.path.common_bits(path) < bits.min(end) {
                return Ok(Shape::Empty);
            }
            let path = if bits <= end { &run.path } else { path };
            in_node(&run.node, path, bits.max(end), run.depth, rows)
        }
    }
}

/// Descends from bit `bits` to the bit at which the leaves diverge.
fn in_node(
    node: &Node,
    path: &Path,
    bits: usize,
    depth: usize,
    rows: &dyn RowSource,
) -> Result<Shape, StorageError> {
    let slot = nibble(path, depth);
    let inside = bits - 4 * depth;
    if inside >= 2
        && let Some(shown) = node.shown(path, depth, rows)?
    {
        return in_node(&shown, path, bits, depth, rows);
    }
    if inside >= 4 {
        return shape(node.slot(slot), path, bits, depth + 1, rows);
    }
    let (mut len, mut bit) = (ARITY >> inside, bits);
    let mut first = slot / len * len;
    while len > 1 {
        // Two leaves or more that diverge further down.
        let below = with_nibble(path, depth, first);
        if len == 4
            && let Some(shown) = node.shown(&below, depth, rows)?
        {
            return in_node(&shown, &below, bit, depth, rows);
        }
        len /= 2;
        match (node.fold(first, len), node.fold(first + len, len)) {
            (Subtree::Empty, Subtree::Empty) => return Ok(Shape::Empty),
            (Subtree::Empty, _) => first += len,
            (_, Subtree::Empty) => {}
            (left, right) => {
                return Ok(Shape::Fork { path: with_nibble(path, depth, first), bit, left, right });
            }
        }
        bit += 1;
    }
    shape(node.slot(first), &with_nibble(path, depth, first), bit, depth + 1, rows)
}
