//! [`Layers`]: the state behind batches that are executed and not committed yet.
//!
//! A range is prepared while the ranges before it execute or commit, so its hinted keys are read from an older state. That state is
//! kept, and what the batches since then changed lies above it in layers: a read asks the newest layer first. So a value
//! that was read ahead is never of another version, however far the commits are.

use std::{collections::VecDeque, sync::Arc};

use alloy_primitives::map::HashMap;
use parking_lot::Mutex;
use slipstream_executor::StateReader;
use slipstream_storage::StorageError;
use slipstream_types::{
    AccountValue, Address, B256, BatchHeader, BatchNumber, Bytes, Delta, Digest, StateKey, StateValue, U256,
    keccak256,
};

/// What some batches in a row changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer {
    accounts: HashMap<Address, Option<AccountValue>>,
    slots: HashMap<(Address, B256), U256>,
    codes: HashMap<Digest, Bytes>,
    headers: HashMap<u64, Digest>,
}

impl Layer {
    /// Puts a batch on top.
    pub(super) fn push(&mut self, header: &BatchHeader, digest: Digest, delta: &Delta) {
        for entry in delta.entries() {
            match (entry.key, entry.value) {
                (StateKey::Account(address), Some(StateValue::Account(account))) => {
                    self.accounts.insert(address, Some(account));
                }
                (StateKey::Account(address), _) => {
                    self.accounts.insert(address, None);
                }
                (StateKey::Slot(address, slot), Some(StateValue::Slot(value))) => {
                    self.slots.insert((address, slot), value);
                }
                (StateKey::Slot(address, slot), _) => {
                    self.slots.insert((address, slot), U256::ZERO);
                }
            }
        }
        for code in delta.codes() {
            self.codes.insert(keccak256(&code[..]).into(), Bytes::copy_from_slice(code));
        }
        self.headers.insert(header.number.0, digest);
    }
}

/// A state with layers on it.
pub(super) struct Stacked<'a> {
    /// Of the batches that run now.
    pub(super) top: &'a Layer,
    /// The older ones, newest first.
    pub(super) middle: &'a [Arc<Layer>],
    /// The committed state below them.
    pub(super) base: &'a dyn StateReader,
}

impl Stacked<'_> {
    fn find<T>(&self, look: impl Fn(&Layer) -> Option<T>) -> Option<T> {
        look(self.top).or_else(|| self.middle.iter().find_map(|layer| look(layer)))
    }
}

impl StateReader for Stacked<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        match self.find(|layer| layer.accounts.get(address).copied()) {
            Some(account) => Ok(account),
            None => self.base.account(address),
        }
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        match self.find(|layer| layer.slots.get(&(*address, *slot)).copied()) {
            Some(value) => Ok(value),
            None => self.base.slot(address, slot),
        }
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        match self.find(|layer| layer.codes.get(hash).cloned()) {
            Some(code) => Ok(Some(code)),
            None => self.base.code(hash),
        }
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        match self.find(|layer| layer.headers.get(&number.0).copied()) {
            Some(digest) => Ok(Some(digest)),
            None => self.base.header_digest(number),
        }
    }
}

/// The layers of the ranges that were executed last, oldest first.
#[derive(Debug, Default)]
pub(super) struct Layers(Mutex<VecDeque<Done>>);

#[derive(Clone, Debug)]
struct Done {
    first: BatchNumber,
    last: BatchHeader,
    layer: Arc<Layer>,
}

/// Layers kept: ranges are prepared at most two ahead of execution, and at most two of those before are not committed.
const KEPT: usize = 6;

impl Layers {
    /// The layers between a committed batch and the batch `next`, newest first, with the header of the batch before `next`. None if
    /// there is a gap: the state in between was not made here.
    pub(super) fn between(
        &self,
        base: BatchNumber,
        next: BatchNumber,
    ) -> Option<(Vec<Arc<Layer>>, BatchHeader)> {
        let kept = self.0.lock();
        let mut wanted = next;
        let mut found = Vec::new();
        let mut parent = None;
        for done in kept.iter().rev() {
            if done.last.number.next() == wanted {
                parent.get_or_insert_with(|| done.last.clone());
                found.push(Arc::clone(&done.layer));
                wanted = done.first;
                // A layer that begins below the base repeats what the base has, which is harmless.
                if wanted <= base.next() {
                    return parent.map(|parent| (found, parent));
                }
            }
        }
        None
    }

    /// Keeps the layer of a range that was executed.
    pub(super) fn push(&self, first: BatchNumber, last: BatchHeader, layer: Layer) {
        let mut kept = self.0.lock();
        kept.push_back(Done { first, last, layer: Arc::new(layer) });
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }

    /// Forgets everything: the ledger is another one than what was executed.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}
