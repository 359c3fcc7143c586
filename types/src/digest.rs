//! [`Digest`]: SHA-256 under a domain tag.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256, block_api::compress256};

use crate::codec::raw;

/// Most bytes that fit two blocks with SHA-256's padding: a bit, zeros and the length.
const SHORT_MAX: usize = 128 - 9;
/// FIPS 180-4, section 5.3.3.
const SHA256_INITIAL: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// A 32-byte SHA-256 digest. BCS: the 32 bytes; text: `0x` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// All zero: the parent of batch 0, the root of an empty tree.
    pub const ZERO: Digest = Digest([0; 32]);

    /// SHA-256 over the length-prefixed domain tag and the given bytes. Tags keep one kind's digest from being
    /// presented as another's.
    pub fn tagged(tag: &str, bytes: &[u8]) -> Digest {
        Self::of(&[&(tag.len() as u64).to_le_bytes(), tag.as_bytes(), bytes])
    }

    /// SHA-256 over parts, one after the other. State rows and their keys are hashed by the million: what fits two blocks is
    /// padded here and goes to the compression at once, which takes two thirds of the time of a hasher that could take more.
    pub(crate) fn of(parts: &[&[u8]]) -> Digest {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > SHORT_MAX {
            return Digest(
                parts.iter().fold(Sha256::new(), |hasher, part| hasher.chain_update(part)).finalize().into(),
            );
        }
        let mut blocks = [[0; 64]; 2];
        let bytes = blocks.as_flattened_mut();
        let mut at = 0;
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        bytes[at] = 0x80;
        let end = if at < 56 { 64 } else { 128 };
        bytes[end - 8..end].copy_from_slice(&(8 * len as u64).to_be_bytes());
        let mut state = SHA256_INITIAL;
        compress256(&mut state, &blocks[..end / 64]);
        Digest::from_words(state)
    }

    /// What SHA-256's words are as bytes.
    pub(crate) fn from_words(words: [u32; 8]) -> Digest {
        let mut bytes = [0; 32];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        Digest(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first four bytes in hexadecimal, for logs.
    pub fn short(&self) -> String {
        hex::encode(&self.0[..4])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{}", hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = ParseHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_hex(text).map(Digest)
    }
}

impl From<Digest> for alloy_primitives::B256 {
    fn from(digest: Digest) -> Self {
        digest.0.into()
    }
}

impl From<alloy_primitives::B256> for Digest {
    fn from(hash: alloy_primitives::B256) -> Self {
        Digest(hash.0)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            raw::serialize(&self.0, serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
        } else {
            raw::deserialize(deserializer).map(Digest)
        }
    }
}

/// Text that is not the expected number of hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected 0x and {digits} hexadecimal digits, found {found:?}")]
pub struct ParseHexError {
    /// How many digits there must be.
    pub digits: usize,
    /// What stood there, at most 80 characters of it.
    pub found: String,
}

/// Parses exactly `N` bytes of hexadecimal text, with or without `0x`.
pub fn parse_hex<const N: usize>(text: &str) -> Result<[u8; N], ParseHexError> {
    let mut bytes = [0; N];
    match hex::decode_to_slice(text.strip_prefix("0x").unwrap_or(text), &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_) => Err(ParseHexError { digits: 2 * N, found: text.chars().take(80).collect() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_hashed_as_sha256_says() {
        let bytes: Vec<u8> = (0..200).collect();
        for len in 0..=bytes.len() {
            let expected = Digest(Sha256::digest(&bytes[..len]).into());
            for cut in [0, len / 3, len] {
                assert_eq!(Digest::of(&[&bytes[..cut], &bytes[cut..len]]), expected, "{len} bytes");
            }
        }
    }
}
