//! Directories that a bench fills once and reuses. A marker beside each directory shows that the directory is complete.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::BenchOptions;

/// Where a bench works: the directory of `--dir`, which keeps its stores, or a temporary one in the working directory.
pub(crate) struct WorkDir {
    dir: PathBuf,
    /// Removes the directory when the bench ends.
    _temporary: Option<TempDir>,
}

impl WorkDir {
    pub(crate) fn of(options: &BenchOptions) -> Result<WorkDir> {
        let is_kept = options.dir != Path::new(".");
        let temporary = (!is_kept).then(|| options.temporary_dir()).transpose()?;
        let dir = temporary.as_ref().map_or(options.dir.as_path(), |dir| dir.path());
        let dir = dir.canonicalize().with_context(|| format!("there is no directory {}", dir.display()))?;
        Ok(WorkDir { dir, _temporary: temporary })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Whether an earlier run completed a directory.
pub(crate) fn is_whole(dir: &Path) -> bool {
    dir.with_extension("whole").exists()
}

/// Makes a directory, unless an earlier run completed it.
pub(crate) fn once(dir: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if is_whole(dir) {
        return Ok(());
    }
    remove(dir)?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    make(dir)?;
    let whole = dir.with_extension("whole");
    fs::write(&whole, []).with_context(|| format!("cannot write {}", whole.display()))
}

/// Removes a directory if it exists.
pub(crate) fn remove(dir: &Path) -> Result<()> {
    match dir.exists() {
        true => fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display())),
        false => Ok(()),
    }
}

/// Clones a closed store into a directory: files that never change are hard-linked.
pub(crate) fn clone_store(from: &Path, to: &Path) -> Result<()> {
    remove(to)?;
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            clone_store(&entry.path(), &target)?;
        } else if entry.path().extension() == Some(OsStr::new("sst")) {
            fs::hard_link(entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
