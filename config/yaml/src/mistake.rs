//! [`YamlError`]: the parser's message, in words for the file's author.

use serde_saphyr::{Error, Options, SnippetMode};

/// Advice to the file's author, by the beginning of the error.
const ADVICE: [(&str, &str); 11] = [
    ("duplicate mapping key", "remove one of the two"),
    ("tabs disallowed", BLANKS),
    ("tab cannot be used", BLANKS),
    ("a block scalar content cannot start with a tab", BLANKS),
    ("while scanning a plain scalar, found a tab", BLANKS),
    (
        "mapping values are not allowed",
        "is it YAML? Each key stands on a line of its own, and a text with `: ` in it takes quotes",
    ),
    ("simple key expected", "is it YAML? Write `KEY: VALUE`, each on a line of its own"),
    ("expected mapping start", "write keys and their values, as `KEY: VALUE`"),
    ("expected sequence start", "write a list, as `[ONE, TWO]`"),
    ("unclosed bracket", "close it, or put the text that has it into quotes"),
    ("unclosed quote", "close it"),
];
const BLANKS: &str = "indent with blanks";
/// The parser's messages in a programmer's words, and the same in words for the file's author.
const PLAIN: [(&str, &str); 4] = [
    (
        "expected end of mapping after enum variant value",
        "two stand where one is wanted; leave one of them out",
    ),
    (
        "externally tagged enum expected scalar or mapping",
        "a list stands where a name is wanted; write `NAME`, or `{ NAME: VALUE }`",
    ),
    ("unexpected value for unit enum variant", "this takes no value; write its name alone"),
    ("unexpected end of input", "it ends where more is wanted; is the file empty, or cut off?"),
];

/// Returns the parser's options. They turn off its snippets: this crate makes them, one line and a caret for every kind
/// of error.
pub fn options() -> Options {
    serde_saphyr::options! { with_snippet: false }
}

/// An error of the parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlError {
    /// The line, counted from 1.
    pub line: u64,
    /// The column, counted from 1.
    pub column: u64,
    message: String,
    is_of_a_value: bool,
}

impl YamlError {
    /// Takes message and place from an error; the file's beginning if it has no place.
    pub fn of(error: &Error) -> YamlError {
        let (line, column) = error.location().map_or((1, 1), |location| (location.line(), location.column()));
        let rendered =
            error.render_with_options(serde_saphyr::render_options! { snippets: SnippetMode::Off });
        let suffix = format!(" at line {line}, column {column}");
        let mut message = rendered.strip_suffix(&suffix).unwrap_or(&rendered).to_owned();
        // Advice to programmers that call the parser is useless to the file's author.
        for advice in [", set DuplicateKeyPolicy", "; use from_str_multiple"] {
            message.truncate(message.find(advice).unwrap_or(message.len()));
        }
        if let Some((_, plain)) = PLAIN.iter().find(|(begins, _)| message.starts_with(begins)) {
            (*plain).clone_into(&mut message);
        }
        if let Some((_, advice)) = ADVICE.iter().find(|(begins, _)| message.starts_with(begins)) {
            message = format!("{message}; {advice}");
        }
        let is_of_a_value = message.starts_with("invalid ");
        YamlError { line, column, message: without_types(message), is_of_a_value }
    }

    /// Whether a value has another kind than its key takes.
    pub fn is_of_a_value(&self) -> bool {
        self.is_of_a_value
    }

    /// Returns the message with the word at the error's place, unless it already quotes a word.
    pub fn found(self, word: &str) -> String {
        if self.is_of_a_value && !self.message.contains('`') && !word.is_empty() {
            return format!("{}, found `{word}`", self.message);
        }
        self.message
    }
}

/// Replaces the names of Rust's types in a message with their ranges of numbers.
fn without_types(message: String) -> String {
    if let Some(numbers) = message.strip_prefix("invalid ").and_then(numbers) {
        return format!("must be {numbers}");
    }
    let Some((found, kind)) = message.rsplit_once(", expected ") else { return message };
    match numbers(kind) {
        Some(numbers) => format!("{found}, expected {numbers}"),
        None => message,
    }
}

/// Returns the range of a type's numbers, from its name in the parser and in serde.
fn numbers(kind: &str) -> Option<String> {
    if ["floating point", "f32", "f64"].contains(&kind) {
        return Some("a number".to_owned());
    }
    let (name, has_zero) = match kind.strip_prefix("a nonzero ") {
        Some(name) => (name, false),
        None => (kind, true),
    };
    let (least, most): (i128, u128) = match name {
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" | "usize" => (0, u64::MAX.into()),
        "i8" => (i8::MIN.into(), i8::MAX.unsigned_abs().into()),
        "i16" => (i16::MIN.into(), i16::MAX.unsigned_abs().into()),
        "i32" => (i32::MIN.into(), i32::MAX.unsigned_abs().into()),
        "i64" | "isize" => (i64::MIN.into(), i64::MAX.unsigned_abs().into()),
        _ => return None,
    };
    Some(match (has_zero, least) {
        (true, _) => format!("a whole number from {least} to {most}"),
        (false, 0) => format!("a whole number from 1 to {most}"),
        (false, _) => format!("a whole number from {least} to {most} without 0"),
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, num::NonZeroU32};

    use super::*;

    macro_rules! refused {
        ($kind:ty, $text:expr) => {
            YamlError::of(&serde_saphyr::from_str_with_options::<$kind>($text, options()).unwrap_err())
        };
    }

    fn mistake(text: &str) -> YamlError {
        refused!(Vec<u8>, text)
    }

    #[test]
    fn a_value_of_another_kind_is_named() {
        let number = mistake("- 1\n- 300\n");
        assert!(number.is_of_a_value(), "{number:?}");
        assert_eq!((number.line, number.column), (2, 3));
        assert!(number.found("300").ends_with(", found `300`"));
        assert!(!mistake("- many\n").found("").contains("found"));
    }

    /// Goal: a file's author need not know the names of Rust's number types.
    #[test]
    fn numbers_are_told_by_their_bounds() {
        assert_eq!(mistake("- -5\n").found("-5"), "must be a whole number from 0 to 255, found `-5`");
        let number = refused!(Vec<u32>, "- 4294967296\n");
        assert_eq!(number.found("x"), "must be a whole number from 0 to 4294967295, found `x`");
        assert_eq!(refused!(Vec<i8>, "- x\n").found(""), "must be a whole number from -128 to 127");
        assert_eq!(refused!(Vec<f64>, "- x\n").found("x"), "must be a number, found `x`");
        let zero = refused!(Vec<NonZeroU32>, "- 0\n").found("0");
        assert_eq!(zero, "invalid value: integer `0`, expected a whole number from 1 to 4294967295");
    }

    /// Goal: the parser's messages for programmers are given in plain words; tests of crates with keys cover names and
    /// their values.
    #[test]
    fn an_empty_file_is_told_as_one() {
        let found = refused!(u8, "").found("");
        assert!(found.contains("is the file empty") && !found.contains("end of input"), "{found}");
    }

    /// Goal: errors about invalid YAML, or about unexpected content, come with advice.
    #[test]
    fn mistakes_of_writing_come_with_advice() {
        type Map = BTreeMap<String, Vec<u8>>;
        for (text, said) in [
            ("a: [1]\na: [2]\n", "remove one of the two"),
            ("a:\n\t- 1\n", "indent with blanks"),
            ("Dear judge,\nthis is not: a file: at all\n", "`KEY: VALUE`"),
            ("a: 1\n", "`[ONE, TWO]`"),
            ("a: [1\n", "close it"),
        ] {
            let found = refused!(Map, text).found("");
            assert!(found.contains(said), "{text}{found}");
        }
        let found = refused!(BTreeMap<String, String>, "a: b: c\n").found("");
        assert!(found.contains("is it YAML?"), "{found}");
    }
}
