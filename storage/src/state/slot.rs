//! [`Slot`]: the content of one place of a node, and how it moves to another depth.

use std::{
    ops::{Add, Sub},
    sync::Arc,
};

use slipstream_types::{
    Digest, Path,
    tree::{Leaf, Subtree},
};

use super::{nibbles::lift_hash, node::Node};

/// The content of one place of a node.
#[derive(Clone, Default)]
pub(super) enum Slot {
    #[default]
    Empty,
    Leaf(Leaf),
    Child(Child),
}

/// A borrowed [`Slot`].
pub(super) enum SlotRef<'a> {
    Empty,
    Leaf(&'a Leaf),
    Child(&'a Child),
}

/// Two leaves or more below one slot.
#[derive(Clone)]
pub(super) struct Child {
    /// Hash of the subtree at the slot's depth.
    pub(super) hash: Digest,
    pub(super) counts: Counts,
    pub(super) link: Link,
}

/// Leaves below a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) leaves: u32,
    /// Leaves in memory, plus the cost of what stands in for evicted parts: see [`super::budget`].
    pub(super) resident: u32,
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts { leaves: self.leaves + other.leaves, resident: self.resident + other.resident }
    }
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, other: Counts) -> Counts {
        Counts { leaves: self.leaves - other.leaves, resident: self.resident - other.resident }
    }
}

#[derive(Clone)]
pub(super) enum Link {
    /// A node at the slot's depth.
    Node(Arc<Node>),
    /// A node further down.
    Run(Arc<Run>),
    /// Evicted: its leaves are all rows below the slot.
    Stub,
}

/// A run of nibbles that all leaves below share. It needs no nodes, so keys that are ground into one prefix cannot
/// use more memory.
#[derive(Clone)]
pub(super) struct Run {
    /// All leaves below share its first `depth` nibbles.
    pub(super) path: Path,
    pub(super) depth: usize,
    pub(super) node: Arc<Node>,
}

impl Slot {
    pub(super) fn as_ref(&self) -> SlotRef<'_> {
        match self {
            Slot::Empty => SlotRef::Empty,
            Slot::Leaf(leaf) => SlotRef::Leaf(leaf),
            Slot::Child(child) => SlotRef::Child(child),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        match self {
            Slot::Empty => Counts::default(),
            Slot::Leaf(_) => Counts { leaves: 1, resident: 1 },
            Slot::Child(child) => child.counts,
        }
    }

    /// Moves the slot from depth `from` to depth `to`, where its leaves must be all that `path` leads to.
    pub(super) fn lift(self, path: &Path, from: usize, to: usize) -> Slot {
        match self {
            Slot::Child(child) if from > to => Slot::Child(child.lift(path, from, to)),
            slot => slot,
        }
    }
}

impl SlotRef<'_> {
    pub(super) fn leaves(&self) -> u32 {
        match self {
            SlotRef::Empty => 0,
            SlotRef::Leaf(_) => 1,
            SlotRef::Child(child) => child.counts.leaves,
        }
    }

    pub(super) fn subtree(&self) -> Subtree {
        match self {
            SlotRef::Empty => Subtree::Empty,
            SlotRef::Leaf(leaf) => Subtree::Leaf(leaf.hash()),
            SlotRef::Child(child) => Subtree::Inner(child.hash),
        }
    }
}

impl Child {
    pub(super) fn of(node: Arc<Node>) -> Child {
        Child { hash: node.hash(), counts: node.counts(), link: Link::Node(node) }
    }

    fn lift(self, path: &Path, from: usize, to: usize) -> Child {
        let hash = lift_hash(self.hash, path, 4 * from, 4 * to);
        let link = match self.link {
            Link::Node(node) => Link::Run(Arc::new(Run { path: *path, depth: from, node })),
            link => link,
        };
        Child { hash, link, ..self }
    }

    /// Moves the child out to be changed, and leaves a placeholder.
    pub(super) fn take(&mut self) -> Child {
        let empty = Child { hash: Digest::ZERO, counts: Counts::default(), link: Link::Stub };
        std::mem::replace(self, empty)
    }
}

impl Run {
    pub(super) fn into_node(self) -> Node {
        Arc::unwrap_or_clone(self.node)
    }

    /// The run's node as a child at `depth`.
    pub(super) fn at(run: Arc<Run>, counts: Counts, depth: usize) -> Child {
        let hash = lift_hash(run.node.hash(), &run.path, 4 * run.depth, 4 * depth);
        let link = if run.depth == depth { Link::Node(Arc::clone(&run.node)) } else { Link::Run(run) };
        Child { hash, counts, link }
    }
}
