//! Ensures that only one process at a time uses a data directory.
//!
//! The operating system holds the lock on an open file, so the lock ends with its process, however that process dies.
//! The file's text only names the holder.

use std::{
    fmt,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    net::SocketAddr,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use slipstream_config::mask::mask_argument;

/// Name of the lock file in the data directory.
const LOCK_FILE: &str = "LOCK";

/// Longest command line that is recorded, in bytes; the rest is cut.
const COMMAND_BYTES_MAX: usize = 512;
/// The most bytes of a holder's description that messages show; longer files are cut.
const HOLDER_BYTES_MAX: u64 = 1_024;
/// The start of the line with the holder's API address.
const API: &str = "api ";
/// Only the owner may open the file. A process that can open it can lock it, and so pose as the node that its text
/// names.
const MODE: u32 = 0o600;

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the directory.
    #[error("the data directory is in use by {holder} (lock file {}); stop that process, or set another `data_dir`", path.display())]
    Held {
        /// The lock file's path.
        path: PathBuf,
        /// The process that has the lock.
        holder: Holder,
    },
    /// The directory or its lock file cannot be created or opened.
    #[error("cannot use the data directory {}: {source}; check `data_dir` and its permissions", path.display())]
    Io {
        /// The directory or the lock file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// The holder of a data directory, as it describes itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holder {
    /// Process id and command.
    pub process: String,
    /// The address of its API, if the holder is a node.
    pub api: Option<SocketAddr>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.process.is_empty() { "another process" } else { &self.process })
    }
}

impl Holder {
    fn this_process(api: Option<SocketAddr>) -> Holder {
        let shown = |arg: std::ffi::OsString| mask_argument(&arg.to_string_lossy()).into_owned();
        let command: Vec<_> = std::env::args_os().map(shown).collect();
        // The command must stay one line, whatever its arguments contain.
        let mut command = command.join(" ").replace(char::is_control, " ");
        command.truncate(command.floor_char_boundary(COMMAND_BYTES_MAX));
        Holder { process: format!("pid {} ({command})", std::process::id()), api }
    }

    /// Parses the lock file's text. A holder that has not yet written its name is still a holder.
    fn parse(text: &str) -> Holder {
        let mut lines = text.lines();
        let process = lines.next().unwrap_or_default().trim().to_owned();
        let api = lines.find_map(|line| line.strip_prefix(API)?.parse().ok());
        Holder { process, api }
    }

    fn text(&self) -> String {
        let api = self.api.map(|api| format!("{API}{api}\n")).unwrap_or_default();
        format!("{}\n{api}", self.process)
    }
}

/// A held lock, released on drop.
#[derive(Debug)]
pub struct DataLock {
    file: File,
}

impl Drop for DataLock {
    /// Unlocks explicitly instead of only closing. While another thread spawns a process, that process holds copies of
    /// all open files until it executes its program. The lock lasts as long as the last copy.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// Fails if another process holds the directory. Writes nothing, so the caller can check this before anything else.
pub fn check_free(data_dir: &Path) -> Result<(), LockError> {
    let path = data_dir.join(LOCK_FILE);
    match File::open(&path) {
        // Several processes may check at once; none of them is a holder.
        Ok(file) => lock(file, &path, File::try_lock_shared).map(drop),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(LockError::Io { path, source }),
    }
}

/// Creates the directory if needed, locks it, and records the holder and, for a node, its API address.
pub fn acquire(data_dir: &Path, api: Option<SocketAddr>) -> Result<DataLock, LockError> {
    let path = data_dir.join(LOCK_FILE);
    fs::create_dir_all(data_dir).map_err(|source| LockError::Io { path: data_dir.to_owned(), source })?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        .open(&path)
        .map_err(|source| LockError::Io { path: path.clone(), source })?;
    let held = lock(file, &path, File::try_lock)?;
    let mut file = &held.file;
    // Earlier releases let others read the file. A file with another owner stays as it is.
    let _ = file.set_permissions(fs::Permissions::from_mode(MODE));
    let told = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| file.write_all(Holder::this_process(api).text().as_bytes()));
    match told {
        // The lock is held even without a recorded name: commands that free disk space need it.
        Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
            Ok(held)
        }
        told => told.map(|()| held).map_err(|source| LockError::Io { path, source }),
    }
}

fn lock(file: File, path: &Path, lock: fn(&File) -> Result<(), TryLockError>) -> Result<DataLock, LockError> {
    match lock(&file) {
        Ok(()) => Ok(DataLock { file }),
        Err(TryLockError::WouldBlock) => {
            let mut text = Vec::new();
            let _ = file.take(HOLDER_BYTES_MAX).read_to_end(&mut text);
            let holder = Holder::parse(&String::from_utf8_lossy(&text));
            Err(LockError::Held { path: path.to_owned(), holder })
        }
        Err(TryLockError::Error(source)) => Err(LockError::Io { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a second holder is refused with the name of the first, and the lock ends with its holder. `flock` counts
    /// by open file, so one process can play both.
    #[test]
    fn second_holder_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        check_free(&data).unwrap();
        assert!(!data.exists(), "asking creates nothing");
        let api = Some("127.0.0.1:8545".parse().unwrap());
        let held = acquire(&data, api).unwrap();
        for refused in [check_free(&data).unwrap_err(), acquire(&data, None).unwrap_err()] {
            let text = refused.to_string();
            assert!(text.contains(&format!("pid {} (", std::process::id())), "{text}");
            assert!(text.contains(LOCK_FILE), "{text}");
            let LockError::Held { holder, .. } = refused else { panic!("{refused}") };
            assert_eq!(holder.api, api);
        }
        // Stands for the copy in a process that is being started.
        let _copy = held.file.try_clone().unwrap();
        drop(held);
        check_free(&data).unwrap();
        // A file from an earlier release, and a file that is still being written.
        for (text, said) in [("pid 7 (slipstream)\n", "pid 7 (slipstream)"), ("", "another process")] {
            let holder = Holder::parse(text);
            assert_eq!((holder.to_string().as_str(), holder.api), (said, None));
        }
        acquire(&data, None).unwrap();
    }

    /// Goal: a dead node is never named as the holder, whoever else looks: other users cannot open the file, and
    /// commands only check.
    #[test]
    fn only_a_holder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK_FILE);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        drop(acquire(dir.path(), None).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        let asking = File::open(&path).unwrap();
        asking.try_lock_shared().unwrap();
        check_free(dir.path()).unwrap();
    }

    #[test]
    fn unusable_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let text = acquire(&file, None).unwrap_err().to_string();
        assert!(text.starts_with("cannot use the data directory"), "{text}");
    }
}
