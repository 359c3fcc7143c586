//! [`Part`]: the body or the receipts of a batch, unpacked. The two open separately, because few callers need both.

use std::{mem::size_of, sync::OnceLock};

use alloy_primitives::{B256, Bloom, keccak256};
use serde::de::DeserializeOwned;
use slipstream_types::{BatchHeader, BlobKind, Body, Log, Receipt, Receipts, batch::RawTransaction, limits};

/// Gas per byte of a log's data, the cheapest way to add bytes to receipts apart from their heads.
const LOG_BYTE_GAS: u64 = 8;
/// Bytes of an encoded receipt without logs.
const RECEIPT_BYTES: u64 = 16;
/// The allocator's overhead per allocation.
const ALLOCATION_BYTES: usize = 16;

/// A part of a batch that opens separately.
pub(crate) trait Part: Sized {
    type Content: DeserializeOwned;
    const KIND: BlobKind;
    /// Maximum bytes of memory per byte of content while it is unpacked: its compressed form, the content, and the
    /// result.
    const UNPACKED_FACTOR: usize;

    /// The most bytes that the content can have, judged by the header.
    fn content_bytes_max(header: &BatchHeader) -> usize;

    fn of(content: Self::Content) -> Self;

    /// The bytes of memory that this part uses.
    fn bytes(&self) -> usize;
}

/// The transactions of a batch. A transaction's hash is computed when it is first requested.
pub(crate) struct OpenBody {
    pub(crate) body: Body,
    hashes: Box<[OnceLock<B256>]>,
}

impl OpenBody {
    /// The hash of one transaction.
    pub(super) fn hash(&self, index: usize) -> Option<B256> {
        let hash = self.hashes.get(index)?;
        Some(*hash.get_or_init(|| keccak256(&self.body.transactions[index][..])))
    }

    /// The number of transactions whose hashes were computed.
    #[cfg(test)]
    pub(super) fn hashed(&self) -> usize {
        self.hashes.iter().filter(|hash| hash.get().is_some()).count()
    }
}

impl Part for OpenBody {
    type Content = Body;
    const KIND: BlobKind = BlobKind::Body;
    const UNPACKED_FACTOR: usize = 3;

    fn content_bytes_max(header: &BatchHeader) -> usize {
        header.tx_bytes as usize
    }

    fn of(body: Body) -> OpenBody {
        let hashes = body.transactions.iter().map(|_| OnceLock::new()).collect();
        OpenBody { body, hashes }
    }

    fn bytes(&self) -> usize {
        let one = size_of::<RawTransaction>() + size_of::<OnceLock<B256>>() + ALLOCATION_BYTES;
        self.body.transactions.iter().map(|raw| one + raw.len()).sum()
    }
}

/// The receipts of a batch.
pub(crate) struct OpenReceipts {
    pub(crate) receipts: Receipts,
    /// Gas and log count of the transactions before each one.
    pub(super) before: Vec<(u64, u64)>,
    bloom: OnceLock<Bloom>,
}

impl OpenReceipts {
    /// Ethereum's bloom filter over all logs.
    pub(super) fn bloom(&self) -> Bloom {
        *self.bloom.get_or_init(|| {
            let blooms = self.receipts.receipts.iter().map(Receipt::bloom);
            blooms.fold(Bloom::ZERO, |all, bloom| all | bloom)
        })
    }
}

impl Part for OpenReceipts {
    type Content = Receipts;
    const KIND: BlobKind = BlobKind::Receipts;
    // A log without topics and data has 22 bytes, and takes 72 in memory.
    const UNPACKED_FACTOR: usize = 5;

    /// Up to a fifth of the gas may have been refunded, and the header states only the rest.
    fn content_bytes_max(header: &BatchHeader) -> usize {
        let gas = header.gas_used.saturating_add(header.gas_used / 4);
        let count = u64::from(header.tx_count);
        let of_logs = gas.saturating_sub(limits::TRANSACTION_GAS_MIN * count) / LOG_BYTE_GAS;
        let bytes = of_logs.saturating_add(RECEIPT_BYTES * count);
        usize::try_from(bytes).unwrap_or(usize::MAX).min(limits::RECEIPTS_BYTES_MAX)
    }

    fn of(receipts: Receipts) -> OpenReceipts {
        let mut sum = (0, 0);
        let before = receipts.receipts.iter().map(|receipt| {
            let before = sum;
            sum = (sum.0 + receipt.gas_used, sum.1 + receipt.logs.len() as u64);
            before
        });
        OpenReceipts { before: before.collect(), receipts, bloom: OnceLock::new() }
    }

    fn bytes(&self) -> usize {
        let of_log = |log: &Log| {
            let parts = [size_of_val(&log.topics[..]), log.data.len()];
            let allocated = parts.iter().filter(|bytes| **bytes > 0).map(|bytes| bytes + ALLOCATION_BYTES);
            size_of::<Log>() + allocated.sum::<usize>()
        };
        let one = size_of::<Receipt>() + size_of::<(u64, u64)>() + ALLOCATION_BYTES;
        let receipts = self.receipts.receipts.iter();
        receipts.map(|receipt| one + receipt.logs.iter().map(of_log).sum::<usize>()).sum()
    }
}
