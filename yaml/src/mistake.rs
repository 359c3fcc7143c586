//! [`Mistake`]: what the parser says, in words for whoever wrote the file.

use serde_saphyr::{Error, Options, SnippetMode};

/// The parser's options: the snippet is ours, one line and a caret, the same for every kind of error.
pub fn options() -> Options {
    serde_saphyr::options! { with_snippet: false }
}

/// An error of the parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The line, counted from 1.
    pub line: u64,
    /// The column, counted from 1.
    pub column: u64,
    message: String,
}

impl Mistake {
    /// What an error says, and where; the file's beginning if it does not say where.
    pub fn of(error: &Error) -> Mistake {
        let (line, column) = error.location().map_or((1, 1), |location| (location.line(), location.column()));
        let rendered =
            error.render_with_options(serde_saphyr::render_options! { snippets: SnippetMode::Off });
        let suffix = format!(" at line {line}, column {column}");
        let mut message = rendered.strip_suffix(&suffix).unwrap_or(&rendered).to_owned();
        // Advice to programmers who call the parser is of no use to whoever writes a file.
        for advice in [", set DuplicateKeyPolicy", "; use from_str_multiple"] {
            message.truncate(message.find(advice).unwrap_or(message.len()));
        }
        Mistake { line, column, message }
    }

    /// Whether a value is of another kind than its key takes.
    pub fn is_of_a_value(&self) -> bool {
        self.message.starts_with("invalid ")
    }

    /// The message, with the word that stands there: the parser only names the types of numbers.
    pub fn found(self, word: &str) -> String {
        if self.is_of_a_value() && !self.message.contains('`') && !word.is_empty() {
            return format!("{}, found `{word}`", self.message);
        }
        self.message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(text: &str) -> Mistake {
        Mistake::of(&serde_saphyr::from_str_with_options::<Vec<u8>>(text, options()).unwrap_err())
    }

    #[test]
    fn a_value_of_another_kind_is_named() {
        let number = mistake("- 1\n- 300\n");
        assert!(number.is_of_a_value(), "{number:?}");
        assert_eq!((number.line, number.column), (2, 3));
        assert!(number.found("300").ends_with(", found `300`"));
        assert!(!mistake("- many\n").found("").contains("found"));
    }
}
