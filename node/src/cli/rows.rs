//! [`Rows`]: a table for people.

use std::fmt::Write as _;

/// Lines of a name and a value, the values below each other.
#[derive(Debug, Default)]
pub(super) struct Rows(pub(super) String);

impl Rows {
    /// Adds a line; nothing without a value. A node asked by `--api` may be anybody's: what moves a cursor is left out.
    pub(super) fn add(&mut self, name: &str, value: Option<String>) {
        if let Some(value) = value {
            let value = value.replace(|c: char| c.is_control() && c != '\n', " ");
            writeln!(self.0, "{name:<12} {value}").expect("a String takes everything");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names and reasons of a foreign node neither clear the screen nor hide a line.
    #[test]
    fn values_have_no_control_sequences() {
        let mut rows = Rows::default();
        rows.add("peer", Some("a\u{1b}[2J\r\u{9b}b\nc".into()));
        rows.add("none", None);
        assert_eq!(rows.0, "peer         a [2J  b\nc\n");
    }
}
