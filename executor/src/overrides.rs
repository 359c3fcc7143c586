//! [`Overrides`]: values that a call sees instead of the state's and the batch's.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use slipstream_types::{AccountValue, Digest};

/// Changes of the state and the batch that one call sees. A caller that accepts overrides from outside must bound their
/// accounts, slots and code.
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
    /// Replaces all slots: those that are missing here are zero.
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
    /// BASEFEE. Unlike the batch's own BASEFEE, it also stays in effect for a call that offers no fee.
    pub base_fee_wei: Option<u64>,
    /// DIFFICULTY, which no fork of this chain shows any more.
    pub difficulty: Option<U256>,
    /// BLOBBASEFEE in wei per blob gas.
    pub blob_base_fee_wei: Option<u128>,
    /// BLOCKHASH by batch number.
    pub hashes: BTreeMap<u64, B256>,
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
