//! Why a payload cannot be coded, and why a plan cannot be followed.

use slipstream_types::Digest;

use crate::{
    limits::{PIECE_SCALARS_MAX, PIECES_MAX, SHARDS_MAX},
    plan::CodecKind,
};

/// Why a payload cannot be coded as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The payload is longer than the codec takes.
    #[error("{kind} takes payloads of at most {max} bytes, not {len}: use another codec")]
    TooLong {
        /// The codec.
        kind: CodecKind,
        /// Bytes of the payload.
        len: usize,
        /// Maximum bytes that it takes.
        max: usize,
    },
    /// The number of pieces is out of bounds.
    #[error("a payload has 1 to {PIECES_MAX} pieces, not {0}")]
    Pieces(u16),
    /// The pieces are too large.
    #[error(
        "{pieces} pieces of {bytes} bytes have {scalars} scalars each, above the limit of {PIECE_SCALARS_MAX}: use more pieces"
    )]
    PieceTooLong {
        /// Number of pieces.
        pieces: usize,
        /// Bytes of the payload.
        bytes: usize,
        /// Number of scalars in each piece.
        scalars: usize,
    },
    /// The numbers of shards are out of bounds.
    #[error(
        "a payload has at least 1 data and 1 parity shard and at most {SHARDS_MAX} together, not {data} and {parity}"
    )]
    Shards {
        /// Number of data shards.
        data: u16,
        /// Number of parity shards.
        parity: u16,
    },
}

/// The rule that a plan breaks. Its signer is to blame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The plan describes a coding that no payload may have.
    #[error("the plan of payload {digest}: {source}")]
    Shape {
        /// Digest of the plan's payload.
        digest: Digest,
        /// The rule that the parameters break.
        #[source]
        source: EncodeError,
    },
    /// Some pieces would be all padding.
    #[error("the plan of payload {digest} cuts {bytes} bytes into {pieces} pieces")]
    Empty {
        /// Digest of the plan's payload.
        digest: Digest,
        /// Length of the payload, in bytes.
        bytes: u32,
        /// Number of pieces that the plan names.
        pieces: usize,
    },
    /// The plan is for another codec than the requested one.
    #[error("the plan of payload {digest} belongs to another codec, {kind}")]
    Codec {
        /// Digest of the plan's payload.
        digest: Digest,
        /// The plan's codec.
        kind: CodecKind,
    },
    /// A commitment is not the canonical encoding of a point.
    #[error("commitment {index} in the plan of payload {digest} is not a point of the group")]
    Point {
        /// Digest of the plan's payload.
        digest: Digest,
        /// Index of the commitment.
        index: usize,
    },
}
