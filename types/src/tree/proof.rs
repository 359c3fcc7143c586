//! Range proofs: [`StateRangeProof`].

use serde::{Deserialize, Serialize};

use super::{Leaf, Subtree, subtree};
use crate::{bounded::BoundedVec, digest::Digest, limits, state::Path};

/// A subtree adjacent to a range, on the path from the root to one of its ends. Empty ones are omitted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sibling {
    /// The bit that separates it from the range's end.
    pub depth: u8,
    /// The sibling's content.
    pub node: SiblingNode,
}

/// A lone leaf shows its preimage: an inner node passed off as a leaf could hide rows of the range.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SiblingNode {
    /// A subtree that is a single leaf, with its preimage.
    Leaf(Leaf),
    /// The hash of two leaves or more.
    Inner(Digest),
}

/// Proves that a run of leaves is everything that a tree holds between two paths, both included.
/// A range of one path proves membership or absence.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StateRangeProof {
    /// Siblings to the left of the first path, by ascending depth.
    pub left: BoundedVec<Sibling, { limits::PROOF_SIDE_MAX }>,
    /// Siblings to the right of the last path, by ascending depth.
    pub right: BoundedVec<Sibling, { limits::PROOF_SIDE_MAX }>,
}

/// Why a state range was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateRangeError {
    /// Paths descend, repeat or leave the range, or its ends are swapped.
    #[error("rows are out of order, repeated or outside of their range")]
    BadOrder,
    /// Siblings are out of order, on the wrong side, or belong to another path.
    #[error("a sibling of the range proof is out of place")]
    BadSibling,
    /// Rows and siblings do not yield the expected root: a row is missing, surplus or altered.
    #[error("rows and range proof give the state root {found}, but the certified root is {expected}")]
    WrongRoot {
        /// The root computed from leaves and siblings.
        found: Digest,
        /// The root in the certified header.
        expected: Digest,
    },
}

impl StateRangeProof {
    /// Checks that `leaves` are exactly the tree's leaves from `first` to `last`, both included.
    pub fn verify(
        &self,
        root: Digest,
        first: Path,
        last: Path,
        leaves: &[Leaf],
    ) -> Result<(), StateRangeError> {
        let inside = |leaf: &Leaf| first <= leaf.path && leaf.path <= last;
        if !leaves.is_sorted_by(|a, b| a.path < b.path) || !leaves.iter().all(inside) {
            return Err(StateRangeError::BadOrder);
        }
        self.verify_subtrees(root, first, last, |prefix, bits| {
            let below = &leaves[leaves.partition_point(|leaf| leaf.path < *prefix)..];
            let end = below.partition_point(|leaf| leaf.path.common_bits(prefix) >= bits);
            subtree(&below[..end], bits)
        })
    }

    /// As [`StateRangeProof::verify`], for a caller whose own tree has exactly the leaves between `first` and `last`.
    /// `subtree` takes a path and a number of bits; it returns the part of that tree whose paths share these first bits. The
    /// path's other bits are 0.
    pub fn verify_subtrees(
        &self,
        root: Digest,
        first: Path,
        last: Path,
        subtree: impl FnMut(&Path, usize) -> Subtree,
    ) -> Result<(), StateRangeError> {
        let found = self.fold(first, last, subtree)?;
        if found == root { Ok(()) } else { Err(StateRangeError::WrongRoot { found, expected: root }) }
    }

    /// Checks that every sibling has a position that a proof of this range can have. A caller that lacks the leaves can
    /// check no more. If this check fails, no leaves can make the proof valid.
    pub fn check_places(&self, first: Path, last: Path) -> Result<(), StateRangeError> {
        self.fold(first, last, |_, _| Subtree::Empty).map(|_| ())
    }

    /// Returns the root computed from siblings and leaves.
    fn fold(
        &self,
        first: Path,
        last: Path,
        subtree: impl FnMut(&Path, usize) -> Subtree,
    ) -> Result<Digest, StateRangeError> {
        if first > last {
            return Err(StateRangeError::BadOrder);
        }
        let mut fold = Fold { first, last, left: &self.left, right: &self.right, subtree };
        let found = fold.node(Path::MIN, 0, true, true)?.hash();
        let is_used_up = fold.left.is_empty() && fold.right.is_empty();
        if is_used_up { Ok(found) } else { Err(StateRangeError::BadSibling) }
    }
}

struct Fold<'a, F> {
    first: Path,
    last: Path,
    left: &'a [Sibling],
    right: &'a [Sibling],
    /// Returns subtrees of the range's leaves.
    subtree: F,
}

impl<F: FnMut(&Path, usize) -> Subtree> Fold<'_, F> {
    /// Returns the subtree at `depth` below the first bits of `prefix`, which are those of `first` (`at_first`), of
    /// `last` (`at_last`) or of both.
    fn node(
        &mut self,
        prefix: Path,
        depth: usize,
        at_first: bool,
        at_last: bool,
    ) -> Result<Subtree, StateRangeError> {
        if depth == 256 || !(at_first || at_last) {
            return Ok((self.subtree)(&prefix, depth));
        }
        // Taken before the recursion below, so that both sides are listed by ascending depth.
        let outside_right = match at_last && !self.last.bit(depth) {
            true => Some(take(&mut self.right, depth, &self.last)?),
            false => None,
        };
        let left = if at_first && self.first.bit(depth) {
            take(&mut self.left, depth, &self.first)?
        } else {
            self.node(prefix, depth + 1, at_first, at_last && !self.last.bit(depth))?
        };
        let right = match outside_right {
            Some(sibling) => sibling,
            None => {
                let prefix = prefix.with_bit(depth);
                self.node(prefix, depth + 1, at_first && self.first.bit(depth), at_last)?
            }
        };
        Ok(Subtree::parent(left, right))
    }
}

/// Takes the sibling that branches off the path to `end` at bit `depth`.
fn take(siblings: &mut &[Sibling], depth: usize, end: &Path) -> Result<Subtree, StateRangeError> {
    let Some((sibling, rest)) =
        siblings.split_first().filter(|(sibling, _)| usize::from(sibling.depth) == depth)
    else {
        return Ok(Subtree::Empty);
    };
    *siblings = rest;
    match &sibling.node {
        SiblingNode::Inner(hash) => Ok(Subtree::Inner(*hash)),
        SiblingNode::Leaf(leaf) => {
            let agrees = (0..depth).all(|bit| leaf.path.bit(bit) == end.bit(bit));
            if !agrees || leaf.path.bit(depth) == end.bit(depth) {
                return Err(StateRangeError::BadSibling);
            }
            Ok(Subtree::Leaf(leaf.hash()))
        }
    }
}
