//! Quantities, data and tags exactly as Ethereum's JSON-RPC writes them.
//!
//! A quantity is `0x` and hexadecimal digits without leading zeros; data is `0x` and two digits per byte. The usual
//! Rust types also accept JSON numbers, byte arrays, and digits without `0x`. Other nodes refuse these, so a client
//! that sends them has a bug. An empty string is zero, or no data, as in geth, because pages that build a call by hand
//! send it. The error texts are geth's.

use std::{fmt, marker::PhantomData};

use alloy_primitives::{Address, B256, Bytes, FixedBytes, U256, hex};
use alloy_rpc_types_eth::BlockNumberOrTag;
use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

/// A value parsed exactly as the specification writes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Strict<T>(pub(crate) T);

/// A storage key: up to 32 bytes, with or without `0x` and leading zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(pub(crate) B256);

/// A type that is parsed from a JSON string.
pub(crate) trait Text: Sized {
    /// The expectation that the error names when another JSON type is found.
    const EXPECTED: &'static str;

    /// # Errors
    /// The fault of the text, in geth's words where geth has some.
    fn read(text: &str) -> Result<Self, String>;
}

impl<'de, T: Text> Deserialize<'de> for Strict<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor(PhantomData)).map(Strict)
    }
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: Text> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::read(text).map_err(E::custom)
    }
}

const QUANTITY: &str = "a quantity: a string of 0x and hexadecimal digits without leading zeros";

fn without_prefix(text: &str) -> Option<&str> {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))
}

/// The digits after `0x`; empty for an empty text.
fn digits(text: &str) -> Result<&str, String> {
    if text.is_empty() {
        return Ok(text);
    }
    let digits = without_prefix(text).ok_or("hex string without 0x prefix")?;
    if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        Ok(digits)
    } else {
        Err("invalid hex string".into())
    }
}

fn quantity(text: &str, bits: usize) -> Result<U256, String> {
    if text.is_empty() {
        return Ok(U256::ZERO);
    }
    let digits = digits(text)?;
    if digits.is_empty() {
        return Err("hex string \"0x\"".into());
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return Err("hex number with leading zero digits".into());
    }
    if digits.len() > bits / 4 {
        return Err(format!("hex number > {bits} bits"));
    }
    U256::from_str_radix(digits, 16).map_err(|error| error.to_string())
}

impl Text for u64 {
    const EXPECTED: &'static str = QUANTITY;

    fn read(text: &str) -> Result<Self, String> {
        quantity(text, 64).map(|number| number.to())
    }
}

impl Text for u128 {
    const EXPECTED: &'static str = QUANTITY;

    fn read(text: &str) -> Result<Self, String> {
        quantity(text, 128).map(|number| number.to())
    }
}

impl Text for U256 {
    const EXPECTED: &'static str = QUANTITY;

    fn read(text: &str) -> Result<Self, String> {
        quantity(text, 256)
    }
}

impl Text for Bytes {
    const EXPECTED: &'static str = "data: a string of 0x and two hexadecimal digits a byte";

    fn read(text: &str) -> Result<Self, String> {
        let digits = digits(text)?;
        if digits.len() % 2 != 0 {
            return Err("hex string of odd length".into());
        }
        hex::decode(digits).map(Bytes::from).map_err(|error| error.to_string())
    }
}

fn fixed<const LEN: usize>(text: &str) -> Result<FixedBytes<LEN>, String> {
    let digits = digits(text)?;
    if digits.len() != 2 * LEN {
        return Err(format!("hex string has length {}, want {}", digits.len(), 2 * LEN));
    }
    let mut bytes = FixedBytes::ZERO;
    hex::decode_to_slice(digits, bytes.as_mut_slice()).map_err(|error| error.to_string())?;
    Ok(bytes)
}

impl Text for Address {
    const EXPECTED: &'static str = "an address: a string of 0x and 40 hexadecimal digits";

    fn read(text: &str) -> Result<Self, String> {
        fixed::<20>(text).map(Address::from)
    }
}

impl Text for B256 {
    const EXPECTED: &'static str = "32 bytes: a string of 0x and 64 hexadecimal digits";

    fn read(text: &str) -> Result<Self, String> {
        fixed(text)
    }
}

impl Text for Slot {
    const EXPECTED: &'static str = "a storage key: a string of at most 64 hexadecimal digits";

    fn read(text: &str) -> Result<Self, String> {
        let digits = without_prefix(text).unwrap_or(text);
        if digits.len() > 64 {
            return Err("unable to decode storage key: hex string too long, want at most 32 bytes".into());
        }
        let mut key = B256::ZERO;
        hex::decode_to_slice(format!("{digits:0>64}"), key.as_mut_slice())
            .map_err(|_| "unable to decode storage key: hex string invalid")?;
        Ok(Slot(key))
    }
}

impl Text for BlockNumberOrTag {
    const EXPECTED: &'static str =
        "a block: a quantity, or one of earliest, latest, safe, finalized, pending";

    fn read(text: &str) -> Result<Self, String> {
        Ok(match text {
            "earliest" => Self::Earliest,
            "latest" => Self::Latest,
            "safe" => Self::Safe,
            "finalized" => Self::Finalized,
            "pending" => Self::Pending,
            // An empty text names no block.
            "" => return Err("empty hex string".into()),
            _ => {
                let number = <u64 as Text>::read(text)?;
                if i64::try_from(number).is_err() {
                    return Err("block number larger than int64".into());
                }
                Self::Number(number)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read<T: Text>(value: serde_json::Value) -> Result<T, String> {
        serde_json::from_value::<Strict<T>>(value).map(|value| value.0).map_err(|error| error.to_string())
    }

    #[test]
    fn quantities() {
        assert_eq!(read::<u64>(json!("0x0")), Ok(0));
        assert_eq!(read::<u64>(json!("0xffffffffffffffff")), Ok(u64::MAX));
        assert_eq!(read::<u128>(json!("0X1f")), Ok(31));
        assert_eq!(read::<U256>(json!(format!("0x{}", "f".repeat(64)))), Ok(U256::MAX));
        let empty = json!("");
        assert_eq!(read::<u64>(empty.clone()), Ok(0));
        assert_eq!(read::<u128>(empty.clone()), Ok(0));
        assert_eq!(read::<U256>(empty), Ok(U256::ZERO));
        for (text, refusal) in [
            (" ", "hex string without 0x prefix"),
            ("0x", "hex string \"0x\""),
            ("5", "hex string without 0x prefix"),
            ("-0x5", "hex string without 0x prefix"),
            ("0x05", "hex number with leading zero digits"),
            ("0x00", "hex number with leading zero digits"),
            ("0x10000000000000000", "hex number > 64 bits"),
            ("0x1_0", "invalid hex string"),
            ("0x0x1", "invalid hex string"),
            ("0xg", "invalid hex string"),
        ] {
            assert_eq!(read::<u64>(json!(text)), Err(refusal.to_owned()), "{text}");
        }
        for other in [json!(5), json!([5]), json!({}), json!(true), json!(null), json!(0.5)] {
            assert!(read::<u64>(other.clone()).unwrap_err().contains("expected a quantity"), "{other}");
        }
    }

    #[test]
    fn data() {
        assert_eq!(read::<Bytes>(json!("0x")), Ok(Bytes::new()));
        assert_eq!(read::<Bytes>(json!("")), Ok(Bytes::new()));
        assert_eq!(read::<Bytes>(json!("0x00Ff")), Ok(Bytes::from_static(&[0, 255])));
        assert_eq!(read::<Address>(json!(format!("0x{}", "01".repeat(20)))), Ok(Address::repeat_byte(1)));
        for (text, refusal) in [
            ("0x1", "hex string of odd length"),
            ("00", "hex string without 0x prefix"),
            ("0x0x00", "invalid hex string"),
        ] {
            assert_eq!(read::<Bytes>(json!(text)), Err(refusal.to_owned()), "{text}");
        }
        assert_eq!(read::<Address>(json!("0x12")), Err("hex string has length 2, want 40".into()));
        for empty in ["", "0x"] {
            assert_eq!(read::<B256>(json!(empty)), Err("hex string has length 0, want 64".into()));
            assert_eq!(read::<Address>(json!(empty)), Err("hex string has length 0, want 40".into()));
        }
        assert!(read::<Bytes>(json!([1, 2])).unwrap_err().contains("expected data"));
        assert!(read::<Address>(json!(vec![1; 20])).unwrap_err().contains("expected an address"));
        assert!(read::<B256>(json!(vec![1; 32])).unwrap_err().contains("expected 32 bytes"));
    }

    #[test]
    fn storage_keys() {
        let whole = B256::with_last_byte(1).to_string();
        for text in ["0x1", "0x01", "0X1", "1", "01", &whole, &whole[2..]] {
            assert_eq!(read::<Slot>(json!(text)).unwrap(), Slot(B256::with_last_byte(1)), "{text}");
        }
        for text in ["0x", "", "0"] {
            assert_eq!(read::<Slot>(json!(text)).unwrap(), Slot(B256::ZERO), "{text}");
        }
        for prefix in ["0x", ""] {
            let long = read::<Slot>(json!(format!("{prefix}0{}", &whole[2..]))).unwrap_err();
            assert!(long.contains("want at most 32 bytes"), "{long}");
        }
        for text in ["0x0x1", "-1", "1_0", "g", " 1", "+1", "\u{e9}"] {
            let invalid = read::<Slot>(json!(text)).unwrap_err();
            assert_eq!(invalid, "unable to decode storage key: hex string invalid", "{text}");
        }
        assert!(read::<Slot>(json!(1)).unwrap_err().contains("expected a storage key"));
    }

    #[test]
    fn tags_are_what_they_are() {
        assert_eq!(read::<BlockNumberOrTag>(json!("latest")), Ok(BlockNumberOrTag::Latest));
        assert_eq!(read::<BlockNumberOrTag>(json!("0x10")), Ok(BlockNumberOrTag::Number(16)));
        for wrong in ["LATEST", "Latest", " latest", "16", "0x010", "0x8000000000000000", "genesis", ""] {
            assert!(read::<BlockNumberOrTag>(json!(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(read::<BlockNumberOrTag>(json!("")), Err("empty hex string".into()));
        assert!(read::<BlockNumberOrTag>(json!(16)).unwrap_err().contains("expected a block"));
    }
}
