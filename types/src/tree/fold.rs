//! The subtree over many leaves, whose joins are computed two at a time.

use super::{Halves, JOIN, Leaf, Subtree, hash};
use crate::digest::Digest;

/// Returns the root of a whole tree, by the definition. The leaves are sorted by path, each path once.
pub fn root(leaves: &[Leaf]) -> Digest {
    subtree(leaves, 0).hash()
}

/// Returns the subtree of leaves that agree in their first `depth` bits. The leaves are sorted by path, each path once.
pub fn subtree(leaves: &[Leaf], depth: usize) -> Subtree {
    fold_leaves(leaves, &mut Leaf::hashes(leaves), depth)
}

/// As [`subtree`], for a caller that has the leaves' hashes. Overwrites them.
///
/// # Panics
/// If the numbers of hashes and leaves differ. If leaves are out of order, repeated or diverge above `depth`, it panics
/// or returns a meaningless hash.
pub fn fold_leaves(leaves: &[Leaf], hashes: &mut [Digest], depth: usize) -> Subtree {
    assert_eq!(leaves.len(), hashes.len(), "each leaf has its hash");
    match hashes {
        [] => Subtree::Empty,
        [hash] => Subtree::Leaf(*hash),
        _ if (LEVELS_LEAVES_MIN..=LEVELS_LEAVES_MAX).contains(&leaves.len()) => {
            Subtree::Inner(fold_levels(leaves, hashes, depth))
        }
        _ => {
            let half = leaves.partition_point(|leaf| !leaf.path.bit(depth));
            let ((left, right), (left_hashes, right_hashes)) =
                (leaves.split_at(half), hashes.split_at_mut(half));
            Subtree::parent(
                fold_leaves(left, left_hashes, depth + 1),
                fold_leaves(right, right_hashes, depth + 1),
            )
        }
    }
}

/// With fewer leaves, sorting the joins by level costs more than hashing two at a time saves.
const LEVELS_LEAVES_MIN: usize = 24;
/// The largest number of leaves that fit a core's first-level cache together with their hashes.
const LEVELS_LEAVES_MAX: usize = 256;

/// As [`fold_leaves`], for two leaves or more. Goes up bit by bit from the deepest bit at which two neighbours diverge.
/// All joins at one bit belong to different subtrees, so they are computed two at a time.
fn fold_levels(leaves: &[Leaf], hashes: &mut [Digest], depth: usize) -> Digest {
    let partings = BranchPoints::of(leaves);
    let (mut below, mut above): (Vec<Run>, Vec<Run>) = (Vec::new(), Vec::new());
    let mut joins = Vec::new();
    for bit in (depth..=partings.deepest).rev() {
        let mut join = |sides, run: Run| {
            joins.push(Join { sides, place: run.first });
            above.push(run);
        };
        // The sides of a run without a sibling.
        let lone = |run: &Run| match leaves[run.first].path.bit(bit) {
            false => [Some(run.first), None],
            true => [None, Some(run.first)],
        };
        let mut runs = below.iter().peekable();
        for &last in partings.at(bit) {
            while let Some(run) = runs.next_if(|run| run.last < last) {
                join(lone(run), *run);
            }
            let left = runs.next_if(|run| run.last == last).map_or(last, |run| run.first);
            let right = last + 1;
            let end = runs.next_if(|run| run.first == right).map_or(right, |run| run.last);
            join([Some(left), Some(right)], Run { first: left, last: end });
        }
        runs.for_each(|run| join(lone(run), *run));
        // The branches of the loop above are unpredictable. The joins run outside of it, so that no hash waits for a
        // branch.
        let (pairs, odd) = joins.as_chunks();
        for [first, second] in pairs {
            let [first_hash, second_hash] = hash(&JOIN, [first.halves(hashes), second.halves(hashes)]);
            hashes[first.place] = first_hash;
            hashes[second.place] = second_hash;
        }
        if let [join] = odd {
            [hashes[join.place]] = hash(&JOIN, [join.halves(hashes)]);
        }
        joins.clear();
        below.clear();
        std::mem::swap(&mut below, &mut above);
    }
    assert_eq!(below, [Run { first: 0, last: leaves.len() - 1 }], "leaves ascend and agree in {depth} bits");
    hashes[0]
}

/// Two neighbours or more whose subtree's hash is known; it is stored at the first one's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    first: usize,
    last: usize,
}

/// A join: the indices of both sides' hashes, `None` for an empty subtree, and the index of the result.
struct Join {
    sides: [Option<usize>; 2],
    place: usize,
}

impl Join {
    #[inline]
    fn halves<'a>(&self, hashes: &'a [Digest]) -> Halves<'a> {
        self.sides.map(|side| side.map_or(&Digest::ZERO.0, |place| &hashes[place].0))
    }
}

/// Leaves grouped by the bit at which they diverge from the next one.
struct BranchPoints {
    /// Sorted by bit, then by path.
    leaves: Vec<usize>,
    /// The end of each bit's leaves.
    ends: [usize; 257],
    /// Index of the deepest bit.
    deepest: usize,
}

impl BranchPoints {
    fn of(leaves: &[Leaf]) -> BranchPoints {
        let bits: Vec<usize> =
            leaves.array_windows().map(|[leaf, next]| leaf.path.common_bits(&next.path)).collect();
        let mut counts = [0; 257];
        bits.iter().for_each(|bit| counts[*bit] += 1);
        let mut start = 0;
        let mut ends = counts.map(|count| {
            start += count;
            start - count
        });
        let mut sorted = vec![0; bits.len()];
        for (leaf, bit) in bits.iter().enumerate() {
            sorted[ends[*bit]] = leaf;
            ends[*bit] += 1;
        }
        BranchPoints { leaves: sorted, ends, deepest: bits.into_iter().max().unwrap_or_default().min(255) }
    }

    fn at(&self, bit: usize) -> &[usize] {
        let start = bit.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.leaves[start..self.ends[bit]]
    }
}
