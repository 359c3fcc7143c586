//! [`ScenarioError`].

use std::{fmt, io, path::PathBuf};

/// The longest line of a file that an error quotes.
const SNIPPET_CHARS_MAX: usize = 160;

/// Why a scenario was refused. The text says what, where and what to write.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read the scenario {}: {source}; `slipnet scenarios list` names those that ship", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file cannot be a scenario.
    #[error("the scenario {} is longer than {max} bytes; is it the right file?", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit, in bytes.
        max: u64,
    },
    /// Broken YAML, an unknown or repeated key, or a value that its key refuses, alone or beside the others.
    #[error("{}:{place}: {message}\n{}", path.display(), place.snippet)]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Where it is in the file.
        place: Place,
        /// What is wrong, with the key's full name, and what to write.
        message: String,
    },
}

/// A place in a scenario's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Counted from 1.
    pub line: u64,
    /// Counted from 1.
    pub column: u64,
    /// The line with a caret under the place.
    pub snippet: String,
}

impl Place {
    /// A place of a text, and the word that stands there.
    pub(super) fn quote(text: &str, line: u64, column: u64) -> (Place, String) {
        let index = |number: u64| usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX);
        let quoted = text.lines().nth(index(line)).unwrap_or_default();
        let rest: String = quoted.chars().skip(index(column)).collect();
        let token = rest.split([' ', '#', ',', ']', '}']).next().unwrap_or_default();
        let before = index(column).min(SNIPPET_CHARS_MAX);
        let width = token.trim_end_matches(':').chars().count();
        let width = width.min(SNIPPET_CHARS_MAX - before).max(1);
        let shown: String = quoted.chars().take(SNIPPET_CHARS_MAX).collect();
        let indent = " ".repeat(line.to_string().len());
        let (spaces, carets) = (" ".repeat(before), "^".repeat(width));
        let snippet = format!("{indent} |\n{line} | {shown}\n{indent} | {spaces}{carets}");
        (Place { line, column, snippet }, token.to_owned())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}
