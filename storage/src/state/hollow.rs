//! Nodes that know some of their quarters by their hashes alone.
//!
//! A state of 100 million keys has a million lowest nodes of some hundred leaves each. If such a node were evicted
//! whole, any touch would read a hundred rows. Reduced to the hashes of its quarters it costs 136 bytes, and a touch
//! reads two dozen rows, which is one block of the table. A quarter of fewer than two leaves stays visible: a lone
//! leaf moves up, so its parent does not join its hash.

use std::array;

use slipstream_types::{
    Digest, Path,
    tree::{Leaf, Subtree, fold_leaves},
};

use super::{
    RowSource, Update,
    nibbles::{nibble, with_nibble},
    node::{ARITY, Node},
    range::Range,
    slot::{Counts, Slot},
    tree::build_slots,
};
use crate::error::StorageError;

/// Cost of the hashes of a node's quarters, counted in leaves in memory.
pub(super) const SHELL: u32 = 2;
/// Maximum number of leaves of a quarter that changes while hidden. A frontier allows no more for a part that is out of memory.
const HIDDEN_LEAVES_MAX: usize = 256;
/// Slots of a quarter.
const QUARTER: usize = 4;
/// Bits by which a quarter lies below its node.
const QUARTER_BITS: usize = 2;

/// The range of the leaves below a quarter of a node at `depth`. The first nibbles of `path` lead to the node.
pub(super) fn quarter_range(path: &Path, depth: usize, quarter: usize) -> Range {
    Range::below(&with_nibble(path, depth, QUARTER * quarter), 4 * depth + QUARTER_BITS)
}

/// The quarter of a node at `depth` that a path goes through.
pub(super) fn quarter_of(path: &Path, depth: usize) -> usize {
    nibble(path, depth) / QUARTER
}

impl Node {
    /// Whether any quarter is known by its hash alone.
    pub(super) fn is_hollow(&self) -> bool {
        self.quarters.as_ref().is_some_and(|quarters| quarters.hidden != [0; 4])
    }

    /// Whether `quarter` is known by its hash alone.
    pub(super) fn is_hidden(&self, quarter: usize) -> bool {
        self.quarters.as_ref().is_some_and(|quarters| quarters.hidden[quarter] > 0)
    }

    /// Counts of the hidden quarters.
    pub(super) fn hidden_counts(&self) -> Counts {
        let leaves =
            self.quarters.as_ref().map_or(0, |quarters| quarters.hidden.iter().copied().map(u32::from).sum());
        Counts { leaves, resident: if leaves > 0 { SHELL } else { 0 } }
    }

    /// Leaves of a quarter, hidden or not.
    pub(super) fn leaves_of(&self, quarter: usize) -> u32 {
        let hidden = self.quarters.as_ref().map_or(0, |quarters| quarters.hidden[quarter]);
        u32::from(hidden)
            + (QUARTER * quarter..QUARTER * (quarter + 1)).map(|slot| self.slot(slot).leaves()).sum::<u32>()
    }

    /// Hides all quarters of two leaves or more. The node has at most 65,535 leaves.
    pub(super) fn hide(&mut self) {
        let mut quarters = self.quarters.as_deref().copied().unwrap_or_default();
        let before = quarters.hidden;
        for (quarter, hidden) in quarters.hidden.iter_mut().enumerate().filter(|(_, hidden)| **hidden == 0) {
            if let Subtree::Inner(hash) = self.fold(QUARTER * quarter, QUARTER) {
                quarters.hashes[quarter] = hash;
                *hidden = self.leaves_of(quarter) as u16;
            }
        }
        let touched = self.touched;
        let mut slots = std::mem::take(self).into_slots();
        for (slot, of) in slots.iter_mut().enumerate() {
            if quarters.hidden[slot / QUARTER] != before[slot / QUARTER] {
                *of = Slot::Empty;
            }
        }
        *self = Node::new(slots, Some(Box::new(quarters)), 0, touched);
    }

    /// Rebuilds a hidden quarter from its rows. The node stands at `depth`, and the first nibbles of `path` lead to
    /// it.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] if the rows do not match the quarter's hash; otherwise errors of the disk.
    pub(super) fn show(
        &mut self,
        quarter: usize,
        path: &Path,
        depth: usize,
        rows: &dyn RowSource,
    ) -> Result<(), StorageError> {
        let range = quarter_range(path, depth, quarter);
        let leaves = range.leaves(rows)?;
        self.show_leaves(quarter, &leaves, depth, &range)
    }

    fn show_leaves(
        &mut self,
        quarter: usize,
        leaves: &[Leaf],
        depth: usize,
        range: &Range,
    ) -> Result<(), StorageError> {
        let Some(mut quarters) = self.quarters.take() else { return Ok(()) };
        quarters.hidden[quarter] = 0;
        let touched = self.touched;
        let mut slots = std::mem::take(self).into_slots();
        let shown = quarter_slots(leaves, quarter, depth, touched);
        for (slot, shown) in slots[QUARTER * quarter..].iter_mut().zip(shown) {
            *slot = shown;
        }
        let expected = quarters.hashes[quarter];
        *self = Node::new(slots, Some(quarters), 0xf << (QUARTER * quarter), touched);
        let found = self.fold(QUARTER * quarter, QUARTER);
        if found == Subtree::Inner(expected) { Ok(()) } else { Err(range.refuse()) }
    }

    /// Computes a hidden quarter's new hash from its rows and at least one update in it. The quarter stays hidden, so
    /// this makes no node and takes no memory. Returns the quarter's leaves after the updates, which the rows lack
    /// until the updates are written. Returns `None` if it had to show the quarter; the updates are not applied then.
    ///
    /// # Errors
    /// Those of [`Node::show`].
    pub(super) fn fold_hidden(
        &mut self,
        quarter: usize,
        updates: &[Update],
        depth: usize,
        rows: &dyn RowSource,
    ) -> Result<Option<(Range, Vec<Leaf>)>, StorageError> {
        let range = quarter_range(&updates[0].0, depth, quarter);
        let leaves = range.leaves(rows)?;
        let hashes = Leaf::hashes(&leaves);
        let (after, mut hashes_after) = merged(&leaves, &hashes, updates);
        if !(2..=HIDDEN_LEAVES_MAX).contains(&after.len()) {
            return self.show_leaves(quarter, &leaves, depth, &range).map(|()| None);
        }
        let Some(quarters) = &mut self.quarters else { return Ok(None) };
        let (bit, mut hashes) = (4 * depth + QUARTER_BITS, hashes);
        if fold_leaves(&leaves, &mut hashes, bit) != Subtree::Inner(quarters.hashes[quarter]) {
            return Err(range.refuse());
        }
        quarters.hashes[quarter] = fold_leaves(&after, &mut hashes_after, bit).hash();
        quarters.hidden[quarter] = after.len() as u16;
        Ok(Some((range, after)))
    }

    /// Returns a copy of the node that shows the quarter on the way to `path`; `None` if that quarter is visible
    /// already.
    pub(super) fn shown(
        &self,
        path: &Path,
        depth: usize,
        rows: &dyn RowSource,
    ) -> Result<Option<Node>, StorageError> {
        let quarter = quarter_of(path, depth);
        if !self.is_hidden(quarter) {
            return Ok(None);
        }
        let mut node = self.clone();
        node.show(quarter, path, depth, rows)?;
        Ok(Some(node))
    }

    /// Forgets a hidden quarter, and returns its slots as built from `leaves`.
    pub(super) fn replace_hidden(
        &mut self,
        quarter: usize,
        leaves: &[Leaf],
        depth: usize,
    ) -> impl Iterator<Item = (usize, Slot)> + use<> {
        if let Some(quarters) = &mut self.quarters {
            quarters.hidden[quarter] = 0;
        }
        let slots = quarter_slots(leaves, quarter, depth, self.touched);
        slots.into_iter().enumerate().map(move |(slot, shown)| (QUARTER * quarter + slot, shown))
    }
}

/// Merges sorted updates into sorted leaves and their hashes.
fn merged(leaves: &[Leaf], hashes: &[Digest], updates: &[Update]) -> (Vec<Leaf>, Vec<Digest>) {
    let mut after = Vec::with_capacity(leaves.len() + updates.len());
    let mut hashes_after = Vec::with_capacity(after.capacity());
    let mut taken = 0;
    for (path, value_hash) in updates {
        let before = taken + leaves[taken..].partition_point(|leaf| leaf.path < *path);
        after.extend_from_slice(&leaves[taken..before]);
        hashes_after.extend_from_slice(&hashes[taken..before]);
        taken = before + usize::from(leaves.get(before).is_some_and(|leaf| leaf.path == *path));
        if let Some(value_hash) = *value_hash {
            let leaf = Leaf { path: *path, value_hash };
            after.push(leaf);
            hashes_after.push(leaf.hash());
        }
    }
    after.extend_from_slice(&leaves[taken..]);
    hashes_after.extend_from_slice(&hashes[taken..]);
    (after, hashes_after)
}

/// Builds the four slots of a quarter of a node at `depth`.
fn quarter_slots(leaves: &[Leaf], quarter: usize, depth: usize, touched: u32) -> [Slot; QUARTER] {
    let mut slots: [Slot; QUARTER] = array::from_fn(|_| Slot::Empty);
    build_slots(&mut slots, QUARTER * quarter, leaves, depth, touched);
    slots
}

const _: () = assert!(ARITY == 4 * QUARTER, "a node has four quarters");
