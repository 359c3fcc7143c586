//! Small files that are complete or absent: keys, tokens, lists. Each is written under a temporary name and synced
//! before it gets its final name, which is durable once the directory is synced. A failure leaves nothing behind.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// The suffix of a file that is being written.
const ASIDE: &str = ".new";

/// What may exist at the path before the write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Nothing: an existing file stays, and the write fails.
    New,
    /// Anything: it is replaced.
    Instead,
}

/// Who may read the file, besides its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readers {
    /// Nobody: the file is secret, or has information about others.
    Owner,
    /// Everyone that the process's umask allows.
    Anybody,
}

impl Readers {
    fn mode(self) -> u32 {
        match self {
            Readers::Owner => 0o600,
            Readers::Anybody => 0o666,
        }
    }
}

/// Writes a file atomically.
///
/// # Errors
/// The operating system's errors; [`io::ErrorKind::AlreadyExists`] if a file exists and `placement` forbids that.
pub fn write(path: &Path, text: &[u8], readers: Readers, placement: Placement) -> io::Result<()> {
    let aside = aside(path);
    // Left from a write that was killed.
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_aside(&aside, text, readers).and_then(|()| place(&aside, path, placement));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
}

/// The temporary path of a file until it is complete.
pub(crate) fn aside(path: &Path) -> PathBuf {
    let mut name = path.file_name().map(OsString::from).unwrap_or_default();
    name.push(ASIDE);
    path.with_file_name(name)
}

fn write_aside(aside: &Path, text: &[u8], readers: Readers) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(readers.mode()).open(aside)?;
    file.write_all(text)?;
    file.sync_all()
}

fn place(aside: &Path, path: &Path, placement: Placement) -> io::Result<()> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => File::open(dir)?,
        _ => File::open(".")?,
    };
    match placement {
        Placement::Instead => fs::rename(aside, path)?,
        Placement::New => match fs::hard_link(aside, path) {
            Ok(()) => fs::remove_file(aside)?,
            // Not every file system supports hard links.
            Err(error) if has_no_links(&error) && !path.try_exists()? => fs::rename(aside, path)?,
            Err(error) => return Err(error),
        },
    }
    let synced = dir.sync_all();
    if synced.is_err() && placement == Placement::New {
        // Otherwise the caller could not retry.
        let _ = fs::remove_file(path);
    }
    synced
}

fn has_no_links(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Goal: a file appears complete and with its mode, a second one of its name is refused or replaces it, and nothing
    /// is left over.
    #[test]
    fn a_file_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        fs::write(aside(&path), "half of one that was killed").unwrap();
        write(&path, b"one\n", Readers::Owner, Placement::New).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = write(&path, b"two\n", Readers::Owner, Placement::New).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"one\n");
        write(&path, b"two\n", Readers::Owner, Placement::Instead).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // A directory cannot be replaced: the write fails after the text was written.
        let taken = dir.path().join("taken");
        fs::create_dir_all(taken.join("in use")).unwrap();
        write(&taken, b"three", Readers::Anybody, Placement::Instead).unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left of a failed write");
    }
}
