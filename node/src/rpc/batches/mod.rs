//! Batches as JSON-RPC needs them: each part is opened once, when it is asked for, and kept a while, because clients ask for many transactions
//! of one batch.

mod memory;
mod part;
mod shelf;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use alloy_primitives::{B256, Bloom, Bytes};
use slipstream_executor::{Senders as MetSenders, Transaction};
use slipstream_storage::Store;
use slipstream_types::{BatchHeader, BatchNumber, Body, ChainConfig, Receipt, Receipts};

pub(super) use self::memory::Weighed;
use self::{
    memory::Memory,
    part::{OpenBody, OpenReceipts},
    shelf::{Budget, Open, Shelf},
};
use super::{
    errors::RpcError,
    lanes::Lane,
    senders::{KnownSenders, Senders},
    to_come::ToCome,
};
use crate::leash::Leash;

/// Memory of small and of large receipts and bodies: of large ones, one of the longest at a time while it is unpacked. Bounds what callers
/// make this node unpack at a time, however many they are.
const RECEIPTS: [Budget; 2] = [
    Budget { open_bytes_max: 64 << 20, kept_bytes_max: 32 << 20 },
    Budget { open_bytes_max: 160 << 20, kept_bytes_max: 64 << 20 },
];
const BODIES: [Budget; 2] = [
    Budget { open_bytes_max: 48 << 20, kept_bytes_max: 24 << 20 },
    Budget { open_bytes_max: 48 << 20, kept_bytes_max: 16 << 20 },
];
/// The same of answers in the making. A longer one is refused: nobody could send it.
const ANSWERS_BYTES_MAX: [usize; 2] = [32 << 20, 128 << 20];
/// Memory of an answer that is made on a thread for short work.
const SMALL_ANSWER_BYTES_MAX: usize = 2 << 20;
/// Memory of a log in an answer and its text, beside its data; of a receipt, or a transaction, too. Bytes of data are in it once, and as text,
/// which grows by doubling.
const ANSWER_LOG_BYTES: usize = 1 << 10;
const ANSWER_ITEM_BYTES: usize = 2 << 10;
const ANSWER_DATA_FACTOR: usize = 5;

/// Who reads batches: what it may open, and for how long it waits.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    leash: Option<&'a Leash>,
    /// Large batches are for it: it stands back, or is the node itself.
    is_long: bool,
    /// What it opens is likely to be asked for again.
    keeps: bool,
}

impl<'a> Reader<'a> {
    /// The node itself.
    pub(super) const NODE: Reader<'static> = Reader { leash: None, is_long: true, keeps: true };

    /// On a thread of a lane: those for short work open nothing large.
    pub(super) fn on(lane: Lane, leash: &'a Leash) -> Reader<'a> {
        Reader { is_long: !lane.is_cheap(), ..Reader::long(leash) }
    }

    /// On a thread that stands back.
    pub(super) fn long(leash: &'a Leash) -> Reader<'a> {
        Reader { leash: Some(leash), is_long: true, keeps: true }
    }

    /// The same, for one who goes through many batches.
    pub(super) fn passing(leash: &'a Leash) -> Reader<'a> {
        Reader { keeps: false, ..Reader::long(leash) }
    }

    /// # Errors
    /// If nobody waits for the answer any more.
    fn still_waits(self) -> Result<(), RpcError> {
        if self.leash.is_some_and(Leash::is_cut) { Err(RpcError::NobodyWaits) } else { Ok(()) }
    }
}

/// The parts of a batch that somebody asks for, beside its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parts {
    Body,
    Receipts,
    Both,
}

/// A batch with those of its stored parts that were asked for.
#[derive(Clone)]
pub(crate) struct Batch {
    pub(crate) header: BatchHeader,
    /// The block's hash, which is the header's digest.
    pub(crate) hash: B256,
    body: Option<Arc<Open<OpenBody>>>,
    receipts: Option<Arc<Open<OpenReceipts>>>,
    senders: Arc<Senders>,
    /// Senders that were met elsewhere.
    met: Option<Arc<MetSenders>>,
    /// If a part that was asked for is not here yet.
    to_come: Option<ToCome>,
}

impl Batch {
    /// A batch whose parts are no secret to the caller.
    pub(crate) fn new(header: BatchHeader, body: Option<Body>, receipts: Option<Receipts>) -> Batch {
        let number = header.number;
        Batch {
            hash: header.digest().into(),
            body: body.map(|body| Arc::new(Open::alone(number, body))),
            receipts: receipts.map(|receipts| Arc::new(Open::alone(number, receipts))),
            senders: Arc::new(Senders::new(header.tx_count as usize)),
            met: None,
            to_come: None,
            header,
        }
    }

    /// The batch with senders that may be known already.
    pub(super) fn knowing(mut self, known: &KnownSenders) -> Batch {
        self.senders = known.of(self.number(), self.header.tx_count as usize);
        self.met = Some(known.met().clone());
        self
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

    fn open_body(&self) -> Result<&OpenBody, RpcError> {
        self.body.as_deref().map(|open| &**open).ok_or_else(|| self.missing("transactions"))
    }

    fn open_receipts(&self) -> Result<&Open<OpenReceipts>, RpcError> {
        self.receipts.as_deref().ok_or_else(|| self.missing("receipts"))
    }

    fn missing(&self, what: &'static str) -> RpcError {
        not_stored(what, self.number(), self.to_come)
    }

    /// The body, or an error that says why there is none.
    pub(crate) fn body(&self) -> Result<&Body, RpcError> {
        Ok(&self.open_body()?.body)
    }

    /// The receipts, or an error that says why there are none.
    pub(crate) fn receipts(&self) -> Result<&Receipts, RpcError> {
        Ok(&self.open_receipts()?.receipts)
    }

    /// Bytes of the receipts as they are stored.
    pub(super) fn receipts_bytes(&self) -> usize {
        self.receipts.as_ref().map_or(0, |open| open.content_bytes)
    }

    /// The receipt of one transaction; none if the batch has fewer.
    pub(crate) fn receipt(&self, index: usize) -> Result<Option<&Receipt>, RpcError> {
        Ok(self.receipts()?.receipts.get(index))
    }

    /// Ethereum's bloom filter over its logs; without receipts every log is possible.
    pub(crate) fn bloom(&self) -> Bloom {
        self.receipts.as_ref().map_or(Bloom::repeat_byte(0xff), |open| open.bloom())
    }

    /// The hash of one transaction; none without a body, or if the batch has fewer.
    pub(crate) fn transaction_hash(&self, index: usize) -> Option<B256> {
        self.body.as_ref()?.hash(index)
    }

    /// The hashes of all transactions, in order; none without a body.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = B256> {
        (0..self.header.tx_count as usize).map_while(|index| self.transaction_hash(index))
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
        let met = || self.met.as_ref()?.get(&self.transaction_hash(index)?);
        let transaction = match self.senders.get(index).or_else(met) {
            Some(sender) => Transaction::decode_known(raw, chain, sender)?,
            None => Transaction::decode(raw, chain)?,
        };
        self.senders.keep(index, transaction.sender);
        Ok(Some(transaction))
    }

    /// Gas and logs of the transactions before one.
    pub(crate) fn before(&self, index: usize) -> (u64, u64) {
        let before = self.receipts.as_ref().and_then(|open| open.before.get(index).copied());
        before.unwrap_or_default()
    }
}

/// Opens batches of a store and keeps the recent ones.
pub(crate) struct Batches {
    store: Store,
    receipts: Shelf<OpenReceipts>,
    bodies: Shelf<OpenBody>,
    answers: [Arc<Memory>; 2],
    senders: KnownSenders,
    /// Whether history that is not here comes by a backfill.
    backfills: bool,
}

/// Says of a part that it is not here, or not yet.
fn not_stored(what: &'static str, number: BatchNumber, to_come: Option<ToCome>) -> RpcError {
    match to_come.filter(|to_come| to_come.has(number)) {
        Some(to_come) => RpcError::NotYetStored { what, number, to_come },
        None => RpcError::NotStored { what, number },
    }
}

impl Batches {
    /// Senders that were met elsewhere are not recovered again. `backfills` is whether history that is not here comes later.
    pub(crate) fn new(store: Store, met: Arc<MetSenders>, backfills: bool) -> Batches {
        Batches {
            store,
            receipts: Shelf::new(RECEIPTS),
            bodies: Shelf::new(BODIES),
            answers: ANSWERS_BYTES_MAX.map(Memory::new),
            senders: KnownSenders::new(met),
            backfills,
        }
    }

    /// The history that is not here yet; `None` if all that comes is here.
    pub(super) fn to_come(&self) -> Result<Option<ToCome>, RpcError> {
        Ok(if self.backfills { ToCome::of(&self.store)? } else { None })
    }

    /// Says of a part of a batch that it is not here, or not yet.
    pub(super) fn missing(&self, what: &'static str, number: BatchNumber) -> RpcError {
        self.to_come().map_or_else(|error| error, |to_come| not_stored(what, number, to_come))
    }

    /// A batch whose parts are both open anyway.
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

    /// Parts of a batch by number; none beyond the head or below what is stored. A thread has one batch at a time, so that none waits for
    /// memory that another has who waits for its own.
    ///
    /// # Errors
    /// [`RpcError::LargeBatch`] if one of them is not for this reader.
    pub(crate) fn get(
        &self,
        number: BatchNumber,
        parts: Parts,
        reader: Reader<'_>,
    ) -> Result<Option<Batch>, RpcError> {
        let Some(header) = self.store.header(number)? else { return Ok(None) };
        // An empty batch needs no blob; batch 0 has the genesis in the place of its body.
        if header.tx_count == 0 {
            return Ok(Some(Batch::new(header, Some(Body::default()), Some(Receipts::default()))));
        }
        let mut batch = Batch::new(header, None, None).knowing(&self.senders);
        // In this order always, for the same reason.
        if parts != Parts::Body {
            batch.receipts = self.receipts.get(&self.store, &batch.header, reader)?;
            if batch.receipts.is_none() {
                batch.to_come = self.to_come()?;
            }
        }
        if parts != Parts::Receipts {
            self.open_body(&mut batch, reader)?;
        }
        Ok(Some(batch))
    }

    /// Opens the body of a batch that has its receipts alone.
    ///
    /// # Errors
    /// [`RpcError::LargeBatch`] if it is not for this reader.
    pub(super) fn open_body(&self, batch: &mut Batch, reader: Reader<'_>) -> Result<(), RpcError> {
        batch.body = self.bodies.get(&self.store, &batch.header, reader)?;
        if batch.body.is_none() {
            batch.to_come = self.to_come()?;
        }
        Ok(())
    }

    /// Makes an answer in memory that is set aside for it, until it is written.
    ///
    /// # Errors
    /// [`RpcError::LargeBatch`] if it is too long for this reader, and [`RpcError::TooMuch`] if it is for anybody.
    pub(super) fn weigh<T>(
        &self,
        weight: Weight,
        reader: Reader<'_>,
        make: impl FnOnce() -> Result<T, RpcError>,
    ) -> Result<Weighed<T>, RpcError> {
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
                return Ok(Weighed::new(make()?, share));
            }
            reader.still_waits()?;
            memory.wait();
        }
    }

    /// Other receipts in the place of those that are open.
    #[cfg(test)]
    pub(crate) fn replace(&self, number: BatchNumber, receipts: Receipts) {
        self.receipts.replace(Arc::new(Open::alone(number, receipts)));
    }
}

/// What an answer is made of.
#[derive(Clone, Copy, Default)]
pub(super) struct Weight {
    /// Receipts, or transactions.
    pub(super) items: usize,
    pub(super) logs: usize,
    pub(super) data_bytes: usize,
}

impl Weight {
    /// That of a batch's whole transactions.
    pub(super) fn of_transactions(header: &BatchHeader) -> Weight {
        Weight { items: header.tx_count as usize, logs: 0, data_bytes: header.tx_bytes as usize }
    }

    /// That of receipts.
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
