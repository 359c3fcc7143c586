//! The node's key file: an ed25519 seed as 64 hexadecimal digits, readable only by its owner.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use slipstream_types::{SecretKey, digest::parse_hex};

use crate::small_file::{self, Placement, Readers};

/// A seed, `0x` and surrounding whitespace fit; a longer file is not a key.
const KEY_BYTES_MAX: u64 = 256;

/// Why a key could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file is missing or cannot be opened.
    #[error("cannot read the key file {}: {source}; `slipstream init --dir DIR` writes one, and `key_file` in the configuration \
        names it", path.display())]
    Read {
        /// The file that cannot be read.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Users other than the owner may read the file.
    #[error("the key file {} may be read by others (mode {mode:03o}); run `chmod 600 {}`", path.display(), path.display())]
    TooOpen {
        /// The file that others may read.
        path: PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
    /// The file holds something other than a seed.
    #[error("the key file {} must hold 64 hexadecimal digits and nothing else", path.display())]
    Malformed {
        /// The file without a seed.
        path: PathBuf,
    },
    /// The file already exists, or cannot be written.
    #[error("cannot write the key file {}: {source}", path.display())]
    Write {
        /// The file that cannot be written.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operating system supplied no randomness.
    #[error("cannot draw a key from the operating system: {0}")]
    Randomness(getrandom::Error),
}

/// Reads a key file.
pub fn load(path: &Path) -> Result<SecretKey, KeyError> {
    let read = |source| KeyError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read)?;
    let mode = file.metadata().map_err(read)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyError::TooOpen { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(KEY_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(read)?;
    let malformed = || KeyError::Malformed { path: path.to_owned() };
    let text = std::str::from_utf8(&bytes).map_err(|_| malformed())?;
    // The parser's own message would quote the secret.
    parse_hex(text.trim()).map(SecretKey::from_seed).map_err(|_| malformed())
}

/// Generates a new key and writes its file, which must not exist yet.
pub fn create(path: &Path) -> Result<SecretKey, KeyError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(KeyError::Randomness)?;
    let key = SecretKey::from_seed(seed);
    save(path, &key)?;
    Ok(key)
}

/// Writes a key file, which must not exist yet.
pub fn save(path: &Path, key: &SecretKey) -> Result<(), KeyError> {
    let write = |source| KeyError::Write { path: path.to_owned(), source };
    let text = hex::encode(key.seed()) + "\n";
    small_file::write(path, text.as_bytes(), Readers::Owner, Placement::New).map_err(write)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn round_trip_and_refusals() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        assert!(load(&path).unwrap_err().to_string().contains("slipstream init"));
        let key = create(&path).unwrap();
        assert_eq!(load(&path).unwrap().public(), key.public());
        assert!(matches!(create(&path), Err(KeyError::Write { .. })), "an existing key is never overwritten");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let text = load(&path).unwrap_err().to_string();
        assert!(text.contains("mode 640") && text.contains("chmod 600"), "{text}");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for bad in ["", "12", &"g".repeat(64), &"1".repeat(66)] {
            fs::write(&path, bad).unwrap();
            let text = load(&path).unwrap_err().to_string();
            assert!(text.ends_with("must hold 64 hexadecimal digits and nothing else"), "{text}");
        }
    }
}
