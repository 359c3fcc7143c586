//! The Merkle tree over shards: SHA-256, with separate tags for leaves and nodes. Empty leaves fill it up to a power of two, so all paths
//! have the same length.

use sha2::{Digest as _, Sha256};
use slipstream_types::Digest;

/// The digest in the place of a missing leaf.
const EMPTY: Digest = Digest::ZERO;

/// The leaf of a shard: a hash of the shard's index and content.
pub(super) fn leaf(index: usize, shard: &[u8]) -> Digest {
    let hasher =
        Sha256::new().chain_update(b"slipstream shard leaf").chain_update((index as u64).to_le_bytes());
    Digest(hasher.chain_update(shard).finalize().into())
}

fn node(left: &Digest, right: &Digest) -> Digest {
    let hasher = Sha256::new().chain_update(b"slipstream shard node").chain_update(left.0);
    Digest(hasher.chain_update(right.0).finalize().into())
}

/// Nodes on a path from a leaf to the root, in a tree of `leaves` leaves.
pub(super) fn depth(leaves: usize) -> usize {
    leaves.next_power_of_two().trailing_zeros() as usize
}

/// A whole tree: leaves, then each level above.
pub(super) struct Tree {
    levels: Vec<Vec<Digest>>,
}

impl Tree {
    /// The tree over at least one leaf.
    pub(super) fn over(mut leaves: Vec<Digest>) -> Self {
        leaves.resize(leaves.len().next_power_of_two(), EMPTY);
        let mut levels = vec![leaves];
        while let Some(level) = levels.last().filter(|level| level.len() > 1) {
            let above = level.as_chunks::<2>().0.iter().map(|[left, right]| node(left, right)).collect();
            levels.push(above);
        }
        Self { levels }
    }

    pub(super) fn root(&self) -> Digest {
        self.levels.last().and_then(|level| level.first()).copied().unwrap_or(EMPTY)
    }

    /// The siblings on the path from a leaf up.
    pub(super) fn path(&self, index: usize) -> impl Iterator<Item = &Digest> {
        let below_root = self.levels.len() - 1;
        self.levels[..below_root].iter().enumerate().map(move |(level, nodes)| &nodes[index >> level ^ 1])
    }
}

/// The root that a leaf and its siblings, 32 bytes each, lead to.
pub(super) fn root_of(index: usize, leaf: Digest, path: &[u8]) -> Digest {
    let siblings = path.as_chunks::<32>().0.iter().enumerate();
    siblings.fold(leaf, |below, (level, sibling)| {
        let sibling = Digest(*sibling);
        if index >> level & 1 == 0 { node(&below, &sibling) } else { node(&sibling, &below) }
    })
}
