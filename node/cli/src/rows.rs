//! [`Rows`]: a two-column table for people.

use std::fmt::Write as _;

/// Lines of a name and a value, with the values aligned.
#[derive(Debug, Default)]
pub(super) struct Rows(pub(super) String);

impl Rows {
    /// Adds a line, or nothing if there is no value.
    pub(super) fn add(&mut self, name: &str, value: Option<String>) {
        if let Some(value) = value {
            writeln!(self.0, "{name:<12} {value}").expect("a String takes everything");
        }
    }
}
