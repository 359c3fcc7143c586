//! The canonical Merkle tree over the state, as a definition: hashes, the root of a set of leaves, and range proofs.
//! How it is kept up to date is `storage`'s concern.
//!
//! The tree is binary over the 256 bits of a path. A subtree with no leaf is [`Digest::ZERO`], with one leaf it is that
//! leaf's hash, otherwise it joins its two children; so the root depends on the content alone. A leaf and a join are each
//! one SHA-256 compression of exactly 64 bytes under an initial value of their own (precedent: the note commitment tree of
//! Zcash Sprout): the input has a fixed length, and the initial value separates the two domains.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use slipstream_sha256::{State, digest_halves};

use crate::{
    bounded::BoundedVec,
    digest::Digest,
    limits,
    state::{Path, RowHashes},
};

/// A row as the tree sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Leaf {
    /// Its position.
    pub path: Path,
    /// [`crate::StateValue::hash`] of the row.
    pub value_hash: Digest,
}

/// What a compression of one domain begins with.
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// All of them, in the order in which they were added.
    pub fn finish(self) -> Vec<Leaf> {
        let leaf = |(path, value_hash)| Leaf { path, value_hash };
        self.paths.into_iter().zip(self.value_hashes.finish()).map(leaf).collect()
    }
}

/// The two halves of what is compressed.
type Halves<'a> = [&'a [u8; 32]; 2];

#[inline]
fn hash<const N: usize>(initial: &State, blocks: [Halves; N]) -> [Digest; N] {
    digest_halves(initial, blocks).map(Digest)
}

impl Leaf {
    /// The hash of the subtree that holds this leaf alone.
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

/// A subtree, as far as its parent must know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Subtree {
    /// No leaf.
    #[default]
    Empty,
    /// One leaf, with its hash.
    Leaf(Digest),
    /// Two leaves or more.
    Inner(Digest),
}

impl Subtree {
    /// The parent of two siblings: a lone leaf moves up, everything else is joined.
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

    /// The subtree over neighbours at one depth, which are a power of two in number. Overwrites them.
    pub fn fold(neighbours: &mut [Subtree]) -> Subtree {
        debug_assert!(neighbours.len().is_power_of_two(), "each has a sibling, and so have their parents");
        let mut len = neighbours.len();
        while len >= 4 {
            for i in (0..len).step_by(4) {
                let [a, b, c, d] = std::array::from_fn(|at| &neighbours[i + at]);
                // Written hash by hash: a copy of a whole subtree stalls whoever reads its hash next.
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

    /// The joins of two pairs of siblings, none if one of the pairs is not joined.
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

/// The root of a whole tree, by the definition. The leaves are sorted by path, each path once.
pub fn root(leaves: &[Leaf]) -> Digest {
    subtree(leaves, 0).hash()
}

/// The subtree of leaves that agree in their first `depth` bits. The leaves are sorted by path, each path once.
pub fn subtree(leaves: &[Leaf], depth: usize) -> Subtree {
    fold_leaves(leaves, &mut Leaf::hashes(leaves), depth)
}

/// As [`subtree`], for who has the hashes of the leaves. Overwrites them.
///
/// # Panics
/// If there are not as many hashes. If leaves are out of order, repeated or part above `depth`, it panics or gives a hash that is
/// not of these leaves.
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

/// Of fewer leaves, sorting the joins by their level costs more than computing them two at a time saves.
const LEVELS_LEAVES_MIN: usize = 24;
/// So many leaves with their hashes stay in the cache of a core's first level.
const LEVELS_LEAVES_MAX: usize = 256;

/// As [`fold_leaves`], of two leaves or more. Goes up bit by bit from the deepest one at which two neighbours part. All joins at
/// one bit are of different subtrees, and so are computed two at a time.
fn fold_levels(leaves: &[Leaf], hashes: &mut [Digest], depth: usize) -> Digest {
    let partings = Partings::of(leaves);
    let (mut below, mut above): (Vec<Run>, Vec<Run>) = (Vec::new(), Vec::new());
    let mut joins = Vec::new();
    for bit in (depth..=partings.deepest).rev() {
        let mut join = |sides, run: Run| {
            joins.push(Join { sides, place: run.first });
            above.push(run);
        };
        // A run without a sibling.
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
        // Apart from the above, whose branches nobody can foretell: the hashes need not wait for them.
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

/// Two neighbours or more whose subtree is known: its hash stands at the first one's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    first: usize,
    last: usize,
}

/// A join: the places of both sides' hashes, none for an empty subtree, and the place of the result.
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

/// Leaves by the bit at which they part from the next one.
struct Partings {
    /// Sorted by bit, those of one bit by path.
    leaves: Vec<usize>,
    /// Where the leaves of each bit end.
    ends: [usize; 257],
    /// The last bit that there is.
    deepest: usize,
}

impl Partings {
    fn of(leaves: &[Leaf]) -> Partings {
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
        Partings { leaves: sorted, ends, deepest: bits.into_iter().max().unwrap_or_default().min(255) }
    }

    fn at(&self, bit: usize) -> &[usize] {
        let start = bit.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.leaves[start..self.ends[bit]]
    }
}

/// A subtree beside a range, on the way from the root to one of its ends. Empty ones are left out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sibling {
    /// The bit that separates it from the range's end.
    pub depth: u8,
    /// What it is.
    pub node: SiblingNode,
}

/// A lone leaf shows its preimage: an inner node passed off as a leaf could hide rows of the range.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SiblingNode {
    /// One leaf.
    Leaf(Leaf),
    /// The hash of two leaves or more.
    Inner(Digest),
}

/// Proves that a run of leaves is everything that a tree holds between two paths, both included.
/// A range of one path proves membership or absence.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StateRangeProof {
    /// Beside the first path, by ascending depth.
    pub left: BoundedVec<Sibling, { limits::PROOF_SIDE_MAX }>,
    /// Beside the last path, by ascending depth.
    pub right: BoundedVec<Sibling, { limits::PROOF_SIDE_MAX }>,
}

/// Why a state range was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateRangeError {
    /// Paths descend, repeat or leave the range, or its ends are swapped.
    #[error("rows are out of order, repeated or outside of their range")]
    BadOrder,
    /// Siblings are out of order, on the wrong side, or stand in for another path.
    #[error("a sibling of the range proof is out of place")]
    BadSibling,
    /// Rows and siblings do not give the expected root: a row is missing, surplus or altered.
    #[error("rows and range proof give the state root {found}, certified is {expected}")]
    WrongRoot {
        /// What they give.
        found: Digest,
        /// What is certified.
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

    /// As [`StateRangeProof::verify`], for who has the leaves between `first` and `last` in a tree of their own, without any
    /// others: `subtree` gives the part of it whose paths share so many first bits with a path, whose other bits are 0.
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

    /// Checks that every sibling stands where a proof of this range can have one. Who does not know the leaves can tell no more
    /// of a proof; who finds a fault here knows that no leaves would make it right.
    pub fn check_places(&self, first: Path, last: Path) -> Result<(), StateRangeError> {
        self.fold(first, last, |_, _| Subtree::Empty).map(|_| ())
    }

    /// The root that siblings and leaves give.
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
    /// Of the range's leaves.
    subtree: F,
}

impl<F: FnMut(&Path, usize) -> Subtree> Fold<'_, F> {
    /// The subtree at `depth` below the first bits of `prefix`, which are those of `first` (`at_first`), of `last` (`at_last`)
    /// or of both.
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

/// The subtree that leaves the way to `end` at bit `depth`.
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

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// The definition, word by word.
    fn defined(leaves: &[Leaf], depth: usize) -> Subtree {
        match leaves {
            [] => Subtree::Empty,
            [leaf] => Subtree::Leaf(leaf.hash()),
            _ => {
                let half = leaves.partition_point(|leaf| !leaf.path.bit(depth));
                Subtree::parent(defined(&leaves[..half], depth + 1), defined(&leaves[half..], depth + 1))
            }
        }
    }

    /// Sorted leaves that agree in their first `depth` bits, many of them in more: as keys ground by an attacker would.
    fn leaves() -> impl Strategy<Value = (Vec<Leaf>, usize)> {
        let path = (any::<[u8; 32]>(), 0usize..=256);
        (any::<[u8; 32]>(), 0usize..=255, vec((path, any::<u8>()), 0..60)).prop_map(
            |(common, depth, leaves)| {
                let leaf = |((random, agrees), seed): (([u8; 32], usize), u8)| {
                    let mut path = common;
                    for bit in agrees.max(depth)..256 {
                        let mask = 0x80 >> (bit % 8);
                        path[bit / 8] = path[bit / 8] & !mask | random[bit / 8] & mask;
                    }
                    Leaf { path: Path(path), value_hash: Digest([seed; 32]) }
                };
                let mut leaves: Vec<Leaf> = leaves.into_iter().map(leaf).collect();
                leaves.sort_unstable_by_key(|leaf| leaf.path);
                leaves.dedup_by_key(|leaf| leaf.path);
                (leaves, depth)
            },
        )
    }

    fn random_leaves(max: usize) -> impl Strategy<Value = Vec<Leaf>> {
        vec(any::<[u8; 32]>(), 0..max).prop_map(|mut paths| {
            paths.sort_unstable();
            paths.dedup();
            let leaf = |path: [u8; 32]| Leaf { path: Path(path), value_hash: Digest(path.map(|byte| !byte)) };
            paths.into_iter().map(leaf).collect()
        })
    }

    fn any_subtree() -> impl Strategy<Value = Subtree> {
        let digest = || any::<[u8; 32]>().prop_map(Digest);
        prop_oneof![Just(Subtree::Empty), digest().prop_map(Subtree::Leaf), digest().prop_map(Subtree::Inner)]
    }

    fn halved(neighbours: &[Subtree]) -> Subtree {
        match neighbours {
            [alone] => *alone,
            _ => {
                let (left, right) = neighbours.split_at(neighbours.len() / 2);
                Subtree::parent(halved(left), halved(right))
            }
        }
    }

    proptest! {
        #[test]
        fn leaves_of_many_rows_are_each_alone(rows in vec((any::<[u8; 32]>(), vec(any::<u8>(), 80..120)), 0..20)) {
            let mut leaves = Leaves::default();
            rows.iter().for_each(|(path, row)| leaves.push(Path(*path), row));
            prop_assert_eq!((leaves.len(), leaves.is_empty()), (rows.len(), rows.is_empty()));
            let leaf = |(path, row): &([u8; 32], Vec<u8>)| {
                Leaf { path: Path(*path), value_hash: crate::StateValue::row_hash(row) }
            };
            prop_assert_eq!(leaves.finish(), rows.iter().map(leaf).collect::<Vec<_>>());
        }

        #[test]
        fn leaves_with_deep_prefixes_give_the_defined_subtree((leaves, depth) in leaves()) {
            prop_assert_eq!(subtree(&leaves, depth), defined(&leaves, depth));
        }

        #[test]
        fn random_leaves_give_the_defined_root(leaves in random_leaves(700)) {
            prop_assert_eq!(subtree(&leaves, 0), defined(&leaves, 0));
            let hashes: Vec<Digest> = leaves.iter().map(Leaf::hash).collect();
            prop_assert_eq!(Leaf::hashes(&leaves), hashes);
        }

        #[test]
        fn two_parents_are_each_alone_and_neighbours_fold_by_halves(siblings in any_siblings(), exponent in 0u32..5) {
            let [first, second, ..] = siblings;
            let alone = [first, second].map(|(left, right)| Subtree::parent(left, right));
            prop_assert_eq!(Subtree::parents([(&first.0, &first.1), (&second.0, &second.1)]), alone);
            let mut neighbours: Vec<Subtree> =
                siblings.into_iter().flat_map(|(left, right)| [left, right]).take(1 << exponent).collect();
            let expected = halved(&neighbours);
            prop_assert_eq!(Subtree::fold(&mut neighbours), expected);
        }
    }

    fn any_siblings() -> impl Strategy<Value = [(Subtree, Subtree); 8]> {
        proptest::array::uniform8((any_subtree(), any_subtree()))
    }

    /// Sorted, each path once.
    fn ascending(count: u8) -> Vec<Leaf> {
        (0..count).map(|byte| Leaf { path: Path([byte; 32]), value_hash: Digest::ZERO }).collect()
    }

    #[test]
    #[should_panic(expected = "leaves ascend")]
    fn a_path_that_is_there_twice_is_refused() {
        let mut leaves = ascending(40);
        leaves[20] = leaves[19];
        subtree(&leaves, 0);
    }

    #[test]
    #[should_panic(expected = "leaves ascend")]
    fn leaves_that_part_above_are_refused() {
        subtree(&ascending(200), 1);
    }
}
