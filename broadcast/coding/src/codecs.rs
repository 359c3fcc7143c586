//! Makes a codec of the requested kind: at a payload's source, and at a receiver of its plan.

use std::sync::Arc;

use crate::{
    codec::Codec,
    error::{EncodeError, PlanError},
    gossip::Gossip,
    plan::{CodecKind, Commitment, Parameters, Plan, payload_digest},
    reed_solomon::ReedSolomon,
    rlnc::Rlnc,
};

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
/// points, some 5 microseconds each. It allocates only these points; [`Codec::held_bytes_max`] bounds the bytes that
/// the codec may hold later.
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
