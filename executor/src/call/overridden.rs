//! [`OverriddenState`]: the state that a call with overrides sees.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{AccountValue, BatchNumber, Digest};

use crate::{
    evm::{AnalysedCode, ExecutionState},
    overrides::{Overrides, StorageOverride},
};

/// A state whose values are replaced where overrides exist.
pub(crate) struct OverriddenState<'a> {
    below: &'a dyn ExecutionState,
    overrides: &'a Overrides,
    codes: BTreeMap<Digest, Bytes>,
}

impl<'a> OverriddenState<'a> {
    pub(crate) fn new(below: &'a dyn ExecutionState, overrides: &'a Overrides) -> Self {
        let codes = overrides.accounts.values().filter_map(|account| account.code.as_ref());
        let codes = codes.map(|code| (Digest::from(keccak256(code)), code.clone())).collect();
        Self { below, overrides, codes }
    }
}

impl StateReader for OverriddenState<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        let below = self.below.account(address)?;
        let Some(account) = self.overrides.accounts.get(address) else { return Ok(below) };
        let value = account.replace(below.unwrap_or_default());
        Ok(Some(value).filter(|value| *value != AccountValue::default()))
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        match self.overrides.accounts.get(address).map(|account| &account.storage) {
            Some(StorageOverride::All(slots)) => Ok(slots.get(slot).copied().unwrap_or_default()),
            Some(StorageOverride::Some(slots)) if slots.contains_key(slot) => Ok(slots[slot]),
            _ => self.below.slot(address, slot),
        }
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        match self.codes.get(hash) {
            Some(code) => Ok(Some(code.clone())),
            None => self.below.code(hash),
        }
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        match self.overrides.block.hashes.get(&number.get()) {
            Some(hash) => Ok(Some(Digest::from(*hash))),
            None => self.below.header_digest(number),
        }
    }
}

impl ExecutionState for OverriddenState<'_> {
    fn analysed(&self, hash: &Digest) -> Option<AnalysedCode> {
        self.below.analysed(hash)
    }
}
