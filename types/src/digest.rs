//! [`Digest`]: SHA-256 under a domain tag.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

use crate::codec::raw;

/// A 32-byte SHA-256 digest. BCS: the 32 bytes; text: `0x` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// All zero: the parent of batch 0, the root of an empty tree.
    pub const ZERO: Digest = Digest([0; 32]);

    /// SHA-256 over the length-prefixed domain tag and the given bytes. Tags keep one kind's digest from being
    /// presented as another's.
    pub fn tagged(tag: &str, bytes: &[u8]) -> Digest {
        let mut hasher = Sha256::new();
        hasher.update((tag.len() as u64).to_le_bytes());
        hasher.update(tag.as_bytes());
        hasher.update(bytes);
        Digest(hasher.finalize().into())
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
