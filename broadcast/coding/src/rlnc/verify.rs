//! Compares chunks and payloads with commitments.

use std::sync::Arc;

use curve25519_dalek::{
    RistrettoPoint,
    traits::{IsIdentity, VartimeMultiscalarMul, VartimePrecomputedMultiscalarMul},
};
use rand::{RngCore, SeedableRng, rngs::StdRng};

use super::{
    chunk::Chunk,
    generators,
    pieces::{Shape, scalar_at},
    scalar::{self, Factor, Plain, Sum},
};

/// The commitment to a piece of a payload.
pub(super) fn commit(payload: &[u8], shape: &Shape, piece: usize) -> RistrettoPoint {
    let scalars: Vec<_> =
        (0..shape.scalars).map(|index| scalar_at(payload, piece * shape.scalars + index)).collect();
    deviation(&scalars, &[], &[])
}

/// The commitment of the scalars minus the same combination of commitments. It is the identity if both agree, and otherwise a
/// point that nobody could choose.
fn deviation(scalars: &[Plain], coefficients: &[Plain], commitments: &[RistrettoPoint]) -> RistrettoPoint {
    let negated = coefficients.iter().map(|coefficient| -scalar::to_scalar(coefficient));
    let scalars = scalars.iter().map(scalar::to_scalar);
    if let Some(table) = generators::table(scalars.len()) {
        return table.vartime_mixed_multiscalar_mul(scalars, negated, commitments);
    }
    let generators = generators::first(scalars.len());
    let points = generators[..scalars.len()].iter().chain(commitments);
    RistrettoPoint::vartime_multiscalar_mul(scalars.chain(negated), points)
}

/// Odd weights of 128 bits. Wrong chunks pass together with a probability of 2^-127, if their sender did not know the
/// weights.
fn weights(count: usize, seed: [u8; 32]) -> Vec<Factor> {
    let mut rng = StdRng::from_seed(seed);
    (0..count).map(|_| Factor::of(&[rng.next_u64() | 1, rng.next_u64(), 0, 0])).collect()
}

/// The chunks under verification.
struct Batch<'a> {
    shape: Shape,
    commitments: &'a [RistrettoPoint],
    chunks: &'a [Arc<Chunk>],
    weights: Vec<Factor>,
    forged: Vec<bool>,
}

/// Returns for each chunk whether it contradicts the commitments. If all fit, that costs one multi-scalar
/// multiplication. Each forged chunk costs about as many more multiplications as the number of chunks has bits. The
/// caller must draw `seed` after the chunks came.
pub(super) fn forged(
    shape: Shape,
    commitments: &[RistrettoPoint],
    chunks: &[Arc<Chunk>],
    seed: [u8; 32],
) -> Vec<bool> {
    // A single chunk needs no weight.
    let weights = if chunks.len() == 1 { vec![Factor::ONE] } else { weights(chunks.len(), seed) };
    let mut batch = Batch { shape, commitments, chunks, weights, forged: vec![false; chunks.len()] };
    if !chunks.is_empty() {
        let deviation = batch.deviation(0, chunks.len());
        batch.search(0, chunks.len(), deviation);
    }
    batch.forged
}

impl Batch<'_> {
    /// The deviation of chunks `start..end` from the commitments, weighed and added.
    fn deviation(&self, start: usize, end: usize) -> RistrettoPoint {
        let (chunks, weights) = (&self.chunks[start..end], &self.weights[start..end]);
        let combine = |count: usize, of: fn(&Chunk, usize) -> &Plain| -> Vec<Plain> {
            let sum = |index| {
                let mut sum = Sum::ZERO;
                for (weight, chunk) in weights.iter().zip(chunks) {
                    sum.add(weight, of(chunk, index));
                }
                sum.reduce()
            };
            (0..count).map(sum).collect()
        };
        let scalars = combine(self.shape.scalars, |chunk, index| &chunk.scalars[index]);
        let coefficients = combine(self.shape.pieces, |chunk, index| chunk.coefficients[index].limbs());
        let coefficients: Vec<_> =
            coefficients.into_iter().map(|limbs| Factor::from_limbs(limbs).plain()).collect();
        deviation(&scalars, &coefficients, self.commitments)
    }

    /// Marks the forged chunks among `start..end`, whose deviation is known. Computes the deviation of one half; the
    /// deviation of the other half is the rest.
    fn search(&mut self, start: usize, end: usize, deviation: RistrettoPoint) {
        if deviation.is_identity() {
            return;
        }
        if end - start == 1 {
            self.forged[start] = true;
            return;
        }
        let middle = start.midpoint(end);
        let first = self.deviation(start, middle);
        self.search(start, middle, first);
        self.search(middle, end, deviation - first);
    }
}

/// Whether the commitments are those of this payload: one multi-scalar multiplication for all pieces together.
pub(super) fn is_committed(
    payload: &[u8],
    shape: &Shape,
    commitments: &[RistrettoPoint],
    seed: [u8; 32],
) -> bool {
    let weights = weights(shape.pieces, seed);
    let scalar = |index| {
        let mut sum = Sum::ZERO;
        for (piece, weight) in weights.iter().enumerate() {
            sum.add(weight, &scalar_at(payload, piece * shape.scalars + index));
        }
        sum.reduce()
    };
    let scalars: Vec<_> = (0..shape.scalars).map(scalar).collect();
    let coefficients: Vec<_> = weights.iter().map(Factor::plain).collect();
    deviation(&scalars, &coefficients, commitments).is_identity()
}
