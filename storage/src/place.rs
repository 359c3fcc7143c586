//! [`PathPrefix`]: a place in the state, which is a subtree given by the bits that the paths of its leaves share.

use std::fmt;

use serde::{Deserialize, Serialize};
use slipstream_types::{Path, bounded::BoundedVec};

use crate::span::Span;

/// Bits of a path.
const PATH_BITS: u16 = 256;

/// All leaves whose paths share their first bits with one path. The wire format has these bits and no more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "EncodedPrefix", into = "EncodedPrefix")]
pub struct PathPrefix {
    /// Its later bits are 0.
    path: Path,
    /// Number of first bits of the path that count, up to 256.
    bits: u16,
}

/// A [`PathPrefix`] as it is sent.
#[derive(Serialize, Deserialize)]
struct EncodedPrefix {
    bits: u16,
    prefix: BoundedVec<u8, 32>,
}

impl PathPrefix {
    /// The whole state.
    pub const ROOT: PathPrefix = PathPrefix { path: Path::MIN, bits: 0 };

    /// Returns the place of the leaves that share the first `bits` bits (at most 256) of a path.
    pub fn new(path: &Path, bits: usize) -> PathPrefix {
        let bits = bits.min(PATH_BITS.into());
        let mut prefix = Path::MIN;
        for (byte, out) in prefix.0.iter_mut().enumerate() {
            let kept = bits.saturating_sub(8 * byte).min(8) as u32;
            *out = path.0[byte] & !0xff_u8.checked_shr(kept).unwrap_or(0);
        }
        PathPrefix { path: prefix, bits: bits as u16 }
    }

    /// The shared bits; all later bits are 0.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of shared bits.
    pub fn bits(&self) -> usize {
        self.bits.into()
    }

    /// Returns the half of this place whose next bit is 1 (`right`), or 0. Fewer than 256 bits must be shared.
    pub(crate) fn child(&self, right: bool) -> PathPrefix {
        let path = if right { self.path.with_bit(self.bits()) } else { self.path };
        PathPrefix { path, bits: self.bits + 1 }
    }

    /// Whether a path is in this place.
    pub fn contains(&self, path: &Path) -> bool {
        self.path.common_bits(path) >= self.bits()
    }

    /// The first and the last path of this place.
    pub fn span(&self) -> Span {
        let last = (self.bits()..PATH_BITS.into()).fold(self.path, |path, bit| path.with_bit(bit));
        Span { first: self.path, last }
    }
}

impl From<PathPrefix> for EncodedPrefix {
    fn from(place: PathPrefix) -> EncodedPrefix {
        let prefix = place.path.0[..place.bits().div_ceil(8)].to_vec();
        EncodedPrefix { bits: place.bits, prefix: BoundedVec::new(prefix).expect("a path has 32 bytes") }
    }
}

impl TryFrom<EncodedPrefix> for PathPrefix {
    type Error = &'static str;

    fn try_from(encoded: EncodedPrefix) -> Result<PathPrefix, &'static str> {
        let mut path = Path::MIN;
        let len = usize::from(encoded.bits).div_ceil(8);
        if encoded.bits > PATH_BITS || encoded.prefix.len() != len {
            return Err("a place needs at most 256 bits, and exactly the bytes for them");
        }
        path.0[..len].copy_from_slice(&encoded.prefix);
        let place = PathPrefix::new(&path, encoded.bits.into());
        if place.path == path { Ok(place) } else { Err("a place must not set bits beyond its length") }
    }
}

impl fmt::Debug for PathPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.0[..self.bits().div_ceil(8)].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "/{}", self.bits)
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::codec;

    use super::*;

    #[test]
    fn a_place_has_its_bits_and_nothing_behind_them() {
        let path = Path([0b1010_1011; 32]);
        for bits in 0..=256 {
            let place = PathPrefix::new(&path, bits);
            assert!(place.contains(&path) && place.span().first <= path && path <= place.span().last);
            assert_eq!(place.path().common_bits(&path).min(bits), bits);
            let bytes = codec::encode("place", &place).unwrap();
            assert_eq!(bytes.len(), 3 + bits.div_ceil(8));
            assert_eq!(codec::decode::<PathPrefix>("place", &bytes, 64).unwrap(), place);
            if bits < 256 {
                assert!(place.child(path.bit(bits)).contains(&path));
                assert!(!place.child(!path.bit(bits)).contains(&path));
            }
        }
        let surplus = [9, 0, 2, 0xff, 0xff];
        assert!(codec::decode::<PathPrefix>("place", &surplus, 64).is_err());
        let long = [1, 1, 33];
        assert!(codec::decode::<PathPrefix>("place", &[&long[..], &[0; 33]].concat(), 64).is_err());
        let short = [16, 0, 1, 0xff];
        assert!(codec::decode::<PathPrefix>("place", &short, 64).is_err());
    }
}
