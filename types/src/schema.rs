//! The JSON Schemas of types that are texts in JSON, for programs that read answers of a node's API.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{Digest, PublicKey, RulesId, Waypoint};

macro_rules! texts {
    ($($name:ident $pattern:literal $what:literal;)*) => {$(
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern, "description": $what })
            }
        }
    )*};
}

texts! {
    Digest "^0x[0-9a-f]{64}$" "A SHA-256 digest.";
    PublicKey "^[0-9a-f]{64}$" "An ed25519 public key: a validator's identity, and a peer's.";
    RulesId "^[0-9a-f]{16}$" "Which rules a batch is executed under: those of the genesis, or the digest of all forks up to the last that is active.";
    Waypoint "^[0-9]+:0x[0-9a-f]{64}$" "A certified position of a chain: batch and digest.";
}
