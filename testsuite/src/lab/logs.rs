//! The last lines of logs, and new lines.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::output::print;

/// The most bytes of a log's end that are searched, and of new lines that are shown at a time. Logs grow to gigabytes.
const TAIL_BYTES_MAX: u64 = 4 << 20;
const POLL: Duration = Duration::from_millis(200);

/// A log, with the position up to which it was shown.
pub(super) struct Log {
    path: PathBuf,
    /// The prefix of each line, if several logs are shown.
    label: String,
    shown: u64,
}

impl Log {
    /// Makes a log that has not been shown yet.
    pub(super) fn new(path: &Path, label: &str) -> Log {
        Log { path: path.to_owned(), label: label.to_owned(), shown: 0 }
    }

    /// Returns the last lines, at most `lines`, and marks the whole file as shown. Returns nothing if the file does not
    /// exist yet.
    fn end(&mut self, lines: usize) -> Result<String> {
        let length = self.length()?;
        let bytes = self.read(length.saturating_sub(TAIL_BYTES_MAX), length)?;
        self.shown = length;
        let text = String::from_utf8_lossy(&bytes);
        let all: Vec<_> = text.lines().collect();
        Ok(self.labelled(&all[all.len().saturating_sub(lines)..]))
    }

    /// Returns the complete new lines, up to a limit. A file that has become shorter is a new one.
    fn added(&mut self) -> Result<String> {
        let length = self.length()?;
        if length < self.shown {
            self.shown = 0;
        }
        let end = length.min(self.shown + TAIL_BYTES_MAX);
        let bytes = self.read(self.shown, end)?;
        let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => last + 1,
            // A line longer than the limit is shown in parts.
            None if end - self.shown == TAIL_BYTES_MAX => bytes.len(),
            None => return Ok(String::new()),
        };
        self.shown += whole as u64;
        let text = String::from_utf8_lossy(&bytes[..whole]);
        Ok(self.labelled(&text.lines().collect::<Vec<_>>()))
    }

    fn labelled(&self, lines: &[&str]) -> String {
        lines.iter().map(|line| format!("{}{line}\n", self.label)).collect()
    }

    fn length(&self) -> Result<u64> {
        match std::fs::metadata(&self.path) {
            Ok(data) => Ok(data.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.path.display())),
        }
    }

    fn read(&self, from: u64, to: u64) -> Result<Vec<u8>> {
        if from == to {
            return Ok(Vec::new());
        }
        let mut bytes = Vec::new();
        let read = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(from))?;
            file.take(to - from).read_to_end(&mut bytes)
        });
        read.with_context(|| format!("cannot read {}", self.path.display()))?;
        Ok(bytes)
    }
}

/// Prints the last lines of logs and then, if `follow`, new lines until the command is interrupted.
///
/// # Errors
/// If a log cannot be read, or the reader of the output has gone.
pub(super) async fn show(mut logs: Vec<Log>, lines: usize, follow: bool) -> Result<()> {
    for log in &mut logs {
        print(&log.end(lines)?)?;
    }
    if !follow {
        return Ok(());
    }
    loop {
        tokio::time::sleep(POLL).await;
        for log in &mut logs {
            print(&log.added()?)?;
        }
    }
}

/// Returns the last lines of a log.
///
/// # Errors
/// If the log cannot be read.
pub(super) fn last_lines(path: &Path, lines: usize) -> Result<String> {
    Log::new(path, "").end(lines)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use super::*;

    /// Goal: the end is shown once, then complete new lines, including those of a file that was replaced.
    #[test]
    fn a_log_is_followed_by_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Log::new(&path, "a| ");
        assert_eq!(log.end(2).unwrap(), "");
        fs::write(&path, "1\n2\n3\n").unwrap();
        let mut log = Log::new(&path, "a| ");
        assert_eq!(log.end(2).unwrap(), "a| 2\na| 3\n");
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"4\n5").unwrap();
        assert_eq!(log.added().unwrap(), "a| 4\n");
        assert_eq!(log.added().unwrap(), "");
        file.write_all(b"5\n").unwrap();
        assert_eq!(log.added().unwrap(), "a| 55\n");
        fs::write(&path, "new\n").unwrap();
        assert_eq!(log.added().unwrap(), "a| new\n");
    }
}
