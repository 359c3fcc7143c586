//! The canonical Merkle tree over the state, as a definition: hashes, the root of a set of leaves, and range proofs.
//! `storage` keeps it up to date.
//!
//! The tree is binary over the 256 bits of a path. A subtree without a leaf is [`Digest::ZERO`], one with a single leaf
//! is that leaf's hash, and any other joins its two children. The root therefore depends on the content alone. Leaf and
//! join are each one SHA-256 compression of exactly 64 bytes, with separate initial values. Precedent: the note
//! commitment tree of Zcash Sprout. The fixed length and the two initial values separate the domains.

mod fold;
mod proof;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use slipstream_sha256::{State, digest_halves};

use crate::{
    digest::Digest,
    state::{Path, RowHashes},
};

pub use self::{
    fold::{fold_leaves, root, subtree},
    proof::{Sibling, SiblingNode, StateRangeError, StateRangeProof},
};

/// A row as the tree sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Leaf {
    /// Path of the leaf's key.
    pub path: Path,
    /// [`crate::StateValue::hash`] of the row.
    pub value_hash: Digest,
}

/// The initial state of one domain's compressions.
type InitialValue = LazyLock<State>;

static LEAF: InitialValue = LazyLock::new(|| initial_value("slipstream/state-leaf/1"));
static JOIN: InitialValue = LazyLock::new(|| initial_value("slipstream/state-join/1"));

fn initial_value(tag: &str) -> State {
    let digest = Digest::tagged(tag, &[]);
    std::array::from_fn(|i| u32::from_be_bytes(std::array::from_fn(|j| digest.0[4 * i + j])))
}

/// Makes leaves of many rows; two rows are hashed at a time.
#[derive(Clone, Debug, Default)]
pub struct Leaves {
    paths: Vec<Path>,
    value_hashes: RowHashes,
}

impl Leaves {
    /// Adds the leaf of an encoded row.
    pub fn push(&mut self, path: Path, row: &[u8]) {
        self.paths.push(path);
        self.value_hashes.push(row);
    }

    /// Number of leaves.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether no leaf was added.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns all leaves, in the order in which they were added.
    pub fn finish(self) -> Vec<Leaf> {
        let leaf = |(path, value_hash)| Leaf { path, value_hash };
        self.paths.into_iter().zip(self.value_hashes.finish()).map(leaf).collect()
    }
}

/// The two halves of a compression's input.
type Halves<'a> = [&'a [u8; 32]; 2];

#[inline]
fn hash<const N: usize>(initial: &State, blocks: [Halves; N]) -> [Digest; N] {
    digest_halves(initial, blocks).map(Digest)
}

impl Leaf {
    /// Returns the hash of the subtree that holds only this leaf.
    pub fn hash(&self) -> Digest {
        let [hash] = hash(&LEAF, [self.halves()]);
        hash
    }

    /// [`Leaf::hash`] of two leaves at once.
    pub fn hash_pair([first, second]: [&Leaf; 2]) -> [Digest; 2] {
        hash(&LEAF, [first.halves(), second.halves()])
    }

    /// [`Leaf::hash`] of many leaves, in their order, two at a time.
    pub fn hashes(leaves: &[Leaf]) -> Vec<Digest> {
        let mut hashes = vec![Digest::ZERO; leaves.len()];
        let ((pairs, odd), (pair_hashes, odd_hashes)) = (leaves.as_chunks(), hashes.as_chunks_mut());
        for ([first, second], to) in pairs.iter().zip(pair_hashes) {
            *to = Self::hash_pair([first, second]);
        }
        for (leaf, to) in odd.iter().zip(odd_hashes) {
            *to = leaf.hash();
        }
        hashes
    }

    #[inline]
    fn halves(&self) -> Halves<'_> {
        [&self.path.0, &self.value_hash.0]
    }
}

/// The part of a subtree that its parent needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Subtree {
    /// A subtree without leaves.
    #[default]
    Empty,
    /// One leaf, with its hash.
    Leaf(Digest),
    /// Two leaves or more.
    Inner(Digest),
}

impl Subtree {
    /// Returns the parent of two siblings: a lone leaf moves up, everything else is joined.
    pub fn parent(left: Subtree, right: Subtree) -> Subtree {
        match (left, right) {
            (Subtree::Empty, Subtree::Empty) => Subtree::Empty,
            (Subtree::Leaf(leaf), Subtree::Empty) | (Subtree::Empty, Subtree::Leaf(leaf)) => {
                Subtree::Leaf(leaf)
            }
            (left, right) => {
                let [hash] = hash(&JOIN, [[left.half(), right.half()]]);
                Subtree::Inner(hash)
            }
        }
    }

    /// [`Subtree::parent`] of two pairs of siblings. Two joins are computed at once.
    pub fn parents([(a, b), (c, d)]: [(&Subtree, &Subtree); 2]) -> [Subtree; 2] {
        match Self::two_joins([a, b, c, d]) {
            Some(hashes) => hashes.map(Subtree::Inner),
            None => [Self::parent(*a, *b), Self::parent(*c, *d)],
        }
    }

    /// Returns the subtree over neighbours at one depth, whose number is a power of two. Overwrites them.
    pub fn fold(neighbours: &mut [Subtree]) -> Subtree {
        debug_assert!(neighbours.len().is_power_of_two(), "each has a sibling, and so have their parents");
        let mut len = neighbours.len();
        while len >= 4 {
            for i in (0..len).step_by(4) {
                let [a, b, c, d] = std::array::from_fn(|at| &neighbours[i + at]);
                // Written hash by hash: after a copy of the whole subtree, the next read of its hash stalls.
                if let Some([first, second]) = Self::two_joins([a, b, c, d]) {
                    neighbours[i / 2] = Subtree::Inner(first);
                    neighbours[i / 2 + 1] = Subtree::Inner(second);
                } else {
                    let (first, second) = (Self::parent(*a, *b), Self::parent(*c, *d));
                    neighbours[i / 2] = first;
                    neighbours[i / 2 + 1] = second;
                }
            }
            len /= 2;
        }
        match neighbours {
            [] => Subtree::Empty,
            [alone] => *alone,
            [left, right, ..] => Self::parent(*left, *right),
        }
    }

    /// Joins two pairs of siblings at once; returns `None` if one of the pairs has no join.
    #[inline]
    fn two_joins([a, b, c, d]: [&Subtree; 4]) -> Option<[Digest; 2]> {
        if !Self::is_joined(a, b) || !Self::is_joined(c, d) {
            return None;
        }
        Some(hash(&JOIN, [[a.half(), b.half()], [c.half(), d.half()]]))
    }

    #[inline]
    fn is_joined(left: &Subtree, right: &Subtree) -> bool {
        match (left, right) {
            (Subtree::Empty, other) | (other, Subtree::Empty) => matches!(other, Subtree::Inner(_)),
            _ => true,
        }
    }

    #[inline]
    fn half(&self) -> &[u8; 32] {
        match self {
            Subtree::Empty => &Digest::ZERO.0,
            Subtree::Leaf(hash) | Subtree::Inner(hash) => &hash.0,
        }
    }

    /// Its hash; [`Digest::ZERO`] if it is empty.
    pub fn hash(self) -> Digest {
        match self {
            Subtree::Empty => Digest::ZERO,
            Subtree::Leaf(hash) | Subtree::Inner(hash) => hash,
        }
    }
}
