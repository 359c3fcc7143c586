//! One process at a time in a data directory.
//!
//! The lock is the operating system's, on an open file, so it ends with its process however that dies; the file's text
//! only says who holds it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

/// Name of the lock file in the data directory.
pub const LOCK_FILE: &str = "LOCK";

/// What the holder may have written about itself; longer files are cut in messages.
const HOLDER_BYTES_MAX: u64 = 512;

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("the data directory is in use by {holder} (lock file {}); stop that process, or set another `data_dir`", path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// Process id and command of the holder.
        holder: String,
    },
    /// It cannot be created or opened.
    #[error("cannot use the data directory {}: {source}; check `data_dir` and its permissions", path.display())]
    Io {
        /// The directory or the lock file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// A held lock; dropping it lets go.
#[derive(Debug)]
pub struct DataLock {
    _file: File,
}

/// Fails if another process has the directory; writes nothing, so that it can be asked before anything else is checked.
pub fn check_free(data_dir: &Path) -> Result<(), LockError> {
    let path = data_dir.join(LOCK_FILE);
    match File::open(&path) {
        Ok(mut file) => lock(&mut file, &path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(LockError::Io { path, source }),
    }
}

/// Creates the directory if need be, locks it and writes down who did.
pub fn acquire(data_dir: &Path) -> Result<DataLock, LockError> {
    let path = data_dir.join(LOCK_FILE);
    fs::create_dir_all(data_dir).map_err(|source| LockError::Io { path: data_dir.to_owned(), source })?;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|source| LockError::Io { path: path.clone(), source })?;
    lock(&mut file, &path)?;
    let command: Vec<_> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let mut holder = format!("pid {} ({})", std::process::id(), command.join(" "));
    holder.truncate(holder.floor_char_boundary(HOLDER_BYTES_MAX as usize - 1));
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{holder}"))
        .map_err(|source| LockError::Io { path, source })?;
    Ok(DataLock { _file: file })
}

fn lock(file: &mut File, path: &Path) -> Result<(), LockError> {
    match flock(&*file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // A holder that has not written its name yet is still a holder.
            let known =
                file.take(HOLDER_BYTES_MAX).read_to_string(&mut holder).is_ok() && !holder.trim().is_empty();
            let holder = if known { holder.trim().to_owned() } else { "another process".to_owned() };
            Err(LockError::Held { path: path.to_owned(), holder })
        }
        Err(errno) => Err(LockError::Io { path: path.to_owned(), source: errno.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the second one is told who the first is, and the lock ends with its holder. `flock` counts by open file, so
    /// one process can play both.
    #[test]
    fn second_holder_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        check_free(&data).unwrap();
        assert!(!data.exists(), "asking creates nothing");
        let held = acquire(&data).unwrap();
        for refused in [check_free(&data).unwrap_err(), acquire(&data).unwrap_err()] {
            let text = refused.to_string();
            assert!(text.contains(&format!("pid {} (", std::process::id())), "{text}");
            assert!(text.contains(LOCK_FILE), "{text}");
        }
        drop(held);
        check_free(&data).unwrap();
        acquire(&data).unwrap();
    }

    #[test]
    fn unusable_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let text = acquire(&file).unwrap_err().to_string();
        assert!(text.starts_with("cannot use the data directory"), "{text}");
    }
}
