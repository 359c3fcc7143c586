//! [`Plan`]: the signed description of a payload, and the parameters of its coding.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use slipstream_types::{Digest, bounded::BoundedVec};

#[cfg(doc)]
use crate::limits::SHARDS_MAX;
use crate::limits::{PAYLOAD_BYTES_MAX, PIECES_MAX, RLNC_BYTES_MAX};

/// How a payload travels. In text and YAML: `gossip`, `reed_solomon`, `rlnc`.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    strum::VariantArray,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CodecKind {
    /// Whole.
    Gossip,
    /// As shards of a Reed-Solomon code under a Merkle root.
    ReedSolomon,
    /// As random linear combinations under Pedersen commitments.
    Rlnc,
}

impl CodecKind {
    /// All kinds of codecs.
    pub const ALL: &'static [CodecKind] = <CodecKind as strum::VariantArray>::VARIANTS;

    /// Its name in configuration, metrics and reports.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Bytes of the largest payload that the codec takes.
    pub fn payload_bytes_max(self) -> usize {
        match self {
            CodecKind::Gossip | CodecKind::ReedSolomon => PAYLOAD_BYTES_MAX,
            CodecKind::Rlnc => RLNC_BYTES_MAX,
        }
    }
}

impl fmt::Display for CodecKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CodecKind {
    type Err = UnknownCodec;

    fn from_str(text: &str) -> Result<Self, UnknownCodec> {
        let named = Self::ALL.iter().copied().find(|kind| kind.name() == text);
        named.ok_or_else(|| UnknownCodec(text.chars().take(80).collect()))
    }
}

/// The error for a name that no codec has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a codec; the codecs are {names}", names = names())]
pub struct UnknownCodec(pub String);

fn names() -> String {
    CodecKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

/// The part of a signed plan other than the digest: enough to check each chunk alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, strum::VariantNames)]
pub enum Commitment {
    /// Nothing: the payload is its own chunk.
    Whole,
    /// Shards of a Reed-Solomon code.
    ReedSolomon {
        /// Root of the Merkle tree over all shards.
        root: Digest,
        /// Shards that the payload is cut into; any `data` shards are enough.
        data: u16,
        /// Number of parity shards beyond the data shards.
        parity: u16,
    },
    /// A Pedersen commitment for each vector of scalars.
    Rlnc {
        /// A compressed Ristretto point for each of the payload's pieces.
        commitments: BoundedVec<[u8; 32], PIECES_MAX>,
    },
}

impl Commitment {
    /// The codec that the commitment belongs to.
    pub fn kind(&self) -> CodecKind {
        match self {
            Commitment::Whole => CodecKind::Gossip,
            Commitment::ReedSolomon { .. } => CodecKind::ReedSolomon,
            Commitment::Rlnc { .. } => CodecKind::Rlnc,
        }
    }
}

/// Describes a coded payload. It is a pure function of the payload, the codec and its [`Parameters`], so all validators
/// of one batch make the same plan. The mesh signs it together with chain, epoch, view, batch and kind of payload. In
/// BCS it has at most 2.2 kB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`payload_digest`] of the payload.
    pub digest: Digest,
    /// Bytes of the payload.
    pub bytes: u32,
    /// The commitment that chunks are checked against.
    pub commitment: Commitment,
}

/// How finely a payload is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Pieces under RLNC (N), 1 to [`PIECES_MAX`].
    pub pieces: u16,
    /// Data shards of Reed-Solomon, from 1; together with `parity` at most [`SHARDS_MAX`].
    pub data: u16,
    /// Parity shards of Reed-Solomon, from 1.
    pub parity: u16,
}

impl Parameters {
    /// Parameters for a payload of `payload_bytes` bytes, as measured.
    ///
    /// RLNC: pieces of 12 KiB, 6 to 20 of them. More pieces make a chunk cheaper to verify, and sooner to pass on.
    /// Coefficients and decoding grow with the number of pieces. From about 20 pieces on, these costs outweigh the
    /// gain, for payloads of 120 kB and of 1 MB alike. With 6 pieces the coefficients are a thirteenth of 20 kB.
    ///
    /// Reed-Solomon: shards of 8 KiB, 4 to 64 of them, and as many parity shards. Many shards cost hardly more than
    /// few, in coding and in paths. A large shard takes long to send, so it is passed on late.
    pub fn default_for(payload_bytes: usize) -> Self {
        let parts = |bytes, range: std::ops::RangeInclusive<usize>| {
            payload_bytes.div_ceil(bytes).clamp(*range.start(), *range.end()) as u16
        };
        let data = parts(8 << 10, 4..=64);
        Self { pieces: parts(12 << 10, 6..=20), data, parity: data }
    }
}

/// The digest of a payload in its [`Plan`]: SHA-256 under a tag of its own.
pub fn payload_digest(payload: &[u8]) -> Digest {
    Digest::tagged("slipstream coded payload", payload)
}

#[cfg(test)]
mod tests {
    use strum::VariantNames as _;

    use super::*;

    /// Goal: a variant's position is its tag on the wire. New variants come last, and raise the ALPN version.
    #[test]
    fn tags_follow_the_order() {
        assert_eq!(Commitment::VARIANTS, ["Whole", "ReedSolomon", "Rlnc"]);
    }
}
