//! [`Log`]: the destinations of a node's log lines, and their selection.
//!
//! ```text
//!  tracing ─▶ Filter ─▶ Log ─┬─▶ Queue ─▶ standard error
//!           (changed at      ├─▶ Queue ─▶ LogFile, which is rotated by size
//!            run time)       └─▶ Recent: the last lines, in memory
//! ```

mod file;
mod filter;
mod queue;
mod recent;

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use slipstream_config::{LogConfig, LogFormat};
use tracing_subscriber::{
    EnvFilter, fmt::MakeWriter, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use self::{
    file::{LogFile, Reopen},
    filter::Filter,
    queue::Queue,
    recent::Recent,
};
use crate::NodeError;

pub use self::filter::FilterError;
pub use self::filter::parse as parse_filter;

/// How long the program waits at its end for the last lines.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// A handle to the log; all clones write to the same destinations.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

struct Shared {
    stderr: Queue,
    file: Option<(Queue, Reopen)>,
    /// Whether lines have colours, because standard error is a terminal.
    is_coloured: bool,
    filter: OnceLock<Filter>,
    recent: Recent,
}

impl Log {
    /// Opens a log that writes to standard error, and to the configured file.
    ///
    /// # Errors
    /// If the file cannot be opened, or the system refuses a thread or a file descriptor.
    pub fn open(config: &LogConfig) -> Result<Log, NodeError> {
        let failed = |source| NodeError::Io { action: "start the log", source };
        // Bypasses the standard library's handle: its writer holds a lock on which others would block.
        let stderr =
            std::fs::File::from(rustix::io::dup(io::stderr()).map_err(|error| failed(error.into()))?);
        let stderr = Queue::to("log", stderr).map_err(failed)?;
        let file = match &config.file.path {
            None => None,
            Some(path) => {
                let opened = LogFile::open(path, &config.file);
                let (sink, reopen) =
                    opened.map_err(|source| NodeError::LogFile { path: path.clone(), source })?;
                Some((Queue::to("log file", sink).map_err(failed)?, reopen))
            }
        };
        let is_coloured = io::stderr().is_terminal();
        let (filter, recent) = (OnceLock::new(), Recent::default());
        Ok(Log(Arc::new(Shared { stderr, file, is_coloured, filter, recent })))
    }

    /// Makes this the log of the whole process: all traced events pass the filter and go to it. If the process already
    /// has a log, that one stays.
    pub fn install(&self, filter: EnvFilter, text: String, format: LogFormat) {
        let (filter, change) = Filter::new(filter, text);
        let lines = tracing_subscriber::fmt::layer().with_writer(self.clone()).with_ansi(self.0.is_coloured);
        let filtered = tracing_subscriber::registry().with(filter);
        let installed = match format {
            LogFormat::Text => filtered.with(lines).try_init(),
            LogFormat::Json => filtered.with(lines.json()).try_init(),
        };
        if installed.is_ok() {
            // Cannot be set already: only one log of a process gets here.
            let _ = self.0.filter.set(change);
        }
    }

    /// The current filter of the log; `None` if the process has another log.
    pub fn filter(&self) -> Option<String> {
        self.0.filter.get().map(Filter::text)
    }

    /// Changes the filter until the process ends. Returns the previous one.
    ///
    /// # Errors
    /// If the text is not a filter, or the process has another log.
    pub fn set_filter(&self, text: &str) -> Result<String, FilterError> {
        self.0.filter.get().ok_or(FilterError::NotInstalled)?.set(text)
    }

    /// Whether lines also go to a file.
    pub fn has_file(&self) -> bool {
        self.0.file.is_some()
    }

    /// Reopens the log file with the next line. Call after another program has moved it away.
    pub fn reopen(&self) {
        if let Some((_, reopen)) = &self.0.file {
            reopen.ask();
        }
    }

    /// The last lines, up to a MiB.
    pub fn recent(&self) -> String {
        self.0.recent.text()
    }

    /// The number of lines that were dropped because a queue was full, plus all lines of failed writes, some of which
    /// may have been written. A line lost for both standard error and the file counts twice.
    pub fn lines_lost(&self) -> u64 {
        self.queues().map(Queue::lines_lost).sum()
    }

    /// Waits at most a second until the last lines are written; later ones are dropped.
    pub fn close(&self) {
        let deadline = Instant::now() + FLUSH_PATIENCE;
        self.queues().for_each(Queue::close);
        self.queues().for_each(|queue| queue.flush(deadline));
    }

    fn queues(&self) -> impl Iterator<Item = &Queue> {
        [&self.0.stderr].into_iter().chain(self.0.file.as_ref().map(|(queue, _)| queue))
    }
}

/// The subscriber passes one whole line at a time.
impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.stderr.push(line);
        let plain = if self.0.is_coloured { without_colours(line) } else { Cow::Borrowed(line) };
        if let Some((file, _)) = &self.0.file {
            file.push(&plain);
        }
        self.0.recent.push(&plain);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Log;

    fn make_writer(&'a self) -> &'a Log {
        self
    }
}

/// A line without the control sequences that a terminal shows as colours.
fn without_colours(line: &[u8]) -> Cow<'_, [u8]> {
    const BEGIN: &[u8] = b"\x1b[";
    if !line.windows(BEGIN.len()).any(|bytes| bytes == BEGIN) {
        return Cow::Borrowed(line);
    }
    let (mut kept, mut rest) = (Vec::with_capacity(line.len()), line);
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == BEGIN[0] && after.first() == Some(&BEGIN[1]) {
            // Numbers and semicolons, then one letter.
            let end = after[1..].iter().position(|byte| (0x40..=0x7e).contains(byte));
            rest = end.map_or(&[][..], |end| &after[end + 2..]);
        } else {
            kept.push(*first);
        }
    }
    Cow::Owned(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals() {
        let line = b"\x1b[2m2026-01-01\x1b[0m \x1b[32m INFO\x1b[0m ready\x1b[1;31m!\x1b[0m\n";
        assert_eq!(&*without_colours(line), b"2026-01-01  INFO ready!\n");
        assert!(matches!(without_colours(b"plain [1] \x1b\n"), Cow::Borrowed(_)));
        assert_eq!(&*without_colours(b"cut \x1b[3"), b"cut ");
        assert_eq!(&*without_colours(b"\x1b[0m\x1b"), b"\x1b");
    }
}
