//! Batches as JSON-RPC needs them: opened once, kept a while, because clients ask for many transactions of one batch.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use alloy_primitives::{B256, Bytes, keccak256};
use parking_lot::Mutex;
use slipstream_executor::{Senders as MetSenders, Transaction};
use slipstream_storage::Store;
use slipstream_types::{BatchHeader, BatchNumber, BlobKind, Body, ChainConfig, Receipts};

use super::{
    errors::RpcError,
    senders::{KnownSenders, Senders},
};

/// Most batches that are kept open; a client that polls receipts is seldom further behind.
const CACHED_BATCHES_MAX: usize = 32;
/// Most uncompressed bytes of bodies and receipts that are kept open; bounds the cache when batches are large.
const CACHED_BYTES_MAX: usize = 64 << 20;
/// How long somebody waits for the lock of the kept batches. One who stands back may be stopped while it has it; then opening a
/// batch once more takes less time.
const LOCK_MAX: Duration = Duration::from_millis(1);

/// A batch with its stored parts.
pub(crate) struct Batch {
    pub(crate) header: BatchHeader,
    /// The block's hash, which is the header's digest.
    pub(crate) hash: B256,
    pub(crate) body: Option<Body>,
    pub(crate) receipts: Option<Receipts>,
    /// Of each transaction, in order; empty without a body.
    pub(crate) hashes: Vec<B256>,
    /// Gas and logs of the transactions before each one; empty without receipts.
    before: Vec<(u64, u64)>,
    senders: Arc<Senders>,
    bytes: usize,
}

impl Batch {
    fn open(store: &Store, number: BatchNumber) -> Result<Option<Batch>, RpcError> {
        let Some(header) = store.header(number)? else { return Ok(None) };
        // An empty batch needs no blob; batch 0 has the genesis in the place of its body.
        let (body, receipts) = if header.tx_count == 0 {
            (Some(Body::default()), Some(Receipts::default()))
        } else {
            let body =
                store.blob(BlobKind::Body, number)?.map(|blob| blob.open(BlobKind::Body)).transpose()?;
            let receipts = store
                .blob(BlobKind::Receipts, number)?
                .map(|blob| blob.open(BlobKind::Receipts))
                .transpose()?;
            (body, receipts)
        };
        Ok(Some(Batch::new(header, body, receipts)))
    }

    /// A batch whose receipts are opened already.
    pub(crate) fn with_receipts(
        store: &Store,
        header: BatchHeader,
        receipts: Receipts,
    ) -> Result<Batch, RpcError> {
        let body = store.blob(BlobKind::Body, header.number)?;
        let body = body.map(|blob| blob.open(BlobKind::Body)).transpose()?;
        Ok(Batch::new(header, body, Some(receipts)))
    }

    pub(crate) fn new(header: BatchHeader, body: Option<Body>, receipts: Option<Receipts>) -> Batch {
        let hashes = body.iter().flat_map(|body| &body.transactions).map(|raw| keccak256(&raw[..])).collect();
        let mut sum = (0, 0);
        let before = receipts
            .iter()
            .flat_map(|receipts| &receipts.receipts)
            .map(|receipt| {
                let before = sum;
                sum = (sum.0 + receipt.gas_used, sum.1 + receipt.logs.len() as u64);
                before
            })
            .collect();
        // Receipts hold little beside their logs; their memory is counted as twice their logs' data.
        let log_bytes = receipts
            .iter()
            .flat_map(|all| &all.receipts)
            .flat_map(|one| &one.logs)
            .map(|log| 256 + log.data.len());
        let bytes = header.tx_bytes as usize + 128 * header.tx_count as usize + 2 * log_bytes.sum::<usize>();
        let senders = Arc::new(Senders::new(header.tx_count as usize));
        Batch { hash: header.digest().into(), header, body, receipts, hashes, before, senders, bytes }
    }

    /// The batch with senders that may be known already.
    pub(super) fn knowing(mut self, known: &KnownSenders) -> Batch {
        self.senders = known.of(self.number(), self.header.tx_count as usize, &self.hashes);
        self
    }

    fn is_complete(&self) -> bool {
        self.body.is_some() && self.receipts.is_some()
    }

    /// Whether it has no transactions.
    pub(crate) fn is_empty(&self) -> bool {
        self.header.tx_count == 0
    }

    pub(crate) fn number(&self) -> BatchNumber {
        self.header.number
    }

    pub(crate) fn timestamp_s(&self) -> u64 {
        self.header.timestamp_ms / 1_000
    }

    /// The body, or an error that says why there is none.
    pub(crate) fn body(&self) -> Result<&Body, RpcError> {
        self.body.as_ref().ok_or(RpcError::NotStored { what: "transactions", number: self.number() })
    }

    /// The receipts, or an error that says why there are none.
    pub(crate) fn receipts(&self) -> Result<&Receipts, RpcError> {
        self.receipts.as_ref().ok_or(RpcError::NotStored { what: "receipts", number: self.number() })
    }

    /// One transaction as it was signed; none if the batch has fewer.
    pub(crate) fn raw(&self, index: usize) -> Result<Option<Bytes>, RpcError> {
        Ok(self.body()?.transactions.get(index).map(|raw| Bytes::copy_from_slice(raw)))
    }

    /// One transaction. Its sender is recovered once, however often it is asked for.
    pub(crate) fn transaction(
        &self,
        index: usize,
        chain: &ChainConfig,
    ) -> Result<Option<Transaction>, RpcError> {
        let Some(raw) = self.body()?.transactions.get(index) else { return Ok(None) };
        if let Some(sender) = self.senders.get(index) {
            return Ok(Some(Transaction::decode_known(raw, chain, sender)?));
        }
        let transaction = Transaction::decode(raw, chain)?;
        self.senders.keep(index, transaction.sender);
        Ok(Some(transaction))
    }

    /// Gas and logs of the transactions before one.
    pub(crate) fn before(&self, index: usize) -> (u64, u64) {
        self.before.get(index).copied().unwrap_or_default()
    }
}

/// Opens batches of a store and keeps the recent ones.
pub(crate) struct Batches {
    store: Store,
    recent: Mutex<VecDeque<Arc<Batch>>>,
    senders: KnownSenders,
}

impl Batches {
    /// Senders that were met elsewhere are not recovered again.
    pub(crate) fn new(store: Store, met: Arc<MetSenders>) -> Batches {
        Batches { store, recent: Mutex::default(), senders: KnownSenders::new(met) }
    }

    /// A batch that is open, whole, anyway.
    pub(crate) fn recent(&self, number: BatchNumber) -> Option<Arc<Batch>> {
        let mut recent = self.recent.try_lock_for(LOCK_MAX)?;
        let index = recent.iter().position(|batch| batch.number() == number)?;
        let batch = recent.remove(index);
        recent.extend(batch.clone());
        batch
    }

    /// A batch by number; none beyond the head or below what is stored.
    pub(crate) fn get(&self, number: BatchNumber) -> Result<Option<Arc<Batch>>, RpcError> {
        if let Some(batch) = self.recent(number) {
            return Ok(Some(batch));
        }
        let Some(batch) = Batch::open(&self.store, number)? else { return Ok(None) };
        let batch = Arc::new(batch.knowing(&self.senders));
        // A batch that lacks a part may get it later.
        if batch.is_complete() {
            self.keep(batch.clone());
        }
        Ok(Some(batch))
    }

    /// Another batch in the place of one that is open.
    #[cfg(test)]
    pub(crate) fn replace(&self, batch: Batch) {
        self.recent.lock().retain(|kept| kept.number() != batch.number());
        self.keep(Arc::new(batch));
    }

    fn keep(&self, batch: Arc<Batch>) {
        // Freed without the lock: a batch may have megabytes, and all callers look here.
        let mut oldest = Vec::new();
        let Some(mut recent) = self.recent.try_lock_for(LOCK_MAX) else { return };
        if recent.iter().any(|kept| kept.number() == batch.number()) {
            return;
        }
        recent.push_back(batch);
        let mut bytes: usize = recent.iter().map(|batch| batch.bytes).sum();
        while recent.len() > CACHED_BATCHES_MAX || bytes > CACHED_BYTES_MAX {
            let Some(batch) = recent.pop_front() else { break };
            bytes -= batch.bytes;
            oldest.push(batch);
        }
    }
}
