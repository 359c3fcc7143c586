//! Batches shown as Ethereum blocks.
//!
//! Number, hash, parent, timestamp and roots are Slipstream's own. A field that a batch lacks holds Ethereum's empty
//! constant, so that unmodified clients can read the answer. The hash is the header's digest, not Keccak-256 of an RLP
//! form.

use alloy_consensus::constants::{
    EMPTY_OMMER_ROOT_HASH, EMPTY_RECEIPTS, EMPTY_TRANSACTIONS, EMPTY_WITHDRAWALS,
};
use alloy_eips::eip7685::EMPTY_REQUESTS_HASH;
use alloy_primitives::{U64, U256};
use alloy_rpc_types_eth::{Block, BlockId, BlockNumberOrTag, BlockTransactions, Header, TransactionReceipt};
use jsonrpsee_types::Params;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use slipstream_fair::Leash;
use slipstream_types::{BatchHeader, BatchNumber, Body, ChainConfig, Digest, Receipts, chain::Fork};

use super::{
    RpcContext, RpcTransaction,
    batches::{Batch, BatchParts, Reader, WeighedAnswer, Weight},
    errors::{RpcError, RpcResult},
    params::{BlockParam, Strict, args},
    table::CallContext,
    transactions,
};

impl RpcContext {
    /// The number of the batch that a block id names: `None` if it is missing.
    pub(crate) fn batch_number(&self, id: BlockId) -> Result<Option<BatchNumber>, RpcError> {
        let head = self.store.head()?.header.number;
        let number = match id {
            BlockId::Hash(hash) => {
                let found = self.store.find_header(&hash.block_hash.into())?;
                if found.is_none() {
                    self.check_known("block")?;
                }
                return Ok(found);
            }
            BlockId::Number(BlockNumberOrTag::Earliest) => BatchNumber::GENESIS,
            BlockId::Number(BlockNumberOrTag::Number(number)) => BatchNumber::new(number),
            // A certified batch is final. The pending batch has no number here.
            BlockId::Number(_) => head,
        };
        Ok((number <= head).then_some(number))
    }

    /// # Errors
    /// If an unknown hash may belong to a batch that is not backfilled yet.
    fn check_known(&self, what: &'static str) -> Result<(), RpcError> {
        match self.batches.to_come()?.filter(|_| self.health.is_backfilling()) {
            Some(to_come) => Err(RpcError::NotYetKnown { what, to_come }),
            None => Ok(()),
        }
    }

    /// # Errors
    /// If this node cannot know whether a missing transaction was executed. Either it keeps no such records, or a
    /// backfill has yet to fetch them.
    pub(super) fn check_found(&self) -> Result<(), RpcError> {
        self.keeps.check_found()?;
        self.check_known("transaction")
    }

    /// The batch that a block id names, with the requested parts: `None` if it is missing.
    ///
    /// # Errors
    /// If the batch exists but its header is not kept.
    pub(super) fn batch(
        &self,
        id: BlockId,
        parts: BatchParts,
        reader: Reader<'_>,
    ) -> Result<Option<Batch>, RpcError> {
        if id.is_pending() {
            return Ok(Some(self.pending_batch()?));
        }
        let Some(number) = self.batch_number(id)? else { return Ok(None) };
        let batch = self.batches.get(number, parts, reader)?;
        batch.ok_or_else(|| self.batches.missing("header", number)).map(Some)
    }

    /// The pending batch. Its transactions are unknown until its proposer chooses them, so it is shown without
    /// transactions and state root.
    fn pending_batch(&self) -> Result<Batch, RpcError> {
        let head = self.store.head()?;
        // All fields are named, so that a new field needs a decision here.
        let BatchHeader {
            number,
            parent: _,
            epoch,
            rules,
            timestamp_ms,
            proposer,
            tx_count: _,
            tx_bytes: _,
            gas_used: _,
            delta_bytes,
            transactions_root,
            receipts_root,
            delta_digest,
            state_root: _,
            totals,
        } = head.header;
        let header = BatchHeader {
            number: number.next(),
            parent: head.digest,
            epoch,
            rules,
            timestamp_ms: self.clock.now_ms().max(timestamp_ms),
            proposer,
            tx_count: 0,
            tx_bytes: 0,
            gas_used: 0,
            delta_bytes,
            transactions_root,
            receipts_root,
            delta_digest,
            state_root: Digest::ZERO,
            totals,
        };
        Ok(Batch::new(header, Some(Body::default()), Some(Receipts::default())))
    }

    /// The header that a block id names: `None` if it is missing.
    fn header(&self, id: BlockId) -> Result<Option<BatchHeader>, RpcError> {
        if id.is_pending() {
            return Ok(Some(self.pending_batch()?.header));
        }
        let Some(number) = self.batch_number(id)? else { return Ok(None) };
        let header = self.store.header(number)?;
        header.ok_or_else(|| self.batches.missing("header", number)).map(Some)
    }
}

/// `eth_blockNumber`
pub(super) fn block_number(context: &RpcContext) -> RpcResult<U64> {
    let head = context.store.head().map_err(RpcError::from)?;
    Ok(U64::from(head.header.number.get()))
}

/// A block or a header in the form of the answer.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum BlockForm<T> {
    Made(Box<T>),
    /// The pending block or header.
    Pending(Value),
}

/// `eth_getBlockByNumber` and `eth_getBlockByHash`
pub(super) fn block<I: DeserializeOwned + Into<BlockParam>>(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Option<WeighedAnswer<BlockForm<Block<RpcTransaction>>>>> {
    let (id, full): (I, Option<bool>) = args(params)?;
    let (id, full) = (id.into().0, full.unwrap_or(false));
    let reader = asker.reader();
    let Some(batch) = context.batch(id, BatchParts::Both, reader)? else { return Ok(None) };
    let weight = if full { Weight::of_transactions(&batch.header) } else { Weight::default() };
    let block = context.batches.weigh(weight, reader, || {
        let block = to_block(&context.chain, &batch, full, asker.leash)?;
        shown("eth_getBlockByNumber", id, block)
    })?;
    Ok(Some(block))
}

/// Formats as geth does: a pending block has no hash, nonce or miner.
fn shown<T: Serialize>(method: &'static str, id: BlockId, made: T) -> Result<BlockForm<T>, RpcError> {
    if !id.is_pending() {
        return Ok(BlockForm::Made(Box::new(made)));
    }
    let mut pending = serde_json::to_value(made).map_err(|error| RpcError::internal(method, &error))?;
    for field in ["hash", "nonce", "miner"] {
        pending[field] = Value::Null;
    }
    Ok(BlockForm::Pending(pending))
}

/// `eth_getHeaderByNumber` and `eth_getHeaderByHash`, as in geth.
pub(super) fn header<I: DeserializeOwned + Into<BlockParam>>(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Option<BlockForm<Header>>> {
    let (id,): (I,) = args(params)?;
    let id = id.into().0;
    let Some(batch) = context.batch(id, BatchParts::Receipts, asker.reader())? else { return Ok(None) };
    Ok(Some(shown("eth_getHeaderByNumber", id, to_header(&context.chain, &batch))?))
}

/// `eth_getBlockReceipts`
pub(super) fn receipts(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Option<WeighedAnswer<Vec<TransactionReceipt>>>> {
    let (BlockParam(id),) = args(params)?;
    let reader = asker.reader();
    let Some(batch) = context.batch(id, BatchParts::Both, reader)? else { return Ok(None) };
    let weight = Weight::of_receipts(&batch.receipts()?.receipts);
    let receipts = context.batches.weigh(weight, reader, || {
        let all = (0..batch.header.tx_count as usize).map(|index| {
            asker.still_waits()?;
            transactions::to_receipt(&context.chain, &batch, index)
        });
        all.collect::<Result<Option<Vec<_>>, _>>()
    })?;
    Ok(receipts.transpose())
}

/// `eth_getBlockTransactionCountByNumber` and `eth_getBlockTransactionCountByHash`
pub(super) fn transaction_count<I: DeserializeOwned + Into<BlockParam>>(
    context: &RpcContext,
    params: &Params<'_>,
) -> RpcResult<Option<U64>> {
    let (id,): (I,) = args(params)?;
    Ok(context.header(id.into().0)?.map(|header| U64::from(header.tx_count)))
}

/// `eth_getUncleCountByBlockNumber` and `eth_getUncleCountByBlockHash`
pub(super) fn uncle_count<I: DeserializeOwned + Into<BlockParam>>(
    context: &RpcContext,
    params: &Params<'_>,
) -> RpcResult<Option<U64>> {
    let (id,): (I,) = args(params)?;
    Ok(context.header(id.into().0)?.map(|_| U64::ZERO))
}

/// `eth_getUncleByBlockNumberAndIndex` and `eth_getUncleByBlockHashAndIndex`: always `None`, as batches have no uncles.
pub(super) fn uncle<I: DeserializeOwned>(_: &RpcContext, params: &Params<'_>) -> RpcResult<Option<Header>> {
    let (_, Strict(_)): (I, Strict<u64>) = args(params)?;
    Ok(None)
}

pub(super) fn to_block(
    chain: &ChainConfig,
    batch: &Batch,
    full: bool,
    leash: &Leash,
) -> Result<Block<RpcTransaction>, RpcError> {
    let count = batch.header.tx_count as usize;
    let transactions = if full {
        // Recovering ten thousand senders takes half a second.
        let all = (0..count).map(|index| match leash.is_cut() {
            true => Err(RpcError::NobodyWaits),
            false => transactions::to_transaction(chain, batch, index),
        });
        BlockTransactions::Full(all.collect::<Result<Option<Vec<RpcTransaction>>, _>>()?.unwrap_or_default())
    } else {
        batch.body()?;
        BlockTransactions::Hashes(batch.hashes().collect())
    };
    let header = Header { size: Some(U256::from(batch.header.tx_bytes)), ..to_header(chain, batch) };
    let block = Block { header, uncles: Vec::new(), transactions, withdrawals: None };
    Ok(block.with_withdrawals(Some(Default::default())))
}

/// Returns the header without a size, which only blocks have in geth.
pub(super) fn to_header(chain: &ChainConfig, batch: &Batch) -> Header {
    let header = &batch.header;
    let rules = chain.rules_at(header.number, header.timestamp_ms);
    // Go's client rejects a block without transactions unless its root is that of Ethereum's empty list.
    let (transactions_root, receipts_root) = match batch.is_empty() {
        true => (EMPTY_TRANSACTIONS, EMPTY_RECEIPTS),
        false => (header.transactions_root.into(), header.receipts_root.into()),
    };
    let inner = alloy_consensus::Header {
        parent_hash: header.parent.into(),
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        beneficiary: header.proposer,
        state_root: header.state_root.into(),
        transactions_root,
        receipts_root,
        logs_bloom: batch.bloom(),
        difficulty: U256::ZERO,
        number: header.number.get(),
        gas_limit: rules.gas_limit,
        gas_used: header.gas_used,
        timestamp: batch.timestamp_s(),
        // The value of PREVRANDAO.
        mix_hash: header.parent.into(),
        base_fee_per_gas: Some(rules.base_fee_wei),
        withdrawals_root: Some(EMPTY_WITHDRAWALS),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(header.parent.into()),
        requests_hash: (rules.fork != Fork::Cancun).then_some(EMPTY_REQUESTS_HASH),
        ..Default::default()
    };
    Header { hash: batch.hash, inner, total_difficulty: None, size: None }
}
