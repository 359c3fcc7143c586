//! [`Place`]: a place in a file, as an error shows it.

use std::fmt;

use crate::mask::{MASK, mask_text};

/// The longest line of a file that an error quotes.
const SNIPPET_CHARS_MAX: usize = 160;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, counted from 1.
    pub line: u64,
    /// The column, counted from 1.
    pub column: u64,
    /// The line with a caret under the place.
    pub snippet: String,
}

impl Place {
    /// A place of a text, and the word that stands there.
    pub fn quote(text: &str, line: u64, column: u64) -> (Place, String) {
        let quoted = text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default();
        let rest: String = quoted.chars().skip(column.saturating_sub(1) as usize).collect();
        let word = rest.split([' ', '#', ',', ']', '}']).next().unwrap_or_default();
        let width = word.trim_end_matches(':').chars().count().max(1);
        (Place { line, column, snippet: snippet(quoted, line, column, width) }, word.to_owned())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
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
        let (place, _) = Place::quote("a: https://user:canary@host, b: 1", 1, 33);
        assert!(!place.snippet.contains("canary"), "{}", place.snippet);
        assert_eq!(place.snippet, "  |\n1 | a: https://***@host, b: 1\n  |            ^^^");
    }
}
