//! A state in pieces with stable names: each holds the rows of one subtree, and is named by that subtree's hash.
//!
//! ```text
//!   Snapshot ── rows by path ─▶ Cutter ─▶ Piece, Piece, … ─▶ elsewhere, under their hashes
//!                                            │
//!                          PieceInfo of each └─▶ PieceMap ── range proofs ─▶ VerifiedChunk, or the chunk that a peer asks for
//! ```
//!
//! * The cut depends on the rows alone: a subtree of at most [`PIECE_ROWS_BYTES_MAX`] whose parent is larger is one piece. So two states
//!   share the pieces of their equal parts, and a store with one state needs only the others.
//! * A [`Piece`] can be checked by its hash and place alone. A [`PieceMap`] is a list of pieces whose hashes give the state root. The rest
//!   of the list proves each piece, so a piece becomes the [`crate::StateChunk`] that a peer would send.
//! * Codes are cut in the same way, by their hashes: [`CodePack`].

mod codes;
mod cut;
mod map;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use slipstream_types::{
    Blob, BlobKind, CodecError, Digest, Path, limits,
    tree::{Leaf, SiblingNode, subtree},
};

pub use self::{
    codes::{CodePack, CodePackInfo},
    map::PieceMap,
};
use crate::{
    chunk::{ReadRows, code_hash, put_count, rows_within},
    error::{ChunkError, PieceError},
    place::PathPrefix,
    restore::RESTORE_RANGES_BITS,
};
use cut::Cut;

/// Maximum bytes of rows in a piece: enough that a large state has few objects, few enough that a changed row costs
/// little.
pub const PIECE_ROWS_BYTES_MAX: usize = 1 << 20;
/// Fewest bits that a piece shares. Every restore begins with these ranges, so even a small state is fetched in
/// parallel.
pub(crate) const PIECE_BITS_MIN: u8 = RESTORE_RANGES_BITS;

/// Describes a piece to a store that lacks it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PieceInfo {
    /// The place whose rows are exactly the piece's.
    pub place: PathPrefix,
    /// The subtree of the rows. A lone leaf shows its preimage, as in a proof.
    pub node: SiblingNode,
    /// Number of rows.
    pub rows: u32,
    /// Bytes of the rows.
    pub bytes: u32,
}

impl PieceInfo {
    /// The hash of its subtree, which is its name.
    pub fn hash(&self) -> Digest {
        match &self.node {
            SiblingNode::Leaf(leaf) => leaf.hash(),
            SiblingNode::Inner(hash) => *hash,
        }
    }
}

/// All rows at a place of a state. Only cutting and checking make one.
pub struct Piece {
    info: PieceInfo,
    /// The number of rows, and the rows.
    content: Vec<u8>,
    rows: ReadRows,
}

impl Piece {
    /// Returns the piece's description.
    pub fn info(&self) -> &PieceInfo {
        &self.info
    }

    /// Bytes of its rows from a path on.
    pub fn bytes_from(&self, first: &Path) -> usize {
        let from = self.rows.leaves.partition_point(|leaf| leaf.path < *first);
        self.rows.end() - self.rows.bounds[from] as usize
    }

    /// Encodes the piece as it is kept elsewhere.
    ///
    /// # Errors
    /// Never fails for pieces within their limits.
    pub fn blob(&self) -> Result<Blob, CodecError> {
        Blob::compress(BlobKind::Piece, &self.content)
    }

    /// Checks the blob of a piece against the piece's description.
    ///
    /// # Errors
    /// The first fault: malformed bytes, or content that does not match its name.
    pub fn open(info: &PieceInfo, blob: &Blob) -> Result<Piece, PieceError> {
        let content = content_of(info, blob)?;
        let rows = ReadRows::read(&content, 0)?;
        if rows.end() != content.len() {
            return Err(ChunkError::Malformed { reason: "it has bytes after its rows" }.into());
        }
        rows.check_order(info.place.span()).map_err(ChunkError::from)?;
        let found = node_of(&rows.leaves, &info.place);
        match found == info.node && rows.leaves.len() == info.rows as usize {
            true => Ok(Piece { info: info.clone(), content, rows }),
            false => Err(PieceError::OtherRows { place: info.place, expected: info.hash() }),
        }
    }

    /// Returns the hashes of the codes that its accounts have.
    pub fn code_hashes(&self) -> impl Iterator<Item = Digest> {
        rows_within(&self.content, &self.rows.bounds).filter_map(code_hash)
    }

    fn of_cut(cut: Cut) -> Piece {
        let Cut { place, items: rows, paths, ends } = cut;
        let mut content = Vec::with_capacity(rows.len() + 5);
        put_count(&mut content, paths.len());
        let start = content.len() as u32;
        content.extend_from_slice(&rows);
        let bounds: Vec<u32> = [start].into_iter().chain(ends.iter().map(|end| start + end)).collect();
        let value_hashes = slipstream_types::StateValue::row_hashes(rows_within(&content, &bounds));
        let leaf = |(path, value_hash)| Leaf { path, value_hash };
        let leaves: Vec<Leaf> = paths.into_iter().zip(value_hashes).map(leaf).collect();
        let node = node_of(&leaves, &place);
        let info = PieceInfo { place, node, rows: leaves.len() as u32, bytes: rows.len() as u32 };
        Piece { info, content, rows: ReadRows { leaves, bounds } }
    }
}

/// Decompresses a blob that claims to be a piece, if its length fits the piece's bytes of rows.
fn content_of(info: &PieceInfo, blob: &Blob) -> Result<Vec<u8>, PieceError> {
    let mut count = Vec::new();
    put_count(&mut count, info.rows as usize);
    if blob.content_len(BlobKind::Piece)? != count.len() + info.bytes as usize {
        return Err(PieceError::OtherRows { place: info.place, expected: info.hash() });
    }
    Ok(blob.content(BlobKind::Piece)?)
}

fn node_of(leaves: &[Leaf], place: &PathPrefix) -> SiblingNode {
    match leaves {
        [leaf] => SiblingNode::Leaf(*leaf),
        leaves => SiblingNode::Inner(subtree(leaves, place.bits()).hash()),
    }
}

const _: () = assert!(PIECE_ROWS_BYTES_MAX < limits::PIECE_BYTES_MAX);
