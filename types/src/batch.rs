//! [`BatchHeader`] and [`Body`].

use std::fmt;

use alloy_primitives::Address;
use serde::{Deserialize, Serialize};

use crate::{
    blob::BlobKind,
    bounded::{BoundedBytes, BoundedVec},
    chain::RulesId,
    codec::{self, CodecError, raw},
    digest::Digest,
    limits,
    totals::Totals,
};

/// Position of a batch in the ledger; genesis is 0. The EVM sees it as the block number.
///
/// A number names a batch, a `u64` counts batches, and the methods convert between them. [`BatchNumber::get`] is for
/// formats, metrics and code that counts in another unit.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Debug,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct BatchNumber(u64);

impl BatchNumber {
    /// Batch 0, which holds the genesis state and has no parent.
    pub const GENESIS: BatchNumber = BatchNumber(0);

    /// The largest number, which no batch reaches: an upper bound for searches.
    pub const MAX: BatchNumber = BatchNumber(u64::MAX);

    /// Makes the number of a position that comes from a format, a request or a test.
    pub const fn new(number: u64) -> BatchNumber {
        BatchNumber(number)
    }

    /// Returns the position as a plain number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The batch after this one.
    pub const fn next(self) -> BatchNumber {
        BatchNumber(self.0 + 1)
    }

    /// The batch before this one; genesis has none.
    pub const fn previous(self) -> Option<BatchNumber> {
        match self.0 {
            0 => None,
            number => Some(BatchNumber(number - 1)),
        }
    }

    /// The batch that comes `batches` later; [`BatchNumber::MAX`] if that number is too large.
    pub const fn after(self, batches: u64) -> BatchNumber {
        BatchNumber(self.0.saturating_add(batches))
    }

    /// The batch that comes `batches` earlier; genesis if fewer precede this one.
    pub const fn before(self, batches: u64) -> BatchNumber {
        BatchNumber(self.0.saturating_sub(batches))
    }

    /// The number of batches from `earlier` to this one; 0 if `earlier` is the same batch or a later one.
    pub const fn since(self, earlier: BatchNumber) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The batches from this one to `last`, both included; empty if `last` comes earlier.
    pub fn through(self, last: BatchNumber) -> impl DoubleEndedIterator<Item = BatchNumber> + Clone {
        (self.0..=last.0).map(BatchNumber)
    }

    /// Leaves of the accumulator that ends with this batch: one more than its number, because genesis is leaf 0.
    pub const fn leaves(self) -> u64 {
        self.0.saturating_add(1)
    }
}

impl fmt::Display for BatchNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A term of one validator set; genesis begins epoch 0.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Debug,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a batch and states its results. Its digests authenticate body, receipts and delta by plain hashing; its sizes
/// let a syncing node price a range before the download.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BatchHeader {
    /// Position in the ledger.
    pub number: BatchNumber,
    /// [`BatchHeader::digest`] of the batch before, [`Digest::ZERO`] for genesis.
    pub parent: Digest,
    /// The epoch whose validators certify the batch.
    pub epoch: Epoch,
    /// The rules under which the batch was executed.
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
    /// [`content_digest`] of the body; for batch 0, of the genesis.
    pub transactions_root: Digest,
    /// [`content_digest`] of the receipts.
    pub receipts_root: Digest,
    /// [`content_digest`] of the delta.
    pub delta_digest: Digest,
    /// Root of the state tree after the batch.
    pub state_root: Digest,
    /// Sums over the ledger up to this batch.
    pub totals: Totals,
}

impl BatchHeader {
    /// The length of its encoding, in bytes: docs/formats.md.
    pub const BYTES: usize = 272;

    /// The batch's identity: its accumulator leaf, its child's `parent`, and the block hash that JSON-RPC shows.
    pub fn digest(&self) -> Digest {
        let bytes = bcs::to_bytes(self).expect("a header is a flat struct of fixed-size fields");
        Digest::tagged("slipstream/header/1", &bytes)
    }
}

/// Returns the digest by which a header commits to the uncompressed content of a blob of this kind.
pub fn content_digest(kind: BlobKind, content: &[u8]) -> Digest {
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
    /// Makes a body of envelopes; refuses those above the [`limits`].
    pub fn new(transactions: Vec<Vec<u8>>) -> Result<Body, CodecError> {
        let transactions = transactions.into_iter().map(RawTransaction::new).collect::<Result<_, _>>()?;
        Ok(Body { transactions: BoundedVec::new(transactions)? })
    }

    /// The canonical content that [`BatchHeader::transactions_root`] commits to.
    pub fn content(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode("body", self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distances stop at the two ends of the ledger instead of wrapping around.
    #[test]
    fn numbers_saturate_at_both_ends() {
        let (three, seven) = (BatchNumber::new(3), BatchNumber::new(7));
        assert_eq!((three.after(4), seven.before(4)), (seven, three));
        assert_eq!((BatchNumber::MAX.after(1), three.before(4)), (BatchNumber::MAX, BatchNumber::GENESIS));
        assert_eq!((seven.since(three), three.since(three), three.since(seven)), (4, 0, 0));
        assert_eq!(
            (BatchNumber::GENESIS.leaves(), seven.leaves(), BatchNumber::MAX.leaves()),
            (1, 8, u64::MAX)
        );
    }

    #[test]
    fn genesis_has_no_previous_batch() {
        assert_eq!(BatchNumber::GENESIS.previous(), None);
        assert_eq!(BatchNumber::GENESIS.next().previous(), Some(BatchNumber::GENESIS));
    }

    /// A range includes both ends, even at the largest number, and is empty if the ends are swapped.
    #[test]
    fn a_range_includes_both_ends() {
        let numbers =
            |first: BatchNumber, last| first.through(last).map(BatchNumber::get).collect::<Vec<_>>();
        assert_eq!(numbers(BatchNumber::new(3), BatchNumber::new(5)), [3, 4, 5]);
        assert_eq!(numbers(BatchNumber::MAX, BatchNumber::MAX), [u64::MAX]);
        assert!(numbers(BatchNumber::new(3), BatchNumber::new(2)).is_empty());
    }

    /// Stores and peers see the bare number; the type adds nothing to the encoding.
    #[test]
    fn the_encoding_is_the_bare_number() {
        let number = BatchNumber::new(0x0102);
        assert_eq!(bcs::to_bytes(&number).unwrap(), 0x0102_u64.to_le_bytes());
        assert_eq!(serde_json::to_string(&number).unwrap(), "258");
    }
}
