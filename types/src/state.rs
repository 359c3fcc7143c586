//! Keys, values and paths of the EVM state. See docs/formats.md for the bytes.

use std::fmt;

use alloy_primitives::{Address, B256, U256};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{codec::raw, digest::Digest};

/// Bytes of a path that come from the account alone, so that an account and its slots are neighbours on disk.
pub const PATH_ACCOUNT_BYTES: usize = 8;

/// What a row of the state table is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum StateKey {
    /// An account's nonce, balance and code hash.
    Account(#[serde(with = "raw")] Address),
    /// One storage slot of a contract.
    Slot(#[serde(with = "raw")] Address, #[serde(with = "raw")] B256),
}

impl StateKey {
    /// The account that the key belongs to.
    pub fn address(&self) -> &Address {
        match self {
            StateKey::Account(address) | StateKey::Slot(address, _) => address,
        }
    }

    /// Where the row stands in the state table and in the tree:
    /// `SHA-256(0 ‖ address)[..8] ‖ SHA-256(1 ‖ table ‖ address ‖ slot)[..24]`.
    pub fn path(&self) -> Path {
        let mut path = [0; 32];
        path[..PATH_ACCOUNT_BYTES].copy_from_slice(&account_prefix(self.address()));
        let hasher = Sha256::new_with_prefix([1]);
        let rest = match self {
            StateKey::Account(address) => hasher.chain_update([0]).chain_update(address),
            StateKey::Slot(address, slot) => {
                hasher.chain_update([1]).chain_update(address).chain_update(slot)
            }
        };
        path[PATH_ACCOUNT_BYTES..].copy_from_slice(&rest.finalize()[..32 - PATH_ACCOUNT_BYTES]);
        Path(path)
    }
}

fn account_prefix(address: &Address) -> [u8; PATH_ACCOUNT_BYTES] {
    let hash = Sha256::new_with_prefix([0]).chain_update(address).finalize();
    let mut prefix = [0; PATH_ACCOUNT_BYTES];
    prefix.copy_from_slice(&hash[..PATH_ACCOUNT_BYTES]);
    prefix
}

/// Position of a row: 256 bits, the most significant bit of byte 0 first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Path(#[serde(with = "raw")] pub [u8; 32]);

impl Path {
    /// The first path.
    pub const MIN: Path = Path([0; 32]);
    /// The last path.
    pub const MAX: Path = Path([0xff; 32]);

    /// Bit `index`, 0 to 255.
    pub fn bit(&self, index: usize) -> bool {
        self.0[index / 8] >> (7 - index % 8) & 1 == 1
    }

    /// The path after this one, none after [`Path::MAX`].
    pub fn successor(&self) -> Option<Path> {
        let mut next = self.0;
        for byte in next.iter_mut().rev() {
            let (sum, carry) = byte.overflowing_add(1);
            *byte = sum;
            if !carry {
                return Some(Path(next));
            }
        }
        None
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// An account's own fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AccountValue {
    /// Transactions sent, or contracts created by a contract.
    pub nonce: u64,
    /// Wei.
    #[serde(with = "raw")]
    pub balance: U256,
    /// Keccak-256 of the code; none for an account without code.
    pub code_hash: Option<Digest>,
}

/// The value of a row. A zero slot and an empty account have no row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StateValue {
    /// Of a [`StateKey::Account`].
    Account(AccountValue),
    /// Of a [`StateKey::Slot`]; never zero.
    Slot(#[serde(with = "raw")] U256),
}

impl StateValue {
    /// Whether the value is of the key's table and is one that may be stored.
    pub fn fits(&self, key: &StateKey) -> bool {
        match (key, self) {
            (StateKey::Account(_), StateValue::Account(account)) => *account != AccountValue::default(),
            (StateKey::Slot(..), StateValue::Slot(value)) => !value.is_zero(),
            _ => false,
        }
    }

    /// What the tree's leaf commits to: key and value under a tag.
    pub fn hash(&self, key: &StateKey) -> Digest {
        let bytes = bcs::to_bytes(&(key, self)).expect("keys and values are fixed-size");
        Digest::tagged("slipstream/row/1", &bytes)
    }
}
