//! Progress on standard error: bars on a terminal, plain lines elsewhere. Standard output is for results.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// The least time between two plain lines, so that a log stays readable.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// How a command shows its progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Bars that redraw themselves.
    Terminal,
    /// A line at intervals.
    Lines,
    /// Shows nothing, for tests.
    Quiet,
}

impl Progress {
    /// Returns the display that fits standard error.
    pub fn detect() -> Progress {
        if stderr().is_terminal() { Progress::Terminal } else { Progress::Lines }
    }

    /// Prints that a step begins.
    pub fn step(self, text: &str) {
        if self != Progress::Quiet {
            output::note(&format!("==> {text}"));
        }
    }

    /// Starts a task that counts up to `total`.
    pub fn task(self, title: &str, total: u64) -> Task {
        let bar = (self == Progress::Terminal).then(|| {
            let style = ProgressStyle::with_template("    {prefix} [{bar:30}] {pos}/{len} {msg}");
            let style = style.expect("a constant template").progress_chars("=> ");
            ProgressBar::new(total).with_style(style).with_prefix(title.to_owned())
        });
        Task { progress: self, bar, title: title.to_owned(), total, last: None }
    }
}

/// A task with a count. Its bar disappears when it is dropped; its owner prints the result.
pub struct Task {
    progress: Progress,
    bar: Option<ProgressBar>,
    title: String,
    total: u64,
    last: Option<Instant>,
}

impl Task {
    /// Shows the progress so far.
    pub fn update(&mut self, done: u64, note: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done.min(self.total));
            bar.set_message(note.to_owned());
            return;
        }
        let due = self.last.is_none_or(|last| last.elapsed() >= LINE_INTERVAL);
        if self.progress == Progress::Lines && due {
            self.last = Some(Instant::now());
            output::note(&format!("    {} {done}/{} {note}", self.title, self.total));
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
