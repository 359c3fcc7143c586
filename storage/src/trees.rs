//! [`RecentTrees`]: trees of states before the head, to prove rows of them.

use std::collections::VecDeque;

use slipstream_types::BatchNumber;

use crate::{schema::StateColumn, state::Tree};

/// Maximum number of trees that are remembered. Clients return for further rows of one state, and many ask for the head. Each tree
/// keeps nodes in memory that batches after it changed, within what the head's tree leaves free of
/// `storage.tree_memory_mib`.
const TREES_MAX: usize = 4;

/// The tree after one batch.
struct Recent {
    number: BatchNumber,
    column: StateColumn,
    tree: Tree,
    /// [`Tree::shed`] of the head's tree when this tree was derived from it.
    base: u64,
}

/// Remembered trees; the most recently used is last.
#[derive(Default)]
pub(crate) struct RecentTrees(VecDeque<Recent>);

impl RecentTrees {
    /// Returns the tree after a batch, of a state in `column`, and marks it as used.
    pub(crate) fn get(&mut self, number: BatchNumber, column: StateColumn) -> Option<Tree> {
        let at = self.0.iter().position(|it| it.number == number && it.column == column)?;
        let recent = self.0.remove(at)?;
        let tree = recent.tree.clone();
        self.0.push_back(recent);
        Some(tree)
    }

    /// Remembers a tree that was derived from the head's tree, whose [`Tree::shed`] was `base` then. Evicts the least
    /// recently used tree beyond [`TREES_MAX`].
    pub(crate) fn put(&mut self, number: BatchNumber, column: StateColumn, tree: Tree, base: u64) {
        self.0.retain(|it| it.number != number);
        self.0.push_back(Recent { number, column, tree, base });
        if self.0.len() > TREES_MAX {
            self.0.pop_front();
        }
    }

    /// Evicts trees that are more than `batches` behind the new head, and those of another column.
    pub(crate) fn release(&mut self, head: BatchNumber, column: StateColumn, batches: u64) {
        let is_recent =
            |it: &Recent| it.column == column && it.number <= head && head.since(it.number) <= batches;
        self.0.retain(is_recent);
    }

    /// Evicts the least recently used trees until the rest, together with the head's tree, fits into `resident_max`
    /// leaves.
    pub(crate) fn fit(&mut self, head: &Tree, resident_max: u64) {
        let free = resident_max.saturating_sub(head.resident());
        while self.leaves_beside(head) > free {
            self.0.pop_front();
        }
    }

    /// The most, in leaves, that these trees keep in memory beside the head's tree.
    fn leaves_beside(&self, head: &Tree) -> u64 {
        // The nodes that the head has shed since the first of these trees was made are kept once, however many trees
        // share them. A head whose tree was rebuilt shares nothing.
        let shed = |it: &Recent| head.shed().checked_sub(it.base).unwrap_or_else(|| it.tree.resident());
        let shared = self.0.iter().map(shed).max().unwrap_or(0);
        let own = |it: &Recent| it.tree.shed().saturating_sub(it.base);
        self.0.iter().map(own).fold(shared, u64::saturating_add)
    }

    #[cfg(test)]
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.0.iter().map(|it| it.number.get()).collect()
    }
}
