//! The end of a command: one message about its failure, and the exit code. From the code, whatever started the process
//! learns whether another start can help. docs/operations.md has the table.

mod codes;

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use miette::{Diagnostic, Report, Result};

use super::text::plain;

pub(super) use self::codes::{Exit, causes};

/// The failure of a command, ready to display. It has no causes, because its text includes them.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct CommandFailure {
    text: String,
    help: Option<String>,
    exit: Exit,
    /// Whether the log already has the failure.
    told: bool,
}

impl Diagnostic for CommandFailure {
    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn std::fmt::Display + 'a>)
    }
}

/// Maximum characters of text that are shown. The text may quote the answer of a hostile node.
const TEXT_CHARS_MAX: usize = 8_192;

impl CommandFailure {
    /// A failure that no library error describes. Quoted text cannot contain control characters.
    pub(super) fn new(exit: Exit, text: impl Into<String>) -> CommandFailure {
        let text: String = text.into().chars().take(TEXT_CHARS_MAX).collect();
        CommandFailure { text: plain(&text), help: None, exit, told: false }
    }

    pub(super) fn of(error: &(dyn Error + 'static)) -> CommandFailure {
        Self::new(Exit::of(error), once(error))
    }

    pub(super) fn with_help(mut self, help: &str) -> CommandFailure {
        self.help = Some(help.to_owned());
        self
    }

    /// Writes the failure to the log, where it outlives the process; does nothing if the log hides errors.
    pub(super) fn log(mut self, message: &'static str) -> CommandFailure {
        if tracing::enabled!(tracing::Level::ERROR) {
            tracing::error!(failure = %self.text, help = self.help, "{message}");
            self.told = true;
        }
        self
    }
}

/// Whether the same request may succeed later.
pub(super) fn is_temporary(error: &Report) -> bool {
    error.downcast_ref::<CommandFailure>().is_some_and(|failed| failed.exit == Exit::TryAgain)
}

/// The text of an error and of its causes, without repetitions. Most of this program's texts quote their cause in
/// mid-sentence.
fn once(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Converts library errors into failures.
pub(super) trait OrFail<T> {
    fn or_fail(self) -> Result<T>;
}

impl<T, E: Error + 'static> OrFail<T> for std::result::Result<T, E> {
    fn or_fail(self) -> Result<T> {
        self.map_err(|error| CommandFailure::of(&error).into())
    }
}

/// Reports how a command ended, and returns its exit code.
pub(super) fn end(result: Result<()>) -> ExitCode {
    result.map_or_else(|report| show(&report, io::stderr().lock()).into(), |()| ExitCode::SUCCESS)
}

/// Ends the program with the exit code of a result that was already reported. Skips the libraries' exit handlers:
/// RocksDB destroys its locks there, and a thread that still reads the store would abort.
pub(super) fn at_once(result: &Result<()>) -> ! {
    signal_hook::low_level::exit(result.as_ref().map_or_else(|report| exit_of(report) as i32, |()| 0))
}

fn exit_of(report: &Report) -> Exit {
    report.downcast_ref::<CommandFailure>().map_or(Exit::Failure, |failed| failed.exit)
}

/// Like [`end`], but writes to `to` instead of standard error. Returns the report with the exit code, for the end of
/// the program.
pub(super) fn tell(report: &Report, to: impl Write) -> Report {
    let exit = show(report, to);
    CommandFailure { told: true, ..CommandFailure::new(exit, report.to_string()) }.into()
}

/// Displays a failure that was not reported yet. A failure to write it is ignored.
fn show(report: &Report, mut to: impl Write) -> Exit {
    let failed = report.downcast_ref::<CommandFailure>();
    let exit = exit_of(report);
    if exit != Exit::ClosedPipe && !failed.is_some_and(|failed| failed.told) {
        let _ = writeln!(to, "{report:?}");
    }
    exit
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a hostile node's answer can neither control the terminal nor flood it.
    #[test]
    fn quoted_text_is_plain_and_short() {
        let text =
            CommandFailure::new(Exit::Data, "the node says \u{1b}[2J\r\u{9b}gone\nand more").to_string();
        assert_eq!(text, "the node says  [2J  gone\nand more");
        let flood = CommandFailure::new(Exit::Data, "é".repeat(TEXT_CHARS_MAX + 1)).to_string();
        assert_eq!(flood.chars().count(), TEXT_CHARS_MAX);
    }
}
