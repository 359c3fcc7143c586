//! Bounded memory: cold subtrees are dropped to their hash, and come back from their rows when they are touched.
//!
//! The largest subtree of at most [`STUB_LEAVES_MAX`] leaves that no recent batch touched goes first. A small one goes as a whole; a
//! larger one keeps the hashes of its quarters ([`super::hollow`]). The remainder costs 3 bytes a key or less, and coming back costs
//! one short scan.

use std::sync::Arc;

use slipstream_types::tree::Leaf;

use super::{
    Tree,
    hollow::SHELL,
    node::{ARITY, Node},
    slot::{Child, Link, Slot},
};

/// Leaves of the largest subtree that is dropped at once; bounds what touching one costs.
pub(super) const STUB_LEAVES_MAX: u32 = 256;
/// Leaves of the largest subtree that comes back as a whole: above, its quarters come back by themselves.
pub(super) const WHOLE_LEAVES_MAX: u32 = 32;
/// Bytes of a leaf in memory, with its share of the nodes.
const LEAF_BYTES: u64 = 125;
/// Cost of a subtree's hash with its place in the node above, counted in leaves.
pub(super) const STUB: u32 = 1;
/// First goes what was untouched for many batches, then for fewer, and at last even the hashes of quarters.
const SEARCHES: [Search; 5] = [
    Search { age: 256, keeps_quarters: true },
    Search { age: 32, keeps_quarters: true },
    Search { age: 4, keeps_quarters: true },
    Search { age: 0, keeps_quarters: true },
    Search { age: 0, keeps_quarters: false },
];

impl Tree {
    /// Leaves that a number of MiB is enough for; 0 means no limit.
    pub(crate) fn resident_max(mib: u64) -> u64 {
        if mib == 0 { u64::MAX } else { (mib << 20) / LEAF_BYTES }
    }

    /// All leaves.
    pub(crate) fn leaves(&self) -> u64 {
        self.root.counts().leaves.into()
    }

    /// Leaves in memory, and what stands in for others, counted in leaves.
    pub(crate) fn resident(&self) -> u64 {
        self.root.counts().resident.into()
    }

    /// About how many bytes a version takes beside the one that it was made of by so many updates. Each update copies the nodes on its way,
    /// of which the lowest is its own; no copy exceeds the whole. Subtrees dropped before came back, or their leaves are held beside it.
    pub(crate) fn bytes_beside(&self, resident_before: u64, updates: u64) -> u64 {
        let grown = self.resident().saturating_sub(resident_before);
        let copied = Self::copied_by(updates, resident_before);
        let hidden: u64 = self.layers.iter().map(|layer| layer.leaves).sum();
        (grown + copied) * LEAF_BYTES + hidden * size_of::<Leaf>() as u64
    }

    /// What so many updates copy of a tree with so many leaves in memory, in leaves, at most.
    pub(super) fn copied_by(updates: u64, resident: u64) -> u64 {
        updates.saturating_mul(ARITY as u64).min(resident)
    }

    /// What this version and those that it was made of have left behind, in leaves, at most: nodes that batches copied, and what was dropped.
    /// It only grows. What an earlier version keeps in memory that this one does not have is no more than what came to it since.
    pub(crate) fn shed(&self) -> u64 {
        self.shed
    }

    /// Drops cold subtrees if more than `resident_max` leaves are in memory, and then an eighth more than it must, so that
    /// not every batch searches. The tree must be that of the rows it reads from.
    pub(crate) fn shrink(&mut self, resident_max: u64) {
        let before = self.resident();
        self.drop_cold(resident_max);
        self.shed += before.saturating_sub(self.resident());
    }

    fn drop_cold(&mut self, resident_max: u64) {
        if self.resident() < self.least / 2 {
            self.least = 0;
        }
        self.is_short = self.resident() > resident_max / 4 * 3;
        if self.resident() <= resident_max.max(self.least) {
            return;
        }
        let target = resident_max - resident_max / 8;
        self.least = 0;
        let Slot::Child(root) = &mut self.root else { return };
        for search in SEARCHES {
            let cold = Cold { generation: self.generation, search };
            let Link::Node(node) = &mut root.link else {
                cold.drop_below(root);
                continue;
            };
            let count = node.children.len();
            for _ in 0..count {
                self.hand = (self.hand + 1) % count;
                let node = Arc::make_mut(node);
                cold.drop_below(&mut node.children[self.hand]);
                root.counts = node.counts();
                if u64::from(root.counts.resident) <= target {
                    return;
                }
            }
        }
        // Nothing more can go. The next search waits until there is something to be found.
        let left = u64::from(root.counts.resident);
        self.least = left + left / 8;
    }
}

#[derive(Clone, Copy)]
struct Search {
    age: u32,
    keeps_quarters: bool,
}

struct Cold {
    generation: u32,
    search: Search,
}

impl Cold {
    fn includes(&self, node: &Node) -> bool {
        self.generation.wrapping_sub(node.touched) >= self.search.age
    }

    fn drop_below(&self, child: &mut Child) {
        let leaves = child.counts.leaves;
        let is_whole = leaves <= WHOLE_LEAVES_MAX || !self.search.keeps_quarters;
        // Whether there may be anything to drop is told from here, without a look at the node.
        let least = match (leaves > STUB_LEAVES_MAX, is_whole) {
            (true, _) if self.search.keeps_quarters => leaves / WHOLE_LEAVES_MAX,
            (true, _) => leaves / STUB_LEAVES_MAX,
            (false, true) => STUB,
            (false, false) => SHELL,
        };
        if child.counts.resident <= least {
            return;
        }
        let node = match &mut child.link {
            Link::Stub => return,
            Link::Node(node) => node,
            Link::Run(run) if leaves <= STUB_LEAVES_MAX && !self.includes(&run.node) => return,
            Link::Run(run) => &mut Arc::make_mut(run).node,
        };
        if leaves > STUB_LEAVES_MAX {
            let node = Arc::make_mut(node);
            node.children.iter_mut().for_each(|child| self.drop_below(child));
            child.counts = node.counts();
        } else if !self.includes(node) {
        } else if is_whole {
            (child.link, child.counts.resident) = (Link::Stub, STUB);
        } else {
            let node = Arc::make_mut(node);
            node.hide();
            child.counts = node.counts();
        }
    }
}
