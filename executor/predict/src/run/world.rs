//! [`PredictedState`]: the state as one transaction's predictors see it, and the sink of the keys that they name.

use alloy_primitives::{
    Address, B256, Bytes, U256,
    map::{AddressMap, B256Set, HashMap},
};
use slipstream_storage::StateReader;
use slipstream_types::{AccountValue, Digest, StateKey};

use super::buffer::Value;
use crate::{
    config::PredictLimits,
    stats::{PredictStats, Predicted, StopReason},
};

/// The prediction for a transaction cannot continue; its [`PredictStats`] say why.
#[derive(Debug)]
pub(super) struct Stopped;

type Slot = (Address, U256);

/// Reads each key once, and reports each once. Keeps the writes that the transaction would make.
pub(super) struct PredictedState<'a> {
    reader: &'a dyn StateReader,
    sink: &'a mut dyn FnMut(Predicted),
    limits: PredictLimits,
    reads_slots: bool,
    pub(super) stats: PredictStats,
    accounts: AddressMap<Option<AccountValue>>,
    codes: B256Set,
    /// `None` if the slot was reported but not read.
    slots: HashMap<Slot, Option<Value>>,
    transient: HashMap<Slot, Value>,
    /// The value of each slot before each write, for calls that revert.
    journal: Vec<(Slot, Option<Value>)>,
}

impl<'a> PredictedState<'a> {
    pub(super) fn new(
        reader: &'a dyn StateReader,
        sink: &'a mut dyn FnMut(Predicted),
        limits: PredictLimits,
        reads_slots: bool,
    ) -> Self {
        Self {
            reader,
            sink,
            limits,
            reads_slots,
            stats: PredictStats::default(),
            accounts: AddressMap::default(),
            codes: B256Set::default(),
            slots: HashMap::default(),
            transient: HashMap::default(),
            journal: Vec::new(),
        }
    }

    /// The underlying state.
    pub(super) fn reader(&self) -> &'a dyn StateReader {
        self.reader
    }

    /// Reports an account and reads it.
    pub(super) fn account(&mut self, address: &Address) -> Result<Option<AccountValue>, Stopped> {
        if let Some(account) = self.accounts.get(address) {
            return Ok(*account);
        }
        self.emit(StateKey::Account(*address))?;
        self.count_read()?;
        let account = self.reader.account(address).map_err(|_| self.stop(StopReason::ReadFailed))?;
        self.accounts.insert(*address, account);
        Ok(account)
    }

    /// Counts a contract that the transaction would create, so that the next contract gets another address. Returns the
    /// creator's nonce before the creation.
    pub(super) fn next_nonce(&mut self, creator: &Address) -> Result<u64, Stopped> {
        let mut account = self.account(creator)?.unwrap_or_default();
        let nonce = account.nonce;
        account.nonce = nonce.saturating_add(1);
        self.accounts.insert(*creator, Some(account));
        Ok(nonce)
    }

    /// Reports the code of an account that has code.
    pub(super) fn code(&mut self, hash: Digest) {
        if self.codes.insert(B256::from(hash)) {
            self.stats.codes += 1;
            (self.sink)(Predicted::Code(hash));
        }
    }

    /// Reports code and reads it.
    pub(super) fn read_code(&mut self, hash: Digest) -> Result<Option<Bytes>, Stopped> {
        self.code(hash);
        self.count_read()?;
        self.reader.code(&hash).map_err(|_| self.stop(StopReason::ReadFailed))
    }

    /// Moves wei between accounts, if the amount is known.
    pub(super) fn pay(&mut self, from: &Address, to: &Address, value: Value) -> Result<(), Stopped> {
        let Some(value) = value.filter(|value| !value.is_zero()) else { return Ok(()) };
        let mut payer = self.account(from)?.unwrap_or_default();
        payer.balance = payer.balance.saturating_sub(value);
        self.accounts.insert(*from, Some(payer));
        let mut payee = self.account(to)?.unwrap_or_default();
        payee.balance = payee.balance.saturating_add(value);
        self.accounts.insert(*to, Some(payee));
        Ok(())
    }

    /// Gives an account the code that the transaction deployed there. The code is not reported, because the state lacks
    /// it.
    pub(super) fn deploy(&mut self, address: &Address, hash: Digest) -> Result<(), Stopped> {
        let account = self.account(address)?.unwrap_or_default();
        self.codes.insert(B256::from(hash));
        self.accounts.insert(*address, Some(AccountValue { code_hash: Some(hash), ..account }));
        Ok(())
    }

    /// Reports a slot whose value is not needed.
    pub(super) fn touch(&mut self, address: Address, slot: U256) -> Result<(), Stopped> {
        if !self.slots.contains_key(&(address, slot)) {
            self.emit(StateKey::Slot(address, slot.into()))?;
            self.slots.insert((address, slot), None);
        }
        Ok(())
    }

    /// Reports a slot and reads it.
    pub(super) fn slot(&mut self, address: Address, slot: U256) -> Result<Value, Stopped> {
        self.touch(address, slot)?;
        if let Some(Some(value)) = self.slots.get(&(address, slot)) {
            return Ok(*value);
        }
        if !self.reads_slots {
            return Ok(None);
        }
        self.count_read()?;
        let value = self.reader.slot(&address, &slot.into());
        let value = Some(value.map_err(|_| self.stop(StopReason::ReadFailed))?);
        self.slots.insert((address, slot), Some(value));
        Ok(value)
    }

    /// Writes a slot for the rest of the transaction, and reports the slot: execution also reads the slots that it
    /// writes.
    pub(super) fn set_slot(&mut self, address: Address, slot: U256, value: Value) -> Result<(), Stopped> {
        self.touch(address, slot)?;
        let before = self.slots.insert((address, slot), Some(value));
        self.journal.push(((address, slot), before.flatten()));
        Ok(())
    }

    /// Reads transient storage (EIP-1153).
    pub(super) fn transient(&self, address: Address, slot: U256) -> Value {
        self.transient.get(&(address, slot)).copied().unwrap_or(Some(U256::ZERO))
    }

    /// Writes transient storage.
    pub(super) fn set_transient(&mut self, address: Address, slot: U256, value: Value) {
        self.transient.insert((address, slot), value);
    }

    /// A checkpoint for [`PredictedState::undo`].
    pub(super) fn checkpoint(&self) -> usize {
        self.journal.len()
    }

    /// Undoes the writes since a checkpoint.
    pub(super) fn undo(&mut self, checkpoint: usize) {
        while self.journal.len() > checkpoint
            && let Some((slot, before)) = self.journal.pop()
        {
            self.slots.insert(slot, before);
        }
    }

    /// Reports the slots that the transaction changed. A lock that is taken and released changes nothing.
    pub(super) fn tell_changes(&mut self) {
        let mut changed: Vec<(Slot, Option<Value>)> = self.journal.clone();
        // Keeps the first write of each slot, with the value before it.
        changed.sort_by_key(|(slot, _)| *slot);
        changed.dedup_by_key(|(slot, _)| *slot);
        let is_known = |value: &Option<Value>| matches!(value, Some(Some(_)));
        changed.retain(|(slot, before)| !is_known(before) || self.slots.get(slot) != Some(before));
        for ((address, slot), _) in changed {
            (self.sink)(Predicted::Change(StateKey::Slot(address, slot.into())));
        }
    }

    /// Counts operations, up to the limit.
    pub(super) fn count_steps(&mut self, steps: u64) -> Result<(), Stopped> {
        self.stats.steps += steps;
        if self.stats.steps > self.limits.steps_max { Err(self.stop(StopReason::Steps)) } else { Ok(()) }
    }

    /// Records why the prediction is incomplete; the first reason stays.
    pub(super) fn stop(&mut self, reason: StopReason) -> Stopped {
        self.stats.stopped_because.get_or_insert(reason);
        Stopped
    }

    fn emit(&mut self, key: StateKey) -> Result<(), Stopped> {
        if self.stats.keys >= self.limits.keys_max {
            return Err(self.stop(StopReason::Keys));
        }
        self.stats.keys += 1;
        (self.sink)(Predicted::Key(key));
        Ok(())
    }

    fn count_read(&mut self) -> Result<(), Stopped> {
        if self.stats.reads >= self.limits.reads_max {
            return Err(self.stop(StopReason::Reads));
        }
        self.stats.reads += 1;
        Ok(())
    }
}
