//! Receipts: the outcome of each transaction of a batch.

use alloy_primitives::{Address, B256, Bloom, BloomInput};
use serde::{Deserialize, Serialize};

use crate::{
    bounded::{BoundedBytes, BoundedVec},
    codec::raw,
    digest::Digest,
    limits,
};

/// One event of a contract.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Log {
    /// The contract that emitted the log.
    #[serde(with = "raw")]
    pub address: Address,
    /// Indexed arguments, the event's signature first.
    pub topics: BoundedVec<Digest, { limits::TOPICS_MAX }>,
    /// The log's unindexed arguments, ABI-encoded by the contract.
    pub data: BoundedBytes<{ limits::RECEIPTS_BYTES_MAX }>,
}

/// The outcome of one transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Receipt {
    /// EIP-2718 type of the transaction; 0 is legacy.
    pub tx_type: u8,
    /// False if it was reverted or ran out of gas; its fee is still paid.
    pub success: bool,
    /// Gas used by this transaction alone.
    pub gas_used: u64,
    /// Events, in order; empty if it failed.
    pub logs: BoundedVec<Log, { limits::LOGS_MAX }>,
}

impl Receipt {
    /// Returns Ethereum's bloom filter over the logs.
    pub fn bloom(&self) -> Bloom {
        let mut bloom = Bloom::ZERO;
        let mut last = None;
        for log in &self.logs {
            // A contract often emits many logs in a row, and the hash takes longer than the rest.
            if last.replace(log.address) != Some(log.address) {
                bloom.accrue(BloomInput::Raw(log.address.as_slice()));
            }
            for topic in &log.topics {
                bloom.accrue(BloomInput::Raw(topic.as_bytes()));
            }
        }
        bloom
    }
}

impl From<&Log> for alloy_primitives::Log {
    fn from(log: &Log) -> Self {
        let topics = log.topics.iter().map(|topic| B256::from(*topic)).collect();
        alloy_primitives::Log::new_unchecked(log.address, topics, log.data.to_vec().into())
    }
}

/// The receipts of a batch, one per transaction, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Receipts {
    /// One receipt for each transaction, in the batch's order.
    pub receipts: BoundedVec<Receipt, { limits::BATCH_TRANSACTIONS_MAX }>,
}
