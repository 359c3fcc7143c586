//! Bounded memory: a cold subtree is evicted, which leaves its hash. A touch rebuilds it from its rows.
//!
//! The largest subtrees of at most [`STUB_LEAVES_MAX`] leaves that no recent batch touched go first. A small one goes
//! whole; a larger one keeps the hashes of its quarters ([`super::hollow`]). The remainder costs at most 3 bytes a
//! key, and rebuilding costs one short scan.

use std::sync::Arc;

use slipstream_types::tree::Leaf;

use super::{
    Tree,
    hollow::SHELL,
    node::{ARITY, Node},
    slot::{Child, Link, Slot},
};

/// Leaves of the largest subtree that is evicted at once; bounds the cost of touching one.
pub(super) const STUB_LEAVES_MAX: u32 = 256;
/// Leaves of the largest subtree that comes back whole. Each quarter of a larger one comes back by itself.
pub(super) const WHOLE_LEAVES_MAX: u32 = 32;
/// Bytes of memory per leaf, with its share of the nodes.
const LEAF_BYTES: u64 = 125;
/// Cost of a subtree's hash with its place in the node above, counted in leaves.
pub(super) const STUB: u32 = 1;
/// The searches in order: first for subtrees untouched for many batches, then for those untouched for fewer, and at
/// last even for hashes of quarters.
const SEARCHES: [Search; 5] = [
    Search { age: 256, keeps_quarters: true },
    Search { age: 32, keeps_quarters: true },
    Search { age: 4, keeps_quarters: true },
    Search { age: 0, keeps_quarters: true },
    Search { age: 0, keeps_quarters: false },
];

impl Tree {
    /// Returns how many leaves fit into `mib` MiB; 0 means no limit.
    pub(crate) fn resident_max(mib: u64) -> u64 {
        if mib == 0 { u64::MAX } else { (mib << 20) / LEAF_BYTES }
    }

    /// Number of all leaves, in memory or not.
    pub(crate) fn leaves(&self) -> u64 {
        self.root.counts().leaves.into()
    }

    /// Leaves in memory, plus the cost of what stands in for the others, counted in leaves.
    pub(crate) fn resident(&self) -> u64 {
        self.root.counts().resident.into()
    }

    /// Estimates the bytes that this version takes beside the earlier version from which `updates` updates made it.
    /// Each update copies the nodes on its way, and shares all but the lowest copy with other updates. All copies
    /// together never exceed the whole tree. Touched subtrees that had been evicted are in memory again, or their
    /// leaves are in layers.
    pub(crate) fn bytes_beside(&self, resident_before: u64, updates: u64) -> u64 {
        let grown = self.resident().saturating_sub(resident_before);
        let copied = Self::copied_by(updates, resident_before);
        let hidden: u64 = self.layers.iter().map(|layer| layer.leaves).sum();
        (grown + copied) * LEAF_BYTES + hidden * size_of::<Leaf>() as u64
    }

    /// The most, in leaves, that `updates` updates copy of a tree with `resident` leaves in memory.
    pub(super) fn copied_by(updates: u64, resident: u64) -> u64 {
        updates.saturating_mul(ARITY as u64).min(resident)
    }

    /// The most, in leaves, that this version and its ancestors left behind: nodes that batches copied, and evicted
    /// ones. The number only grows. An earlier version keeps at most the growth since then in memory beside this one.
    pub(crate) fn shed(&self) -> u64 {
        self.shed
    }

    /// Evicts cold subtrees if more than `resident_max` leaves are in memory. It frees an eighth more than it must,
    /// so that not every batch searches. The tree must match the rows that it reads from.
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
        // Nothing more can go. The next search waits until memory has grown by an eighth.
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
        // The counts alone show whether there may be anything to evict, without a look at the node.
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
