//! Decodes one text to a configuration, and turns the parser's errors into words for an operator, with the key, the
//! line and a caret.

use std::path::Path;

use serde::{
    de::{DeserializeSeed, Deserializer, MapAccess, Visitor, value::StrDeserializer},
    forward_to_deserialize_any,
};
use serde_saphyr::Error;
use slipstream_yaml::{Place, YamlError, mask::mask_text};

use crate::{ConfigError, NodeConfig};

/// Decodes a whole file.
pub(crate) fn file(text: &str, path: &Path) -> Result<NodeConfig, ConfigError> {
    decode(text, &[]).map_err(|Refused { key, error }| describe(text, path, &key, &error))
}

/// Decodes the value of one key or section, as if nothing else were set, or says what is wrong.
pub(crate) fn value(text: &str, path: &[&str]) -> Result<NodeConfig, String> {
    decode(text, path).map_err(|Refused { key, error }| {
        let mistake = YamlError::of(&error);
        let (_, word) = Place::quote(text, mistake.line, mistake.column);
        let message = mistake.found(&word);
        mask_text(&if key == path.join(".") { message } else { format!("{key}: {message}") }).into_owned()
    })
}

struct Refused {
    /// The key at which the parser stopped.
    key: String,
    error: Box<Error>,
}

fn decode(text: &str, path: &[&str]) -> Result<NodeConfig, Refused> {
    let mut key = String::new();
    serde_saphyr::with_deserializer_from_str_with_options(text, slipstream_yaml::options(), |deserializer| {
        let decoded = match path {
            [] => serde_path_to_error::deserialize(deserializer),
            path => serde_path_to_error::deserialize(NestedValue { path, inner: deserializer }),
        };
        decoded.map_err(|error| {
            key = error.path().to_string();
            error.into_inner()
        })
    })
    .map_err(|error| Refused { key, error: Box::new(error) })
}

/// Sections around a value, each with a single entry. The value is decoded by itself: inside a larger text, it could
/// end its section.
pub(crate) struct NestedValue<'a, D> {
    pub(crate) path: &'a [&'a str],
    pub(crate) inner: D,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for NestedValue<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        visitor.visit_map(Entry { path: self.path, inner: Some(self.inner), is_named: false })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct Entry<'a, D> {
    path: &'a [&'a str],
    inner: Option<D>,
    is_named: bool,
}

impl<'de, D: Deserializer<'de>> MapAccess<'de> for Entry<'_, D> {
    type Error = D::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, D::Error> {
        match self.path.first().filter(|_| !self.is_named) {
            Some(name) => {
                self.is_named = true;
                seed.deserialize(StrDeserializer::new(name)).map(Some)
            }
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, D::Error> {
        let inner = self.inner.take().expect("a map's value is asked for once, after its key");
        match &self.path[1..] {
            [] => seed.deserialize(inner),
            path => seed.deserialize(NestedValue { path, inner }),
        }
    }
}

/// Combines the parser's message, the key's full name and the line.
fn describe(text: &str, path: &Path, key: &str, error: &Error) -> ConfigError {
    let mistake = YamlError::of(error);
    let (place, word) = Place::quote(text, mistake.line, mistake.column);
    let mut message = mistake.found(&word);
    if !is_root(key) {
        message = format!("{key}: {message}");
    }
    ConfigError::Yaml { path: path.to_owned(), place, message: mask_text(&message).into_owned() }
}

/// Whether a key's name stands for the whole file.
fn is_root(key: &str) -> bool {
    matches!(key, "" | "." | "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an error shows no password.
    #[test]
    fn errors_are_masked() {
        let error = value("https://user:canary@host", &["sync", "mode"]).unwrap_err();
        assert!(error.contains("***") && !error.contains("canary"), "{error}");
    }

    /// Goal: a value that looks like several keys or documents is still decoded as one value.
    #[test]
    fn a_value_cannot_leave_its_key() {
        for text in ["delta\nrole: validator", "delta }, role: validator, x: {", "delta\n---\nauto"] {
            assert!(value(text, &["sync", "mode"]).is_err(), "{text}");
        }
        let decoded = value("{ bodies: 7d }", &["storage", "prune"]).unwrap();
        assert_eq!(decoded.storage.prune.bodies.to_string(), "7d");
    }
}
