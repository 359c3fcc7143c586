//! [`Verifier`]: compares chunks with a plan, without a codec.

use std::sync::Arc;

use rand::RngCore;

use super::{Rlnc, chunk::Chunk, scalar::SUM_TERMS_MAX, seed, verify};
use crate::{
    codec::Malformed,
    error::PlanError,
    plan::{Commitment, Plan},
};

/// Verifies chunks of RLNC apart from a codec, in any number and however dependent: for measurements and tools.
pub struct Verifier(Rlnc);

impl Verifier {
    /// Makes a verifier for one plan.
    ///
    /// # Errors
    /// If no honest source makes such a plan, or the plan is for another codec.
    pub fn new(plan: &Plan) -> Result<Self, PlanError> {
        match &plan.commitment {
            Commitment::Rlnc { commitments } => Ok(Self(Rlnc::open(plan.clone(), commitments)?)),
            other => Err(PlanError::Codec { digest: plan.digest, kind: other.kind() }),
        }
    }

    /// Returns for each chunk whether it contradicts the plan. All chunks are judged together, by weights from `rng`.
    ///
    /// # Errors
    /// The fault of the first malformed chunk.
    pub fn forged(&self, chunks: &[Vec<u8>], rng: &mut dyn RngCore) -> Result<Vec<bool>, Malformed> {
        let shape = &self.0.shape;
        let read = |bytes: &Vec<u8>| {
            let coefficients = Chunk::coefficients(shape, bytes)?;
            Ok(Arc::new(Chunk { coefficients, scalars: Chunk::scalars(shape, bytes)? }))
        };
        let mut forged = Vec::with_capacity(chunks.len());
        // As many chunks at a time as sums hold.
        for chunks in chunks.chunks(SUM_TERMS_MAX) {
            let chunks = chunks.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            forged.extend(verify::forged(*shape, &self.0.commitments, &chunks, seed(rng)));
        }
        Ok(forged)
    }
}
