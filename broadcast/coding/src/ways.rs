//! The entry points of codecs: at a payload's source, and at a receiver of its plan.

use std::sync::Arc;

use slipstream_types::Digest;

use crate::{
    codec::Codec,
    gossip::Gossip,
    limits::{PIECE_SCALARS_MAX, PIECES_MAX, SHARDS_MAX},
    plan::{CodecKind, Commitment, Parameters, Plan, payload_digest},
    reed_solomon::ReedSolomon,
    rlnc::Rlnc,
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
    /// It describes a coding that no payload may have.
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
    /// It is a plan of another codec than the one that was asked for.
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

/// Codes a payload at its source. RLNC commits to each piece, which takes milliseconds to a tenth of a second: call it
/// on a worker thread. The plan depends on the arguments alone.
///
/// # Errors
/// If the payload is too long for the codec, or the parameters are out of bounds.
pub fn encode(
    kind: CodecKind,
    payload: Arc<[u8]>,
    parameters: &Parameters,
) -> Result<(Plan, Box<dyn Codec>), EncodeError> {
    let bytes = bounded_bytes(kind, payload.len())?;
    let digest = payload_digest(&payload);
    let plan = |commitment| Plan { digest, bytes, commitment };
    let codec: Box<dyn Codec> = match kind {
        CodecKind::Gossip => Box::new(Gossip::encode(plan(Commitment::Whole), payload)),
        CodecKind::ReedSolomon => {
            Box::new(ReedSolomon::encode(payload, parameters.data, parameters.parity, plan)?)
        }
        CodecKind::Rlnc => Box::new(Rlnc::encode(payload, parameters.pieces, plan)?),
    };
    Ok((codec.plan().clone(), codec))
}

/// Makes the codec of a receiver, for a plan whose signature the caller has checked. Compares bounds and decodes RLNC's
/// points, some 5 microseconds each. It allocates only those; [`Codec::held_bytes_max`] bounds what the codec may come
/// to hold.
///
/// # Errors
/// If no honest source makes such a plan.
pub fn open(plan: &Plan) -> Result<Box<dyn Codec>, PlanError> {
    let shape = |source| PlanError::Shape { digest: plan.digest, source };
    bounded_bytes(plan.commitment.kind(), plan.bytes as usize).map_err(shape)?;
    match &plan.commitment {
        Commitment::Whole => Ok(Box::new(Gossip::open(plan.clone()))),
        Commitment::ReedSolomon { root, data, parity } => {
            Ok(Box::new(ReedSolomon::open(plan.clone(), *root, *data, *parity).map_err(shape)?))
        }
        Commitment::Rlnc { commitments } => Ok(Box::new(Rlnc::open(plan.clone(), commitments)?)),
    }
}

fn bounded_bytes(kind: CodecKind, len: usize) -> Result<u32, EncodeError> {
    let max = kind.payload_bytes_max();
    let bytes = u32::try_from(len).ok().filter(|_| len <= max);
    bytes.ok_or(EncodeError::TooLong { kind, len, max })
}
