//! The append-only Merkle tree over batch headers.
//!
//! The shape is RFC 6962's: a tree of n leaves splits at the largest power of two below n. A full subtree therefore never
//! changes, and is stored under its [`NodePosition`]. A root folds at most 64 of them.

use serde::{Deserialize, Serialize};

use crate::{bounded::BoundedVec, digest::Digest, limits};

/// A full subtree: `2^level` leaves from leaf `index << level` on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodePosition {
    /// Height above the leaves.
    pub level: u8,
    /// Position among the subtrees of its level.
    pub index: u64,
}

impl NodePosition {
    /// Returns the subtree that has this one as a half.
    pub const fn parent(self) -> NodePosition {
        NodePosition { level: self.level + 1, index: self.index / 2 }
    }

    /// Returns the other half of the parent subtree.
    pub const fn sibling(self) -> NodePosition {
        NodePosition { level: self.level, index: self.index ^ 1 }
    }

    /// Whether a tree of `leaves` leaves has the whole subtree.
    pub const fn is_within(self, leaves: u64) -> bool {
        self.level < 64 && self.index < leaves >> self.level
    }
}

/// Returns the hash of a subtree from the hashes of its halves.
pub fn join(left: Digest, right: Digest) -> Digest {
    let mut bytes = [0; 64];
    bytes[..32].copy_from_slice(&left.0);
    bytes[32..].copy_from_slice(&right.0);
    Digest::tagged("slipstream/accumulator/1", &bytes)
}

/// The roots of the full subtrees that make up a tree: all that appending needs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Accumulator {
    leaves: u64,
    peaks: BoundedVec<Digest, 64>,
}

impl Accumulator {
    /// Number of leaves in the tree: one per batch of the ledger.
    pub fn len(&self) -> u64 {
        self.leaves
    }

    /// Whether the tree has no leaves yet.
    pub fn is_empty(&self) -> bool {
        self.leaves == 0
    }

    /// Builds the accumulator of `leaves` leaves from stored nodes, or returns `None` if a node is missing.
    pub fn load(leaves: u64, node: impl Fn(NodePosition) -> Option<Digest>) -> Option<Accumulator> {
        let mut peaks = Vec::new();
        let mut first = 0;
        for level in (0..64).rev().filter(|level| leaves >> level & 1 == 1) {
            peaks.push(node(NodePosition { level, index: first >> level })?);
            first += 1 << level;
        }
        Some(Accumulator { leaves, peaks: BoundedVec::new(peaks).ok()? })
    }

    /// Appends a leaf. Returns the subtrees that it completed, the leaf itself first, for the caller to store.
    pub fn append(&mut self, leaf: Digest) -> Vec<(NodePosition, Digest)> {
        let mut peaks = std::mem::take(&mut self.peaks).into_inner();
        let mut node = leaf;
        let mut position = NodePosition { level: 0, index: self.leaves };
        let mut filled = vec![(position, node)];
        while position.index % 2 == 1 {
            let left = peaks.pop().expect("a right child's full left sibling is a peak");
            node = join(left, node);
            position = position.parent();
            filled.push((position, node));
        }
        peaks.push(node);
        self.leaves += 1;
        self.peaks = BoundedVec::new(peaks).expect("a u64 has at most 64 bits set");
        filled
    }

    /// Returns the root; [`Digest::ZERO`] for an empty tree.
    pub fn root(&self) -> Digest {
        self.peaks.iter().rev().copied().reduce(|right, left| join(left, right)).unwrap_or(Digest::ZERO)
    }
}

/// The hashes of the subtrees adjacent to a run of leaves, from left to right.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AccumulatorRangeProof {
    siblings: BoundedVec<Digest, 128>,
}

/// Why a range proof was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccumulatorError {
    /// The range is empty, too long or not inside the tree.
    #[error(
        "headers {first}..{end} are not a valid range: it must have 1 to {max} headers in a ledger of {leaves} batches"
    )]
    BadRange {
        /// Index of the range's first leaf.
        first: u64,
        /// One past the last leaf.
        end: u64,
        /// Leaves in the tree.
        leaves: u64,
        /// Maximum number of headers in one range proof: [`limits::HEADERS_MAX`].
        max: usize,
    },
    /// Too few or too many siblings.
    #[error("the range proof has the wrong number of siblings")]
    WrongLength,
    /// Leaves and siblings do not yield the expected root.
    #[error(
        "headers and range proof give the accumulator root {found}, but the certified root is {expected}"
    )]
    WrongRoot {
        /// The root computed from headers and siblings.
        found: Digest,
        /// The root in the certified ledger info.
        expected: Digest,
    },
    /// The prover lacks a node (pruned, or beyond its head).
    #[error("accumulator node {0:?} is not stored")]
    MissingNode(NodePosition),
}

fn check_range(first: u64, count: usize, leaves: u64) -> Result<std::ops::Range<u64>, AccumulatorError> {
    let end = first.saturating_add(count as u64);
    if count == 0 || count > limits::HEADERS_MAX || end > leaves {
        return Err(AccumulatorError::BadRange { first, end, leaves, max: limits::HEADERS_MAX });
    }
    Ok(first..end)
}

/// Returns where a subtree of `len` leaves splits: at the largest power of two below `len`.
fn split(len: u64) -> u64 {
    1 << (63 - (len - 1).leading_zeros())
}

fn position(first: u64, len: u64) -> NodePosition {
    let level = len.trailing_zeros() as u8;
    NodePosition { level, index: first >> level }
}

/// Proves `count` leaves starting at `first` in the tree of `leaves` leaves, from stored nodes.
pub fn prove(
    leaves: u64,
    first: u64,
    count: usize,
    node: &impl Fn(NodePosition) -> Option<Digest>,
) -> Result<AccumulatorRangeProof, AccumulatorError> {
    let range = check_range(first, count, leaves)?;
    let mut siblings = Vec::new();
    collect(0, leaves, &range, node, &mut siblings)?;
    Ok(AccumulatorRangeProof {
        siblings: BoundedVec::new(siblings).map_err(|_| AccumulatorError::WrongLength)?,
    })
}

fn collect(
    first: u64,
    len: u64,
    range: &std::ops::Range<u64>,
    node: &impl Fn(NodePosition) -> Option<Digest>,
    siblings: &mut Vec<Digest>,
) -> Result<(), AccumulatorError> {
    if first + len <= range.start || range.end <= first {
        siblings.push(subtree(first, len, node)?);
    } else if len > 1 && !(range.start <= first && first + len <= range.end) {
        let half = split(len);
        collect(first, half, range, node, siblings)?;
        collect(first + half, len - half, range, node, siblings)?;
    }
    Ok(())
}

fn subtree(
    first: u64,
    len: u64,
    node: &impl Fn(NodePosition) -> Option<Digest>,
) -> Result<Digest, AccumulatorError> {
    if len.is_power_of_two() {
        let position = position(first, len);
        return node(position).ok_or(AccumulatorError::MissingNode(position));
    }
    let half = split(len);
    Ok(join(subtree(first, half, node)?, subtree(first + half, len - half, node)?))
}

impl AccumulatorRangeProof {
    /// Checks that the leaves start at `first` in the tree of `leaves` leaves with that root. Returns the full subtrees
    /// that this proves, leaves included, so that a node that starts in the middle of the ledger can store them.
    pub fn verify(
        &self,
        root: Digest,
        leaves: u64,
        first: u64,
        items: &[Digest],
    ) -> Result<Vec<(NodePosition, Digest)>, AccumulatorError> {
        let range = check_range(first, items.len(), leaves)?;
        let mut fold = Fold { range, items, siblings: self.siblings.iter(), proved: Vec::new() };
        let found = fold.node(0, leaves)?;
        if fold.siblings.next().is_some() {
            return Err(AccumulatorError::WrongLength);
        }
        if found != root {
            return Err(AccumulatorError::WrongRoot { found, expected: root });
        }
        Ok(fold.proved)
    }
}

struct Fold<'a> {
    range: std::ops::Range<u64>,
    items: &'a [Digest],
    siblings: std::slice::Iter<'a, Digest>,
    proved: Vec<(NodePosition, Digest)>,
}

impl Fold<'_> {
    fn node(&mut self, first: u64, len: u64) -> Result<Digest, AccumulatorError> {
        let hash = if first + len <= self.range.start || self.range.end <= first {
            *self.siblings.next().ok_or(AccumulatorError::WrongLength)?
        } else if len == 1 {
            self.items[(first - self.range.start) as usize]
        } else {
            let half = split(len);
            join(self.node(first, half)?, self.node(first + half, len - half)?)
        };
        if len.is_power_of_two() {
            self.proved.push((position(first, len), hash));
        }
        Ok(hash)
    }
}
