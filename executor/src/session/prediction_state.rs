//! [`PredictionState`]: the state that predictions start from: uncommitted batches, the cache, and the rows.

use alloy_primitives::{Address, B256, Bytes, U256};
use parking_lot::RwLock;
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{AccountValue, BatchNumber, Digest, StateKey, StateValue};

use super::HotState;
use crate::overlay::{LayeredState, State};

/// The known state; see the module. Each read locks the cache only briefly: predictions wait for disks and other
/// threads, and commits must not wait for predictions. Hits in the cache do not count in its statistics.
pub(super) struct PredictionState<'a> {
    pub(super) state: State<'a>,
    below: LayeredState<'a>,
    hot: &'a RwLock<HotState>,
}

impl<'a> PredictionState<'a> {
    pub(super) fn new(state: State<'a>, hot: &'a RwLock<HotState>) -> PredictionState<'a> {
        PredictionState { state, below: state.reader(), hot }
    }

    /// A row of the cache, if no layer has a newer value.
    fn cached(&self, key: &StateKey) -> Option<Option<StateValue>> {
        if self.state.layers().row(key).is_some() {
            return None;
        }
        let hot = self.hot.read();
        hot.cache.at().filter(|at| self.state.covers(*at)).and_then(|_| hot.cache.peek(key))
    }
}

impl StateReader for PredictionState<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        match self.cached(&StateKey::Account(*address)) {
            Some(Some(StateValue::Account(account))) => Ok(Some(account)),
            Some(None) => Ok(None),
            _ => self.below.account(address),
        }
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        match self.cached(&StateKey::Slot(*address, *slot)) {
            Some(Some(StateValue::Slot(value))) => Ok(value),
            Some(None) => Ok(U256::ZERO),
            _ => self.below.slot(address, slot),
        }
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        let cached = self.hot.read().cache.peek_code(&B256::from(*hash));
        match cached {
            Some(code) => Ok(Some(code.bytes())),
            None => self.below.code(hash),
        }
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.below.header_digest(number)
    }
}
