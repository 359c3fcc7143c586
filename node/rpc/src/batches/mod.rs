//! Batches as JSON-RPC needs them. Each part of a batch is opened once, on demand, and cached for a while, because
//! clients ask for many transactions of one batch.

mod memory;
mod part;
mod shelf;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use alloy_primitives::{B256, Bloom, Bytes};
use slipstream_executor::{Senders as MetSenders, Transaction};
use slipstream_fair::Leash;
use slipstream_storage::Store;
use slipstream_types::{BatchHeader, BatchNumber, Body, ChainConfig, Receipt, Receipts};

pub(super) use self::memory::WeighedAnswer;
use self::{
    memory::Memory,
    part::{OpenBody, OpenReceipts},
    shelf::{Budget, OpenPart, Shelf},
};
use super::{
    errors::RpcError,
    lanes::Lane,
    pending_backfill::PendingBackfill,
    senders::{KnownSenders, Senders},
};

/// Memory for small and for large receipts and bodies. The budget for large ones has room for one part of the maximum
/// size while it is unpacked. The budgets bound the data that callers can make this node unpack at once, however many
/// callers there are.
const RECEIPTS: [Budget; 2] = [
    Budget { open_bytes_max: 64 << 20, kept_bytes_max: 32 << 20 },
    Budget { open_bytes_max: 160 << 20, kept_bytes_max: 64 << 20 },
];
const BODIES: [Budget; 2] = [
    Budget { open_bytes_max: 48 << 20, kept_bytes_max: 24 << 20 },
    Budget { open_bytes_max: 48 << 20, kept_bytes_max: 16 << 20 },
];
/// Memory for small and for large answers under construction. A longer answer is refused: it could not be sent.
const ANSWERS_BYTES_MAX: [usize; 2] = [32 << 20, 128 << 20];
/// Maximum memory of an answer that is built on a thread for short work.
const SMALL_ANSWER_BYTES_MAX: usize = 2 << 20;
/// The memory that a log takes in an answer and its text, without the log's data. Then the memory of a receipt or a
/// transaction. Each byte of data is held raw and again as text, which grows by doubling.
const ANSWER_LOG_BYTES: usize = 1 << 10;
const ANSWER_ITEM_BYTES: usize = 2 << 10;
const ANSWER_DATA_FACTOR: usize = 5;

/// A reader of batches: what it may open, and how long it waits.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    leash: Option<&'a Leash>,
    /// Whether it may open large batches: true for low-priority threads and for the node itself.
    is_long: bool,
    /// Whether the parts it opens are cached, because others are likely to request them again.
    keeps: bool,
}

impl<'a> Reader<'a> {
    /// The node itself.
    pub(super) const NODE: Reader<'static> = Reader { leash: None, is_long: true, keeps: true };

    /// A reader on a thread of a lane; threads for short work open nothing large.
    pub(super) fn on(lane: Lane, leash: &'a Leash) -> Reader<'a> {
        Reader { is_long: !lane.is_cheap(), ..Reader::long(leash) }
    }

    /// A reader on a low-priority thread.
    pub(super) fn long(leash: &'a Leash) -> Reader<'a> {
        Reader { leash: Some(leash), is_long: true, keeps: true }
    }

    /// A reader on a low-priority thread that scans many batches. The parts it opens are not cached.
    pub(super) fn passing(leash: &'a Leash) -> Reader<'a> {
        Reader { keeps: false, ..Reader::long(leash) }
    }

    /// # Errors
    /// If the caller no longer waits for the answer.
    fn still_waits(self) -> Result<(), RpcError> {
        if self.leash.is_some_and(Leash::is_cut) { Err(RpcError::NobodyWaits) } else { Ok(()) }
    }
}

/// The requested parts of a batch, besides its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BatchParts {
    Body,
    Receipts,
    Both,
}

/// A batch with the stored parts that were requested.
#[derive(Clone)]
pub(crate) struct Batch {
    pub(crate) header: BatchHeader,
    /// The block's hash, which is the header's digest.
    pub(crate) hash: B256,
    body: Option<Arc<OpenPart<OpenBody>>>,
    receipts: Option<Arc<OpenPart<OpenReceipts>>>,
    senders: Arc<Senders>,
    /// Senders that were recovered elsewhere.
    met: Option<Arc<MetSenders>>,
    /// Set if a requested part has not arrived yet.
    to_come: Option<PendingBackfill>,
}

impl Batch {
    /// A batch from its header and parts, without the cache.
    pub(crate) fn new(header: BatchHeader, body: Option<Body>, receipts: Option<Receipts>) -> Batch {
        let number = header.number;
        Batch {
            hash: header.digest().into(),
            body: body.map(|body| Arc::new(OpenPart::alone(number, body))),
            receipts: receipts.map(|receipts| Arc::new(OpenPart::alone(number, receipts))),
            senders: Arc::new(Senders::new(header.tx_count as usize)),
            met: None,
            to_come: None,
            header,
        }
    }

    /// Returns the batch with senders that may already be known.
    pub(super) fn knowing(mut self, known: &KnownSenders) -> Batch {
        self.senders = known.of(self.number(), self.header.tx_count as usize);
        self.met = Some(known.met().clone());
        self
    }

    /// Whether the batch has no transactions.
    pub(crate) fn is_empty(&self) -> bool {
        self.header.tx_count == 0
    }

    pub(crate) fn number(&self) -> BatchNumber {
        self.header.number
    }

    pub(crate) fn timestamp_s(&self) -> u64 {
        self.header.timestamp_ms / 1_000
    }

    fn open_body(&self) -> Result<&OpenBody, RpcError> {
        self.body.as_deref().map(|open| &**open).ok_or_else(|| self.missing("transactions"))
    }

    fn open_receipts(&self) -> Result<&OpenPart<OpenReceipts>, RpcError> {
        self.receipts.as_deref().ok_or_else(|| self.missing("receipts"))
    }

    fn missing(&self, what: &'static str) -> RpcError {
        not_stored(what, self.number(), self.to_come)
    }

    /// The body, or an error that explains why it is missing.
    pub(crate) fn body(&self) -> Result<&Body, RpcError> {
        Ok(&self.open_body()?.body)
    }

    /// The receipts, or an error that explains why they are missing.
    pub(crate) fn receipts(&self) -> Result<&Receipts, RpcError> {
        Ok(&self.open_receipts()?.receipts)
    }

    /// Bytes of the receipts in their stored form.
    pub(super) fn receipts_bytes(&self) -> usize {
        self.receipts.as_ref().map_or(0, |open| open.content_bytes)
    }

    /// The receipt of one transaction; `None` if `index` is past the last one.
    pub(crate) fn receipt(&self, index: usize) -> Result<Option<&Receipt>, RpcError> {
        Ok(self.receipts()?.receipts.get(index))
    }

    /// Ethereum's bloom filter over the batch's logs. Without receipts all bits are set, because any log is possible.
    pub(crate) fn bloom(&self) -> Bloom {
        self.receipts.as_ref().map_or(Bloom::repeat_byte(0xff), |open| open.bloom())
    }

    /// The hash of one transaction; `None` without a body, or if `index` is past the last one.
    pub(crate) fn transaction_hash(&self, index: usize) -> Option<B256> {
        self.body.as_ref()?.hash(index)
    }

    /// The hashes of all transactions, in order; empty without a body.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = B256> {
        (0..self.header.tx_count as usize).map_while(|index| self.transaction_hash(index))
    }

    /// One transaction as it was signed; `None` if `index` is past the last one.
    pub(crate) fn raw(&self, index: usize) -> Result<Option<Bytes>, RpcError> {
        Ok(self.body()?.transactions.get(index).map(|raw| Bytes::copy_from_slice(raw)))
    }

    /// One transaction. Its sender is recovered only once, however often it is requested.
    pub(crate) fn transaction(
        &self,
        index: usize,
        chain: &ChainConfig,
    ) -> Result<Option<Transaction>, RpcError> {
        let Some(raw) = self.body()?.transactions.get(index) else { return Ok(None) };
        let met = || self.met.as_ref()?.get(&self.transaction_hash(index)?);
        let transaction = match self.senders.get(index).or_else(met) {
            Some(sender) => Transaction::decode_known(raw, chain, sender)?,
            None => Transaction::decode(raw, chain)?,
        };
        self.senders.keep(index, transaction.sender);
        Ok(Some(transaction))
    }

    /// Gas and log count of the transactions before the one at `index`.
    pub(crate) fn before(&self, index: usize) -> (u64, u64) {
        let before = self.receipts.as_ref().and_then(|open| open.before.get(index).copied());
        before.unwrap_or_default()
    }
}

/// Opens a store's batches and caches the recent ones.
pub struct Batches {
    store: Store,
    receipts: Shelf<OpenReceipts>,
    bodies: Shelf<OpenBody>,
    answers: [Arc<Memory>; 2],
    senders: KnownSenders,
    /// Whether a backfill supplies missing history later.
    backfills: bool,
}

/// The error for a part that is missing for good, or not stored yet.
fn not_stored(what: &'static str, number: BatchNumber, to_come: Option<PendingBackfill>) -> RpcError {
    match to_come.filter(|to_come| to_come.has(number)) {
        Some(to_come) => RpcError::NotYetStored { what, number, to_come },
        None => RpcError::NotStored { what, number },
    }
}

impl Batches {
    /// Creates the cache; senders in `met` are not recovered again. `backfills` says whether missing history arrives
    /// later.
    pub fn new(store: Store, met: Arc<MetSenders>, backfills: bool) -> Batches {
        Batches {
            store,
            receipts: Shelf::new(RECEIPTS),
            bodies: Shelf::new(BODIES),
            answers: ANSWERS_BYTES_MAX.map(Memory::new),
            senders: KnownSenders::new(met),
            backfills,
        }
    }

    /// The history that is still to be backfilled; `None` if nothing more is coming.
    pub(super) fn to_come(&self) -> Result<Option<PendingBackfill>, RpcError> {
        Ok(if self.backfills { PendingBackfill::of(&self.store)? } else { None })
    }

    /// The error for a part of a batch that is missing for good, or not stored yet.
    pub(super) fn missing(&self, what: &'static str, number: BatchNumber) -> RpcError {
        self.to_come().map_or_else(|error| error, |to_come| not_stored(what, number, to_come))
    }

    /// A batch whose two parts are both open already.
    pub(crate) fn recent(&self, number: BatchNumber) -> Result<Option<Batch>, RpcError> {
        let (Some(receipts), Some(body)) = (self.receipts.open_one(number), self.bodies.open_one(number))
        else {
            return Ok(None);
        };
        let header = self.store.header(number)?;
        let batch =
            |header| Batch { receipts: Some(receipts), body: Some(body), ..Batch::new(header, None, None) };
        Ok(header.map(|header| batch(header).knowing(&self.senders)))
    }

    /// Returns a batch by number with the requested parts; `None` beyond the head or below the stored range. A thread
    /// must hold only one batch at a time. Otherwise two threads that each hold memory could wait for each other's.
    ///
    /// # Errors
    /// [`RpcError::LargeBatch`] if a part is too large for this reader.
    pub(crate) fn get(
        &self,
        number: BatchNumber,
        parts: BatchParts,
        reader: Reader<'_>,
    ) -> Result<Option<Batch>, RpcError> {
        let Some(header) = self.store.header(number)? else { return Ok(None) };
        // An empty batch needs no blob; batch 0 stores the genesis in place of its body.
        if header.tx_count == 0 {
            return Ok(Some(Batch::new(header, Some(Body::default()), Some(Receipts::default()))));
        }
        let mut batch = Batch::new(header, None, None).knowing(&self.senders);
        // Receipts always come before the body: in mixed orders, two readers could wait for each other's memory.
        if parts != BatchParts::Body {
            batch.receipts = self.receipts.get(&self.store, &batch.header, reader)?;
            if batch.receipts.is_none() {
                batch.to_come = self.to_come()?;
            }
        }
        if parts != BatchParts::Receipts {
            self.open_body(&mut batch, reader)?;
        }
        Ok(Some(batch))
    }

    /// Opens the body of a batch that was opened with its receipts alone.
    ///
    /// # Errors
    /// [`RpcError::LargeBatch`] if the body is too large for this reader.
    pub(super) fn open_body(&self, batch: &mut Batch, reader: Reader<'_>) -> Result<(), RpcError> {
        batch.body = self.bodies.get(&self.store, &batch.header, reader)?;
        if batch.body.is_none() {
            batch.to_come = self.to_come()?;
        }
        Ok(())
    }

    /// Builds an answer within memory that is reserved for it until it is written.
    ///
    /// # Errors
    /// [`RpcError::LargeBatch`] if the answer is too long for this reader, and [`RpcError::TooMuch`] if it is too long
    /// for any reader.
    pub(super) fn weigh<T>(
        &self,
        weight: Weight,
        reader: Reader<'_>,
        make: impl FnOnce() -> Result<T, RpcError>,
    ) -> Result<WeighedAnswer<T>, RpcError> {
        let bytes = weight.bytes();
        let is_large = bytes > SMALL_ANSWER_BYTES_MAX;
        if is_large && !reader.is_long {
            return Err(RpcError::LargeBatch);
        }
        if bytes > ANSWERS_BYTES_MAX[1] {
            let Weight { items, logs, .. } = weight;
            let text = format!(
                "response too large: {items} transactions or receipts with {logs} logs are more than one answer holds; ask for them one by one"
            );
            return Err(RpcError::TooMuch(text));
        }
        let memory = &self.answers[usize::from(is_large)];
        loop {
            if let Some(share) = memory.try_take(bytes) {
                return Ok(WeighedAnswer::new(make()?, share));
            }
            reader.still_waits()?;
            memory.wait();
        }
    }

    /// Replaces the open receipts of a batch.
    #[cfg(test)]
    pub fn replace(&self, number: BatchNumber, receipts: Receipts) {
        self.receipts.replace(Arc::new(OpenPart::alone(number, receipts)));
    }
}

/// The size of an answer's content.
#[derive(Clone, Copy, Default)]
pub(super) struct Weight {
    /// The number of receipts or transactions.
    pub(super) items: usize,
    pub(super) logs: usize,
    pub(super) data_bytes: usize,
}

impl Weight {
    /// The weight of all transactions of a batch in full.
    pub(super) fn of_transactions(header: &BatchHeader) -> Weight {
        Weight { items: header.tx_count as usize, logs: 0, data_bytes: header.tx_bytes as usize }
    }

    /// The weight of `receipts`.
    pub(super) fn of_receipts<'a>(receipts: impl IntoIterator<Item = &'a Receipt>) -> Weight {
        receipts.into_iter().fold(Weight::default(), |sum, receipt| Weight {
            items: sum.items + 1,
            logs: sum.logs + receipt.logs.len(),
            data_bytes: sum.data_bytes + receipt.logs.iter().map(|log| log.data.len()).sum::<usize>(),
        })
    }

    fn bytes(self) -> usize {
        ANSWER_ITEM_BYTES * self.items + ANSWER_LOG_BYTES * self.logs + ANSWER_DATA_FACTOR * self.data_bytes
    }
}
