//! Collections whose decoder refuses more than `MAX` elements before it allocates.

use std::{fmt, marker::PhantomData, ops::Deref};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, SeqAccess, Visitor},
};

use crate::codec::CodecError;

/// At most `MAX` elements. BCS: as `Vec<T>`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(transparent)]
pub struct BoundedVec<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> BoundedVec<T, MAX> {
    /// Takes the elements; refuses more than `MAX`.
    pub fn new(items: Vec<T>) -> Result<Self, CodecError> {
        if items.len() > MAX {
            return Err(CodecError::TooLong { what: "sequence", len: items.len(), max: MAX });
        }
        Ok(Self(items))
    }

    /// Returns the elements, at most `MAX`.
    pub fn into_inner(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> Default for BoundedVec<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> Deref for BoundedVec<T, MAX> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'a, T, const MAX: usize> IntoIterator for &'a BoundedVec<T, MAX> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T, const MAX: usize> IntoIterator for BoundedVec<T, MAX> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedVec<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
            type Value = Vec<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX} elements")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
                let announced = seq.size_hint().unwrap_or(0);
                if announced > MAX {
                    return Err(de::Error::invalid_length(announced, &self));
                }
                // A short message can announce many elements: start small, and grow only as data arrives.
                let mut items = Vec::with_capacity(announced.min(1024));
                while let Some(item) = seq.next_element()? {
                    if items.len() == MAX {
                        return Err(de::Error::invalid_length(MAX + 1, &self));
                    }
                    items.push(item);
                }
                // The vector grew by doubling; code that keeps many such vectors relies on a capacity close to the
                // length.
                items.shrink_to_fit();
                Ok(items)
            }
        }
        deserializer.deserialize_seq(Items::<T, MAX>(PhantomData)).map(Self)
    }
}

/// At most `MAX` bytes. BCS: as `Vec<u8>`, copied in one piece. Text: hexadecimal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct BoundedBytes<const MAX: usize>(Vec<u8>);

impl<const MAX: usize> BoundedBytes<MAX> {
    /// Takes the bytes; refuses more than `MAX`.
    pub fn new(bytes: Vec<u8>) -> Result<Self, CodecError> {
        if bytes.len() > MAX {
            return Err(CodecError::TooLong { what: "byte string", len: bytes.len(), max: MAX });
        }
        Ok(Self(bytes))
    }

    /// Returns the bytes, at most `MAX`.
    pub fn into_inner(self) -> Vec<u8> {
        self.0
    }
}

impl<const MAX: usize> Deref for BoundedBytes<MAX> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const MAX: usize> fmt::Debug for BoundedBytes<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes 0x{}", self.0.len(), hex::encode(&self.0[..self.0.len().min(16)]))
    }
}

impl<const MAX: usize> Serialize for BoundedBytes<MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(&format_args!("0x{}", hex::encode(&self.0)))
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for BoundedBytes<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes<const MAX: usize>;
        impl<const MAX: usize> Visitor<'_> for Bytes<MAX> {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX} bytes")
            }
            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                if bytes.len() > MAX {
                    return Err(E::invalid_length(bytes.len(), &self));
                }
                Ok(bytes.to_vec())
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<u8>, E> {
                let digits = text.strip_prefix("0x").unwrap_or(text);
                if digits.len() / 2 > MAX {
                    return Err(E::invalid_length(digits.len() / 2, &self));
                }
                hex::decode(digits).map_err(|_| E::custom("expected hexadecimal digits"))
            }
        }
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(Bytes::<MAX>).map(Self)
        } else {
            deserializer.deserialize_bytes(Bytes::<MAX>).map(Self)
        }
    }
}
