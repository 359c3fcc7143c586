//! Two nodes with the same key, and data that returns to an earlier state. Operators must avoid both; tests show the
//! consequences.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use super::{Devnet, Node, binary};
use crate::file_names;

impl Devnet {
    /// Makes a node with the key and a copy of the data of a stopped node. The new node has its own directory and
    /// ports, and these entries of `network.peers`. It is not part of [`Devnet::nodes`], has not started, and ends when
    /// it is dropped.
    ///
    /// # Errors
    /// If the stopped node runs, the name is taken, or the files cannot be copied.
    pub fn twin_of(&mut self, index: usize, name: &str, peers: &[String]) -> Result<Node> {
        let first = &self.nodes[index];
        ensure!(first.pid().is_none(), "{} is running: stop it before its data is copied", first.name());
        let (role, data) = (first.role(), first.data());
        let own = self.options.nodes.get(first.name()).cloned();
        let seat = u32::try_from(index).context("too many nodes")?;
        let (seed, dir) = (&self.options.seed, &self.directory.path);
        // A node's key depends on the seed and its index.
        let twin = Node::new(seed, seat, name.to_owned(), role, dir, &mut self.ports, &binary()?)?.with(own);
        ensure!(!twin.has_data(), "{} already has data: choose another name", twin.dir().display());
        copy_data(&data, &twin.data())?;
        twin.configure(&self.options.settings(self.options.sync_mode, peers, None))?;
        Ok(twin)
    }
}

/// Copies the data of a stopped node to a directory that is missing or empty. The file that fills its disk is not
/// copied: a restored copy would fill the disk again.
///
/// # Errors
/// If a file cannot be read or written.
pub fn copy_data(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create the directory {}", to.display()))?;
    let entries = fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", from.display()))?;
        let (path, name) = (entry.path(), entry.file_name());
        let copy = to.join(&name);
        let kind = entry.file_type().with_context(|| format!("cannot read {}", path.display()))?;
        if kind.is_dir() {
            copy_data(&path, &copy)?;
        } else if kind.is_file() && name != file_names::LOCK && name != file_names::FILLER {
            fs::copy(&path, &copy)
                .with_context(|| format!("cannot copy {} to {}", path.display(), copy.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_copied_with_its_directories_and_without_what_is_no_data() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("db")).unwrap();
        fs::write(from.join("db/rows"), "rows").unwrap();
        fs::write(from.join(file_names::LOCK), "").unwrap();
        fs::write(from.join(file_names::FILLER), "full").unwrap();
        copy_data(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("db/rows")).unwrap(), "rows");
        // RocksDB's own lock in the database's directory has the same name; RocksDB creates both again.
        assert!(!to.join(file_names::LOCK).exists() && !to.join(file_names::FILLER).exists());
        assert!(copy_data(&dir.path().join("none"), &to).unwrap_err().to_string().contains("none"));
    }
}
