//! The operator's token: anyone who can read it may change the running node over its API.
//!
//! The API is open to everyone who can reach it, so commands that change a node need more than a connection. The token
//! lies in the data directory, readable only by the node's user. So the file system of this machine grants the right,
//! and no setup is needed.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use slipstream_types::digest::parse_hex;
use subtle::ConstantTimeEq as _;

use crate::small_file::{self, Placement, Readers};

/// Name of the file in the data directory.
pub const TOKEN_FILE: &str = "operator.token";
/// 64 digits and surrounding whitespace fit; a longer file is not a token.
const FILE_BYTES_MAX: u64 = 256;

/// Why a token could not be read or created.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read or written.
    #[error(
        "cannot {action} the operator token {}: {source}; a node writes it when it starts, for its own user: run this command as that user",
        path.display()
    )]
    Io {
        /// The attempted action, for the message.
        action: &'static str,
        /// The token's file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Users other than the owner may read the file.
    #[error(
        "the operator token {} may be read by others (mode {mode:03o}); remove it and restart the node, which makes a new one",
        path.display()
    )]
    TooOpen {
        /// The file that others may read.
        path: PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
    /// The file holds something other than a token.
    #[error("{} holds no operator token, which is 64 hexadecimal digits", path.display())]
    Malformed {
        /// The file without a token.
        path: PathBuf,
    },
    /// The operating system supplied no randomness.
    #[error("cannot draw an operator token from the operating system: {0}")]
    Randomness(getrandom::Error),
}

/// The secret. Its `Debug` form hides it, so that logs and errors never contain it.
#[derive(Clone)]
pub struct OperatorToken([u8; 32]);

impl fmt::Debug for OperatorToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OperatorToken(…)")
    }
}

impl OperatorToken {
    /// Returns the token of a data directory whose lock is held. Creates a new one if the existing one is missing or
    /// not secret.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn establish(data_dir: &Path) -> Result<OperatorToken, TokenError> {
        let path = data_dir.join(TOKEN_FILE);
        match Self::load(&path) {
            Err(TokenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(unusable @ (TokenError::TooOpen { .. } | TokenError::Malformed { .. })) => {
                tracing::warn!(error = %unusable, "the operator token is replaced by a new one");
            }
            loaded => return loaded,
        }
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(TokenError::Randomness)?;
        let token = OperatorToken(secret);
        token.write(&path)?;
        Ok(token)
    }

    /// Reads a token's file.
    ///
    /// # Errors
    /// If the file cannot be read, others may read it, or it contains no token.
    pub fn load(path: &Path) -> Result<OperatorToken, TokenError> {
        let read = |source| TokenError::Io { action: "read", path: path.to_owned(), source };
        let file = File::open(path).map_err(read)?;
        let mode = file.metadata().map_err(read)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(TokenError::TooOpen { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(read)?;
        let text = std::str::from_utf8(&bytes).ok();
        // The parser's own message would quote the secret.
        let secret = text.and_then(|text| parse_hex(text.trim()).ok());
        secret.map(OperatorToken).ok_or_else(|| TokenError::Malformed { path: path.to_owned() })
    }

    /// Writes the whole file atomically, readable only by its owner.
    fn write(&self, path: &Path) -> Result<(), TokenError> {
        let write = |source| TokenError::Io { action: "write", path: path.to_owned(), source };
        let text = self.reveal() + "\n";
        small_file::write(path, text.as_bytes(), Readers::Owner, Placement::Instead).map_err(write)
    }

    /// Whether `shown` is the token; takes the same time however much of `shown` is right.
    pub fn is(&self, shown: &[u8]) -> bool {
        self.reveal().as_bytes().ct_eq(shown).into()
    }

    /// The token in the form that is sent.
    pub fn reveal(&self) -> String {
        hex::encode(self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    /// Goal: a token is created once, for its owner alone. One that others may have read is replaced.
    #[test]
    fn a_token_is_made_once_and_replaced_if_it_is_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TOKEN_FILE);
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        let token = OperatorToken::establish(dir.path()).unwrap();
        assert_eq!(mode(), 0o600);
        let again = OperatorToken::establish(dir.path()).unwrap();
        assert!(token.is(again.reveal().as_bytes()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let text = OperatorToken::load(&path).unwrap_err().to_string();
        assert!(text.contains("mode 640") && !text.contains(&token.reveal()), "{text}");
        let new = OperatorToken::establish(dir.path()).unwrap();
        assert!(!token.is(new.reveal().as_bytes()) && mode() == 0o600);
        for bad in ["", "12", &"g".repeat(64), &"1".repeat(66), &"1".repeat(9_999)] {
            fs::write(&path, bad).unwrap();
            let text = OperatorToken::load(&path).unwrap_err().to_string();
            assert!(text.ends_with("which is 64 hexadecimal digits"), "{text}");
        }
        // The leftover of a crash does no harm.
        fs::write(small_file::aside(&path), "half").unwrap();
        assert!(!new.is(OperatorToken::establish(dir.path()).unwrap().reveal().as_bytes()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_the_whole_token_is_the_token_and_nobody_prints_it() {
        let token = OperatorToken([0xab; 32]);
        let text = token.reveal();
        assert!(token.is(text.as_bytes()));
        for wrong in ["", &text[1..], &text.to_uppercase(), &format!("{text}0"), &"0".repeat(64)] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        assert!(!format!("{token:?}").contains("ab"));
    }
}
