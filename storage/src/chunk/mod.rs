//! State chunks: runs of rows that prove themselves. [`StateChunk`] is the decoded form. Making, checking and storing
//! a chunk works on its encoding, because its rows equal the state column's byte for byte.

use std::fmt;

use serde::{Deserialize, Serialize};
use slipstream_types::{
    Address, B256, CodecError, Digest, Path, StateKey, StateValue,
    bounded::BoundedVec,
    codec, limits,
    tree::{Leaf, StateRangeError, StateRangeProof},
};

use crate::{
    density::Density,
    error::{ChunkError, StorageError},
    span::Span,
    state::Tree,
};

/// Maximum bytes of rows in one chunk: a chunk must fit its blob's limit, with room for the proof.
pub(crate) const CHUNK_BYTES_MAX: usize = limits::DELTA_BYTES_MAX / 2;
/// Bytes of the two paths that a chunk begins with.
const ENDS_BYTES: usize = 64;
/// Maximum bytes of an encoded number of rows.
const COUNT_BYTES_MAX: usize = 5;

/// A run of state rows with the proof that nothing between its ends is missing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StateChunk {
    /// The chunk's first path.
    pub first: Path,
    /// The chunk's last path, included; [`Path::MAX`] in the final chunk.
    pub last: Path,
    /// All rows in between, sorted by path.
    pub rows: BoundedVec<(StateKey, StateValue), { limits::STATE_CHUNK_ROWS_MAX }>,
    /// The siblings beside both ends.
    pub proof: StateRangeProof,
}

impl StateChunk {
    /// Checks that the rows are exactly those of the state with this root from `first` to `last`.
    pub fn verify(&self, root: Digest) -> Result<(), ChunkError> {
        VerifiedChunk::open(codec::encode("state chunk", self)?, root).map(|_| ())
    }
}

/// A chunk as it is sent and stored in files: the encoding of a [`StateChunk`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncodedChunk {
    /// The chunk's first path.
    pub first: Path,
    /// The chunk's last path, included.
    pub last: Path,
    /// Number of rows in the chunk.
    pub rows: usize,
    /// Bytes of the rows alone.
    pub row_bytes: usize,
    /// The chunk's encoding.
    pub content: Vec<u8>,
}

/// Collects rows until a chunk is full.
pub(crate) struct ChunkBuilder {
    first: Path,
    last: Path,
    rows: Vec<u8>,
    count: usize,
    bytes_max: usize,
}

impl ChunkBuilder {
    pub(crate) fn new(first: Path, bytes_max: usize) -> ChunkBuilder {
        let bytes_max = bytes_max.min(CHUNK_BYTES_MAX);
        ChunkBuilder {
            first,
            last: first,
            rows: Vec::with_capacity(bytes_max.min(1 << 20)),
            count: 0,
            bytes_max,
        }
    }

    /// Whether a row of `row_len` bytes belongs in the next chunk. The first row always fits.
    pub(crate) fn is_full(&self, row_len: usize) -> bool {
        self.count > 0
            && (self.rows.len() + row_len > self.bytes_max || self.count == limits::STATE_CHUNK_ROWS_MAX)
    }

    pub(crate) fn push(&mut self, path: Path, row: &[u8]) {
        self.last = path;
        self.rows.extend_from_slice(row);
        self.count += 1;
    }

    /// The path of its last row.
    pub(crate) fn last(&self) -> Path {
        self.last
    }

    /// Finishes the chunk, which also proves that no other row follows up to `last`.
    pub(crate) fn finish(
        self,
        last: Path,
        prove: impl FnOnce(&Path, &Path) -> Result<StateRangeProof, StorageError>,
    ) -> Result<EncodedChunk, StorageError> {
        let proof = prove(&self.first, &last)?;
        Ok(EncodedChunk::new(Span { first: self.first, last }, self.count, &self.rows, &proof)?)
    }
}

impl EncodedChunk {
    /// Encodes a chunk of `count` encoded rows, with the proof that no others are between its ends.
    pub(crate) fn new(
        span: Span,
        count: usize,
        rows: &[u8],
        proof: &StateRangeProof,
    ) -> Result<EncodedChunk, CodecError> {
        let Span { first, last } = span;
        let proof = codec::encode("range proof", proof)?;
        let mut content = Vec::with_capacity(ENDS_BYTES + COUNT_BYTES_MAX + rows.len() + proof.len());
        content.extend_from_slice(&first.0);
        content.extend_from_slice(&last.0);
        put_count(&mut content, count);
        content.extend_from_slice(rows);
        content.extend_from_slice(&proof);
        Ok(EncodedChunk { first, last, rows: count, row_bytes: rows.len(), content })
    }
}

/// Encoded rows that were read: the leaf and the position of each.
pub(crate) struct ReadRows {
    pub(crate) leaves: Vec<Leaf>,
    /// Where each row begins, and where the last one ends.
    pub(crate) bounds: Vec<u32>,
}

impl ReadRows {
    /// Reads the rows whose count is at `at`.
    pub(crate) fn read(content: &[u8], at: usize) -> Result<ReadRows, ChunkError> {
        let (count, count_len) = take_count(&content[at..])?;
        let mut at = at + count_len;
        let mut keys = Vec::with_capacity(count.min(content.len() / ACCOUNT_BYTES));
        let mut bounds = Vec::with_capacity(keys.capacity() + 1);
        for index in 0..count {
            bounds.push(at as u32);
            let (key, len) = read_row(&content[at..], index)?;
            keys.push(key);
            at += len;
        }
        bounds.push(at as u32);
        let value_hashes = StateValue::row_hashes(rows_within(content, &bounds));
        let leaf = |(path, value_hash)| Leaf { path, value_hash };
        let leaves = StateKey::paths(&keys).into_iter().zip(value_hashes).map(leaf).collect();
        Ok(ReadRows { leaves, bounds })
    }

    /// Where the last row ends.
    pub(crate) fn end(&self) -> usize {
        self.bounds.last().map_or(0, |end| *end as usize)
    }

    /// Checks that the rows are sorted and inside a span.
    pub(crate) fn check_order(&self, span: Span) -> Result<(), StateRangeError> {
        let inside = |leaf: &Leaf| span.first <= leaf.path && leaf.path <= span.last;
        match self.leaves.is_sorted_by(|a, b| a.path < b.path) && self.leaves.iter().all(inside) {
            true => Ok(()),
            false => Err(StateRangeError::BadOrder),
        }
    }
}

/// A chunk whose rows are exactly what a state root commits to between its ends. Only [`VerifiedChunk::open`] makes
/// one.
pub struct VerifiedChunk {
    root: Digest,
    first: Path,
    last: Path,
    content: Vec<u8>,
    paths: Vec<Path>,
    /// The tree of these rows alone: hashes, and hardly any nodes.
    tree: Tree,
    /// Where each row begins in the content, and where the last one ends.
    bounds: Vec<u32>,
}

impl fmt::Debug for VerifiedChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows from {:?} to {:?}", self.paths.len(), self.first, self.last)
    }
}

impl VerifiedChunk {
    /// Checks an encoded [`StateChunk`] against a state root.
    ///
    /// # Errors
    /// The first malformed part, or a root that differs.
    pub fn open(content: Vec<u8>, root: Digest) -> Result<VerifiedChunk, ChunkError> {
        let too_short = ChunkError::Malformed { reason: "it ends early" };
        let ends = content.first_chunk::<ENDS_BYTES>().ok_or(too_short.clone())?;
        let (mut first, mut last) = (Path::MIN, Path::MIN);
        first.0.copy_from_slice(&ends[..32]);
        last.0.copy_from_slice(&ends[32..]);
        let rows = ReadRows::read(&content, ENDS_BYTES)?;
        let proof: StateRangeProof = codec::decode("range proof", &content[rows.end()..], usize::MAX)?;
        rows.check_order(Span { first, last })?;
        let ReadRows { leaves, bounds } = rows;
        let tree = Tree::sketch(&leaves, &first, &last);
        // The proof needs the subtrees beside the paths to both ends. The sketch has the nodes above them, so no row is
        // read.
        proof.verify_subtrees(root, first, last, |prefix, bits| {
            tree.subtree(prefix, bits).unwrap_or_default()
        })?;
        let paths = leaves.iter().map(|leaf| leaf.path).collect();
        Ok(VerifiedChunk { root, first, last, content, paths, tree, bounds })
    }

    /// The root that the chunk was checked against.
    pub fn root(&self) -> Digest {
        self.root
    }

    /// The chunk's first path.
    pub fn first(&self) -> Path {
        self.first
    }

    /// The chunk's last path, included.
    pub fn last(&self) -> Path {
        self.last
    }

    /// Number of rows in the chunk.
    pub fn rows(&self) -> usize {
        self.paths.len()
    }

    pub(crate) fn span(&self) -> Span {
        Span { first: self.first, last: self.last }
    }

    pub(crate) fn density(&self) -> Option<Density> {
        Density::of(self.paths.len(), |index| self.paths[index])
    }

    /// Bytes of the rows and their paths.
    pub(crate) fn stored_bytes(&self) -> u64 {
        (self.content.len() - self.proof_bytes() + size_of::<Path>() * self.paths.len()) as u64
    }

    /// The tree of its rows alone.
    pub(crate) fn into_tree(self) -> Tree {
        self.tree
    }

    /// Whether another proof of the same range is right too. A wrong one is forged: with these rows, every true proof
    /// verifies.
    pub fn confirms(&self, proof: &StateRangeProof) -> bool {
        let below = |prefix: &Path, bits| self.tree.subtree(prefix, bits).unwrap_or_default();
        proof.verify_subtrees(self.root, self.first, self.last, below).is_ok()
    }

    /// Bytes of the proof.
    pub fn proof_bytes(&self) -> usize {
        self.content.len() - self.bounds.last().map_or(0, |end| *end as usize)
    }

    /// The rows as they are stored, with their paths.
    pub fn stored_rows(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.paths.iter().zip(rows_within(&self.content, &self.bounds))
    }
}

/// Returns the rows between adjacent bounds.
pub(crate) fn rows_within<'a>(content: &'a [u8], bounds: &'a [u32]) -> impl Iterator<Item = &'a [u8]> {
    bounds.array_windows().map(|[start, end]| &content[*start as usize..*end as usize])
}

/// Returns the code hash of a well-formed encoded account row; `None` for other rows.
pub(crate) fn code_hash(row: &[u8]) -> Option<Digest> {
    let has_code = row.first() == Some(&0) && row.len() == ACCOUNT_BYTES + 32;
    has_code.then(|| row.last_chunk::<32>().copied().map(Digest)).flatten()
}

/// Returns the code hashes of a chunk that this store made itself.
pub(crate) fn code_hashes(chunk: &EncodedChunk) -> Result<Vec<Digest>, StorageError> {
    let (_, count_len) = take_count(&chunk.content[ENDS_BYTES..])?;
    let mut rows = &chunk.content[ENDS_BYTES + count_len..][..chunk.row_bytes];
    let mut hashes = Vec::new();
    while let [table, ..] = rows {
        let has_code = *table == 0 && rows.get(ACCOUNT_BYTES - 1) == Some(&1);
        let len = match table {
            0 => ACCOUNT_BYTES + usize::from(has_code) * 32,
            _ => SLOT_BYTES,
        };
        let (row, rest) =
            rows.split_at_checked(len).ok_or_else(|| StorageError::corrupt("a state row is cut off"))?;
        hashes.extend(code_hash(row));
        rows = rest;
    }
    Ok(hashes)
}

/// Encoded bytes of a slot's row: both tags, address, slot and value.
pub(crate) const SLOT_BYTES: usize = 1 + 20 + 32 + 1 + 32;
/// Encoded bytes of an account's row without code hash: both tags, address, nonce, balance, option.
pub(crate) const ACCOUNT_BYTES: usize = 1 + 20 + 1 + 8 + 32 + 1;

/// Reads the key of the row at the start of `bytes`, and the row's length.
fn read_row(bytes: &[u8], index: usize) -> Result<(StateKey, usize), ChunkError> {
    let (key, len) = match bytes.first() {
        Some(0) if bytes.len() >= ACCOUNT_BYTES => read_account(bytes, index)?,
        Some(1) if bytes.len() >= SLOT_BYTES => read_slot(bytes, index)?,
        Some(0 | 1) => return Err(ChunkError::Malformed { reason: "it ends early" }),
        _ => return Err(ChunkError::BadValue { index }),
    };
    match len <= bytes.len() {
        true => Ok((key, len)),
        false => Err(ChunkError::Malformed { reason: "it ends early" }),
    }
}

fn read_account(bytes: &[u8], index: usize) -> Result<(StateKey, usize), ChunkError> {
    let key = StateKey::Account(Address::from_slice(&bytes[1..21]));
    let (table, fields, option) = (bytes[21], &bytes[22..62], bytes[62]);
    let is_empty = option == 0 && fields.iter().all(|byte| *byte == 0);
    if table != 0 || option > 1 || is_empty {
        return Err(ChunkError::BadValue { index });
    }
    Ok((key, ACCOUNT_BYTES + usize::from(option) * 32))
}

fn read_slot(bytes: &[u8], index: usize) -> Result<(StateKey, usize), ChunkError> {
    let key = StateKey::Slot(Address::from_slice(&bytes[1..21]), B256::from_slice(&bytes[21..53]));
    if bytes[53] != 1 || bytes[54..86].iter().all(|byte| *byte == 0) {
        return Err(ChunkError::BadValue { index });
    }
    Ok((key, SLOT_BYTES))
}

/// Appends a count as ULEB128, as in BCS.
pub(crate) fn put_count(bytes: &mut Vec<u8>, mut count: usize) {
    while count >= 0x80 {
        bytes.push(count as u8 | 0x80);
        count >>= 7;
    }
    bytes.push(count as u8);
}

/// Reads the number of rows. Returns it with its length in bytes.
fn take_count(bytes: &[u8]) -> Result<(usize, usize), ChunkError> {
    let mut count = 0;
    for (i, byte) in bytes.iter().take(COUNT_BYTES_MAX).enumerate() {
        count |= usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            let canonical = i == 0 || *byte != 0;
            return match canonical && count <= limits::STATE_CHUNK_ROWS_MAX {
                true => Ok((count, i + 1)),
                false => Err(ChunkError::Malformed { reason: "its number of rows is above the limit" }),
            };
        }
    }
    Err(ChunkError::Malformed { reason: "its number of rows is not a number" })
}

#[cfg(test)]
mod tests;
