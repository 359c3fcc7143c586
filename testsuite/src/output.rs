//! The output of commands. The standard library's printing macros panic if the output is closed or full. A devnet must
//! outlive a full disk under its log, and `slipnet load | head` must end well. A lint forbids these macros elsewhere.

use std::{
    fmt,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};

/// The shell's exit code for a program that a closed pipe ended: 128 + SIGPIPE.
const CLOSED_PIPE_EXIT: u8 = 141;

/// The error that the reader of the output has closed it, as `head` does.
#[derive(Debug)]
struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the output is gone")
    }
}

impl std::error::Error for Closed {}

/// Prints a result to standard output.
///
/// # Errors
/// If the output cannot be written. [`end`] does not report an output that its reader has closed.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
        written => written.context("cannot write the output"),
    }
}

/// As [`print()`], with a newline.
///
/// # Errors
/// As [`print()`].
pub fn print_line(text: &str) -> Result<()> {
    print(&format!("{text}\n"))
}

/// Writes a line to standard error, and ignores a failure to do so.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Returns a program's exit code, and prints its error, if any, after the program's name.
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

/// Whether the error is only that the reader has closed the output. Such an error ends a command silently.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    error.is::<Closed>()
}

/// Formats an error and its causes without repetition: many errors already quote their cause.
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
