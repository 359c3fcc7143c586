//! [`Blob`]: a part of a batch, compressed once by its maker, then stored and served as the same bytes.
//!
//! Layout: kind (1 byte), uncompressed length (4 bytes, little-endian), one LZ4 block.

use std::ops::Deref;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    bounded::BoundedBytes,
    codec::{self, CodecError},
    limits,
};

const PREFIX_BYTES: usize = 5;

/// The longest blob of any kind: the largest content, incompressible, with its prefix.
pub const BLOB_BYTES_MAX: usize = limits::DELTA_BYTES_MAX + limits::BLOB_EXCESS_BYTES_MAX + PREFIX_BYTES;

/// The kind of a blob's content, which the blob's first byte states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum BlobKind {
    /// Holds a batch's [`crate::Body`].
    Body = 1,
    /// Holds a batch's [`crate::Receipts`].
    Receipts = 2,
    /// Holds a batch's [`crate::Delta`].
    Delta = 3,
    /// Holds a batch's [`crate::Hints`].
    Hints = 4,
    /// Holds the genesis, instead of batch 0's body.
    Genesis = 5,
    /// A chunk of state rows.
    StateChunk = 6,
    /// A chunk of a range delta.
    RangeDelta = 7,
    /// The rows of one subtree of a state.
    Piece = 8,
    /// Contract codes whose hashes share their first bits.
    CodePack = 9,
}

impl BlobKind {
    /// Returns the most bytes that the content may have; checked before the decoder allocates.
    pub fn content_bytes_max(self) -> usize {
        match self {
            BlobKind::Body => limits::BODY_BYTES_MAX,
            BlobKind::Receipts => limits::RECEIPTS_BYTES_MAX,
            BlobKind::Delta => limits::DELTA_BYTES_MAX,
            BlobKind::Hints => limits::HINTS_BYTES_MAX,
            BlobKind::Genesis => limits::GENESIS_BYTES_MAX,
            BlobKind::StateChunk | BlobKind::RangeDelta => limits::DELTA_BYTES_MAX,
            BlobKind::Piece | BlobKind::CodePack => limits::PIECE_BYTES_MAX,
        }
    }

    /// Returns the kind's name, for digest tags and messages.
    pub fn name(self) -> &'static str {
        match self {
            BlobKind::Body => "body",
            BlobKind::Receipts => "receipts",
            BlobKind::Delta => "delta",
            BlobKind::Hints => "hints",
            BlobKind::Genesis => "genesis",
            BlobKind::StateChunk => "state chunk",
            BlobKind::RangeDelta => "range delta chunk",
            BlobKind::Piece => "piece",
            BlobKind::CodePack => "code pack",
        }
    }
}

/// Compressed bytes with their kind and uncompressed length. See the module for the layout.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Blob(BoundedBytes<BLOB_BYTES_MAX>);

impl Blob {
    /// Encodes and compresses a value.
    ///
    /// # Errors
    /// [`CodecError::TooLong`] if the encoding is above the kind's limit.
    pub fn seal<T: Serialize>(kind: BlobKind, value: &T) -> Result<Blob, CodecError> {
        Self::compress(kind, &codec::encode(kind.name(), value)?)
    }

    /// Compresses an already encoded value.
    pub fn compress(kind: BlobKind, content: &[u8]) -> Result<Blob, CodecError> {
        let (what, max) = (kind.name(), kind.content_bytes_max());
        if content.len() > max {
            return Err(CodecError::TooLong { what, len: content.len(), max });
        }
        let packed = lz4::block::compress(content, None, false)
            .map_err(|_| CodecError::Invalid { what, rule: "content must be compressible by LZ4" })?;
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + packed.len());
        bytes.push(kind as u8);
        bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&packed);
        BoundedBytes::new(bytes).map(Blob)
    }

    /// Wraps bytes from a disk or a peer; [`Blob::content`] checks them.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Blob, CodecError> {
        BoundedBytes::new(bytes).map(Blob)
    }

    /// Recompresses the content and returns the shorter of the two blobs. A peer may have compressed badly, which the
    /// content's digest cannot reveal; so the store keeps and serves the shorter form.
    ///
    /// # Errors
    /// [`CodecError::TooLong`] if the content is above the kind's limit.
    pub fn shortest(self, kind: BlobKind, content: &[u8]) -> Result<Blob, CodecError> {
        let own = Self::compress(kind, content)?;
        Ok(if own.0.len() < self.0.len() { own } else { self })
    }

    /// The bytes that are stored and sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes that are stored and sent.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_inner()
    }

    /// Returns the uncompressed length that the prefix announces, if the blob has that kind and the length is within
    /// its limit.
    pub fn content_len(&self, kind: BlobKind) -> Result<usize, CodecError> {
        let (what, max) = (kind.name(), kind.content_bytes_max());
        let Some((&[found, a, b, c, d], _)) = self.0.split_first_chunk::<PREFIX_BYTES>() else {
            return Err(CodecError::Invalid { what, rule: "a blob starts with its kind and length" });
        };
        if found != kind as u8 {
            return Err(CodecError::Invalid { what, rule: "the blob has another kind" });
        }
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len > max { Err(CodecError::TooLong { what, len, max }) } else { Ok(len) }
    }

    /// Decompresses the content.
    pub fn content(&self, kind: BlobKind) -> Result<Vec<u8>, CodecError> {
        let len = self.content_len(kind)?;
        let invalid =
            CodecError::Invalid { what: kind.name(), rule: "the LZ4 block must give the announced length" };
        // LZ4 expands data at most 255-fold. A larger announced length is false, and is refused before the allocation.
        if len > self.0.len().saturating_mul(255) {
            return Err(invalid);
        }
        let mut content = vec![0; len];
        match lz4::block::decompress_to_buffer(&self.0[PREFIX_BYTES..], Some(len as i32), &mut content) {
            Ok(written) if written == len => Ok(content),
            _ => Err(invalid),
        }
    }

    /// Decompresses and decodes the content.
    pub fn open<T: DeserializeOwned>(&self, kind: BlobKind) -> Result<T, CodecError> {
        codec::decode(kind.name(), &self.content(kind)?, kind.content_bytes_max())
    }
}

impl Deref for Blob {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
