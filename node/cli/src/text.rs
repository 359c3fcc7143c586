//! Texts that are safe to print, and why one could not be printed.

use std::io;

/// The output cannot be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum OutputError {
    /// The reader has exited, as `head` does.
    #[error("the reader of the output is gone")]
    Closed,
    /// For example, the output goes to a file on a full disk.
    #[error("cannot write the output: {0}")]
    Failed(#[source] io::Error),
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => OutputError::Closed,
            _ => OutputError::Failed(error),
        }
    }
}

/// Replaces control characters, which could move the cursor or hide a line, with spaces. A node that `--api` names may
/// be anybody's.
pub(super) fn plain(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names, reasons and events of a foreign node neither clear the screen nor hide a line.
    #[test]
    fn texts_have_no_control_sequences() {
        assert_eq!(plain("a\u{1b}[2J\r\u{9b}b\n\tc é"), "a [2J  b\n\tc é");
    }
}
