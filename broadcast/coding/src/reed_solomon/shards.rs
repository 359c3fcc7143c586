//! A payload as shards, and back.
//!
//! A chunk as sent: the shard's index (two bytes, little-endian), the siblings from its leaf up (32 bytes each), then
//! the shard.

use std::sync::Arc;

use slipstream_types::Digest;

use super::merkle::{self, Tree};
use crate::codec::Malformed;

/// Bytes of a shard's index as sent.
const INDEX_BYTES: usize = 2;

/// How a payload is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of the payload.
    pub(super) bytes: usize,
    /// Shards that it is cut into.
    pub(super) data: usize,
    /// Number of parity shards beyond the data shards.
    pub(super) parity: usize,
}

impl Shape {
    /// Shards of both kinds.
    pub(super) fn shards(&self) -> usize {
        self.data + self.parity
    }

    /// Bytes of a shard: the code works on pairs of bytes.
    pub(super) fn shard_bytes(&self) -> usize {
        self.bytes.div_ceil(self.data).next_multiple_of(2).max(2)
    }

    /// Bytes before a shard in its chunk.
    fn head_bytes(&self) -> usize {
        INDEX_BYTES + 32 * merkle::depth(self.shards())
    }

    /// Bytes of a chunk as sent.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.head_bytes() + self.shard_bytes()
    }

    /// The shard in a chunk of this shape.
    fn shard<'a>(&self, chunk: &'a [u8]) -> &'a [u8] {
        &chunk[self.head_bytes()..]
    }
}

/// The index that a chunk claims, if its length is right and the payload has that shard.
pub(super) fn index(shape: &Shape, chunk: &[u8]) -> Result<usize, Malformed> {
    let length = Malformed::Length { found: chunk.len(), expected: shape.chunk_bytes() };
    let Some(bytes) = chunk.first_chunk::<INDEX_BYTES>().filter(|_| chunk.len() == shape.chunk_bytes())
    else {
        return Err(length);
    };
    let index = usize::from(u16::from_le_bytes(*bytes));
    if index >= shape.shards() {
        return Err(Malformed::Shard { index, shards: shape.shards() });
    }
    Ok(index)
}

/// Whether a chunk's path leads from its shard, at this index, to the root.
pub(super) fn leads_to(root: &Digest, shape: &Shape, index: usize, chunk: &[u8]) -> bool {
    let leaf = merkle::leaf(index, shape.shard(chunk));
    merkle::root_of(index, leaf, &chunk[INDEX_BYTES..shape.head_bytes()]) == *root
}

/// The root of a payload's shards, and its chunks.
pub(super) type Cut = (Digest, Vec<Arc<[u8]>>);

/// Cuts a payload into all its chunks, with their root. The result is the same on all machines.
pub(super) fn cut(shape: &Shape, payload: &[u8]) -> Result<Cut, reed_solomon_simd::Error> {
    let mut padded = payload.to_vec();
    padded.resize(shape.data * shape.shard_bytes(), 0);
    let data = padded.chunks_exact(shape.shard_bytes());
    let parity = reed_solomon_simd::encode(shape.data, shape.parity, data.clone())?;
    let shards = || data.clone().chain(parity.iter().map(Vec::as_slice)).enumerate();
    let tree = Tree::over(shards().map(|(index, shard)| merkle::leaf(index, shard)).collect());
    let chunk = |(index, shard): (usize, &[u8])| {
        let mut chunk = Vec::with_capacity(shape.chunk_bytes());
        chunk.extend((index as u16).to_le_bytes());
        tree.path(index).for_each(|sibling| chunk.extend(sibling.0));
        chunk.extend(shard);
        chunk.into()
    };
    Ok((tree.root(), shards().map(chunk).collect()))
}

/// Decodes the payload from `data` chunks or more, each with its index. Returns `None` if they are too few.
pub(super) fn join(shape: &Shape, chunks: &[(usize, Arc<[u8]>)]) -> Option<Vec<u8>> {
    let shard = |(index, chunk): &'_ (usize, Arc<[u8]>)| (*index, chunk.clone());
    let (data, parity): (Vec<_>, Vec<_>) =
        chunks.iter().map(shard).partition(|(index, _)| *index < shape.data);
    let restored = if data.len() == shape.data {
        Default::default()
    } else {
        let original = data.iter().map(|(index, chunk)| (*index, shape.shard(chunk)));
        let recovery = parity.iter().map(|(index, chunk)| (index - shape.data, shape.shard(chunk)));
        reed_solomon_simd::decode(shape.data, shape.parity, original, recovery).ok()?
    };
    let mut payload = vec![0; shape.data * shape.shard_bytes()];
    let here = data.iter().map(|(index, chunk)| (*index, shape.shard(chunk)));
    for (index, shard) in here.chain(restored.iter().map(|(index, shard)| (*index, shard.as_slice()))) {
        payload[index * shape.shard_bytes()..][..shape.shard_bytes()].copy_from_slice(shard);
    }
    payload.truncate(shape.bytes);
    Some(payload)
}
