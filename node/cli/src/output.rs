//! The output of commands. The standard library's macros panic if standard output is closed or full. So this module
//! avoids them, and a lint keeps them out of the rest of the program.

use std::{
    io::{self, Write},
    time::Duration,
};

use miette::Result;

use super::{
    exit::OrFail as _,
    text::{OutputError, plain},
};

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
