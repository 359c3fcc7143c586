//! [`Overrides`]: values that a call sees instead of the state's and the batch's.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{AccountValue, BatchNumber, Digest};

use crate::{
    env::BatchEnv,
    error::MoveError,
    evm::{AnalysedCode, ExecutionState, Moved, is_precompile},
};

/// Changes of the state and the batch that one call sees. A caller that accepts them from outside must bound accounts,
/// slots and code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// Changed accounts of the state.
    pub accounts: BTreeMap<Address, AccountOverride>,
    /// Changed values of the batch that the call runs in.
    pub block: BlockOverrides,
}

/// Overridden fields of an account; `None` keeps the state's value. An overridden account hides the precompile at its
/// address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccountOverride {
    /// Balance in wei.
    pub balance: Option<U256>,
    /// Transactions sent, or contracts created.
    pub nonce: Option<u64>,
    /// Code; empty for an account without code.
    pub code: Option<Bytes>,
    /// The new address of this account's precompile.
    pub precompile_to: Option<Address>,
    /// Storage slots.
    pub storage: StorageOverride,
}

/// The slots of an account that a call sees changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StorageOverride {
    /// Replaces these slots; the others keep the state's values.
    Some(BTreeMap<B256, U256>),
    /// Replaces all slots: those that are not named are zero.
    All(BTreeMap<B256, U256>),
}

impl Default for StorageOverride {
    fn default() -> Self {
        Self::Some(BTreeMap::new())
    }
}

/// Overridden values of the call's batch; `None` keeps the batch's own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockOverrides {
    /// NUMBER: the batch's number. If it is above every batch number, the hashes of the batches before it are unknown.
    pub number: Option<U256>,
    /// TIMESTAMP, in whole seconds.
    pub timestamp_s: Option<u64>,
    /// GASLIMIT, and the most that an estimate tries.
    pub gas_limit: Option<u64>,
    /// COINBASE: the fee recipient.
    pub beneficiary: Option<Address>,
    /// PREVRANDAO: the random value.
    pub prev_randao: Option<B256>,
    /// BASEFEE. Unlike the batch's own, it also stays in effect for a call that offers no fee.
    pub base_fee_wei: Option<u64>,
    /// DIFFICULTY, which no fork of this chain shows any more.
    pub difficulty: Option<U256>,
    /// BLOBBASEFEE in wei per blob gas.
    pub blob_base_fee_wei: Option<u128>,
    /// BLOCKHASH by batch number.
    pub hashes: BTreeMap<u64, B256>,
}

impl BlockOverrides {
    /// Returns the environment with the overrides applied. Two are left out: BLOBBASEFEE, which an environment only
    /// derives, and a NUMBER that is too high for it.
    ///
    /// # Errors
    /// If the hash before an overridden number cannot be read.
    pub(crate) fn env(&self, env: &BatchEnv, state: &Overridden<'_>) -> Result<BatchEnv, StorageError> {
        let mut env = env.clone();
        if let Some(number) = self.number {
            let number = number.saturating_to::<u64>();
            env.number = number;
            let before = number.checked_sub(1).map(BatchNumber::new);
            let hash = before.map_or(Ok(None), |before| state.header_digest(before))?;
            env.parent_hash = hash.map_or(B256::ZERO, B256::from);
        }
        let parent = env.number.checked_sub(1).and_then(|number| self.hashes.get(&number));
        env.parent_hash = parent.copied().unwrap_or(env.parent_hash);
        Ok(self.replace(env))
    }

    /// Returns the environment with the overrides of the batch itself, without its number and the hashes before it.
    pub(crate) fn replace(&self, env: BatchEnv) -> BatchEnv {
        BatchEnv {
            timestamp_s: self.timestamp_s.unwrap_or(env.timestamp_s),
            beneficiary: self.beneficiary.unwrap_or(env.beneficiary),
            gas_limit: self.gas_limit.unwrap_or(env.gas_limit),
            base_fee_wei: self.base_fee_wei.unwrap_or(env.base_fee_wei),
            difficulty: self.difficulty.unwrap_or(env.difficulty),
            prev_randao: self.prev_randao.or(env.prev_randao),
            ..env
        }
    }
}

/// Returns the precompiles that the call finds at other addresses than in its fork. A precompile that moves
/// leaves its address. One whose account is overridden in any way does so too, as in geth.
///
/// # Errors
/// If the address has no precompile to move, or the new address is taken.
pub(crate) fn moved(
    accounts: &BTreeMap<Address, AccountOverride>,
    env: &BatchEnv,
) -> Result<Moved, MoveError> {
    let mut moved = Moved::new();
    for (address, account) in accounts {
        if let Some(to) = account.precompile_to {
            if !is_precompile(address, env) {
                return Err(MoveError::NoPrecompile(*address));
            }
            if to == *address {
                return Err(MoveError::ToItself(to));
            }
            if accounts.contains_key(&to) {
                return Err(MoveError::ToOverridden(to));
            }
            if moved.insert(to, Some(*address)).is_some() {
                return Err(MoveError::ToTheSame(to));
            }
        }
        if is_precompile(address, env) {
            moved.insert(*address, None);
        }
    }
    Ok(moved)
}

impl AccountOverride {
    /// Returns the account with the overrides applied.
    pub(crate) fn replace(&self, below: AccountValue) -> AccountValue {
        let code_hash = match &self.code {
            Some(code) => (!code.is_empty()).then(|| Digest::from(keccak256(code))),
            None => below.code_hash,
        };
        AccountValue {
            nonce: self.nonce.unwrap_or(below.nonce),
            balance: self.balance.unwrap_or(below.balance),
            code_hash,
        }
    }
}

/// A state with overrides over it.
pub(crate) struct Overridden<'a> {
    below: &'a dyn ExecutionState,
    overrides: &'a Overrides,
    codes: BTreeMap<Digest, Bytes>,
}

impl<'a> Overridden<'a> {
    pub(crate) fn new(below: &'a dyn ExecutionState, overrides: &'a Overrides) -> Self {
        let codes = overrides.accounts.values().filter_map(|account| account.code.as_ref());
        let codes = codes.map(|code| (Digest::from(keccak256(code)), code.clone())).collect();
        Self { below, overrides, codes }
    }
}

impl StateReader for Overridden<'_> {
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

impl ExecutionState for Overridden<'_> {
    fn analysed(&self, hash: &Digest) -> Option<AnalysedCode> {
        self.below.analysed(hash)
    }
}
