//! The reference: the paper's algorithm, implemented directly, with constant-time arithmetic, one chunk after another,
//! scalar by scalar.
//!
//! Pieces, generators and coefficients are as in "Faster block/blob propagation in Ethereum". Two multi-scalar
//! multiplications verify a chunk: their results must be equal. Gaussian elimination over the received chunks gives the
//! payload.

use curve25519_dalek::{RistrettoPoint, Scalar, traits::MultiscalarMul};
use rand::{RngCore, rngs::StdRng};
use sha2::{Digest as _, Sha512};

/// Bytes of the payload in a scalar.
const SCALAR_BYTES: usize = 31;

/// A chunk: its coefficients, and the vector that it combines.
#[derive(Clone)]
pub(super) struct Chunk {
    coefficients: Vec<Scalar>,
    vector: Vec<Scalar>,
}

/// A payload in pieces, and the generators of their commitments.
pub(super) struct Reference {
    generators: Vec<RistrettoPoint>,
    pieces: Vec<Vec<Scalar>>,
}

/// Returns a uniformly random scalar.
fn random(rng: &mut StdRng) -> Scalar {
    let mut bytes = [0; 64];
    rng.fill_bytes(&mut bytes);
    Scalar::from_bytes_mod_order_wide(&bytes)
}

impl Reference {
    /// Cuts a payload into `pieces` pieces.
    pub(super) fn new(payload: &[u8], pieces: usize) -> Self {
        let scalar = |bytes: &[u8]| {
            let mut padded = [0; 32];
            padded[..bytes.len()].copy_from_slice(bytes);
            Scalar::from_bytes_mod_order(padded)
        };
        let mut scalars: Vec<_> = payload.chunks(SCALAR_BYTES).map(scalar).collect();
        let length = scalars.len().div_ceil(pieces);
        scalars.resize(length * pieces, Scalar::ZERO);
        let generator = |index: usize| {
            RistrettoPoint::from_uniform_bytes(&Sha512::digest((index as u64).to_le_bytes()).into())
        };
        Self {
            generators: (0..length).map(generator).collect(),
            pieces: scalars.chunks(length).map(<[_]>::to_vec).collect(),
        }
    }

    /// Returns the commitments of the pieces.
    pub(super) fn commit(&self) -> Vec<RistrettoPoint> {
        self.pieces.iter().map(|piece| RistrettoPoint::multiscalar_mul(piece, &self.generators)).collect()
    }

    /// Returns a random combination of the pieces.
    pub(super) fn chunk(&self, rng: &mut StdRng) -> Chunk {
        let unit = |at| (0..self.pieces.len()).map(|piece| Scalar::from(u8::from(piece == at))).collect();
        let pieces = self.pieces.iter().enumerate();
        let chunks: Vec<_> =
            pieces.map(|(at, piece)| Chunk { coefficients: unit(at), vector: piece.clone() }).collect();
        recombine(&chunks, rng)
    }

    /// Whether a chunk is the combination that its coefficients claim.
    pub(super) fn verify(&self, chunk: &Chunk, commitments: &[RistrettoPoint]) -> bool {
        let vector = RistrettoPoint::multiscalar_mul(&chunk.vector, &self.generators);
        vector == RistrettoPoint::multiscalar_mul(&chunk.coefficients, commitments)
    }

    /// Whether these are the pieces.
    pub(super) fn is_decoded(&self, pieces: &[Vec<Scalar>]) -> bool {
        self.pieces == pieces
    }
}

/// Returns a random combination of chunks.
pub(super) fn recombine(chunks: &[Chunk], rng: &mut StdRng) -> Chunk {
    let factors: Vec<_> = chunks.iter().map(|_| random(rng)).collect();
    let combine = |of: fn(&Chunk) -> &[Scalar]| {
        let mut sum = vec![Scalar::ZERO; of(&chunks[0]).len()];
        for (factor, chunk) in factors.iter().zip(chunks) {
            sum.iter_mut().zip(of(chunk)).for_each(|(sum, scalar)| *sum += factor * scalar);
        }
        sum
    };
    Chunk { coefficients: combine(|chunk| &chunk.coefficients), vector: combine(|chunk| &chunk.vector) }
}

/// Returns the pieces, by Gaussian elimination; `None` if the chunks are dependent.
pub(super) fn decode(mut chunks: Vec<Chunk>) -> Option<Vec<Vec<Scalar>>> {
    for column in 0..chunks.len() {
        let pivot = (column..chunks.len()).find(|row| chunks[*row].coefficients[column] != Scalar::ZERO)?;
        chunks.swap(column, pivot);
        let inverse = chunks[column].coefficients[column].invert();
        let Chunk { coefficients, vector } = &mut chunks[column];
        coefficients.iter_mut().chain(vector).for_each(|scalar| *scalar *= inverse);
        let pivot = chunks[column].clone();
        for (_, other) in chunks.iter_mut().enumerate().filter(|(row, _)| *row != column) {
            let times = other.coefficients[column];
            let theirs = pivot.coefficients.iter().chain(&pivot.vector);
            let ours = other.coefficients.iter_mut().chain(&mut other.vector);
            ours.zip(theirs).for_each(|(ours, theirs)| *ours -= times * theirs);
        }
    }
    Some(chunks.into_iter().map(|chunk| chunk.vector).collect())
}
