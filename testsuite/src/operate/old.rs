//! [`OldData`]: a copy of the node's data, which is put back later: the node does not know then what it voted for meanwhile.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::devnet::{clear, copy_data};

/// A node's data, and where their copy is, beside them.
pub(super) struct OldData {
    data: PathBuf,
    copy: PathBuf,
}

impl OldData {
    /// Of the run that began at this start. Without one no run goes on with the copy of another, and it is taken away.
    ///
    /// # Errors
    /// If that fails.
    pub(super) fn of(data: &Path, start: Option<u64>) -> Result<OldData> {
        let name = start.map_or_else(|| "data.old".to_owned(), |start| format!("data.old-{start}"));
        let old = OldData { data: data.to_owned(), copy: data.with_file_name(name) };
        if start.is_none() {
            remove(&old.copy)?;
        }
        Ok(old)
    }

    /// Whether there is a copy, all of it.
    pub(super) fn is_kept(&self) -> bool {
        self.copy.exists()
    }

    /// Copies the data of the node, which does not run, in place of an earlier copy.
    ///
    /// # Errors
    /// If something cannot be read or written; then there is no copy, or the earlier one.
    pub(super) fn keep(&self) -> Result<()> {
        let new = self.copy.with_extension("new");
        remove(&new)?;
        copy_data(&self.data, &new)?;
        remove(&self.copy)?;
        fs::rename(&new, &self.copy).with_context(|| format!("cannot write {}", self.copy.display()))
    }

    /// Puts the copy in place of the data of the node, which does not run. Whoever is killed meanwhile finds the copy, and begins again.
    ///
    /// # Errors
    /// If something cannot be read or written.
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

    /// Goal: what is put back is what was there, whole, once; a copy that could not be made is none, and another run's is not taken.
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
        assert!(!OldData::of(&data, Some(8)).unwrap().is_kept());
        assert!(OldData::of(&data, Some(7)).unwrap().is_kept(), "as after a restart");
        old.put_back().unwrap();
        assert_eq!(fs::read_to_string(data.join("rows/one")).unwrap(), "old");
        assert!(!data.join("two").exists() && !old.is_kept());
        fs::remove_dir_all(&data).unwrap();
        assert!(old.keep().is_err() && !old.is_kept());
        fs::create_dir_all(dir.path().join("data.old")).unwrap();
        assert!(!OldData::of(&data, None).unwrap().is_kept());
    }
}
