//! [`Place`]: a place in a file, as an error shows it.

use std::fmt;

use crate::mask::{MASK, is_secret, mask_line};

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
    /// Returns a place of a text, and the word there. Word and line are masked.
    pub fn quote(text: &str, line: u64, column: u64) -> (Place, String) {
        let above = line.saturating_sub(1) as usize;
        let quoted = text.lines().nth(above).unwrap_or_default();
        let shown = match is_below_secret(text, above, quoted) {
            true => format!("{}{MASK}", " ".repeat(indent(quoted))),
            false => mask_line(quoted),
        };
        let kept = quoted.chars().zip(shown.chars()).take_while(|(there, shown)| there == shown).count();
        let column_shown = match column.saturating_sub(1) as usize {
            before if shown == quoted || before <= kept => before,
            // After the masked part the line is unchanged. Inside the masked part the caret points at all of it.
            before => {
                let behind: String = quoted.chars().skip(before).collect();
                let at = shown.chars().count().saturating_sub(behind.chars().count());
                let is_shown = !behind.is_empty() && shown.ends_with(&behind);
                if is_shown && at >= kept + MASK.len() { at } else { kept }
            }
        };
        let rest: String = shown.chars().skip(column_shown).collect();
        let word = rest.split([' ', '#', ',', ']', '}']).next().unwrap_or_default();
        let word = if column_shown == kept && word.starts_with(MASK) { MASK } else { word };
        let width = word.trim_end_matches(':').chars().count().max(1);
        (Place { line, column, snippet: snippet(&shown, line, column_shown, width) }, word.to_owned())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

fn snippet(shown: &str, line: u64, before: usize, width: usize) -> String {
    let number = line.to_string();
    let indent = " ".repeat(number.len());
    let shown: String = shown.chars().take(SNIPPET_CHARS_MAX).collect();
    let before = before.min(SNIPPET_CHARS_MAX);
    let width = width.min(SNIPPET_CHARS_MAX - before).max(1);
    format!("{indent} |\n{number} | {shown}\n{indent} | {}{}", " ".repeat(before), "^".repeat(width))
}

/// Whether a line is part of the value of a key that names a secret: such a key is on a less indented line above.
fn is_below_secret(text: &str, above: usize, quoted: &str) -> bool {
    // An item may have the same indentation as the key of its list.
    let mut least = indent(quoted) + usize::from(quoted.trim_start().starts_with('-'));
    let lines: Vec<&str> = text.lines().take(above).filter(|line| !line.trim().is_empty()).collect();
    lines.into_iter().rev().any(|line| {
        if indent(line) >= least {
            return false;
        }
        least = indent(line);
        // In braces one line may have several keys.
        line.rsplit_once(':').is_some_and(|(keys, _)| keys.split(':').any(is_secret))
    })
}

/// Blanks before a line's first character.
fn indent(line: &str) -> usize {
    line.chars().take_while(|c| *c == ' ').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a line quoted in an error shows no password.
    #[test]
    fn snippets_are_masked() {
        let (place, _) = Place::quote("a: https://user:canary@host, b: 1", 1, 33);
        assert!(!place.snippet.contains("canary"), "{}", place.snippet);
        assert_eq!(place.snippet, format!("  |\n1 | a: https://***@host, b: 1\n  | {}^", " ".repeat(24)));
    }

    /// Goal: the word that an error repeats and the length of its caret reveal no password, even if the password has a
    /// `#` or a comma within YAML's quotes.
    #[test]
    fn words_and_carets_tell_no_password() {
        for (line, column, word, caret) in [
            ("a: https://user:canary@host, b: 1", 4, "https://***@host", "   ^^^^^^^^^^^^^^^^"),
            ("a: https://user:canary@host/x y", 4, "https://***@host/x", "   ^^^^^^^^^^^^^^^^^^"),
            ("a: \"https://user:can#,ary@host\"", 5, "https://***@host\"", "    ^^^^^^^^^^^^^^^^^"),
            ("a: https://user:canary@host", 15, "***", "           ^^^"),
            ("a: https://user:canary@host, b: many", 33, "many", "                        ^^^^"),
            ("token: canary", 8, "***", "       ^^^"),
        ] {
            let (place, found) = Place::quote(line, 1, column);
            assert_eq!(
                (found.as_str(), place.snippet.lines().last()),
                (word, Some(&*format!("  | {caret}")))
            );
            assert!(!place.snippet.contains("can"), "{}", place.snippet);
        }
    }

    /// Goal: a secret of several lines is hidden on each line, and its neighbours are not.
    #[test]
    fn lines_of_a_secret_are_masked() {
        let text = "a:\n  private_key: |\n    canary\n\n    canary\n  tokens:\n  - canary\n  mode: delta\n";
        for line in [3, 5, 7] {
            let (place, word) = Place::quote(text, line, 5);
            assert!(place.snippet.contains("***") && !place.snippet.contains("canary"), "{}", place.snippet);
            assert_eq!(word, "***");
        }
        let (place, _) = Place::quote("archive: { url: a, secret-key:\n  canary }", 2, 3);
        assert!(!place.snippet.contains("canary"), "{}", place.snippet);
        let (place, word) = Place::quote(text, 8, 9);
        assert_eq!((place.snippet.lines().nth(1), word.as_str()), (Some("8 |   mode: delta"), "delta"));
    }
}
