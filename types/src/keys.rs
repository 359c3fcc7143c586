//! Ed25519 keys of validators and peers: one key serves for both.

use std::{fmt, str::FromStr};

use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    codec::raw,
    digest::{ParseHexError, parse_hex},
    signature_cache,
};

/// An ed25519 public key: a validator's identity, and a peer's. Text: 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Whether the signature over the message is this key's. Strict: refuses small-order keys and non-canonical
    /// signatures, so that all nodes agree on what is valid.
    pub fn verify(&self, message: &[u8], signature: &Signature) -> bool {
        VerifyingKey::from_bytes(&self.0)
            .and_then(|key| key.verify_strict(message, &ed25519_dalek::Signature::from_bytes(&signature.0)))
            .is_ok()
    }

    /// As [`PublicKey::verify`], for signatures that come several times: one that was verified recently is not checked
    /// again.
    pub fn verify_once(&self, message: &[u8], signature: &Signature) -> bool {
        signature_cache::once([&self.0, &signature.0, message], || self.verify(message, signature))
    }

    /// Whether signatures with this key mean anything: it is a point of the curve, and not one of the few of small
    /// order.
    pub fn is_usable(&self) -> bool {
        VerifyingKey::from_bytes(&self.0).is_ok_and(|key| !key.is_weak())
    }

    /// The first four bytes in hexadecimal, for logs.
    pub fn short(&self) -> String {
        hex::encode(&self.0[..4])
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = ParseHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_hex(text).map(PublicKey)
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            raw::serialize(&self.0, serializer)
        }
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
        } else {
            raw::deserialize(deserializer).map(PublicKey)
        }
    }
}

/// An ed25519 signature. BCS: its 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Signature(#[serde(with = "raw")] pub [u8; 64]);

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// An ed25519 secret key. Never printed.
#[derive(Clone)]
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// Makes the key from its 32 bytes, which the caller draws from the operating system or, in tests, from a seed.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(SigningKey::from_bytes(&seed))
    }

    /// Returns its 32 bytes, for the key file and for the transport's certificate.
    pub fn seed(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// Derives the public key.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Signs a message of any length with ed25519.
    pub fn sign(&self, message: &[u8]) -> Signature {
        Signature(self.0.sign(message).to_bytes())
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey of {}", self.public())
    }
}
