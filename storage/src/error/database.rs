//! Converts RocksDB's errors into [`StorageError`]s that say what the operator can do.

use std::fmt;

use super::StorageError;

/// A limit of the operating system that a write of the store ran into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// EMFILE, ENFILE.
    OpenFiles,
    /// EDQUOT.
    Quota,
    /// EFBIG.
    FileSize,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::OpenFiles => "the process has reached its limit of open files: raise the limit (`ulimit -n`, LimitNOFILE of systemd)",
            Limit::Quota => "the disk quota of the node's user is used up: raise it, or remove files of that user",
            Limit::FileSize => "a file has reached the process's limit on file size: raise the limit (`ulimit -f`, LimitFSIZE of systemd)",
        })
    }
}

impl Limit {
    /// RocksDB reports these limits in the operating system's words alone, without a code.
    fn of(error: &rocksdb::Error) -> Option<Limit> {
        [
            ("Too many open files", Limit::OpenFiles),
            ("Disk quota exceeded", Limit::Quota),
            ("File too large", Limit::FileSize),
        ]
        .into_iter()
        .find_map(|(text, limit)| error.as_ref().contains(text).then_some(limit))
    }
}

impl From<rocksdb::Error> for StorageError {
    fn from(error: rocksdb::Error) -> Self {
        match error.kind() {
            rocksdb::ErrorKind::Corruption => StorageError::corrupt(error.to_string()),
            // RocksDB has a subcode for this, which its binding does not expose.
            rocksdb::ErrorKind::IOError if error.as_ref().contains("No space left on device") => {
                StorageError::DiskFull(error)
            }
            _ => match Limit::of(&error) {
                Some(what) => StorageError::Limit { what, error },
                None => StorageError::Database(error),
            },
        }
    }
}
