//! A [`SortedFile`] as one SST file, written beside the database and linked into it.

use std::{fs, path::PathBuf, sync::Arc};

use rocksdb::{DB, IngestExternalFileOptions, Options, SstFileWriter};

use super::family;
use crate::{
    backend::{Column, SortedFile},
    error::StorageError,
};

type WriterOf<'a> = SstFileWriter<'a>;

self_cell::self_cell!(
    /// A writer with the options that it borrows.
    struct OwnedWriter {
        owner: Box<Options>,
        #[not_covariant]
        dependent: WriterOf,
    }
);

struct RocksFile {
    db: Arc<DB>,
    column: Column,
    path: PathBuf,
    writer: OwnedWriter,
    /// RocksDB refuses a file without rows.
    is_empty: bool,
}

impl Drop for RocksFile {
    fn drop(&mut self) {
        // Ingesting moves the file, so one that is still here was abandoned. The next start removes leftovers.
        let _ = fs::remove_file(&self.path);
    }
}

/// Begins a new file.
pub(super) fn begin(
    db: Arc<DB>,
    column: Column,
    options: Options,
    path: PathBuf,
) -> Result<Box<dyn SortedFile>, StorageError> {
    let writer = OwnedWriter::new(Box::new(options), |options| SstFileWriter::create(options));
    writer.with_dependent(|_, writer| writer.open(&path))?;
    Ok(Box::new(RocksFile { db, column, path, writer, is_empty: true }))
}

impl SortedFile for RocksFile {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        self.is_empty = false;
        Ok(self.writer.with_dependent_mut(|_, writer| writer.put(key, value))?)
    }

    fn seal(&mut self) -> Result<(), StorageError> {
        match self.is_empty {
            true => Ok(()),
            false => Ok(self.writer.with_dependent_mut(|_, writer| writer.finish())?),
        }
    }

    fn ingest(self: Box<Self>) -> Result<(), StorageError> {
        if self.is_empty {
            return Ok(());
        }
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        let family = family(&self.db, self.column);
        Ok(self.db.ingest_external_file_cf_opts(family, &options, vec![&self.path])?)
    }
}
