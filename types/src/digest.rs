//! [`Digest`]: SHA-256 under a domain tag.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};
use slipstream_sha256::{Block, INITIAL, digest, digest_pair};

use crate::codec::raw;

/// Maximum bytes that fit two blocks with SHA-256's padding: a bit, zeros and the length.
const SHORT_MAX: usize = 128 - 9;
/// The blocks of a short message, which has one or two of them.
type ShortMessage = [Block; 2];

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

    /// SHA-256 over the concatenation of `parts`. A state hashes millions of rows and keys, so this function pads
    /// inputs of up to two blocks itself and compresses them in one step. That takes two thirds of a streaming hasher's
    /// time.
    pub(crate) fn of(parts: &[&[u8]]) -> Digest {
        let mut blocks: ShortMessage = [[0; 64]; 2];
        match pad(parts, &mut blocks) {
            Some(count) => Digest(digest(&INITIAL, &blocks[..count])),
            None => {
                let hasher = parts.iter().fold(Sha256::new(), |hasher, part| hasher.chain_update(part));
                Digest(hasher.finalize().into())
            }
        }
    }

    /// The digest's 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first four bytes in hexadecimal, for logs.
    pub fn short(&self) -> String {
        hex::encode(&self.0[..4])
    }
}

/// Pads the concatenation of `parts` and returns its number of blocks; `None` if it is longer than [`SHORT_MAX`].
fn pad(parts: &[&[u8]], blocks: &mut ShortMessage) -> Option<usize> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if len > SHORT_MAX {
        return None;
    }
    let bytes = blocks.as_flattened_mut();
    let mut at = 0;
    for part in parts {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let end = if at < 56 { 64 } else { 128 };
    bytes[at] = 0x80;
    bytes[at + 1..end - 8].fill(0);
    bytes[end - 8..end].copy_from_slice(&(8 * len as u64).to_be_bytes());
    Some(end / 64)
}

/// Collects the digests of many messages, in their order. Two neighbours with the same number of blocks are hashed
/// together, which takes two thirds of the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digests {
    digests: Vec<Digest>,
    waiting: Option<(usize, ShortMessage)>,
}

impl Digests {
    /// Reserves capacity for the digests of `messages` messages.
    pub(crate) fn with_capacity(messages: usize) -> Digests {
        Digests { digests: Vec::with_capacity(messages), waiting: None }
    }

    /// Adds the input of [`Digest::tagged`].
    pub(crate) fn push_tagged(&mut self, tag: &str, bytes: &[u8]) {
        self.push(&[&(tag.len() as u64).to_le_bytes(), tag.as_bytes(), bytes]);
    }

    /// Adds the input of [`Digest::of`].
    pub(crate) fn push(&mut self, parts: &[&[u8]]) {
        let mut blocks: ShortMessage = [[0; 64]; 2];
        let Some(count) = pad(parts, &mut blocks) else {
            self.flush();
            self.digests.push(Digest::of(parts));
            return;
        };
        match &self.waiting {
            Some((waiting, first)) if *waiting == count => {
                let [first, second] = digest_pair(&INITIAL, [&first[..count], &blocks[..count]]);
                self.digests.extend([Digest(first), Digest(second)]);
                self.waiting = None;
            }
            _ => {
                self.flush();
                self.waiting = Some((count, blocks));
            }
        }
    }

    fn flush(&mut self) {
        if let Some((count, blocks)) = self.waiting.take() {
            self.digests.push(Digest(digest(&INITIAL, &blocks[..count])));
        }
    }

    pub(crate) fn finish(mut self) -> Vec<Digest> {
        self.flush();
        self.digests
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
    /// Required number of digits.
    pub digits: usize,
    /// The refused text, cut to 80 characters.
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
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn every_length_is_hashed_as_sha256_says() {
        let bytes: Vec<u8> = (0..200).collect();
        for len in 0..=bytes.len() {
            let expected = Digest(Sha256::digest(&bytes[..len]).into());
            for cut in [0, len / 3, len] {
                assert_eq!(Digest::of(&[&bytes[..cut], &bytes[cut..len]]), expected, "{len} bytes");
            }
            for neighbours in 0..3 {
                let mut digests = Digests::default();
                (0..neighbours).for_each(|_| digests.push(&[&bytes[..len]]));
                assert_eq!(digests.finish(), vec![expected; neighbours], "{len} bytes");
            }
        }
    }

    proptest! {
        #[test]
        fn many_messages_are_hashed_as_each_alone(
            messages in vec(prop_oneof![vec(any::<u8>(), 0..200), vec(any::<u8>(), 100)], 0..20),
        ) {
            let mut digests = Digests::with_capacity(messages.len());
            messages.iter().for_each(|message| digests.push(&[message]));
            let alone: Vec<Digest> = messages.iter().map(|message| Digest::of(&[message])).collect();
            prop_assert_eq!(digests.finish(), alone);
        }
    }
}
