//! A payload as vectors of scalars, 252 bits each, and back.
//!
//! Scalar `i` is bits `252 i` to `252 i + 251` of the payload, least significant first, with zeros after the payload's
//! end. Two scalars are 63 bytes. All such scalars are below the group's order, so different payloads of one length
//! have different scalars.

use super::scalar::Plain;

/// Bits of the payload in a scalar.
const SCALAR_BITS: usize = 252;
/// Bytes of the window that begins with a scalar's first byte and has all of its bits.
const WINDOW_BYTES: usize = 32;

/// How a payload is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of the payload.
    pub(super) bytes: usize,
    /// Number of pieces.
    pub(super) pieces: usize,
    /// Scalars of each piece.
    pub(super) scalars: usize,
}

impl Shape {
    /// Cuts `bytes` bytes into `pieces` pieces, at least one, or into fewer if otherwise some of them would be all
    /// padding.
    pub(super) fn new(bytes: usize, pieces: usize) -> Self {
        let scalars = scalars_of(bytes).div_ceil(pieces);
        Self { bytes, pieces: scalars_of(bytes).div_ceil(scalars), scalars }
    }

    /// Bytes of a chunk as sent.
    pub(super) fn chunk_bytes(&self) -> usize {
        32 * (self.pieces + self.scalars)
    }
}

/// Number of scalars of a payload of `bytes` bytes, at least one.
fn scalars_of(bytes: usize) -> usize {
    (8 * bytes).div_ceil(SCALAR_BITS).max(1)
}

/// Scalar `index` of the payload; zero beyond its end.
#[inline]
pub(super) fn scalar_at(payload: &[u8], index: usize) -> Plain {
    let at = SCALAR_BITS * index / 8;
    let mut padded = [0; WINDOW_BYTES];
    let window = match payload.get(at..).and_then(<[u8]>::first_chunk::<WINDOW_BYTES>) {
        Some(window) => window,
        None => {
            let rest = payload.get(at..).unwrap_or_default();
            padded[..rest.len()].copy_from_slice(rest);
            &padded
        }
    };
    let mut limbs = [0; 4];
    for (limb, bytes) in limbs.iter_mut().zip(window.as_chunks::<8>().0) {
        *limb = u64::from_le_bytes(*bytes);
    }
    let [a, b, c, d] = limbs;
    if index.is_multiple_of(2) {
        [a, b, c, d & (u64::MAX >> 4)]
    } else {
        [a >> 4 | b << 60, b >> 4 | c << 60, c >> 4 | d << 60, d >> 4]
    }
}

/// A payload that is being put together from its scalars.
pub(super) struct Assembly {
    bytes: Vec<u8>,
    shape: Shape,
    is_packed: bool,
}

impl Assembly {
    pub(super) fn new(shape: Shape) -> Self {
        let scalars = shape.pieces * shape.scalars;
        Self { bytes: vec![0; scalars * SCALAR_BITS / 8 + WINDOW_BYTES], shape, is_packed: true }
    }

    /// Places scalar `index`. Must be called once for each.
    #[inline]
    pub(super) fn place(&mut self, index: usize, scalar: &Plain) {
        let [a, b, c, d] = *scalar;
        self.is_packed &= d >> 60 == 0;
        let at = SCALAR_BITS * index / 8;
        let limbs = if index.is_multiple_of(2) {
            *scalar
        } else {
            [a << 4, b << 4 | a >> 60, c << 4 | b >> 60, d << 4 | c >> 60]
        };
        let window = &mut self.bytes[at..at + WINDOW_BYTES];
        for (bytes, limb) in window.as_chunks_mut::<8>().0.iter_mut().zip(limbs) {
            // A neighbour has half of the first or the last byte.
            *bytes = (u64::from_le_bytes(*bytes) | limb).to_le_bytes();
        }
    }

    /// Returns the payload, if the scalars are a payload's: each of at most 252 bits, and zero after the payload's end.
    /// Only then do the payload's bytes determine all scalars.
    pub(super) fn finish(mut self) -> Option<Vec<u8>> {
        let is_padded = self.bytes[self.shape.bytes..].iter().all(|byte| *byte == 0);
        self.bytes.truncate(self.shape.bytes);
        (self.is_packed && is_padded).then_some(self.bytes)
    }
}
