//! [`FileLock`]: the operating system's lock on an open file (`flock`). The lock ends with its process, however that
//! dies.

use std::{
    fs::{File, TryLockError},
    io,
};

/// A held lock. Dropping it releases the lock.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Takes the exclusive lock. Returns `None` if another holder has it.
    ///
    /// # Errors
    /// If the file system does not support locks.
    pub fn exclusive(file: File) -> io::Result<Option<FileLock>> {
        FileLock::take(file, File::try_lock)
    }

    /// Takes the shared lock. Returns `None` if another holder has the exclusive lock.
    ///
    /// # Errors
    /// If the file system does not support locks.
    pub fn shared(file: File) -> io::Result<Option<FileLock>> {
        FileLock::take(file, File::try_lock_shared)
    }

    fn take(file: File, lock: fn(&File) -> Result<(), TryLockError>) -> io::Result<Option<FileLock>> {
        match lock(&file) {
            Ok(()) => Ok(Some(FileLock { file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The locked file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for FileLock {
    /// Unlocks explicitly: closing the file is not enough. The lock lives as long as the last copy of the file. A child
    /// that another thread is starting holds a copy of each open file until it runs its program.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a lock ends with its holder, even while a copy of the file is open elsewhere.
    #[test]
    fn a_lock_ends_with_its_holder_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::exclusive(File::create(&path).unwrap()).unwrap().unwrap();
        let _copy = held.file().try_clone().unwrap();
        let open = || File::open(&path).unwrap();
        assert!(
            FileLock::exclusive(open()).unwrap().is_none() && FileLock::shared(open()).unwrap().is_none()
        );
        drop(held);
        let one = FileLock::shared(open()).unwrap().unwrap();
        assert!(
            FileLock::shared(open()).unwrap().is_some() && FileLock::exclusive(open()).unwrap().is_none()
        );
        drop(one);
        assert!(FileLock::exclusive(open()).unwrap().is_some());
    }
}
