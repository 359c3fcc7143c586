//! Snapshots of a store that another process has open, read beside it.
//!
//! A snapshot's directory never changes, and loses its name before its files. So a reader that opened all files of a
//! snapshot can read all of it while they stay open. The store may drop the snapshot meanwhile; its disk space comes
//! back when the last reader ends.

use std::{cmp::Reverse, fs, path::Path};

use slipstream_types::BatchNumber;

use crate::{
    backend::rocks::open_read_only,
    config::StorageConfig,
    directory::{SNAPSHOTS_DIR, format},
    error::StorageError,
    snapshot::Snapshot,
};

/// Lists the batches of the snapshots in a store's directory, newest first. Reads nothing of them.
///
/// # Errors
/// Those of [`Store::open`](crate::Store::open) about formats, or errors of the disk.
pub fn snapshots_beside(dir: &Path) -> Result<Vec<BatchNumber>, StorageError> {
    format::check(dir)?;
    let snapshots = dir.join(SNAPSHOTS_DIR);
    let failed = |error| StorageError::io("list", &snapshots, error);
    let mut numbers: Vec<BatchNumber> = Vec::new();
    for entry in fs::read_dir(&snapshots).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        // Other names are snapshots that are being made or removed.
        let number = name.to_str().and_then(|name| name.parse().ok());
        numbers.extend(number.map(BatchNumber::new));
    }
    numbers.sort_unstable_by_key(|number| Reverse(*number));
    Ok(numbers)
}

impl Snapshot {
    /// Opens the snapshot of a batch in a store's directory, even while another process has the store open. `None` if
    /// the snapshot never existed or was removed. Keeps all of its files open. Writes nothing.
    ///
    /// # Errors
    /// [`StorageError::DamagedSnapshot`]; those of [`Store::open`](crate::Store::open) about formats, or errors of
    /// the disk.
    pub fn open_beside(
        config: &StorageConfig,
        dir: &Path,
        number: BatchNumber,
    ) -> Result<Option<Snapshot>, StorageError> {
        format::check(dir)?;
        let files = dir.join(SNAPSHOTS_DIR).join(number.get().to_string());
        // The store keeps the upper part of its head's tree, which moves on with the head. So this tree is built from
        // the rows.
        let opened = open_read_only(config, &files)
            .and_then(|reader| Snapshot::of_checkpoint(number, 0, reader, config.tree_memory_mib, None));
        let damaged = |what: String| Err(StorageError::DamagedSnapshot { number, what });
        match opened {
            Ok(Some(snapshot)) => Ok(Some(snapshot)),
            // It never existed, or was removed while it was opened.
            _ if !files.exists() => Ok(None),
            Ok(None) => damaged("its content belongs to another batch than its name says".into()),
            Err(StorageError::Corrupt { what }) => damaged(what.to_string()),
            Err(error) => Err(error),
        }
    }
}
