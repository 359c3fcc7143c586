//! [`StateReader`]: the interface between owners of a state and its readers, such as execution.

use std::collections::BTreeMap;

use slipstream_types::{
    AccountValue, Address, B256, BatchNumber, Bytes, CodecError, Delta, Digest, Genesis, StateKey,
    StateValue, U256, keccak256,
};

use crate::{error::StorageError, view::View};

/// Reads one fixed state. Two reads of a key through one reader give the same answer.
pub trait StateReader: Send + Sync {
    /// An account's row, or `None` if the state has none.
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError>;
    /// A slot's value; zero if it has no row.
    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError>;
    /// Code by its Keccak-256, or `None` if the state does not have it.
    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError>;
    /// The digest of an earlier batch's header, or `None` if it is unknown here.
    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError>;

    /// The row of a key.
    fn row(&self, key: &StateKey) -> Result<Option<StateValue>, StorageError> {
        Ok(match key {
            StateKey::Account(address) => self.account(address)?.map(StateValue::Account),
            StateKey::Slot(address, slot) => {
                let value = self.slot(address, slot)?;
                (!value.is_zero()).then_some(StateValue::Slot(value))
            }
        })
    }

    /// Returns many rows at once, in the order of the keys. Readers with something faster than one read per key
    /// override it.
    fn rows(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, StorageError> {
        keys.iter().map(|key| self.row(key)).collect()
    }

    /// Returns code for many hashes at once, in the order of the hashes; see [`StateReader::rows`].
    fn codes(&self, hashes: &[Digest]) -> Result<Vec<Option<Bytes>>, StorageError> {
        hashes.iter().map(|hash| self.code(hash)).collect()
    }
}

impl StateReader for View {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        View::account(self, address)
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        View::slot(self, address, slot)
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        View::code(self, hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        View::header_digest(self, number)
    }

    fn rows(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, StorageError> {
        View::rows(self, keys)
    }

    fn codes(&self, hashes: &[Digest]) -> Result<Vec<Option<Bytes>>, StorageError> {
        View::codes(self, hashes)
    }
}

/// A state in memory, for tests and tools: the simple model of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    rows: BTreeMap<StateKey, StateValue>,
    codes: BTreeMap<Digest, Bytes>,
    headers: BTreeMap<BatchNumber, Digest>,
}

impl MemoryState {
    /// The state of batch 0.
    pub fn from_genesis(genesis: &Genesis) -> Result<MemoryState, CodecError> {
        let mut state = MemoryState::default();
        state.apply(&genesis.delta()?);
        state.insert_header(BatchNumber::GENESIS, genesis.header()?.digest());
        Ok(state)
    }

    /// Applies a batch's changes.
    pub fn apply(&mut self, delta: &Delta) {
        for entry in delta.entries() {
            match entry.value {
                Some(value) => self.rows.insert(entry.key, value),
                None => self.rows.remove(&entry.key),
            };
        }
        for code in delta.codes() {
            self.insert_code(Bytes::copy_from_slice(code));
        }
    }

    /// Sets a row. Unlike a delta, it accepts an empty account, which Ethereum had before EIP-161.
    pub fn insert(&mut self, key: StateKey, value: StateValue) {
        self.rows.insert(key, value);
    }

    /// Adds code and returns its hash.
    pub fn insert_code(&mut self, code: Bytes) -> Digest {
        let hash = Digest::from(keccak256(&code));
        self.codes.insert(hash, code);
        hash
    }

    /// Makes a batch known to BLOCKHASH.
    pub fn insert_header(&mut self, number: BatchNumber, digest: Digest) {
        self.headers.insert(number, digest);
    }

    /// Every row.
    pub fn iter(&self) -> impl Iterator<Item = (&StateKey, &StateValue)> {
        self.rows.iter()
    }

    /// All code, by its Keccak-256.
    pub fn all_codes(&self) -> impl Iterator<Item = (&Digest, &Bytes)> {
        self.codes.iter()
    }
}

impl StateReader for MemoryState {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        Ok(match self.rows.get(&StateKey::Account(*address)) {
            Some(StateValue::Account(account)) => Some(*account),
            _ => None,
        })
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        Ok(match self.rows.get(&StateKey::Slot(*address, *slot)) {
            Some(StateValue::Slot(value)) => *value,
            _ => U256::ZERO,
        })
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        Ok(self.codes.get(hash).cloned())
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        Ok(self.headers.get(&number).copied())
    }
}
