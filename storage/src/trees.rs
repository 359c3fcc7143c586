//! [`RecentTrees`]: trees of states before the head, for who proves rows of them.

use std::collections::VecDeque;

use slipstream_types::BatchNumber;

use crate::{schema::StateColumn, state::Tree};

/// Batches before the head whose rows can be proved. The store holds these states anyway, so their rows are read at the head's speed and
/// need no further reader.
pub const PROVABLE_BATCHES: u64 = if cfg!(test) { 6 } else { 64 };
/// Trees that are remembered. Clients come back for further rows of one state, and many ask for the head; each keeps those nodes in memory
/// that batches after it changed, within what the head's tree leaves free of `storage.tree_memory_mib`.
const TREES_MAX: usize = 4;

/// The tree behind one batch.
struct Recent {
    number: BatchNumber,
    column: StateColumn,
    tree: Tree,
    /// What the head's tree had shed that it was made of.
    base: u64,
}

/// Trees that were asked for, the newest question last.
#[derive(Default)]
pub(crate) struct RecentTrees(VecDeque<Recent>);

impl RecentTrees {
    /// The tree behind a batch, of a state in that column.
    pub(crate) fn get(&mut self, number: BatchNumber, column: StateColumn) -> Option<Tree> {
        let at = self.0.iter().position(|it| it.number == number && it.column == column)?;
        let recent = self.0.remove(at)?;
        let tree = recent.tree.clone();
        self.0.push_back(recent);
        Some(tree)
    }

    /// Remembers a tree that was made of the head's when that had shed so much, and lets go the one that nobody asked for for longest.
    pub(crate) fn put(&mut self, number: BatchNumber, column: StateColumn, tree: Tree, base: u64) {
        self.0.retain(|it| it.number != number);
        self.0.push_back(Recent { number, column, tree, base });
        if self.0.len() > TREES_MAX {
            self.0.pop_front();
        }
    }

    /// Lets go what is too old behind a new head, or of another column than its.
    pub(crate) fn release(&mut self, head: BatchNumber, column: StateColumn) {
        let is_recent = |it: &Recent| {
            it.column == column && it.number <= head && head.since(it.number) <= PROVABLE_BATCHES
        };
        self.0.retain(is_recent);
    }

    /// Lets go those that nobody asked for for longest, until what all keep beside the head's tree fits into a number of leaves with that.
    pub(crate) fn fit(&mut self, head: &Tree, resident_max: u64) {
        let free = resident_max.saturating_sub(head.resident());
        while self.leaves_beside(head) > free {
            self.0.pop_front();
        }
    }

    /// What they keep in memory that the head's tree does not have, in leaves, at most.
    fn leaves_beside(&self, head: &Tree) -> u64 {
        // What the head has shed since the first of them was made of it is kept once, however many have it. A head whose tree was made anew
        // shares nothing.
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
