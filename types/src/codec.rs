//! Canonical BCS with limits.

use serde::{Serialize, de::DeserializeOwned};

/// Why bytes were not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// More bytes than this kind of value may have.
    #[error("{what} has {len} bytes, above the limit of {max}")]
    TooLong {
        /// The kind of value.
        what: &'static str,
        /// Bytes found or announced.
        len: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// The bytes are not the BCS encoding of such a value.
    #[error("malformed {what}: {source}")]
    Malformed {
        /// The kind of value.
        what: &'static str,
        /// The fault that the BCS decoder reports.
        #[source]
        source: bcs::Error,
    },
    /// Decodes, but breaks a rule of its type (order, version, kind).
    #[error("invalid {what}: {rule}")]
    Invalid {
        /// The kind of value.
        what: &'static str,
        /// The rule that it breaks.
        rule: &'static str,
    },
}

/// Returns the BCS encoding of a value.
///
/// # Errors
/// Only if the value itself exceeds a limit of BCS (a sequence of 2^31 elements).
pub fn encode<T: Serialize + ?Sized>(what: &'static str, value: &T) -> Result<Vec<u8>, CodecError> {
    bcs::to_bytes(value).map_err(|source| CodecError::Malformed { what, source })
}

/// Decodes a value from at most `bytes_max` bytes, all of which must be used.
pub fn decode<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
    bytes_max: usize,
) -> Result<T, CodecError> {
    if bytes.len() > bytes_max {
        return Err(CodecError::TooLong { what, len: bytes.len(), max: bytes_max });
    }
    bcs::from_bytes(bytes).map_err(|source| CodecError::Malformed { what, source })
}

/// Fixed-size byte values as exactly their bytes (serde's `with`): addresses, 256-bit words, signatures.
pub mod raw {
    use std::{fmt, marker::PhantomData};

    use alloy_primitives::{Address, B256, U256};
    use serde::{
        Deserializer, Serializer,
        de::{SeqAccess, Visitor},
        ser::SerializeTuple,
    };

    /// A value that is exactly `N` bytes.
    pub trait Raw<const N: usize>: Sized {
        /// Returns the value's `N` bytes.
        fn to_raw(&self) -> [u8; N];
        /// Makes the value from its `N` bytes.
        fn from_raw(bytes: [u8; N]) -> Self;
    }

    impl<const N: usize> Raw<N> for [u8; N] {
        fn to_raw(&self) -> [u8; N] {
            *self
        }
        fn from_raw(bytes: [u8; N]) -> Self {
            bytes
        }
    }

    impl Raw<20> for Address {
        fn to_raw(&self) -> [u8; 20] {
            self.into_array()
        }
        fn from_raw(bytes: [u8; 20]) -> Self {
            bytes.into()
        }
    }

    impl Raw<32> for B256 {
        fn to_raw(&self) -> [u8; 32] {
            self.0
        }
        fn from_raw(bytes: [u8; 32]) -> Self {
            bytes.into()
        }
    }

    impl Raw<32> for U256 {
        fn to_raw(&self) -> [u8; 32] {
            self.to_be_bytes()
        }
        fn from_raw(bytes: [u8; 32]) -> Self {
            U256::from_be_bytes(bytes)
        }
    }

    /// Writes the bytes, with no length before them.
    pub fn serialize<T: Raw<N>, const N: usize, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(N)?;
        for byte in value.to_raw() {
            tuple.serialize_element(&byte)?;
        }
        tuple.end()
    }

    /// Reads exactly `N` bytes.
    pub fn deserialize<'de, T: Raw<N>, const N: usize, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        struct Bytes<T, const N: usize>(PhantomData<T>);
        impl<'de, T: Raw<N>, const N: usize> Visitor<'de> for Bytes<T, N> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{N} bytes")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<T, A::Error> {
                let mut bytes = [0; N];
                for (i, byte) in bytes.iter_mut().enumerate() {
                    *byte = seq.next_element()?.ok_or_else(|| serde::de::Error::invalid_length(i, &self))?;
                }
                Ok(T::from_raw(bytes))
            }
        }
        deserializer.deserialize_tuple(N, Bytes(PhantomData))
    }
}
