//! The output of commands. The macros of the standard library panic where standard output or standard error is closed or full. A
//! devnet must outlive a full disk under its log, and `slipnet load | head` must end well. A lint keeps these macros out elsewhere.

use std::{
    fmt,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};

/// A shell's code for a program that a closed pipe ended: 128 + SIGPIPE.
const CLOSED_PIPE_EXIT: u8 = 141;

/// The reader of the output has gone, as `head` does.
#[derive(Debug)]
struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for Closed {}

/// Prints a result to standard output.
///
/// # Errors
/// If it cannot be written, also because its reader has gone: [`end`] says nothing of that.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
        written => written.context("cannot write the output"),
    }
}

/// As [`print()`], with the end of the line.
///
/// # Errors
/// As [`print()`].
pub fn print_line(text: &str) -> Result<()> {
    print(&format!("{text}\n"))
}

/// Writes a line to standard error for a possible reader: if it cannot be written, the work goes on.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// How a program ends: its error, if there is one, is noted under the program's name.
pub fn end(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed(&error) => ExitCode::from(CLOSED_PIPE_EXIT),
        Err(error) => {
            note(&format!("{program}: {}", once(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Prints the requested help, or the error in the arguments.
pub fn show_usage(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(closed) if closed.kind() == io::ErrorKind::BrokenPipe && !error.use_stderr() => {
            ExitCode::from(CLOSED_PIPE_EXIT)
        }
        _ if error.use_stderr() => ExitCode::from(2),
        _ => ExitCode::SUCCESS,
    }
}

/// Whether an error only says that whoever read the output has gone: that ends a command without a word.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    error.is::<Closed>()
}

/// The text of an error and of its causes, each said once: many quote their cause themselves.
fn once(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_said_once() {
        let cause = io::Error::other("the disk is full (os error 28)");
        let error = anyhow::Error::new(cause)
            .context("cannot write: the disk is full (os error 28)")
            .context("no chain");
        assert_eq!(once(&error), "no chain: cannot write: the disk is full (os error 28)");
    }
}
