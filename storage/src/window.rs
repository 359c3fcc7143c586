//! [`Window`]: how much of the newest data is kept, in batches, in time or in bytes.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The units of an age, in seconds, the largest first.
const AGES: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
/// The units of a size, in bytes, the largest first.
const SIZES: [(&str, u64); 3] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)];

/// How much of the newest batches is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Window {
    /// Keeps everything.
    #[default]
    All,
    /// This number of batches, at least one.
    Batches(u64),
    /// Batches at most this number of seconds older than the head, by their timestamps. At least one second.
    Seconds(u64),
    /// Batches that fit into this number of bytes on disk, by whole files; the newest file always stays. At least one
    /// MiB.
    Bytes(u64),
}

/// Text that is not a window.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is not a window: write a number of batches, an age such as `36h` or `7d`, a size such as `50GiB`, or `all`"
)]
pub struct InvalidWindow(String);

impl From<u64> for Window {
    /// Keeps this number of batches; 0 keeps all.
    fn from(batches: u64) -> Window {
        match batches {
            0 => Window::All,
            batches => Window::Batches(batches),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, units) = match *self {
            Window::All => return f.write_str("all"),
            Window::Batches(batches) => return batches.fmt(f),
            Window::Seconds(seconds) => (seconds, &AGES[..]),
            Window::Bytes(bytes) => (bytes, &SIZES[..]),
        };
        let whole = units.iter().find(|(_, unit)| number.is_multiple_of(*unit));
        let (name, unit) = whole.or(units.last()).expect("there are units");
        write!(f, "{}{name}", number / unit)
    }
}

impl FromStr for Window {
    type Err = InvalidWindow;

    fn from_str(text: &str) -> Result<Window, InvalidWindow> {
        if text == "all" {
            return Ok(Window::All);
        }
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, name) = text.split_at(digits);
        let number: Option<u64> = number.parse().ok();
        let count = |units: &[(&str, u64)]| {
            let (_, unit) = units.iter().find(|(known, _)| *known == name)?;
            number?.checked_mul(*unit).filter(|count| *count > 0)
        };
        let window = match name {
            "" => number.map(Window::from),
            _ => count(&AGES).map(Window::Seconds).or_else(|| count(&SIZES).map(Window::Bytes)),
        };
        window.ok_or_else(|| InvalidWindow(text.chars().take(40).collect()))
    }
}

impl JsonSchema for Window {
    fn schema_name() -> Cow<'static, str> {
        "Window".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "string", "pattern": "^(all|[0-9]+([dhms]|[TGM]iB)?)$" },
        ] })
    }
}

impl Serialize for Window {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Window::All => serializer.serialize_u64(0),
            Window::Batches(batches) => serializer.serialize_u64(*batches),
            window => serializer.collect_str(window),
        }
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Window;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of batches, an age such as `7d`, a size such as `50GiB`, or `all`")
            }

            fn visit_u64<E: de::Error>(self, batches: u64) -> Result<Window, E> {
                Ok(Window::from(batches))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Window, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a window reads back as it was written, and other text is refused with a hint at what is accepted.
    #[test]
    fn windows_are_read_and_written() {
        let read = |text: &str| text.parse::<Window>();
        for (text, window) in [
            ("all", Window::All),
            ("5000", Window::Batches(5_000)),
            ("90s", Window::Seconds(90)),
            ("36h", Window::Seconds(36 * 3_600)),
            ("7d", Window::Seconds(7 * 86_400)),
            ("300MiB", Window::Bytes(300 << 20)),
            ("50GiB", Window::Bytes(50 << 30)),
        ] {
            assert_eq!(read(text).unwrap(), window);
            assert_eq!(window.to_string(), text);
        }
        assert_eq!(read("0"), Ok(Window::All));
        for text in
            ["", "d", "0d", "-1", "1.5d", "7 d", "7D", "1GB", "99999999999999999999", "99999999999TiB"]
        {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("`36h`"), "{error}");
        }
    }
}
