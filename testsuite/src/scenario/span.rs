//! [`Span`]: a duration as a person writes it: `500ms`, `30s`, `5m`, `1h`.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The longest duration that can be written: a day. Sums of a few of them cannot overflow.
const SPAN_MAX: Duration = Duration::from_secs(86_400);
/// The milliseconds of each unit, the largest first: a duration is shown in the largest unit that divides it.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
/// The most characters of a refused text that its error quotes.
const QUOTED_CHARS_MAX: usize = 40;

/// A duration in whole milliseconds, at most a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

/// A text that is no [`Span`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a time of at most a day: write a number with its unit, such as `500ms`, `30s`, `5m` or `1h`"
)]
pub struct InvalidSpan(String);

impl Span {
    /// Makes a duration from milliseconds, capped at a day.
    pub fn from_ms(ms: u64) -> Span {
        Span(Duration::from_millis(ms).min(SPAN_MAX))
    }

    /// Makes a duration from seconds, capped at a day.
    pub fn from_secs(seconds: u64) -> Span {
        Span::from_ms(seconds.saturating_mul(1_000))
    }

    /// Returns the milliseconds.
    pub fn ms(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the seconds.
    pub fn seconds(self) -> f64 {
        self.0.as_secs_f64()
    }

    /// Returns the standard library's type.
    pub fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for Span {
    type Err = InvalidSpan;

    fn from_str(text: &str) -> Result<Span, InvalidSpan> {
        let invalid = || InvalidSpan(text.chars().take(QUOTED_CHARS_MAX).collect());
        let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(invalid)?;
        let (number, unit) = text.split_at(digits);
        let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?;
        let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*ms));
        let span = ms.map(Duration::from_millis).filter(|span| *span <= SPAN_MAX);
        span.map(Span).ok_or_else(invalid)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.ms();
        let (unit, size) = match ms {
            0 => ("s", 1_000),
            _ => *UNITS.iter().find(|(_, size)| ms.is_multiple_of(*size)).expect("one divides everything"),
        };
        write!(f, "{}{unit}", ms / size)
    }
}

impl JsonSchema for Span {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h)$" })
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time with its unit, such as `500ms`, `30s`, `5m` or `1h`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_shown_and_the_rest_is_refused_with_advice() {
        for (text, ms) in [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000), ("0s", 0)] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.ms(), span.to_string().as_str()), (ms, text));
        }
        assert_eq!("90s".parse::<Span>().unwrap().to_string(), "90s");
        assert_eq!("60s".parse::<Span>().unwrap().to_string(), "1m");
        for text in
            ["", "30", "s", "-1s", "1.5s", "3 s", "25h", "99999999999999999999s", "18446744073709551615h"]
        {
            let error = text.parse::<Span>().unwrap_err().to_string();
            assert!(error.contains("`30s`"), "{error}");
        }
    }
}
