//! The options of a trace, bounded to the size that a tracer can need.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::{RawValue, to_raw_value};
use slipstream_executor::trace::GethDebugTracingOptions;

use crate::call::overrides::{AccountsObject, BlockObject};

/// Maximum bytes of options, besides overrides. Parsing takes 32 bytes of memory for as little as two of text.
const OPTIONS_BYTES_MAX: usize = 64 << 10;

/// The tracer and its configuration.
#[derive(Default)]
pub(super) struct TracerOptions(pub(super) GethDebugTracingOptions);

impl<'de> Deserialize<'de> for TracerOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(&Box::<RawValue>::deserialize(deserializer)?)
    }
}

impl TracerOptions {
    fn read<E: Error>(text: &RawValue) -> Result<Self, E> {
        check::<E>(text.get().len())?;
        serde_json::from_str(text.get()).map(Self).map_err(E::custom)
    }
}

fn check<E: Error>(bytes: usize) -> Result<(), E> {
    if bytes <= OPTIONS_BYTES_MAX {
        return Ok(());
    }
    Err(E::custom(format!("the tracer's options are longer than {OPTIONS_BYTES_MAX} bytes")))
}

/// The options of `debug_traceCall`: the tracer, and changes to state and block.
#[derive(Default)]
pub(super) struct CallOptions {
    pub(super) tracer: TracerOptions,
    pub(super) state_overrides: Option<AccountsObject>,
    pub(super) block_overrides: Option<BlockObject>,
    pub(super) has_tx_index: bool,
}

impl<'de> Deserialize<'de> for CallOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(CallOptionsVisitor)
    }
}

struct CallOptionsVisitor;

impl<'de> Visitor<'de> for CallOptionsVisitor {
    type Value = CallOptions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the options of a trace")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CallOptions, A::Error> {
        let (mut options, mut tracer, mut bytes) = (CallOptions::default(), BTreeMap::new(), 0);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "stateOverrides" => options.state_overrides = map.next_value()?,
                "blockOverrides" => options.block_overrides = map.next_value()?,
                "txIndex" => options.has_tx_index = map.next_value::<Option<IgnoredAny>>()?.is_some(),
                _ => {
                    let value = map.next_value::<Box<RawValue>>()?;
                    bytes += key.len() + value.get().len();
                    check::<A::Error>(bytes)?;
                    tracer.insert(key, value);
                }
            }
        }
        let tracer = to_raw_value(&tracer).map_err(A::Error::custom)?;
        options.tracer = TracerOptions::read::<A::Error>(&tracer)?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Goal: the options are those that the tracer's library reads, besides overrides; null means none.
    #[test]
    fn options_are_those_of_the_library() {
        let plain = json!({ "tracer": "callTracer", "tracerConfig": { "withLog": true }, "enableMemory": true, "x": 1 });
        let expected: GethDebugTracingOptions = serde_json::from_value(plain.clone()).unwrap();
        let read = |value: &Value| serde_json::from_str::<CallOptions>(&value.to_string());
        assert_eq!(serde_json::from_str::<TracerOptions>(&plain.to_string()).unwrap().0, expected);
        let mut whole = plain;
        whole["stateOverrides"] = json!({});
        whole["blockOverrides"] = json!({ "number": "0x1" });
        whole["txIndex"] = Value::Null;
        let options = read(&whole).unwrap();
        assert_eq!(options.tracer.0, expected);
        assert!(options.state_overrides.is_some() && options.block_overrides.is_some());
        assert!(!options.has_tx_index);
        whole["txIndex"] = json!(1);
        assert!(read(&whole).unwrap().has_tx_index);
        for wrong in [json!({ "stateOverrides": 7 }), json!({ "tracer": 7 }), json!([])] {
            assert!(read(&wrong).is_err(), "{wrong}");
        }
    }

    /// Goal: a list of numbers that is short as text, but takes far more memory once parsed, is refused unparsed.
    #[test]
    fn long_options_are_not_read() {
        let long = |name: &str| format!("{{\"{name}\":[{}0]}}", "0,".repeat(OPTIONS_BYTES_MAX / 2));
        for text in ["tracerConfig", "x"].map(long) {
            let refused = [
                serde_json::from_str::<TracerOptions>(&text).err().unwrap(),
                serde_json::from_str::<CallOptions>(&text).err().unwrap(),
            ];
            assert!(refused.iter().all(|why| why.to_string().contains("options are longer")), "{refused:?}");
        }
        let address = format!("0x{}", "11".repeat(20));
        let code = format!("0x{}", "00".repeat(OPTIONS_BYTES_MAX));
        let overrides = json!({ "stateOverrides": { (address): { "code": code } } }).to_string();
        assert!(
            serde_json::from_str::<CallOptions>(&overrides).is_ok(),
            "overrides have bounds of their own"
        );
    }
}
