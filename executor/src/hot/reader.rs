//! [`Hot`]: a state read through a [`HotCache`].

use alloy_primitives::{Address, B256, Bytes, U256};
use slipstream_storage::StorageError;
use slipstream_types::{AccountValue, BatchNumber, Digest, StateKey, StateValue};

use super::HotCache;
use crate::{evm::AnalysedCode, reader::StateReader};

/// A cache over the state that it belongs to; see [`HotCache::reader`].
pub struct Hot<'a> {
    cache: Option<&'a HotCache>,
    below: &'a dyn StateReader,
}

impl<'a> Hot<'a> {
    pub(super) fn new(cache: Option<&'a HotCache>, below: &'a dyn StateReader) -> Self {
        Self { cache, below }
    }

    fn row(&self, key: &StateKey) -> Option<Option<StateValue>> {
        self.cache.and_then(|cache| cache.row(key))
    }
}

impl StateReader for Hot<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        match self.row(&StateKey::Account(*address)) {
            Some(Some(StateValue::Account(account))) => Ok(Some(account)),
            Some(None) => Ok(None),
            _ => self.below.account(address),
        }
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        match self.row(&StateKey::Slot(*address, *slot)) {
            Some(Some(StateValue::Slot(value))) => Ok(value),
            Some(None) => Ok(U256::ZERO),
            _ => self.below.slot(address, slot),
        }
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        match self.analysed(hash) {
            Some(code) => Ok(Some(code.bytes())),
            None => self.below.code(hash),
        }
    }

    fn analysed(&self, hash: &Digest) -> Option<AnalysedCode> {
        self.cache.and_then(|cache| cache.code(&B256::from(*hash))).or_else(|| self.below.analysed(hash))
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.below.header_digest(number)
    }
}
