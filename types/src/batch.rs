//! [`BatchHeader`] and [`Body`].

use std::fmt;

use alloy_primitives::Address;
use serde::{Deserialize, Serialize};

use crate::{
    bounded::{BoundedBytes, BoundedVec},
    codec::{self, CodecError, raw},
    digest::Digest,
    limits,
    schedule::RulesId,
};

/// Position of a batch in the ledger; genesis is 0. The EVM sees it as the block number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchNumber(pub u64);

impl BatchNumber {
    /// The batch after this one.
    pub fn next(self) -> BatchNumber {
        BatchNumber(self.0 + 1)
    }
}

impl fmt::Display for BatchNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A term of one validator set; genesis begins epoch 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a batch is and what it did. Its digests authenticate body, receipts and delta by plain hashing; its sizes let a
/// syncing node price a range before it downloads it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BatchHeader {
    /// Position in the ledger.
    pub number: BatchNumber,
    /// [`BatchHeader::digest`] of the batch before, [`Digest::ZERO`] for genesis.
    pub parent: Digest,
    /// The epoch whose validators certify it.
    pub epoch: Epoch,
    /// The rules that it was executed under.
    pub rules: RulesId,
    /// Milliseconds since 1970, never less than the parent's. The EVM sees whole seconds.
    pub timestamp_ms: u64,
    /// The proposer's fee recipient: the EVM's COINBASE.
    #[serde(with = "raw")]
    pub proposer: Address,
    /// Transactions in the body.
    pub tx_count: u32,
    /// Uncompressed bytes of the body.
    pub tx_bytes: u32,
    /// Gas used by all transactions.
    pub gas_used: u64,
    /// Uncompressed bytes of the delta.
    pub delta_bytes: u32,
    /// [`content_digest`] of the body; of the genesis for batch 0.
    pub transactions_root: Digest,
    /// [`content_digest`] of the receipts.
    pub receipts_root: Digest,
    /// [`content_digest`] of the delta.
    pub delta_digest: Digest,
    /// Root of the state tree after the batch.
    pub state_root: Digest,
}

impl BatchHeader {
    /// The batch's identity: its accumulator leaf, its child's `parent`, and the block hash that JSON-RPC shows.
    pub fn digest(&self) -> Digest {
        let bytes = bcs::to_bytes(self).expect("a header is a flat struct of fixed-size fields");
        Digest::tagged("slipstream/header/1", &bytes)
    }
}

/// The digest by which a header commits to the uncompressed content of a blob. `kind` is [`crate::BlobKind::name`].
pub fn content_digest(kind: crate::BlobKind, content: &[u8]) -> Digest {
    Digest::tagged(&format!("slipstream/{}/1", kind.name()), content)
}

/// One signed EIP-2718 envelope.
pub type RawTransaction = BoundedBytes<{ limits::TRANSACTION_BYTES_MAX }>;

/// The transactions of a batch, in execution order.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Body {
    /// Envelopes as their senders signed them.
    pub transactions: BoundedVec<RawTransaction, { limits::BATCH_TRANSACTIONS_MAX }>,
}

impl Body {
    /// Takes envelopes that are within [`limits`].
    pub fn new(transactions: Vec<Vec<u8>>) -> Result<Body, CodecError> {
        let transactions = transactions.into_iter().map(RawTransaction::new).collect::<Result<_, _>>()?;
        Ok(Body { transactions: BoundedVec::new(transactions)? })
    }

    /// The canonical content that [`BatchHeader::transactions_root`] commits to.
    pub fn content(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode("body", self)
    }
}
