//! One text to a configuration: what the parser says, in words for an operator, with the key, the line and a caret.

use std::path::Path;

use serde::{
    de::{DeserializeSeed, Deserializer, MapAccess, Visitor, value::StrDeserializer},
    forward_to_deserialize_any,
};
use serde_saphyr::{Error, Options, SnippetMode};

use crate::{
    ConfigError, NodeConfig,
    error::Place,
    mask::{MASK, mask_text},
};

/// The longest line of the file that an error quotes.
const SNIPPET_CHARS_MAX: usize = 160;

/// Decodes a whole file.
pub(crate) fn file(text: &str, path: &Path) -> Result<NodeConfig, ConfigError> {
    decode(text, &[]).map_err(|Refused { key, error }| describe(text, path, &key, &error))
}

/// Decodes the value of one key or section, as if nothing else were set; else says what is wrong.
pub(crate) fn value(text: &str, path: &[&str]) -> Result<NodeConfig, String> {
    decode(text, path).map_err(|Refused { key, error }| {
        let (line, column) = place_of(&error);
        let (_, token) = quote(text, line, column);
        let message = complete(message(&error, line, column), &token);
        mask_text(&if key == path.join(".") { message } else { format!("{key}: {message}") }).into_owned()
    })
}

struct Refused {
    /// The key that the parser was at.
    key: String,
    error: Box<Error>,
}

fn decode(text: &str, path: &[&str]) -> Result<NodeConfig, Refused> {
    // The snippet is ours: one line and a caret, the same for every kind of error.
    let options: Options = serde_saphyr::options! { with_snippet: false };
    let mut key = String::new();
    serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        let decoded = match path {
            [] => serde_path_to_error::deserialize(deserializer),
            path => serde_path_to_error::deserialize(Nested { path, inner: deserializer }),
        };
        decoded.map_err(|error| {
            key = error.path().to_string();
            error.into_inner()
        })
    })
    .map_err(|error| Refused { key, error: Box::new(error) })
}

/// Sections around a value, each with that one entry. The value is decoded in place, because as part of a text it could end its own
/// section.
pub(crate) struct Nested<'a, D> {
    pub(crate) path: &'a [&'a str],
    pub(crate) inner: D,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Nested<'_, D> {
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
            path => seed.deserialize(Nested { path, inner }),
        }
    }
}

/// Puts the parser's message, the key's full name and the line together.
fn describe(text: &str, path: &Path, key: &str, error: &Error) -> ConfigError {
    let (line, column) = place_of(error);
    let (place, token) = quote(text, line, column);
    let mut message = complete(message(error, line, column), &token);
    if !is_root(key) {
        message = format!("{key}: {message}");
    }
    ConfigError::Yaml { path: path.to_owned(), place, message: mask_text(&message).into_owned() }
}

fn place_of(error: &Error) -> (u64, u64) {
    error.location().map_or((1, 1), |location| (location.line(), location.column()))
}

fn message(error: &Error, line: u64, column: u64) -> String {
    let rendered = error.render_with_options(serde_saphyr::render_options! { snippets: SnippetMode::Off });
    let suffix = format!(" at line {line}, column {column}");
    let mut message = rendered.strip_suffix(&suffix).unwrap_or(&rendered).to_owned();
    // Advice to programmers who call the parser is of no use to an operator.
    for advice in [", set DuplicateKeyPolicy", "; use from_str_multiple"] {
        message.truncate(message.find(advice).unwrap_or(message.len()));
    }
    message
}

/// Adds the value to the message: the parser only names the types of numbers.
fn complete(message: String, token: &str) -> String {
    if message.starts_with("invalid ") && !message.contains('`') && !token.is_empty() {
        return format!("{message}, found `{token}`");
    }
    message
}

/// A place in the file with its line, and the word that stands there.
pub(crate) fn quote(text: &str, line: u64, column: u64) -> (Place, String) {
    let quoted = text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default();
    let rest: String = quoted.chars().skip(column.saturating_sub(1) as usize).collect();
    let token = rest.split([' ', '#', ',', ']', '}']).next().unwrap_or_default();
    let width = token.trim_end_matches(':').chars().count().max(1);
    (Place { line, column, snippet: snippet(quoted, line, column, width) }, token.to_owned())
}

/// Whether the name of a key is that of the whole file.
fn is_root(key: &str) -> bool {
    matches!(key, "" | "." | "?")
}

fn snippet(quoted: &str, line: u64, column: u64, width: usize) -> String {
    let number = line.to_string();
    let indent = " ".repeat(number.len());
    let masked = mask_text(quoted);
    let shown: String = masked.chars().take(SNIPPET_CHARS_MAX).collect();
    let before = (column.saturating_sub(1) as usize).min(SNIPPET_CHARS_MAX);
    // A caret behind a masked part would point at something else.
    let (before, width) = match masked.find(MASK) {
        Some(at) if masked != quoted && before > at => (masked[..at].chars().count(), MASK.len()),
        _ => (before, width.min(SNIPPET_CHARS_MAX - before).max(1)),
    };
    format!("{indent} |\n{number} | {shown}\n{indent} | {}{}", " ".repeat(before), "^".repeat(width))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a line that is quoted beside an error shows no password.
    #[test]
    fn snippets_are_masked() {
        let line = "a: https://user:canary@host, b: 1";
        let (place, _) = quote(line, 1, 33);
        assert!(!place.snippet.contains("canary"), "{}", place.snippet);
        assert_eq!(place.snippet, "  |\n1 | a: https://***@host, b: 1\n  |            ^^^");
        let error = value("https://user:canary@host", &["sync", "mode"]).unwrap_err();
        assert!(error.contains("***") && !error.contains("canary"), "{error}");
    }

    /// Goal: a value is one value, whatever it looks like.
    #[test]
    fn a_value_cannot_leave_its_key() {
        for text in ["delta\nrole: validator", "delta }, role: validator, x: {", "delta\n---\nauto"] {
            assert!(value(text, &["sync", "mode"]).is_err(), "{text}");
        }
        let decoded = value("{ bodies: 7d }", &["storage", "prune"]).unwrap();
        assert_eq!(decoded.storage.prune.bodies.to_string(), "7d");
    }
}
