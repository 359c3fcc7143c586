//! [`LogFile`]: a log file that is rotated by size: `PATH` becomes `PATH.1`, the former `PATH.1` becomes `PATH.2`, and
//! the oldest is deleted.
//!
//! A failure here costs lines, which the queue counts. The next lines are the next attempt to write; nothing waits for
//! that. A file stays within its limit, even if earlier files cannot be renamed.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use slipstream_config::LogFileConfig;

/// Logs name peers and addresses, so only the operator and the group that collects them may read the file.
const MODE: u32 = 0o640;
/// The least time between two reports that the file cannot be written. The report is itself a log line, and also goes
/// to standard error.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// A request to reopen the file.
#[derive(Clone, Default)]
pub(super) struct Reopen(Arc<AtomicBool>);

impl Reopen {
    pub(super) fn ask(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}

/// The file. It receives whole lines, up to a MiB at a time.
pub(super) struct LogFile {
    path: PathBuf,
    bytes_max: u64,
    files_kept: u32,
    /// `None` after a failure.
    open: Option<OpenFile>,
    reopen: Reopen,
    told_at: Option<Instant>,
}

struct OpenFile {
    file: File,
    bytes: u64,
}

impl LogFile {
    /// Opens the file, to append to its present lines.
    pub(super) fn open(path: &Path, config: &LogFileConfig) -> io::Result<(LogFile, Reopen)> {
        let reopen = Reopen::default();
        let file = LogFile {
            open: Some(append(path)?),
            path: path.to_owned(),
            bytes_max: u64::from(config.mib_max.get()) << 20,
            files_kept: config.files_kept,
            reopen: reopen.clone(),
            told_at: None,
        };
        Ok((file, reopen))
    }

    fn put(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.reopen.take() {
            self.open = None;
        }
        let mut open = match self.open.take() {
            Some(open) => open,
            None => append(&self.path)?,
        };
        if open.bytes > 0 && open.bytes + lines.len() as u64 > self.bytes_max {
            drop(open);
            open = self.turn_over()?;
        }
        if let Err(error) = open.file.write_all(lines) {
            // Removes a partial line, so that the next line starts cleanly. If that fails too, the file is opened and
            // measured again.
            let _ = open.file.set_len(open.bytes);
            return Err(error);
        }
        open.bytes += lines.len() as u64;
        self.open = Some(open);
        Ok(())
    }

    /// Renames the files, and starts a new one.
    fn turn_over(&self) -> io::Result<OpenFile> {
        for number in (1..=self.files_kept).rev() {
            match fs::rename(self.earlier(number - 1), self.earlier(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.files_kept == 0 {
            fs::remove_file(&self.path)?;
        }
        // These files are left from a configuration that kept more.
        let surplus = (self.files_kept + 1..).map(|number| self.earlier(number));
        surplus.take_while(|path| fs::remove_file(path).is_ok()).for_each(drop);
        append(&self.path)
    }

    /// The path of the file after `times` rotations.
    fn earlier(&self, times: u32) -> PathBuf {
        if times == 0 {
            return self.path.clone();
        }
        let mut name = OsString::from(&self.path);
        name.push(format!(".{times}"));
        name.into()
    }

    /// Reports that lines are lost here. The report goes to the same log, so it must not follow every failure.
    fn tell(&mut self, error: &io::Error) {
        let now = Instant::now();
        if self.told_at.is_none_or(|at| now.duration_since(at) >= TELL_EVERY) {
            self.told_at = Some(now);
            let path = self.path.display();
            tracing::error!(%path, %error, "cannot write the log file: it loses lines, and they are counted");
        }
    }
}

impl Write for LogFile {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        match self.put(lines) {
            Ok(()) => Ok(lines.len()),
            // An `Interrupted` error would be retried at once.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(io::Error::other(error)),
            Err(error) => {
                self.tell(&error);
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<OpenFile> {
    let file = OpenOptions::new().append(true).create(true).mode(MODE).open(path)?;
    let found = file.metadata()?;
    // A pipe or a terminal has no length, and cannot be rotated.
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(OpenFile { file, bytes: found.len() })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    const MIB: usize = 1 << 20;

    fn open(path: &Path, files_kept: u32) -> io::Result<(LogFile, Reopen)> {
        LogFile::open(path, &LogFileConfig { path: None, mib_max: NonZeroU32::MIN, files_kept })
    }

    fn file(path: &Path, files_kept: u32) -> (LogFile, Reopen) {
        open(path, files_kept).unwrap()
    }

    fn lines(letter: u8) -> Vec<u8> {
        [vec![letter; MIB / 2 - 1], vec![b'\n']].concat()
    }

    fn kept(dir: &Path) -> Vec<(String, String, usize)> {
        let mut found: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let bytes = fs::read(&path).unwrap();
                let letters: Vec<u8> =
                    bytes.split(|b| *b == b'\n').filter_map(|line| line.first().copied()).collect();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, String::from_utf8(letters).unwrap(), bytes.len())
            })
            .collect();
        found.sort();
        found
    }

    /// The expected files, from names and the letters with which their lines begin.
    fn named(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(name, letters)| ((*name).to_owned(), (*letters).to_owned())).collect()
    }

    fn names(dir: &Path) -> Vec<(String, String)> {
        kept(dir).into_iter().map(|(name, letters, _)| (name, letters)).collect()
    }

    /// Goal: files are rotated by size in order, no more are kept than configured, and a restart continues where it
    /// stopped.
    #[test]
    fn files_turn_over_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.log");
        let (mut log, _) = file(&path, 2);
        for letter in b'a'..=b'g' {
            log.write_all(&lines(letter)).unwrap();
        }
        let expected = |newest, first, second| {
            named(&[("node.log", newest), ("node.log.1", first), ("node.log.2", second)])
        };
        assert_eq!(names(dir.path()), expected("g", "ef", "cd"));
        drop(log);
        let (mut log, _) = file(&path, 2);
        log.write_all(&lines(b'h')).unwrap();
        assert_eq!(names(dir.path()), expected("gh", "ef", "cd"));
        assert!(kept(dir.path()).iter().all(|(_, _, bytes)| *bytes <= MIB));
        let (mut log, _) = file(&path, 1);
        log.write_all(&lines(b'i')).unwrap();
        assert_eq!(names(dir.path()), expected("i", "gh", "")[..2], "what is kept no more is removed");
        let (mut log, _) = file(&path, 0);
        for letter in b'j'..=b'l' {
            log.write_all(&lines(letter)).unwrap();
        }
        assert_eq!(names(dir.path()), named(&[("node.log", "kl")]));
    }

    /// Goal: after an external rotation and its signal, the next lines go to a new file.
    #[test]
    fn a_file_that_was_moved_away_is_opened_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.log");
        let (mut log, reopen) = file(&path, 2);
        log.write_all(b"a\n").unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        log.write_all(b"b\n").unwrap();
        reopen.ask();
        log.write_all(b"c\n").unwrap();
        assert_eq!(names(dir.path()), named(&[("moved", "ab"), ("node.log", "c")]));
    }

    /// Goal: a file that cannot be renamed stays within its limit and stops nothing, and logging continues once it can
    /// be renamed.
    #[test]
    fn what_cannot_be_turned_over_costs_lines_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.log");
        let (mut log, _) = file(&path, 1);
        let blocking = dir.path().join("node.log.1");
        fs::create_dir_all(blocking.join("in the way")).unwrap();
        for letter in b'a'..=b'b' {
            log.write_all(&lines(letter)).unwrap();
        }
        for _ in 0..3 {
            assert!(log.write_all(&lines(b'x')).is_err());
            assert_eq!(fs::metadata(&path).unwrap().len() as usize, MIB);
        }
        fs::remove_dir_all(&blocking).unwrap();
        log.write_all(&lines(b'c')).unwrap();
        assert_eq!(names(dir.path()), named(&[("node.log", "c"), ("node.log.1", "ab")]));
        assert!(open(Path::new("/dev/null"), 0).is_err());
    }
}
