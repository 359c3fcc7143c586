//! [`OldData`]: a copy of the node's data that is restored later. The node has then forgotten its votes since the copy.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::devnet::{clear, copy_data};

/// The name of the copy, before the run's start time.
const COPY: &str = "data.old";

/// A node's data, and the place of their copy beside them.
pub(super) struct OldData {
    data: PathBuf,
    copy: PathBuf,
}

impl OldData {
    /// Makes the place for the run with this start time. Copies of other runs are removed.
    ///
    /// # Errors
    /// If that fails.
    pub(super) fn of(data: &Path, start: Option<u64>) -> Result<OldData> {
        let name = start.map_or_else(|| COPY.to_owned(), |start| format!("{COPY}-{start}"));
        let kept = start.map(|_| name.as_str());
        remove_others(data.parent().unwrap_or(Path::new("")), kept)?;
        Ok(OldData { data: data.to_owned(), copy: data.with_file_name(name) })
    }

    /// Whether a complete copy exists.
    pub(super) fn is_kept(&self) -> bool {
        self.copy.exists()
    }

    /// Copies the data of the stopped node, replacing an earlier copy.
    ///
    /// # Errors
    /// If a file cannot be read or written; then there is no copy, or the earlier one.
    pub(super) fn keep(&self) -> Result<()> {
        let mut new = self.copy.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        remove(&new)?;
        copy_data(&self.data, &new)?;
        remove(&self.copy)?;
        fs::rename(&new, &self.copy).with_context(|| format!("cannot write {}", self.copy.display()))
    }

    /// Replaces the data of the stopped node with the copy. If this process is killed meanwhile, the copy stays, and
    /// the next one starts over.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub(super) fn put_back(&self) -> Result<()> {
        clear(&self.data)?;
        copy_data(&self.copy, &self.data)?;
        self.forget()
    }

    /// Removes the copy.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub(super) fn forget(&self) -> Result<()> {
        remove(&self.copy)
    }
}

/// Removes all copies in a directory, complete or not, except the one with this name.
fn remove_others(dir: &Path, kept: Option<&str>) -> Result<()> {
    let wrong = || format!("cannot read {}", dir.display());
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(wrong)?,
    };
    for entry in entries {
        let entry = entry.with_context(wrong)?;
        let name = entry.file_name();
        let is_copy = name.to_str().is_some_and(is_copy);
        if is_copy && name.to_str() != kept {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Whether this is the name of a copy, or of an incomplete one.
fn is_copy(name: &str) -> bool {
    let Some(start) = name.strip_prefix(COPY) else { return false };
    let start = start.strip_suffix(".new").unwrap_or(start);
    start.is_empty() || start.strip_prefix('-').is_some_and(|start| start.parse::<u64>().is_ok())
}

fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a copy restores the data completely, once. An incomplete copy does not count, and another run's copy is
    /// not used.
    #[test]
    fn data_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        fs::create_dir_all(data.join("rows")).unwrap();
        fs::write(data.join("rows/one"), "old").unwrap();
        let old = OldData::of(&data, Some(7)).unwrap();
        assert!(!old.is_kept());
        old.keep().unwrap();
        fs::write(data.join("rows/one"), "new").unwrap();
        fs::write(data.join("two"), "new").unwrap();
        assert!(OldData::of(&data, Some(7)).unwrap().is_kept(), "as after a restart");
        old.put_back().unwrap();
        assert_eq!(fs::read_to_string(data.join("rows/one")).unwrap(), "old");
        assert!(!data.join("two").exists() && !old.is_kept());
        fs::remove_dir_all(&data).unwrap();
        assert!(old.keep().is_err() && !old.is_kept());
        fs::create_dir_all(dir.path().join("data.old")).unwrap();
        assert!(!OldData::of(&data, None).unwrap().is_kept());
    }

    /// Goal: copies of other runs are removed, including incomplete ones, and nothing else is.
    #[test]
    fn copies_of_other_runs_go() {
        let dir = tempfile::tempdir().unwrap();
        let others = ["data.old", "data.old-7", "data.old-7.new", "data.old-8.new"];
        let kept = ["data", "data.old-8", "data.old-mine", "data.older"];
        others.iter().chain(&kept).for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
        assert!(OldData::of(&dir.path().join("data"), Some(8)).unwrap().is_kept());
        assert!(others.iter().all(|name| !dir.path().join(name).exists()));
        assert!(kept.iter().all(|name| dir.path().join(name).exists()));
        OldData::of(&dir.path().join("none/data"), None).unwrap();
    }
}
