//! [`RecentTrees`]: trees of states before the head, for who proves rows of them.

use std::collections::VecDeque;

use slipstream_types::BatchNumber;

use crate::{schema::StateColumn, state::Tree};

/// Batches before the head whose rows can be proved. The store holds these states anyway, so their rows are read at the head's speed and
/// need no further reader.
pub const PROVABLE_BATCHES: u64 = if cfg!(test) { 6 } else { 64 };
/// Trees that are remembered. Clients come back for further rows of one state, and many ask for the head. Each tree keeps the nodes in
/// memory that later batches changed.
const TREES_MAX: usize = 4;

/// The tree behind one batch.
struct Recent {
    number: BatchNumber,
    column: StateColumn,
    tree: Tree,
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

    /// Remembers a tree, and lets go the one that nobody asked for for longest.
    pub(crate) fn put(&mut self, number: BatchNumber, column: StateColumn, tree: Tree) {
        self.0.retain(|it| it.number != number);
        self.0.push_back(Recent { number, column, tree });
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

    #[cfg(test)]
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.0.iter().map(|it| it.number.get()).collect()
    }
}
