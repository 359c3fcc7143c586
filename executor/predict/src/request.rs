//! [`TransactionRef`] and [`BlockValues`]: what a prediction starts from, apart from the state.

use alloy_consensus::Transaction;
use alloy_primitives::{Address, B256, U256};

/// A transaction whose reads are predicted.
#[derive(Clone, Copy, Debug)]
pub struct TransactionRef<'a> {
    /// The account that signed it.
    pub sender: Address,
    /// The transaction itself: its recipient, data, value, gas and fee.
    pub envelope: &'a dyn Transaction,
}

/// The values of the block that instructions return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockValues {
    /// CHAINID.
    pub chain_id: u64,
    /// NUMBER: the batch's number.
    pub number: u64,
    /// TIMESTAMP, in whole seconds.
    pub timestamp_s: u64,
    /// COINBASE: the fee recipient.
    pub beneficiary: Address,
    /// GASLIMIT.
    pub gas_limit: u64,
    /// BASEFEE in wei per gas.
    pub base_fee_wei: u64,
    /// PREVRANDAO, or DIFFICULTY before the Merge.
    pub prev_randao: U256,
    /// BLOCKHASH of the block before.
    pub parent_hash: B256,
}
