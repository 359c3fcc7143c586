//! Files that only their owner can read, such as keys.

use std::{
    fs::{File, Permissions},
    io::Write as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use anyhow::{Context, Result};

/// The mode of such files.
const PRIVATE: u32 = 0o600;

/// Writes a file that only its owner can read, even if an existing file was readable by others.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let file = File::options().create(true).truncate(true).write(true).mode(PRIVATE).open(path);
    let written = file.and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(PRIVATE))?;
        file.write_all(text.as_bytes())
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Goal: a key that replaces a world-readable file is readable by its owner alone.
    #[test]
    fn keys_are_private_whatever_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, "longer than the key that comes, which is cut off").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        write_private(&path, "a key").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode, fs::read_to_string(&path).unwrap().as_str()), (PRIVATE, "a key"));
    }
}
