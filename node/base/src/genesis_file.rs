//! The chain's genesis as a JSON file.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use slipstream_types::{Genesis, genesis::GenesisError, limits};

use crate::small_file::{self, Placement, Readers};

/// JSON takes about twice the canonical form, because it writes every byte as two digits.
const GENESIS_FILE_BYTES_MAX: u64 = 3 * limits::GENESIS_BYTES_MAX as u64;

/// Why a genesis file was refused or not written.
#[derive(Debug, thiserror::Error)]
pub enum GenesisFileError {
    /// The file is missing or cannot be opened.
    #[error("cannot read the genesis file {}: {source}; get it from the chain's operators; `genesis` in the configuration names it", path.display())]
    Read {
        /// The file that cannot be read.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is longer than any genesis.
    #[error("the genesis file {} is longer than {max} bytes", path.display())]
    TooLong {
        /// The file that is too long.
        path: PathBuf,
        /// The longest allowed genesis file, in bytes.
        max: u64,
    },
    /// The file is not a genesis in JSON.
    #[error("{}:{}:{}: not a genesis file: {source}", path.display(), source.line(), source.column())]
    Json {
        /// The file with the error.
        path: PathBuf,
        /// The parser's error, with its place.
        source: serde_json::Error,
    },
    /// The genesis breaks a rule.
    #[error("the genesis file {} is not valid: {source}", path.display())]
    Invalid {
        /// The file that breaks a rule.
        path: PathBuf,
        /// The broken rule.
        source: GenesisError,
    },
    /// The file already exists, or cannot be written.
    #[error("cannot write the genesis file {}: {source}", path.display())]
    Write {
        /// The file that cannot be written.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Reads and checks a genesis file.
pub fn load(path: &Path) -> Result<Genesis, GenesisFileError> {
    let read = |source| GenesisFileError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(read)?;
    file.take(GENESIS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > GENESIS_FILE_BYTES_MAX {
        return Err(GenesisFileError::TooLong { path: path.to_owned(), max: GENESIS_FILE_BYTES_MAX });
    }
    parse(&bytes, path)
}

/// Parses and checks `bytes`, the content or intended content of the file `path`.
pub fn parse(bytes: &[u8], path: &Path) -> Result<Genesis, GenesisFileError> {
    let genesis: Genesis = serde_json::from_slice(bytes)
        .map_err(|source| GenesisFileError::Json { path: path.to_owned(), source })?;
    genesis.check().map_err(|source| GenesisFileError::Invalid { path: path.to_owned(), source })?;
    Ok(genesis)
}

/// Writes a genesis file, which must not exist yet.
pub fn save(path: &Path, genesis: &Genesis) -> Result<(), GenesisFileError> {
    let write = |source| GenesisFileError::Write { path: path.to_owned(), source };
    let text = serde_json::to_string_pretty(genesis).map_err(|error| write(error.into()))?;
    let text = text + "\n";
    small_file::write(path, text.as_bytes(), Readers::Anybody, Placement::New).map_err(write)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use slipstream_types::{
        Address, ChainConfig, SecretKey, U256, Validator, bounded::BoundedVec, genesis::GenesisAccount,
    };

    use super::*;

    fn genesis() -> Genesis {
        let validator = Validator {
            public_key: SecretKey::from_seed([1; 32]).public(),
            fee_recipient: Address::repeat_byte(7),
        };
        let account =
            GenesisAccount { balance: U256::from(10).pow(U256::from(24)), ..GenesisAccount::default() };
        Genesis {
            chain: ChainConfig::default(),
            timestamp_ms: 1_700_000_000_000,
            validators: BoundedVec::new(vec![validator]).unwrap(),
            accounts: BTreeMap::from([(Address::repeat_byte(1), account)]),
            ..Genesis::default()
        }
    }

    #[test]
    fn round_trip_and_refusals() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("genesis.json");
        assert!(load(&path).unwrap_err().to_string().starts_with("cannot read the genesis file"));
        save(&path, &genesis()).unwrap();
        assert_eq!(load(&path).unwrap(), genesis());
        assert!(matches!(save(&path, &genesis()), Err(GenesisFileError::Write { .. })));

        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("timestamp_ms", "timestamp_s")).unwrap();
        let refused = load(&path).unwrap_err().to_string();
        assert!(
            refused.contains("genesis.json:") && refused.contains("unknown field `timestamp_s`"),
            "{refused}"
        );

        let empty = Genesis { validators: BoundedVec::default(), ..genesis() };
        fs::write(&path, serde_json::to_string(&empty).unwrap()).unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("at least one validator"));

        let mut stored = genesis();
        let account = stored.accounts.values_mut().next().unwrap();
        account.storage.insert(Default::default(), U256::from(1));
        fs::write(&path, serde_json::to_string(&stored).unwrap()).unwrap();
        let refused = load(&path).unwrap_err().to_string();
        let account = Address::repeat_byte(1).to_string();
        assert!(refused.contains("genesis.json") && refused.contains(&account), "{refused}");
    }
}
