//! [`PieceMap`]: all pieces of a state, by their hashes.

use std::ops::Range;

use slipstream_types::{
    Blob, Digest, Path,
    bounded::BoundedVec,
    limits,
    tree::{Sibling, SiblingNode, StateRangeProof, Subtree, subtree},
};

use super::{PIECE_ROWS_BYTES_MAX, Piece, PieceInfo, content_of};
use crate::{
    chunk::{ACCOUNT_BYTES, CHUNK_BYTES_MAX, EncodedChunk, VerifiedChunk, rows_within},
    error::{ChunkError, PieceError},
    span::Span,
    state::lift_hash,
};

/// The pieces of one state: their hashes give its root. So each piece is proved by the others, whatever its source.
#[derive(Debug)]
pub struct PieceMap {
    root: Digest,
    pieces: Vec<PieceInfo>,
    /// Where pieces diverge. A fork comes after the forks below it.
    forks: Vec<Fork>,
    top: Branch,
}

/// Two parts of a state that share all bits of a path before one bit.
#[derive(Clone, Copy, Debug)]
struct Fork {
    path: Path,
    bit: usize,
    sides: [Branch; 2],
    /// Hash of the subtree whose leaves share the bits before `bit`.
    hash: Digest,
}

/// An index into the pieces, or the forks.
#[derive(Clone, Copy, Debug)]
enum Branch {
    Piece(usize),
    Fork(usize),
}

impl PieceMap {
    /// Takes the pieces of the state with this root, all of them, in the order of their places.
    ///
    /// # Errors
    /// [`PieceError::NoPieces`], [`PieceError::BadList`], [`PieceError::OtherState`].
    pub fn new(pieces: Vec<PieceInfo>, root: Digest) -> Result<PieceMap, PieceError> {
        check_list(&pieces)?;
        let count = pieces.len();
        let mut map = PieceMap { root, pieces, forks: Vec::new(), top: Branch::Piece(0) };
        if count == 0 {
            return Err(PieceError::NoPieces);
        }
        map.top = map.fork(0..count);
        match map.subtree(map.top, 0).hash() {
            found if found == root => Ok(map),
            found => Err(PieceError::OtherState { found, expected: root }),
        }
    }

    /// The pieces, by their places.
    pub fn pieces(&self) -> &[PieceInfo] {
        &self.pieces
    }

    /// The paths that a piece answers for: its own, and those before it that no piece has.
    pub fn span(&self, index: usize) -> Span {
        let first = match index.checked_sub(1) {
            None => Path::MIN,
            Some(before) => self.last(before).successor().expect("a place follows"),
        };
        Span { first, last: self.last(index) }
    }

    /// The last path of [`PieceMap::span`].
    fn last(&self, index: usize) -> Path {
        match index + 1 == self.pieces.len() {
            true => Path::MAX,
            false => self.pieces[index].place.span().last,
        }
    }

    /// The piece that answers for a path.
    pub fn piece_of(&self, path: &Path) -> usize {
        let at = self.pieces.partition_point(|piece| piece.place.span().last < *path);
        at.min(self.pieces.len() - 1)
    }

    /// Checks the blob of a piece, and returns it as the chunk of [`PieceMap::span`].
    ///
    /// # Errors
    /// The first fault: malformed bytes, or rows that contradict the state.
    pub fn chunk(&self, index: usize, blob: &Blob) -> Result<VerifiedChunk, PieceError> {
        let Some(info) = self.pieces.get(index) else { return Err(PieceError::NoPieces) };
        let content = content_of(info, blob)?;
        let Span { first, last } = self.span(index);
        let proof = slipstream_types::codec::encode("range proof", &self.prove(first, last, &[])?)?;
        let chunk = [&first.0[..], &last.0, &content, &proof].concat();
        VerifiedChunk::open(chunk, self.root).map_err(|error| match error {
            // The list is right, so the piece is wrong.
            ChunkError::Range(_) | ChunkError::Codec(_) => {
                PieceError::OtherRows { place: info.place, expected: info.hash() }
            }
            error => error.into(),
        })
    }

    /// Answers a request for the rows of a span from consecutive pieces, as a peer would. [`PieceMap::piece_of`]
    /// finds the first of them. The chunk ends with the last piece, after about `bytes_max` bytes of rows (at least
    /// one row), or at the limits of a chunk.
    ///
    /// # Errors
    /// [`PieceError::Within`] if these are other pieces.
    pub fn chunk_of(
        &self,
        pieces: &[&Piece],
        span: Span,
        bytes_max: usize,
    ) -> Result<EncodedChunk, PieceError> {
        let bytes_max = bytes_max.min(CHUNK_BYTES_MAX);
        let (mut rows, mut count, mut last) = (Vec::new(), 0, span.first);
        'pieces: for (piece, index) in pieces.iter().zip(self.piece_of(&span.first)..) {
            if self.pieces.get(index) != Some(&piece.info) {
                return Err(PieceError::Within { path: span.first });
            }
            let end = span.last.min(self.last(index));
            let from = piece.rows.leaves.partition_point(|leaf| leaf.path < span.first);
            let stored = rows_within(&piece.content, &piece.rows.bounds);
            for (leaf, row) in piece.rows.leaves.iter().zip(stored).skip(from) {
                if leaf.path > end {
                    break;
                }
                let is_full = rows.len() + row.len() > bytes_max || count == limits::STATE_CHUNK_ROWS_MAX;
                if count > 0 && is_full {
                    // The chunk ends with the row before this one.
                    break 'pieces;
                }
                rows.extend_from_slice(row);
                (count, last) = (count + 1, leaf.path);
            }
            last = end;
        }
        let proof = self.prove(span.first, last, pieces)?;
        Ok(EncodedChunk::new(Span { first: span.first, last }, count, &rows, &proof)?)
    }

    /// Returns the siblings beside a range, for a peer that has its rows. An end inside a piece needs that piece,
    /// which [`PieceMap::piece_of`] finds.
    ///
    /// # Errors
    /// [`PieceError::Within`] if an end is inside a piece that is not given.
    pub fn range_proof(&self, span: Span, pieces: &[&Piece]) -> Result<StateRangeProof, PieceError> {
        self.prove(span.first, span.last, pieces)
    }

    fn prove(&self, first: Path, last: Path, pieces: &[&Piece]) -> Result<StateRangeProof, PieceError> {
        let left = BoundedVec::new(self.siblings(&first, true, pieces)?)?;
        let right = BoundedVec::new(self.siblings(&last, false, pieces)?)?;
        Ok(StateRangeProof { left, right })
    }

    /// Returns the subtrees that branch off the way to `end` before it, or after it, by ascending depth.
    fn siblings(&self, end: &Path, before: bool, pieces: &[&Piece]) -> Result<Vec<Sibling>, PieceError> {
        let mut siblings = Vec::new();
        let mut beside = |bit: usize, node: SiblingNode| {
            if end.bit(bit) == before {
                siblings.push(Sibling { depth: bit as u8, node });
            }
        };
        let mut at = self.top;
        loop {
            let (path, bits) = self.place(at);
            let parting = path.common_bits(end);
            if parting < bits {
                beside(parting, self.node(at, parting + 1));
                return Ok(siblings);
            }
            match at {
                Branch::Fork(index) => {
                    let Fork { bit, sides, .. } = self.forks[index];
                    let turn = usize::from(end.bit(bit));
                    beside(bit, self.node(sides[1 - turn], bit + 1));
                    at = sides[turn];
                }
                Branch::Piece(index) => {
                    let info = &self.pieces[index];
                    let Span { first, last } = info.place.span();
                    let given = pieces.iter().find(|piece| piece.info == *info);
                    match given {
                        // All rows of the piece are on the other side of its end.
                        _ if *end == if before { first } else { last } => {}
                        Some(piece) => siblings.extend(siblings_within(piece, end, before)),
                        None => return Err(PieceError::Within { path: *end }),
                    }
                    return Ok(siblings);
                }
            }
        }
    }

    /// Builds the fork of consecutive pieces, at least one.
    fn fork(&mut self, range: Range<usize>) -> Branch {
        if range.len() == 1 {
            return Branch::Piece(range.start);
        }
        let path = *self.pieces[range.start].place.path();
        let bit = path.common_bits(self.pieces[range.end - 1].place.path());
        let middle =
            range.start + self.pieces[range.clone()].partition_point(|piece| !piece.place.path().bit(bit));
        let sides = [self.fork(range.start..middle), self.fork(middle..range.end)];
        let [left, right] = sides.map(|side| self.subtree(side, bit + 1));
        let hash = Subtree::parent(left, right).hash();
        self.forks.push(Fork { path, bit, sides, hash });
        Branch::Fork(self.forks.len() - 1)
    }

    /// The bits that all leaves of a branch share.
    fn place(&self, branch: Branch) -> (Path, usize) {
        match branch {
            Branch::Piece(index) => (*self.pieces[index].place.path(), self.pieces[index].place.bits()),
            Branch::Fork(index) => (self.forks[index].path, self.forks[index].bit),
        }
    }

    /// The node of a branch whose leaves are taken to share `bits` bits, at most those that they do share.
    fn node(&self, branch: Branch, bits: usize) -> SiblingNode {
        let (path, own) = self.place(branch);
        let hash = match branch {
            Branch::Fork(index) => self.forks[index].hash,
            Branch::Piece(index) => match &self.pieces[index].node {
                SiblingNode::Leaf(leaf) => return SiblingNode::Leaf(*leaf),
                SiblingNode::Inner(hash) => *hash,
            },
        };
        SiblingNode::Inner(lift_hash(hash, &path, own, bits))
    }

    fn subtree(&self, branch: Branch, bits: usize) -> Subtree {
        match self.node(branch, bits) {
            SiblingNode::Leaf(leaf) => Subtree::Leaf(leaf.hash()),
            SiblingNode::Inner(hash) => Subtree::Inner(hash),
        }
    }
}

/// Returns the subtrees of a piece that branch off the way to a path in it. Leaves that branch off at one bit are one
/// subtree.
fn siblings_within(piece: &Piece, end: &Path, before: bool) -> Vec<Sibling> {
    let leaves = &piece.rows.leaves;
    let beside = match before {
        true => &leaves[..leaves.partition_point(|leaf| leaf.path < *end)],
        false => &leaves[leaves.partition_point(|leaf| leaf.path <= *end)..],
    };
    let groups = beside.chunk_by(|a, b| a.path.common_bits(end) == b.path.common_bits(end));
    let sibling = |group: &[slipstream_types::tree::Leaf]| {
        let bit = group[0].path.common_bits(end);
        let node = match group {
            [leaf] => SiblingNode::Leaf(*leaf),
            leaves => SiblingNode::Inner(subtree(leaves, bit + 1).hash()),
        };
        Sibling { depth: bit as u8, node }
    };
    let mut siblings: Vec<Sibling> = groups.map(sibling).collect();
    if !before {
        siblings.reverse();
    }
    siblings
}

/// Checks that a list can be one of pieces.
fn check_list(pieces: &[PieceInfo]) -> Result<(), PieceError> {
    let mut free = Some(Path::MIN);
    for PieceInfo { place, node, rows, bytes } in pieces {
        let refused = |reason| Err(PieceError::BadList { place: *place, reason });
        let Span { first, last } = place.span();
        if free.is_none_or(|free| first < free) {
            return refused("it does not come after the previous piece");
        }
        free = last.successor();
        let (rows, bytes) = (*rows as usize, *bytes as usize);
        match node {
            SiblingNode::Leaf(leaf) if rows != 1 || !place.contains(&leaf.path) => {
                return refused("its only row lies outside it");
            }
            SiblingNode::Inner(_) if rows < 2 => return refused("one row cannot make an inner node"),
            _ if rows > limits::STATE_CHUNK_ROWS_MAX
                || bytes > PIECE_ROWS_BYTES_MAX
                || bytes < rows * ACCOUNT_BYTES =>
            {
                return refused("it has too many rows or bytes for a piece, or too few bytes for its rows");
            }
            _ => {}
        }
    }
    Ok(())
}
