//! [`Rows`]: a table for people, from the JSON for programs.

use std::fmt::Write as _;

use serde_json::Value;

/// Lines of a name and a value, the values below each other.
#[derive(Debug, Default)]
pub(super) struct Rows(pub(super) String);

impl Rows {
    /// Adds a line; none if there is no value.
    pub(super) fn add(&mut self, name: &str, value: Option<String>) {
        if let Some(value) = value {
            writeln!(self.0, "{name:<12} {value}").expect("a String takes everything");
        }
    }
}

/// A scalar without quotes.
pub(super) fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
