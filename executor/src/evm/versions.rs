//! [`Versions`]: the state as transactions in the middle of a batch see it, while others still run.
//!
//! Source: the multi-version memory of Block-STM (arXiv 2203.06871): of every key the value before the batch and what each
//! transaction wrote. Balances are kept as differences, so that those who add to one need not wait for each other. What is
//! read here may be stale: whoever uses a result checks what it read (`Machine::accept`). What is read from the state is kept
//! for all threads, and a contract's code is analysed once for all of them.

use std::{
    hash::{BuildHasher, Hash},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
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
use slipstream_storage::StorageError;
use slipstream_types::{AccountValue, BatchNumber, Digest};

use super::{
    adapter::account_info,
    machine::Executed,
    recorder::{self, ReadError},
};
use crate::{env::BatchEnv, reader::StateReader};

/// Locks of each table: enough that a few threads seldom meet.
const SHARDS: usize = 64;
/// Differences of one balance that are kept apart before the settled ones are added up.
const DIFFERENCES_MAX: usize = 8;

/// A table behind many locks.
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
        // A thread that panicked has changed nothing halfway: every change is one insertion.
        self.shards[hash as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one transaction did to an account.
struct AccountWrite {
    index: u32,
    /// What it added to the balance, modulo 2^256.
    added: U256,
    nonce: Option<u64>,
    code: Option<(B256, Option<Bytecode>)>,
    is_destroyed: bool,
}

#[derive(Default)]
struct AccountEntry {
    before: Option<Option<AccountValue>>,
    /// After the transactions that are settled and no longer listed; without them the value before the batch.
    settled: Option<Option<AccountInfo>>,
    /// In the order of the batch.
    writes: Vec<AccountWrite>,
}

#[derive(Default)]
struct SlotEntry {
    before: Option<U256>,
    /// In the order of the batch.
    writes: Vec<(u32, U256)>,
}

/// See the module.
pub(crate) struct Versions<'a> {
    state: &'a dyn StateReader,
    env: &'a BatchEnv,
    accounts: Sharded<Address, AccountEntry>,
    slots: Sharded<(Address, U256), SlotEntry>,
    codes: Mutex<B256Map<Bytecode>>,
    /// Transactions that are part of the batch for good.
    settled: AtomicU32,
}

impl<'a> Versions<'a> {
    pub(crate) fn new(state: &'a dyn StateReader, env: &'a BatchEnv) -> Self {
        Self {
            state,
            env,
            accounts: Sharded::new(),
            slots: Sharded::new(),
            codes: Mutex::default(),
            settled: AtomicU32::new(0),
        }
    }

    pub(crate) fn env(&self) -> &'a BatchEnv {
        self.env
    }

    /// An account as the transaction at this position sees it.
    pub(super) fn account(&self, address: Address, index: u32) -> Result<Option<AccountInfo>, StorageError> {
        if let Some(entry) = self.accounts.shard(&address).get(&address)
            && let Some(before) = entry.before
        {
            return Ok(entry.at(before, index));
        }
        let before = StateReader::account(self, &address)?;
        Ok(self.accounts.shard(&address).entry(address).or_default().at(before, index))
    }

    /// A slot as the transaction at this position sees it.
    pub(super) fn slot_at(&self, address: Address, slot: U256, index: u32) -> Result<U256, StorageError> {
        if let Some(entry) = self.slots.shard(&(address, slot)).get(&(address, slot)) {
            let written = entry.writes.iter().rev().find(|(writer, _)| *writer < index);
            if let Some(value) = written.map(|(_, value)| *value).or(entry.before) {
                return Ok(value);
            }
        }
        self.slot(&address, &B256::from(slot))
    }

    /// Analysed code of the state.
    pub(super) fn bytecode(&self, hash: B256) -> Result<Bytecode, ReadError> {
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

    /// Shows later transactions what this one did. The fee recipient's balance is left out: hardly anybody asks for it, and
    /// everybody changes it.
    pub(crate) fn publish(&self, index: u32, executed: &Executed) {
        let changes = &executed.state;
        for (address, account) in changes.iter().filter(|(_, account)| account.is_touched()) {
            if *address != self.env.beneficiary
                && let Some(write) = AccountWrite::new(index, account)
            {
                let settled = self.settled.load(Relaxed);
                self.accounts.shard(address).entry(*address).or_default().insert(write, settled);
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

    /// Takes back what was shown.
    pub(crate) fn retract(&self, index: u32, executed: &Executed) {
        let changes = &executed.state;
        for (address, account) in changes.iter().filter(|(_, account)| account.is_touched()) {
            if let Some(entry) = self.accounts.shard(address).get_mut(address) {
                entry.writes.retain(|write| write.index != index);
            }
            for slot in account.changed_storage_slots().map(|(slot, _)| *slot) {
                if let Some(entry) = self.slots.shard(&(*address, slot)).get_mut(&(*address, slot)) {
                    entry.writes.retain(|(writer, _)| *writer != index);
                }
            }
        }
    }

    /// The first transactions of the batch, this many, will change nothing any more.
    pub(crate) fn settle(&self, transactions: u32) {
        self.settled.store(transactions, Relaxed);
    }
}

impl AccountWrite {
    fn new(index: u32, account: &Account) -> Option<AccountWrite> {
        let (before, after) = (account.original_info(), &account.info);
        let added = after.balance.wrapping_sub(before.balance);
        let nonce = (after.nonce != before.nonce).then_some(after.nonce);
        let code = (after.code_hash != before.code_hash).then(|| (after.code_hash, after.code.clone()));
        let is_destroyed = account.is_selfdestructed();
        let is_change = !added.is_zero() || nonce.is_some() || code.is_some() || is_destroyed;
        is_change.then_some(AccountWrite { index, added, nonce, code, is_destroyed })
    }

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
        if let Some((hash, code)) = &self.code {
            info.code_hash = *hash;
            info.code = code.clone().filter(|_| *hash != KECCAK_EMPTY);
        }
    }
}

impl AccountEntry {
    fn at(&self, before: Option<AccountValue>, index: u32) -> Option<AccountInfo> {
        let mut info = self.settled.clone().unwrap_or_else(|| before.as_ref().map(account_info));
        self.writes.iter().take_while(|write| write.index < index).for_each(|write| write.apply(&mut info));
        info
    }

    fn insert(&mut self, write: AccountWrite, settled: u32) {
        if self.writes.len() >= DIFFERENCES_MAX {
            let count = self.writes.partition_point(|write| write.index < settled);
            // Without the value before the batch there is nothing to add to, and nobody has asked yet.
            if let Some(before) = &self.before {
                let mut info = self.settled.take().unwrap_or_else(|| before.as_ref().map(account_info));
                self.writes.drain(..count).for_each(|write| write.apply(&mut info));
                self.settled = Some(info);
            }
        }
        let at = self.writes.partition_point(|other| other.index < write.index);
        self.writes.insert(at, write);
    }
}

/// The state before the batch; every row is kept for whoever asks next.
impl StateReader for Versions<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        if let Some(before) = self.accounts.shard(address).get(address).and_then(|entry| entry.before) {
            return Ok(before);
        }
        // Not under the lock: reads may wait for the disk.
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
