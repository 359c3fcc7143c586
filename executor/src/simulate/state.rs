//! [`SimulatedState`]: the state of a simulation, with its batches' changes.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, B256, Bytes, U256, keccak256, map::HashMap};
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{AccountValue, BatchNumber, Delta, Digest, StateKey, StateValue};

use crate::{
    evm::{AnalysedCode, ExecutionState},
    overrides::{AccountOverride, StorageOverride},
};

/// The differences from the state below.
pub(super) struct SimulatedState<'a> {
    below: &'a dyn ExecutionState,
    rows: HashMap<StateKey, Option<StateValue>>,
    /// Contracts that have no slots except those in `rows`.
    emptied: BTreeSet<Address>,
    codes: BTreeMap<Digest, AnalysedCode>,
    /// Hashes that BLOCKHASH returns.
    hashes: BTreeMap<u64, B256>,
}

impl<'a> SimulatedState<'a> {
    pub(super) fn over(below: &'a dyn ExecutionState) -> SimulatedState<'a> {
        let (rows, emptied) = (HashMap::default(), BTreeSet::new());
        SimulatedState { below, rows, emptied, codes: BTreeMap::new(), hashes: BTreeMap::new() }
    }

    /// Applies the caller's overrides.
    ///
    /// # Errors
    /// If the state below cannot be read.
    pub(super) fn override_accounts(
        &mut self,
        accounts: &BTreeMap<Address, AccountOverride>,
    ) -> Result<(), StorageError> {
        for (address, account) in accounts {
            let value = account.replace(self.account(address)?.unwrap_or_default());
            let value = Some(value).filter(|value| *value != AccountValue::default());
            self.rows.insert(StateKey::Account(*address), value.map(StateValue::Account));
            if let Some(code) = &account.code {
                self.put_code(code.clone());
            }
            let slots = match &account.storage {
                StorageOverride::Some(slots) => slots,
                StorageOverride::All(slots) => {
                    self.rows.retain(|key, _| !matches!(key, StateKey::Slot(of, _) if of == address));
                    self.emptied.insert(*address);
                    slots
                }
            };
            for (slot, value) in slots {
                let value = (!value.is_zero()).then_some(StateValue::Slot(*value));
                self.rows.insert(StateKey::Slot(*address, *slot), value);
            }
        }
        Ok(())
    }

    /// Applies a batch's changes.
    pub(super) fn apply(&mut self, delta: &Delta) {
        self.rows.extend(delta.entries().iter().map(|entry| (entry.key, entry.value)));
        for code in delta.codes() {
            self.put_code(Bytes::copy_from_slice(code));
        }
    }

    /// Sets the hash that BLOCKHASH returns for a batch.
    pub(super) fn put_hash(&mut self, number: u64, hash: B256) {
        self.hashes.insert(number, hash);
    }

    fn put_code(&mut self, code: Bytes) {
        let hash = Digest::from(keccak256(&code));
        self.codes.entry(hash).or_insert_with(|| AnalysedCode::new(code));
    }
}

impl StateReader for SimulatedState<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        match self.rows.get(&StateKey::Account(*address)) {
            Some(Some(StateValue::Account(account))) => Ok(Some(*account)),
            Some(_) => Ok(None),
            None => self.below.account(address),
        }
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        match self.rows.get(&StateKey::Slot(*address, *slot)) {
            Some(Some(StateValue::Slot(value))) => Ok(*value),
            Some(_) => Ok(U256::ZERO),
            None if self.emptied.contains(address) => Ok(U256::ZERO),
            None => self.below.slot(address, slot),
        }
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        match self.codes.get(hash) {
            Some(code) => Ok(Some(code.bytes())),
            None => self.below.code(hash),
        }
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        match self.hashes.get(&number.get()) {
            Some(hash) => Ok(Some(Digest::from(*hash))),
            None => self.below.header_digest(number),
        }
    }
}

impl ExecutionState for SimulatedState<'_> {
    fn analysed(&self, hash: &Digest) -> Option<AnalysedCode> {
        self.codes.get(hash).cloned().or_else(|| self.below.analysed(hash))
    }
}
