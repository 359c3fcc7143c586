//! A chunk: a linear combination of pieces, with its coefficients.
//!
//! As sent: the coefficients, then the scalars, each the 32 bytes of its canonical encoding.

use std::sync::Arc;

use rand::RngCore;

use super::{
    pieces::{Shape, scalar_at},
    scalar::{self, Factor, Plain, SHORT_BITS, ShortSum},
};
use crate::codec::Malformed;

/// A combination of pieces.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// One for each piece.
    pub(super) coefficients: Vec<Factor>,
    /// One for each scalar of a piece.
    pub(super) scalars: Vec<Plain>,
}

impl Chunk {
    /// Checks the length of a chunk's bytes, then reads its coefficients. [`Chunk::scalars`] reads the rest.
    pub(super) fn coefficients(shape: &Shape, bytes: &[u8]) -> Result<Vec<Factor>, Malformed> {
        if bytes.len() != shape.chunk_bytes() {
            return Err(Malformed::Length { found: bytes.len(), expected: shape.chunk_bytes() });
        }
        let coefficients: Vec<_> = residues(&bytes[..32 * shape.pieces], 0)?.iter().map(Factor::of).collect();
        if coefficients.iter().all(Factor::is_zero) {
            return Err(Malformed::Zero);
        }
        Ok(coefficients)
    }

    /// Reads a chunk's scalars from its bytes; [`Chunk::coefficients`] has compared their length.
    pub(super) fn scalars(shape: &Shape, bytes: &[u8]) -> Result<Vec<Plain>, Malformed> {
        residues(&bytes[32 * shape.pieces..], shape.pieces)
    }
}

/// Canonical residues, 32 bytes each; the first is residue `first` of the chunk.
fn residues(bytes: &[u8], first: usize) -> Result<Vec<Plain>, Malformed> {
    let residue =
        |(index, bytes)| scalar::from_bytes(bytes).ok_or(Malformed::Scalar { index: first + index });
    bytes.as_chunks::<32>().0.iter().enumerate().map(residue).collect()
}

/// Draws this many random short factors, all nonzero. Short factors make a combination four times as cheap as full
/// ones. With a probability of 2^-56, a combination is useless to a receiver that lacks something. An attacker can
/// raise this probability only by knowing the factors beforehand.
fn factors(count: usize, rng: &mut dyn RngCore) -> Vec<u64> {
    (0..count).map(|_| (rng.next_u64() >> (u64::BITS - SHORT_BITS)).max(1)).collect()
}

/// The bytes of a fresh combination of chunks, at least one.
pub(super) fn recode(chunks: &[Arc<Chunk>], shape: &Shape, rng: &mut dyn RngCore) -> Vec<u8> {
    let factors = factors(chunks.len(), rng);
    let mut bytes = Vec::with_capacity(shape.chunk_bytes());
    for index in 0..shape.pieces {
        let mut sum = ShortSum::ZERO;
        for (factor, chunk) in factors.iter().zip(chunks) {
            sum.add(*factor, chunk.coefficients[index].limbs());
        }
        bytes.extend(scalar::to_bytes(&Factor::from_limbs(sum.reduce()).plain()));
    }
    for index in 0..shape.scalars {
        let mut sum = ShortSum::ZERO;
        for (factor, chunk) in factors.iter().zip(chunks) {
            sum.add(*factor, &chunk.scalars[index]);
        }
        bytes.extend(scalar::to_bytes(&sum.reduce()));
    }
    bytes
}

/// The bytes of a fresh combination of the payload's pieces.
pub(super) fn code(payload: &[u8], shape: &Shape, rng: &mut dyn RngCore) -> Vec<u8> {
    let factors = factors(shape.pieces, rng);
    let mut bytes = Vec::with_capacity(shape.chunk_bytes());
    bytes.extend(factors.iter().flat_map(|factor| scalar::to_bytes(&[*factor, 0, 0, 0])));
    for index in 0..shape.scalars {
        let mut sum = ShortSum::ZERO;
        for (piece, factor) in factors.iter().enumerate() {
            sum.add(*factor, &scalar_at(payload, piece * shape.scalars + index));
        }
        bytes.extend(scalar::to_bytes(&sum.reduce()));
    }
    bytes
}
