//! [`Reserve`]: bytes and inodes that a node keeps on its disk for the commands that make room. RocksDB writes some
//! files before it can drop one, so on a full disk nothing could be pruned.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::store::Store;

/// Name of the directory within a store's directory.
const RESERVE_DIR: &str = "reserve";
/// Many times what a manifest, a log and the options of a database take.
const BYTES: u64 = 16 << 20;
/// Files that a start and the moves of tables make at a time.
const FILES: u64 = 64;

/// The reserve of a store that is open for maintenance. It is made again when this is dropped.
#[derive(Debug)]
pub(crate) struct Reserve {
    dir: PathBuf,
    is_lent: bool,
}

impl Reserve {
    /// Frees the reserve if the file system has less room than the reserve itself.
    pub(crate) fn lend(dir: &Path) -> Reserve {
        let mut reserve = Reserve { dir: dir.join(RESERVE_DIR), is_lent: false };
        if reserve.has_room(1).is_ok_and(|has_room| !has_room) {
            match fs::remove_dir_all(&reserve.dir) {
                Ok(()) => reserve.is_lent = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(dir = %reserve.dir.display(), %error, "cannot remove the reserve file from the full disk: remove it by hand");
                }
            }
        }
        reserve
    }

    /// Whether the file system has room for `times` reserves.
    fn has_room(&self, times: u64) -> io::Result<bool> {
        let found = statvfs(self.dir.parent().unwrap_or(&self.dir))?;
        let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
        // Some file systems create inodes as they are needed, and report that they have none.
        let has_inodes = found.f_files == 0 || found.f_favail >= times * FILES;
        Ok(free_bytes >= times * BYTES && has_inodes)
    }

    /// Makes the missing part of the reserve, if the file system has room for twice the reserve.
    fn make(&self) -> io::Result<()> {
        let path = |index: u64| self.dir.join(index.to_string());
        let is_whole =
            fs::metadata(path(0)).is_ok_and(|first| first.len() >= BYTES) && path(FILES - 1).try_exists()?;
        if is_whole || !self.has_room(2)? {
            return Ok(());
        }
        fs::create_dir_all(&self.dir)?;
        for index in 0..FILES {
            let file = File::options().create(true).append(true).open(path(index))?;
            if index == 0 {
                fallocate(&file, FallocateFlags::empty(), 0, BYTES)?;
            }
        }
        Ok(())
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // The next start of the node tries again, and reports it.
        if self.is_lent
            && let Err(error) = self.make()
        {
            tracing::debug!(dir = %self.dir.display(), %error, "cannot create the reserve file");
        }
    }
}

impl Store {
    /// Keeps some bytes and inodes on the store's disk for `slipstream db prune`, which cannot work without them.
    /// Does nothing for a store in memory, or if there is no room.
    ///
    /// # Errors
    /// Errors of the file system, which may not support preallocation.
    pub fn keep_reserve(&self) -> Result<(), io::Error> {
        match &self.0.disk {
            Some(disk) => Reserve { dir: disk.dir().join(RESERVE_DIR), is_lent: false }.make(),
            None => Ok(()),
        }
    }
}
