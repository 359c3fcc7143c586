//! The output of commands. The standard library's macros panic if standard output is closed or full. So this module
//! avoids them, and a lint keeps them out of the rest of the program.

use std::{
    io::{self, Write},
    time::Duration,
};

use miette::Result;

use super::exit::OrFail as _;

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

/// Prints the result of a command. Everything else goes to standard error.
pub(super) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{}", plain(text)).and_then(|()| stdout.flush());
    written.map_err(OutputError::from).or_fail()
}

/// Prints a line if somebody reads it. A running node continues if its output is closed or full.
pub(super) fn offer(line: String) {
    tokio::task::spawn_blocking(move || {
        let mut stdout = io::stdout().lock();
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    });
}

/// Writes a line to standard error; if that fails, the command continues.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", plain(text));
}

/// Waits between two checks of a node.
#[allow(clippy::disallowed_methods, reason = "a command has no runtime whose worker it could block")]
pub(super) fn pause(time: Duration) {
    std::thread::sleep(time);
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
