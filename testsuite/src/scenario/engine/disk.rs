//! [`SmallDisk`]: an in-memory file system of fixed size, which can be filled up.

use std::{
    ffi::CString,
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::{file_names::FILLER, leftovers};

const BLOCK_BYTES: usize = 1 << 20;

/// A disk mounted at a node's data directory. It lasts until this is dropped or, if this process is killed, until the
/// next sweep.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a disk of `mib` MiB.
    ///
    /// # Errors
    /// If the directory cannot be made, or this process may not mount.
    pub(crate) fn mount(at: &Path, mib: u64) -> Result<SmallDisk> {
        fs::create_dir_all(at).with_context(|| format!("cannot create the directory {}", at.display()))?;
        let size = CString::new(format!("size={mib}m"))?;
        let source = leftovers::disk_source();
        mount(source.as_str(), at, "tmpfs", MountFlags::empty(), Some(size.as_c_str())).with_context(|| {
            format!(
                "cannot mount a disk at {}: `disk_mib` needs the right to mount (run as root, or leave it out)",
                at.display()
            )
        })?;
        Ok(SmallDisk(at.to_owned()))
    }

    /// Whether this disk is mounted at a directory.
    pub(super) fn is_at(&self, at: &Path) -> bool {
        self.0 == at
    }

    /// Writes until the disk is full.
    ///
    /// # Errors
    /// If writing fails for another reason.
    pub(super) fn fill(&self) -> Result<()> {
        fill(&self.0)
    }

    /// Frees the space again.
    ///
    /// # Errors
    /// If the filler file cannot be removed.
    pub(super) fn free(&self) -> Result<()> {
        free(&self.0)
    }
}

/// Writes into a directory until its disk is full.
///
/// # Errors
/// If writing fails for another reason.
pub(crate) fn fill(at: &Path) -> Result<()> {
    let path = at.join(FILLER);
    let mut file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut block = vec![0x5a; BLOCK_BYTES];
    // The pieces become smaller and smaller, so that the last page is used too.
    while !block.is_empty() {
        match file.write(&block) {
            Ok(0) => block.truncate(block.len() / 2),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => block.truncate(block.len() / 2),
            Err(error) => return Err(error).with_context(|| format!("cannot fill {}", path.display())),
        }
    }
    Ok(())
}

/// Frees the space in a directory that was filled.
///
/// # Errors
/// If the filler file cannot be removed.
pub(crate) fn free(at: &Path) -> Result<()> {
    match fs::remove_file(at.join(FILLER)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot free the space in {}", at.display()))
        }
        _ => Ok(()),
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The unmount is lazy, in case a file is still open.
        let _ = unmount(self.0.as_path(), UnmountFlags::DETACH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_and_has_room_again() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("data");
        let disk = match SmallDisk::mount(&at, 1) {
            Ok(disk) => disk,
            Err(error) => return leftovers::skip_mounts(&format!("{error:#}")),
        };
        assert!(disk.is_at(&at) && !disk.is_at(dir.path()));
        disk.fill().unwrap();
        assert!(fs::write(at.join("more"), [0; 4_096]).is_err());
        disk.free().unwrap();
        fs::write(at.join("more"), [0; 4_096]).unwrap();
        disk.free().unwrap();
        drop(disk);
        assert!(fs::read_dir(&at).unwrap().next().is_none());
    }
}
