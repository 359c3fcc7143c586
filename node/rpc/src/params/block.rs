//! [`BlockParam`]: a block by number, tag or hash.

use std::fmt;

use alloy_primitives::B256;
use alloy_rpc_types_eth::{BlockId, BlockNumberOrTag};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::strict::{Strict, Text};

/// A block's number, tag or hash, or an object with one of them (EIP-1898).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BlockParam(pub(crate) BlockId);

impl From<Strict<BlockNumberOrTag>> for BlockParam {
    fn from(number: Strict<BlockNumberOrTag>) -> Self {
        Self(BlockId::Number(number.0))
    }
}

impl From<Strict<B256>> for BlockParam {
    fn from(hash: Strict<B256>) -> Self {
        Self(hash.0.into())
    }
}

/// EIP-1898. Every batch is final, so all hashes are canonical. Other fields are ignored, as in geth.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    block_number: Option<Strict<BlockNumberOrTag>>,
    block_hash: Option<Strict<B256>>,
    #[serde(rename = "requireCanonical")]
    _require_canonical: Option<bool>,
}

/// The characters of `0x` and a hash; every number is shorter.
const HASH_LEN: usize = 66;

impl<'de> Deserialize<'de> for BlockParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BlockVisitor;

        impl<'de> Visitor<'de> for BlockVisitor {
            type Value = BlockId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block: a quantity, a tag, a hash, or an object with blockNumber or blockHash")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<BlockId, E> {
                if text.len() == HASH_LEN {
                    return B256::read(text).map(BlockId::from).map_err(E::custom);
                }
                BlockNumberOrTag::read(text).map(BlockId::Number).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<BlockId, A::Error> {
                let object = Object::deserialize(MapAccessDeserializer::new(map))?;
                match (object.block_number, object.block_hash) {
                    (Some(number), None) => Ok(BlockId::Number(number.0)),
                    (None, Some(hash)) => Ok(hash.0.into()),
                    (Some(_), Some(_)) => Err(A::Error::custom(
                        "cannot specify both BlockHash and BlockNumber, choose one or the other",
                    )),
                    (None, None) => Err(A::Error::custom("neither blockNumber nor blockHash specified")),
                }
            }
        }

        deserializer.deserialize_any(BlockVisitor).map(BlockParam)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn numbers_tags_hashes_and_objects() {
        let read = |value: Value| serde_json::from_value::<BlockParam>(value).map(|block| block.0);
        let hash = B256::repeat_byte(7);
        for (value, expected) in [
            (json!("0x5"), BlockId::number(5)),
            (json!("pending"), BlockId::pending()),
            (json!(hash), hash.into()),
            (json!({ "blockNumber": "0x5" }), BlockId::number(5)),
            (json!({ "blockNumber": "latest" }), BlockId::latest()),
            (json!({ "blockHash": hash, "requireCanonical": true }), hash.into()),
            (json!({ "blockNumber": "0x5", "more": [1] }), BlockId::number(5)),
        ] {
            assert_eq!(read(value.clone()).unwrap(), expected, "{value}");
        }
        for wrong in [
            json!("LATEST"),
            json!(5),
            json!("0x05"),
            json!({}),
            json!({ "blockNumber": "0x5", "blockHash": hash }),
            json!({ "blockNumber": 5 }),
            json!({ "number": "0x5" }),
            json!([5]),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
