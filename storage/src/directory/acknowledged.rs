//! [`Mark`]: how far the database was when a write to it was last acknowledged; [`MarkFile`]: advances the mark.
//! RocksDB takes a log or a manifest that lost its end for the effect of a power cut. It opens the database without the
//! lost part, and removes the files that nothing names any more. The third line of `FORMAT` distinguishes this loss
//! from a power cut.
//!
//! The line is overwritten after every durable write and never synced. It claims only what is on disk already, so a
//! power cut makes it claim less, and never too much.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use slipstream_types::Digest;

use super::{DATABASE_DIR, format, manifest};
use crate::error::StorageError;

const PREFIX: &str = "acknowledged ";
/// Index of the line of `FORMAT` that has the mark.
const LINE: usize = 2;
/// Tries to read the line: a running node may overwrite it at the same time.
const ATTEMPTS: usize = 20;

/// The least that a store's files must hold.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Mark {
    /// Number of the last change in a durable write.
    pub(crate) change: u64,
    /// Number of the manifest, and its bytes.
    pub(crate) manifest: u64,
    pub(crate) manifest_bytes: u64,
}

impl Mark {
    /// Encodes the mark, always at the same length, so that it can be overwritten.
    pub(crate) fn line(&self) -> String {
        let text = format!("{PREFIX}{:020} {:020} {:020} ", self.change, self.manifest, self.manifest_bytes);
        let [a, b, c, d, ..] = Digest::tagged("slipstream/acknowledged/1", text.as_bytes()).0;
        format!("{text}{:08x}\n", u32::from_be_bytes([a, b, c, d]))
    }

    fn parse(line: &str) -> Option<Mark> {
        let mut numbers = line.strip_prefix(PREFIX)?.split(' ').map_while(|number| number.parse().ok());
        let mark =
            Mark { change: numbers.next()?, manifest: numbers.next()?, manifest_bytes: numbers.next()? };
        (mark.line().trim_end() == line).then_some(mark)
    }

    /// Reads the mark of a directory whose format was checked. A directory of a release without marks claims nothing.
    pub(crate) fn read(dir: &Path) -> Result<Mark, StorageError> {
        let path = dir.join(format::FILE);
        for _ in 0..ATTEMPTS {
            let text = fs::read_to_string(&path).map_err(|error| StorageError::io("read", &path, error))?;
            match text.lines().nth(LINE).map(Mark::parse) {
                None => return Ok(Mark::default()),
                Some(Some(mark)) => return Ok(mark),
                Some(None) => {}
            }
        }
        Err(StorageError::corrupt(format!(
            "the third line of {} is damaged: it should record the acknowledged writes. Nothing was changed: put the \
            file back, or remove this line if the store lost no other file",
            path.display()
        )))
    }

    /// Refuses a manifest that is older or shorter than the marked one.
    pub(crate) fn check_manifest(&self, dir: &Path, name: &str, bytes: u64) -> Result<(), StorageError> {
        match super::manifest_number(name) {
            Some(number) if number < self.manifest => Err(StorageError::cut(
                dir,
                &format!("db/CURRENT names {name}, but db/MANIFEST-{:06} was in use", self.manifest),
            )),
            Some(number) if number == self.manifest && bytes < self.manifest_bytes => {
                let all = self.manifest_bytes;
                Err(StorageError::cut(dir, &format!("db/{name} has {bytes} bytes, but had at least {all}")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a database that opened without the last acknowledged write.
    pub(crate) fn check_change(&self, dir: &Path, last: u64) -> Result<(), StorageError> {
        match last < self.change {
            true => Err(StorageError::cut(
                dir,
                &format!(
                    "its database ends at change {last}, but change {} was acknowledged: a log (db/*.log) lost its end",
                    self.change
                ),
            )),
            false => Ok(()),
        }
    }
}

/// Advances the mark of an opened store.
#[derive(Debug)]
pub(crate) struct MarkFile {
    dir: PathBuf,
    file: File,
    place: u64,
    mark: Mutex<Mark>,
    has_failed: AtomicBool,
}

impl MarkFile {
    /// Opens the mark of a directory whose `FORMAT` has one.
    pub(crate) fn open(dir: &Path, mark: Mark) -> Result<MarkFile, StorageError> {
        let path = dir.join(format::FILE);
        let text = fs::read_to_string(&path).map_err(|error| StorageError::io("read", &path, error))?;
        let place = text.split_inclusive('\n').take(LINE).map(str::len).sum::<usize>() as u64;
        let file = File::options()
            .write(true)
            .open(&path)
            .map_err(|error| StorageError::io("write", &path, error))?;
        let (mark, has_failed) = (Mutex::new(mark), AtomicBool::new(false));
        let acknowledged = MarkFile { dir: dir.to_owned(), file, place, mark, has_failed };
        acknowledged.note(0);
        Ok(acknowledged)
    }

    /// Records that everything up to this change, and the manifest, are on disk. If the record cannot be written, the
    /// mark claims less.
    pub(crate) fn note(&self, change: u64) {
        let mut mark = self.mark.lock();
        match self.write(Mark { change: mark.change.max(change), ..*mark }) {
            Ok(written) => *mark = written,
            Err(error) if !self.has_failed.swap(true, Ordering::Relaxed) => {
                let dir = self.dir.display();
                tracing::warn!(%dir, %error, "cannot record in FORMAT what was acknowledged: a log that loses its end can go unnoticed");
            }
            Err(_) => {}
        }
    }

    fn write(&self, mark: Mark) -> Result<Mark, StorageError> {
        let (name, manifest_bytes) = manifest(&self.dir)?;
        let mut next = mark;
        if let Some(manifest) = super::manifest_number(&name).filter(|_| manifest_bytes > 0) {
            next = Mark { manifest, manifest_bytes, ..mark };
        }
        if next.manifest_bytes != mark.manifest_bytes || next.manifest != mark.manifest {
            // RocksDB may not have synced what it appended just now. A manifest changes with a flush, not with a
            // batch.
            let database = self.dir.join(DATABASE_DIR);
            let sync = |path: &Path| {
                File::open(path)
                    .and_then(|file| file.sync_all())
                    .map_err(|error| StorageError::io("sync", path, error))
            };
            sync(&database.join(&name))?;
            if next.manifest != mark.manifest {
                sync(&database)?;
            }
        }
        let written = self.file.write_all_at(next.line().as_bytes(), self.place);
        written.map_err(|error| StorageError::io("write", &self.dir.join(format::FILE), error))?;
        Ok(next)
    }
}
