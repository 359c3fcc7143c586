//! [`Tree`]: one version of the state's leaves.

use std::sync::Arc;

use slipstream_types::{
    Digest, Path,
    tree::{Leaf, Subtree},
};

use super::{
    RowSource, Update,
    hidden_parts::{HiddenParts, LAYERS_MAX, Layer, LayeredRows},
    nibbles::{first_nibble, lift_hash, nibble},
    no_rows,
    node::{ARITY, Node, assemble},
    pass::{Change, Pass},
    range::Range,
    slot::{Child, Link, Slot, SlotRef},
};
use crate::error::StorageError;

/// With fewer updates or leaves, one thread is faster than two.
pub(super) const PARALLEL_MIN: usize = 512;

/// One version of the tree. A clone shares all nodes.
#[derive(Clone)]
pub(crate) struct Tree {
    pub(super) root: Slot,
    /// The rows of this version, or of an earlier one.
    pub(super) rows: Arc<dyn RowSource>,
    /// The hidden parts that batches changed and the rows lack, oldest first.
    pub(super) layers: Vec<Layer>,
    /// Grows by one with every batch.
    pub(super) generation: u32,
    /// The slot of the root where the next search for cold nodes begins.
    pub(super) hand: usize,
    /// Leaves in memory below which a search finds nothing.
    pub(super) least: u64,
    /// Whether memory is short. If so, a hidden part that is touched for the first time in a while stays hidden.
    pub(super) is_short: bool,
    /// See [`Tree::shed`].
    pub(super) shed: u64,
}

impl Default for Tree {
    fn default() -> Self {
        Tree {
            root: Slot::Empty,
            rows: no_rows(),
            layers: Vec::new(),
            generation: 0,
            hand: 0,
            least: 0,
            is_short: false,
            shed: 0,
        }
    }
}

impl Tree {
    /// Builds the tree of leaves sorted by path, each path once.
    pub(crate) fn build(leaves: &[Leaf]) -> Tree {
        Tree { root: build(leaves, 0, 0), ..Tree::default() }
    }

    /// Returns the root, as `slipstream_types::tree::root` defines it.
    pub(crate) fn root(&self) -> Digest {
        self.root.as_ref().subtree().hash()
    }

    /// Sets the rows that the tree reads from. A changed tree belongs to the rows after the change. A clone that is
    /// kept for a checkpoint belongs to the checkpoint's rows.
    pub(crate) fn read_from(self, rows: Arc<dyn RowSource>) -> Tree {
        self.read_ahead_of(rows, 0)
    }

    /// As [`Tree::read_from`], with rows that lack the last `batches` batches that were applied.
    pub(crate) fn read_ahead_of(mut self, rows: Arc<dyn RowSource>, batches: u32) -> Tree {
        self.layers.retain(|layer| self.generation.wrapping_sub(layer.generation) < batches);
        Tree { rows, ..self }
    }

    /// The rows that evicted parts are read from.
    pub(super) fn source(&self) -> LayeredRows<'_> {
        LayeredRows { layers: &self.layers, rows: &*self.rows }
    }

    /// Returns the tree after updates, which are sorted by path, each path once. Clones of this tree do not change;
    /// unshared nodes change in place.
    ///
    /// # Errors
    /// If the rows of a stub cannot be read.
    pub(crate) fn apply(self, updates: &[Update]) -> Result<Tree, StorageError> {
        self.pass(updates, Change::Update)
    }

    /// Reads the parts of the tree around some paths again from the rows. The paths are sorted, each once; only their
    /// first [`REREAD_NIBBLES`](super::REREAD_NIBBLES) nibbles count.
    ///
    /// # Errors
    /// If the rows cannot be read.
    pub(crate) fn reread(self, paths: &[Path]) -> Result<Tree, StorageError> {
        let touched: Vec<Update> = paths.iter().map(|path| (*path, None)).collect();
        self.pass(&touched, Change::Reread)
    }

    fn pass(self, updates: &[Update], change: Change) -> Result<Tree, StorageError> {
        debug_assert!(updates.is_sorted_by(|a, b| a.0 < b.0), "updates are sorted, each path once");
        let generation = self.generation.wrapping_add(1);
        let shed = self.shed + Self::copied_by(updates.len() as u64, self.resident());
        let hidden = HiddenParts::default();
        let pass = Pass {
            rows: &LayeredRows { layers: &self.layers, rows: &*self.rows },
            generation,
            is_fetched: false,
            change,
            hidden: (self.is_short && self.layers.len() < LAYERS_MAX).then_some(&hidden),
        };
        let root = pass.enter(self.root, updates, 0)?;
        let mut layers = self.layers;
        layers.extend(hidden.into_layer(generation));
        Ok(Tree { root, generation, layers, shed, ..self })
    }

    /// Returns the subtree of all leaves that share the first `bits` bits of `path`, to compare two versions part by
    /// part.
    ///
    /// # Errors
    /// If the rows of a stub cannot be read.
    pub(crate) fn subtree(&self, path: &Path, bits: usize) -> Result<Subtree, StorageError> {
        subtree(self.root.as_ref(), path, bits, 0, &self.source())
    }
}

/// Builds the slot at depth `from` of leaves that share the nibbles before it.
pub(super) fn build(leaves: &[Leaf], from: usize, generation: u32) -> Slot {
    let (first, last) = match leaves {
        [] => return Slot::Empty,
        [leaf] => return Slot::Leaf(*leaf),
        [first, .., last] => (first, last),
    };
    let depth = first_nibble(&first.path, &last.path);
    let mut slots = <[Slot; ARITY]>::default();
    build_slots(&mut slots, 0, leaves, depth, generation);
    assemble(slots, &first.path, depth, generation).lift(&first.path, depth, from)
}

/// Fills the slots from `first` on with leaves that diverge at `depth`.
pub(super) fn build_slots(slots: &mut [Slot], first: usize, leaves: &[Leaf], depth: usize, generation: u32) {
    if let [slot] = slots {
        *slot = build(leaves, depth + 1, generation);
        return;
    }
    let half = slots.len() / 2;
    let (left, right) = slots.split_at_mut(half);
    let (left_leaves, right_leaves) =
        leaves.split_at(leaves.partition_point(|leaf| nibble(&leaf.path, depth) < first + half));
    let mut build_left = || build_slots(left, first, left_leaves, depth, generation);
    let mut build_right = || build_slots(right, first + half, right_leaves, depth, generation);
    if leaves.len() >= PARALLEL_MIN {
        rayon::join(build_left, build_right);
    } else {
        build_left();
        build_right();
    }
}

/// Rebuilds an evicted subtree that stood at `depth` on the way to `path`.
pub(super) fn resolve(
    stub: &Child,
    path: &Path,
    depth: usize,
    rows: &dyn RowSource,
    generation: u32,
) -> Result<Slot, StorageError> {
    let range = Range::below(path, 4 * depth);
    match build(&range.leaves(rows)?, depth, generation) {
        Slot::Child(child) if child.hash == stub.hash => Ok(Slot::Child(child)),
        _ => Err(range.refuse()),
    }
}

fn subtree(
    slot: SlotRef<'_>,
    path: &Path,
    bits: usize,
    depth: usize,
    rows: &dyn RowSource,
) -> Result<Subtree, StorageError> {
    let child = match slot {
        SlotRef::Empty => return Ok(Subtree::Empty),
        SlotRef::Leaf(leaf) => {
            let inside = leaf.path.common_bits(path) >= bits;
            return Ok(if inside { Subtree::Leaf(leaf.hash()) } else { Subtree::Empty });
        }
        SlotRef::Child(child) if bits == 4 * depth => return Ok(Subtree::Inner(child.hash)),
        SlotRef::Child(child) => child,
    };
    match &child.link {
        Link::Stub => subtree(resolve(child, path, depth, rows, 0)?.as_ref(), path, bits, depth, rows),
        Link::Node(node) => subtree_in(node, path, bits, depth, rows),
        Link::Run(run) => {
            let end = 4 * run.depth;
            if run.path.common_bits(path) < bits.min(end) {
                Ok(Subtree::Empty)
            } else if bits <= end {
                Ok(Subtree::Inner(lift_hash(run.node.hash(), &run.path, end, bits)))
            } else {
                subtree_in(&run.node, path, bits, run.depth, rows)
            }
        }
    }
}

fn subtree_in(
    node: &Node,
    path: &Path,
    bits: usize,
    depth: usize,
    rows: &dyn RowSource,
) -> Result<Subtree, StorageError> {
    let slot = nibble(path, depth);
    if bits > 4 * depth + 2
        && let Some(shown) = node.shown(path, depth, rows)?
    {
        return subtree_in(&shown, path, bits, depth, rows);
    }
    match bits - 4 * depth {
        inside @ 0..4 => {
            let len = ARITY >> inside;
            Ok(node.fold(slot / len * len, len))
        }
        _ => subtree(node.slot(slot), path, bits, depth + 1, rows),
    }
}
