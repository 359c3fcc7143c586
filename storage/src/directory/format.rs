//! The file `FORMAT`: the formats that a directory was written with. It is a text file, so that an operator can read
//! it and no database of an unknown layout has to be opened for it. Its third line is the mark of
//! [`super::Mark`].
//!
//! The version counts releases that changed a format. The fingerprint is computed from what the code does. So the store
//! refuses a format that changed without a new version, instead of misreading it.

use std::{fs, io::Write as _, path::Path};

use super::{Mark, fingerprint::fingerprint};
use crate::error::StorageError;

/// The format that this release writes, and the newest that it reads.
const FORMAT: u32 = 1;
pub(crate) const FILE: &str = "FORMAT";
/// The mark of a store that is being created.
pub(crate) const BEGUN_FILE: &str = "FORMAT.new";
const VERSION_PREFIX: &str = "slipstream storage format ";
const FINGERPRINT_PREFIX: &str = "fingerprint ";

/// Writes the mark of a directory that gets a store, durably and before the database. A finished store never has this
/// file without `FORMAT`.
pub(crate) fn begin(dir: &Path) -> Result<(), StorageError> {
    write_aside(dir).map_err(|error| StorageError::io("write", &dir.join(BEGUN_FILE), error))
}

/// Marks a new directory, whose database exists already, as one of this release. The mark of what was acknowledged
/// claims nothing yet.
pub(crate) fn mark(dir: &Path) -> Result<(), StorageError> {
    let path = dir.join(FILE);
    let write = || {
        if path.try_exists()? {
            return Ok(());
        }
        write_aside(dir)?;
        fs::rename(dir.join(BEGUN_FILE), &path)?;
        fs::File::open(dir)?.sync_all()
    };
    write().map_err(|error| StorageError::io("write", &path, error))
}

/// Refuses a directory of another format, before the database is touched.
pub(crate) fn check(dir: &Path) -> Result<(), StorageError> {
    let path = dir.join(FILE);
    let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => StorageError::corrupt(format!("{} is not text", path.display())),
        _ => StorageError::io("read", &path, error),
    })?;
    check_text(dir, &text)
}

fn check_text(dir: &Path, text: &str) -> Result<(), StorageError> {
    let mut lines = text.lines();
    let version =
        lines.next().and_then(|line| line.strip_prefix(VERSION_PREFIX)).and_then(|it| it.parse().ok());
    match version {
        Some(found) if found > FORMAT => {
            return Err(StorageError::NewerFormat { dir: dir.to_owned(), found, supported: FORMAT });
        }
        Some(FORMAT) => {}
        _ => {
            let path = dir.join(FILE);
            let what = format!("{} should read \"{VERSION_PREFIX}{FORMAT}\"", path.display());
            return Err(StorageError::corrupt(what));
        }
    }
    let found = lines.next().and_then(|line| line.strip_prefix(FINGERPRINT_PREFIX)).unwrap_or_default();
    let expected = fingerprint();
    if found.len() != expected.len() {
        let path = dir.join(FILE);
        return Err(StorageError::corrupt(format!(
            "the second line of {} is not a fingerprint",
            path.display()
        )));
    }
    match found == expected {
        true => Ok(()),
        false => Err(StorageError::OtherFormat { dir: dir.to_owned(), found: found.to_owned(), expected }),
    }
}

fn write_aside(dir: &Path) -> std::io::Result<()> {
    let mut file = fs::File::create(dir.join(BEGUN_FILE))?;
    let (fingerprint, mark) = (fingerprint(), Mark::default().line());
    file.write_all(
        format!("{VERSION_PREFIX}{FORMAT}\n{FINGERPRINT_PREFIX}{fingerprint}\n{mark}").as_bytes(),
    )?;
    file.sync_all()?;
    // The name must be durable before anything that it stands for.
    fs::File::open(dir)?.sync_all()
}
