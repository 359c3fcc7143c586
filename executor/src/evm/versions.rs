//! [`Versions`]: the state as transactions in the middle of a batch see it, while others still run.
//!
//! Source: the multi-version memory of Block-STM (arXiv 2203.06871). For every key it keeps the value before the batch
//! and the writes of each transaction. Balances are kept as differences, so transactions that add to the same balance
//! need not wait for each other. A reader here may see stale values; the user of a result checks its reads
//! (`Machine::accept`). All threads share the values read from the state, and a contract's code is analysed once for
//! all of them.

use std::{
    hash::{BuildHasher, Hash},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use alloy_primitives::{
    Address, B256, Bytes, U256,
    map::{B256Map, DefaultHashBuilder, HashMap},
};
use revm::{
    bytecode::Bytecode,
    primitives::KECCAK_EMPTY,
    state::{Account, AccountInfo},
};
use slipstream_predict::JumpWatch;
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{AccountValue, BatchNumber, Digest};

use super::{
    adapter::account_info,
    code::AnalysedCode,
    env::BatchEnv,
    machine::ExecutedTransaction,
    recorder::{self, ReadError},
    state::ExecutionState,
};
use crate::interrupt::Interrupt;

/// Number of locks per table: enough that a few threads seldom contend.
const SHARDS: usize = 64;
/// Maximum number of changes of one account that are kept separately. If more transactions pay an account, the later
/// differences are only summed. Its balance is then approximate, which suffices for transactions that only add to it.
const WRITES_MAX: usize = 8;

/// A hash table split over many locks.
struct Sharded<K, V> {
    shards: Vec<Mutex<HashMap<K, V>>>,
    hasher: DefaultHashBuilder,
}

impl<K: Hash + Eq, V> Sharded<K, V> {
    fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, hasher: DefaultHashBuilder::default() }
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, HashMap<K, V>> {
        let hash = self.hasher.hash_one(key);
        // A panic leaves no partial change: every change is one insertion.
        self.shards[hash as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The change of an account by one transaction.
struct AccountWrite {
    index: u32,
    /// The balance that the transaction added, modulo 2^256.
    added: U256,
    nonce: Option<u64>,
    code: Option<Box<(B256, Option<Bytecode>)>>,
    is_destroyed: bool,
}

#[derive(Default)]
struct AccountEntry {
    before: Option<Option<AccountValue>>,
    /// Writes in the order of the batch.
    writes: Vec<AccountWrite>,
    /// The balance that further transactions added, modulo 2^256.
    added: U256,
}

#[derive(Default)]
struct SlotEntry {
    before: Option<U256>,
    /// Writes in the order of the batch.
    writes: Vec<(u32, U256)>,
}

/// The versions of a batch's rows; see the module.
pub(crate) struct Versions<'a> {
    state: &'a dyn ExecutionState,
    env: &'a BatchEnv,
    accounts: Sharded<Address, AccountEntry>,
    slots: Sharded<(Address, U256), SlotEntry>,
    codes: Mutex<B256Map<AnalysedCode>>,
}

impl<'a> Versions<'a> {
    pub(crate) fn new(state: &'a dyn ExecutionState, env: &'a BatchEnv) -> Self {
        Self { state, env, accounts: Sharded::new(), slots: Sharded::new(), codes: Mutex::default() }
    }

    pub(crate) fn env(&self) -> &'a BatchEnv {
        self.env
    }

    /// Returns an account as the transaction at this position sees it.
    pub(super) fn account(&self, address: Address, index: u32) -> Result<Option<AccountInfo>, StorageError> {
        if let Some(entry) = self.accounts.shard(&address).get(&address)
            && let Some(before) = entry.before
        {
            return Ok(entry.at(before, index));
        }
        let before = StateReader::account(self, &address)?;
        Ok(self.accounts.shard(&address).entry(address).or_default().at(before, index))
    }

    /// Returns a slot as the transaction at this position sees it.
    pub(super) fn slot_at(&self, address: Address, slot: U256, index: u32) -> Result<U256, StorageError> {
        if let Some(entry) = self.slots.shard(&(address, slot)).get(&(address, slot)) {
            let written = entry.writes.iter().rev().find(|(writer, _)| *writer < index);
            if let Some(value) = written.map(|(_, value)| *value).or(entry.before) {
                return Ok(value);
            }
        }
        self.slot(&address, &B256::from(slot))
    }

    /// Returns analysed code of the state.
    pub(super) fn bytecode(&self, hash: B256) -> Result<AnalysedCode, ReadError> {
        let lock = || self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = lock().get(&hash) {
            return Ok(code.clone());
        }
        let code = recorder::read_code(self.state, hash)?;
        lock().insert(hash, code.clone());
        Ok(code)
    }

    pub(super) fn block_hash(&self, number: u64) -> Result<B256, StorageError> {
        recorder::read_block_hash(self.state, self.env, number)
    }

    /// Publishes a transaction's changes to later ones. Leaves out the fee recipient's balance, which hardly any
    /// transaction reads and every transaction changes. Also leaves out the sender's nonce, which the sender's
    /// transactions name themselves.
    pub(crate) fn publish(&self, index: u32, sender: Address, executed: &ExecutedTransaction) {
        for (address, account) in executed.state.iter().filter(|(_, account)| account.is_touched()) {
            if let Some(write) = self.write(index, address, sender, account) {
                self.accounts.shard(address).entry(*address).or_default().insert(write);
            }
            for (slot, value) in account.changed_storage_slots() {
                let key = (*address, *slot);
                let mut shard = self.slots.shard(&key);
                let writes = &mut shard.entry(key).or_default().writes;
                let at = writes.partition_point(|(writer, _)| *writer < index);
                writes.insert(at, (index, value.present_value));
            }
        }
    }

    /// Withdraws published changes.
    pub(crate) fn retract(&self, index: u32, sender: Address, executed: &ExecutedTransaction) {
        for (address, account) in executed.state.iter().filter(|(_, account)| account.is_touched()) {
            if let Some(write) = self.write(index, address, sender, account) {
                self.accounts.shard(address).entry(*address).or_default().remove(&write);
            }
            for slot in account.changed_storage_slots().map(|(slot, _)| *slot) {
                if let Some(entry) = self.slots.shard(&(*address, slot)).get_mut(&(*address, slot)) {
                    entry.writes.retain(|(writer, _)| *writer != index);
                }
            }
        }
    }

    fn write(
        &self,
        index: u32,
        address: &Address,
        sender: Address,
        account: &Account,
    ) -> Option<AccountWrite> {
        let (before, after) = (account.original_info(), &account.info);
        let added = after.balance.wrapping_sub(before.balance);
        let nonce = (after.nonce != before.nonce && *address != sender).then_some(after.nonce);
        let code =
            (after.code_hash != before.code_hash).then(|| Box::new((after.code_hash, after.code.clone())));
        let is_destroyed = account.is_selfdestructed();
        let pays = !added.is_zero() && *address != self.env.beneficiary;
        let is_change = pays || nonce.is_some() || code.is_some() || is_destroyed;
        is_change.then_some(AccountWrite { index, added, nonce, code, is_destroyed })
    }
}

impl AccountWrite {
    fn apply(&self, info: &mut Option<AccountInfo>) {
        if self.is_destroyed {
            *info = None;
            return;
        }
        let info = info.get_or_insert_with(|| AccountInfo { code: None, ..AccountInfo::default() });
        info.balance = info.balance.wrapping_add(self.added);
        if let Some(nonce) = self.nonce {
            info.nonce = nonce;
        }
        if let Some((hash, code)) = self.code.as_deref() {
            info.code_hash = *hash;
            info.code = code.clone().filter(|_| *hash != KECCAK_EMPTY);
        }
    }

    fn only_adds(&self) -> bool {
        self.nonce.is_none() && self.code.is_none() && !self.is_destroyed
    }
}

impl AccountEntry {
    fn at(&self, before: Option<AccountValue>, index: u32) -> Option<AccountInfo> {
        let mut info = before.as_ref().map(account_info);
        self.writes.iter().take_while(|write| write.index < index).for_each(|write| write.apply(&mut info));
        if !self.added.is_zero() {
            let info = info.get_or_insert_with(|| AccountInfo { code: None, ..AccountInfo::default() });
            info.balance = info.balance.wrapping_add(self.added);
        }
        info
    }

    fn insert(&mut self, write: AccountWrite) {
        if self.writes.len() >= WRITES_MAX && write.only_adds() {
            self.added = self.added.wrapping_add(write.added);
            return;
        }
        let at = self.writes.partition_point(|other| other.index < write.index);
        self.writes.insert(at, write);
    }

    fn remove(&mut self, write: &AccountWrite) {
        match self.writes.iter().position(|other| other.index == write.index) {
            Some(at) => _ = self.writes.remove(at),
            None => self.added = self.added.wrapping_sub(write.added),
        }
    }
}

/// Reads the state before the batch, and keeps every row for later readers.
impl StateReader for Versions<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        if let Some(before) = self.accounts.shard(address).get(address).and_then(|entry| entry.before) {
            return Ok(before);
        }
        // Reads without the lock, because reads may wait for the disk.
        let before = self.state.account(address)?;
        self.accounts.shard(address).entry(*address).or_default().before = Some(before);
        Ok(before)
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        let key = (*address, U256::from_be_bytes(slot.0));
        if let Some(before) = self.slots.shard(&key).get(&key).and_then(|entry| entry.before) {
            return Ok(before);
        }
        let before = self.state.slot(address, slot)?;
        self.slots.shard(&key).entry(key).or_default().before = Some(before);
        Ok(before)
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.state.code(hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.state.header_digest(number)
    }
}

impl ExecutionState for Versions<'_> {
    fn watch(&self) -> Option<&Arc<JumpWatch>> {
        self.state.watch()
    }

    fn interrupt(&self) -> Interrupt {
        self.state.interrupt()
    }
}
