//! Examines a store's directory before RocksDB does. RocksDB creates what it does not find, and then removes every file
//! that the new manifest does not name.

mod acknowledged;
mod fingerprint;
pub(crate) mod format;

use std::{fs, io, path::Path};

pub(crate) use self::acknowledged::{Mark, MarkFile};

use crate::error::StorageError;

/// Name of the database's directory within the store's.
pub(crate) const DATABASE_DIR: &str = "db";
/// Name of the directory of snapshots within a store's. Each snapshot is a directory of hard links to files of the
/// database.
pub const SNAPSHOTS_DIR: &str = "snapshots";
/// Name of the directory of frontier files within a store's. They hold the upper parts of trees.
pub(crate) const FRONTIERS_DIR: &str = "frontiers";
/// The file that names the manifest in use.
const CURRENT: &str = "CURRENT";
const MANIFEST_PREFIX: &str = "MANIFEST-";

/// The content of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DirectoryContent {
    /// No store: one may be created there.
    Nothing,
    /// A store whose creation was interrupted: nothing was committed to it yet.
    Begun,
    /// A store.
    Store,
}

/// The kinds of files in a database's directory.
#[derive(Default)]
struct DatabaseFiles {
    has_tables: bool,
    has_logs: bool,
    /// Whether there is any file besides RocksDB's lock and its text log.
    has_any: bool,
}

impl DatabaseFiles {
    fn in_database(dir: &Path) -> Result<DatabaseFiles, StorageError> {
        let mut found = DatabaseFiles::default();
        for name in names(dir)? {
            found.has_tables |= name.ends_with(".sst") || name.ends_with(".blob");
            found.has_logs |= name.ends_with(".log");
            found.has_any |= name != "LOCK" && !name.starts_with("LOG");
        }
        Ok(found)
    }
}

/// Examines a directory, and changes nothing in it.
///
/// # Errors
/// [`StorageError::Corrupt`] if only a part of a store is there; errors of [`format::check`].
pub(crate) fn look(dir: &Path) -> Result<DirectoryContent, StorageError> {
    let database = dir.join(DATABASE_DIR);
    let found = DatabaseFiles::in_database(&database)?;
    let has_format = exists(&dir.join(format::FILE))?;
    let mut has_files_beside = false;
    for beside in [SNAPSHOTS_DIR, FRONTIERS_DIR] {
        has_files_beside |= !names(&dir.join(beside))?.is_empty();
    }
    if !has_format && !found.has_tables && !has_files_beside {
        if exists(&dir.join(format::BEGUN_FILE))? {
            return Ok(DirectoryContent::Begun);
        }
        if !found.has_any {
            return Ok(DirectoryContent::Nothing);
        }
    }
    if !has_format {
        return Err(StorageError::incomplete(dir, format::FILE));
    }
    format::check(dir)?;
    check_manifest(dir, &Mark::read(dir)?)?;
    // A store that was closed has logs too: the last writes are there, a validator's vote among them.
    if !found.has_logs {
        return Err(StorageError::incomplete(dir, "db/*.log, the log of the last writes,"));
    }
    Ok(DirectoryContent::Store)
}

/// As [`look`], for work that needs a store.
///
/// # Errors
/// As [`look`]; [`StorageError::NotInitialized`] if there is none.
pub(crate) fn expect(dir: &Path) -> Result<DirectoryContent, StorageError> {
    match look(dir)? {
        DirectoryContent::Store => Ok(DirectoryContent::Store),
        DirectoryContent::Nothing | DirectoryContent::Begun => Err(StorageError::NotInitialized),
    }
}

/// Returns the name of the manifest in use.
pub(crate) fn manifest_name(dir: &Path) -> Result<String, StorageError> {
    let current = dir.join(DATABASE_DIR).join(CURRENT);
    let text = fs::read(&current).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StorageError::incomplete(dir, "db/CURRENT"),
        _ => StorageError::io("read", &current, error),
    })?;
    match std::str::from_utf8(&text).map(str::trim_end) {
        Ok(name) if name.starts_with(MANIFEST_PREFIX) => Ok(name.to_owned()),
        _ => Err(StorageError::corrupt(format!("{} does not name a manifest", current.display()))),
    }
}

/// Returns the name of the manifest in use, and its bytes: 0 while another one replaces it. RocksDB appends every
/// change of the tables to it.
pub(crate) fn manifest(dir: &Path) -> Result<(String, u64), StorageError> {
    let name = manifest_name(dir)?;
    let path = dir.join(DATABASE_DIR).join(&name);
    match fs::metadata(&path) {
        Ok(metadata) => Ok((name, metadata.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((name, 0)),
        Err(error) => Err(StorageError::io("look at", &path, error)),
    }
}

fn manifest_number(name: &str) -> Option<u64> {
    name.strip_prefix(MANIFEST_PREFIX)?.parse().ok()
}

fn check_manifest(dir: &Path, mark: &Mark) -> Result<(), StorageError> {
    let name = manifest_name(dir)?;
    let path = dir.join(DATABASE_DIR).join(&name);
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() && metadata.len() > 0 => {
            mark.check_manifest(dir, &name, metadata.len())
        }
        Ok(_) => Err(StorageError::corrupt(format!("{} is empty", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(StorageError::incomplete(dir, &format!("db/{name}, the list of its files,")))
        }
        Err(error) => Err(StorageError::io("look at", &path, error)),
    }
}

fn exists(path: &Path) -> Result<bool, StorageError> {
    path.try_exists().map_err(|error| StorageError::io("look for", path, error))
}

fn names(dir: &Path) -> Result<Vec<String>, StorageError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StorageError::io("list", dir, error)),
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<io::Result<_>>().map_err(|error| StorageError::io("list", dir, error))
}
