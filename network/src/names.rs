//! [`PeerName`]: an operator's name for a key.

use std::{borrow::Cow, collections::BTreeSet, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{NetworkError, PeerId};

/// Maximum number of names in one configuration: several times a large validator set, and few enough for a small status.
const NAMES_MAX: usize = 1_024;
/// Maximum number of characters of a name, so that a line with several of them stays readable.
const NAME_CHARS_MAX: usize = 64;

/// A name for a key. Text: `<64 hexadecimal digits>=name`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerName {
    /// The named key.
    pub id: PeerId,
    /// 1 to 64 letters, digits, ASCII symbols, and spaces between them.
    pub name: String,
}

/// Text that is no name for a key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{found:?} does not name a key: {reason}; write <64 hexadecimal digits of the key>=name")]
pub struct ParsePeerNameError {
    /// The refused text, cut to 120 characters.
    pub found: String,
    /// The part of the text that is wrong, and why.
    pub reason: &'static str,
}

/// Refuses too many names, two keys with one name, and two names for one key.
pub(crate) fn check(names: &[PeerName]) -> Result<(), NetworkError> {
    let wrong = |reason| Err(NetworkError::Config { key: "network.names", reason });
    if names.len() > NAMES_MAX {
        return wrong(format!("must have at most {NAMES_MAX} names, not {}", names.len()));
    }
    let (mut ids, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for PeerName { id, name } in names {
        if !ids.insert(id) {
            return wrong(format!("the key {id} has two names; keep one"));
        }
        if !seen.insert(name) {
            return wrong(format!("two keys have the name {name:?}; give one of them another name"));
        }
    }
    Ok(())
}

/// Whether a character is visible, and does not change the direction of others.
fn is_printable(c: char) -> bool {
    c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric() && !is_blank_letter(c) && !is_from_the_right(c)
}

/// The Hangul fillers count as letters but are blank.
fn is_blank_letter(c: char) -> bool {
    matches!(c, '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}')
}

/// Letters of right-to-left scripts: a terminal would move the key beside them.
fn is_from_the_right(c: char) -> bool {
    matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{feff}' | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.id, self.name)
    }
}

impl FromStr for PeerName {
    type Err = ParsePeerNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |reason| ParsePeerNameError { found: text.chars().take(120).collect(), reason };
        let (id, name) = text.split_once('=').ok_or_else(|| wrong("the = is missing"))?;
        let id = id.parse().map_err(|_| wrong("the key before the = is invalid"))?;
        if !(1..=NAME_CHARS_MAX).contains(&name.chars().count()) {
            return Err(wrong("the name after the = must have 1 to 64 characters"));
        }
        if !name.chars().all(is_printable) || name.starts_with(' ') || name.ends_with(' ') {
            return Err(wrong(
                "the name must have only printable left-to-right characters, and no blank at its start or end",
            ));
        }
        Ok(PeerName { id, name: name.to_owned() })
    }
}

impl JsonSchema for PeerName {
    fn schema_name() -> Cow<'static, str> {
        "PeerName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^(0x)?[0-9a-fA-F]{64}=.{1,64}$" })
    }
}

impl Serialize for PeerName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PeerName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let key = "0f".repeat(32);
        for name in ["validator-0", "Zürich 2", "a=b@c", "<b>&amp;", &"x".repeat(64)] {
            let text = format!("{key}={name}");
            let parsed: PeerName = text.parse().unwrap();
            assert_eq!((parsed.name.as_str(), parsed.to_string()), (name, text));
            let json = serde_json::to_string(&parsed).unwrap();
            assert_eq!(serde_json::from_str::<PeerName>(&json).unwrap(), parsed);
        }
    }

    /// Goal: text that moves a cursor, hides, or fills a screen is refused as a name.
    #[test]
    fn what_is_no_name_is_refused_with_the_part_that_is_wrong() {
        let key = "0f".repeat(32);
        for (text, reason) in [
            (key.clone(), "the = is missing"),
            ("0f=a".to_owned(), "key before the ="),
            (format!("{key}="), "1 to 64 characters"),
            (format!("{key}={}", "x".repeat(65)), "1 to 64 characters"),
            (format!("{key}=a\u{1b}[2J"), "only printable"),
            (format!("{key}=a\nb"), "only printable"),
            (format!("{key}=a\u{202e}b"), "only printable"),
            (format!("{key}=a\u{200b}b"), "only printable"),
            (format!("{key}=\u{3164}"), "only printable"),
            (format!("{key}=a \u{5d0}\u{5d1}"), "left-to-right"),
            (format!("{key}=\u{1ee00}"), "left-to-right"),
            (format!("{key}= a"), "blank"),
        ] {
            let error = text.parse::<PeerName>().unwrap_err();
            assert!(error.reason.contains(reason), "{text}: {error}");
        }
    }
}
