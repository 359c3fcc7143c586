//! Transactions and receipts.

use alloy_consensus::{
    Eip658Value, Receipt, ReceiptEnvelope, ReceiptWithBloom, TxType, transaction::Recovered,
};
use alloy_primitives::{B256, Bytes};
use alloy_rpc_types_eth::{Log, TransactionReceipt};
use jsonrpsee_types::Params;
use serde::de::DeserializeOwned;
use slipstream_executor::Transaction as Decoded;
use slipstream_types::ChainConfig;

use super::{
    RpcContext, RpcTransaction,
    batches::{Batch, BatchParts, Reader, WeighedAnswer, Weight},
    errors::{RpcError, RpcResult},
    params::{BlockParam, Hash, Strict, args},
    table::CallContext,
};

/// The name of the method that sends transactions.
pub const SEND_RAW: &str = "eth_sendRawTransaction";

/// `eth_sendRawTransaction`. Strangers' transactions are metered by address. [`Table::synced`](super::Table::synced)
/// must return before the caller gets the answer.
pub(super) fn send_raw(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<B256> {
    send_raw_all(context, std::slice::from_ref(params), asker).remove(0)
}

/// Handles several calls of `eth_sendRawTransaction`. Their transactions share a thread, the cores and a write.
pub(super) fn send_raw_all(
    context: &RpcContext,
    params: &[Params<'_>],
    asker: &CallContext<'_>,
) -> Vec<RpcResult<B256>> {
    let raw = |params| args(params).map(|(Strict(raw),): (Strict<Bytes>,)| raw);
    let raws: Vec<Result<Bytes, RpcError>> = params.iter().map(raw).collect();
    let readable: Vec<&[u8]> = raws.iter().flatten().map(|raw| &raw[..]).collect();
    let mut submitted = context.forwarder.submit_all(&readable, asker.origin.stranger()).into_iter();
    let answer = |raw: Result<Bytes, RpcError>| {
        raw?;
        let submitted = submitted.next().expect("each readable one has its answer");
        Ok(submitted.map_err(RpcError::from)?)
    };
    raws.into_iter().map(answer).collect()
}

/// `eth_getTransactionByHash`: committed, or waiting in the pool.
pub(super) fn by_hash(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Option<RpcTransaction>> {
    let (Strict(hash),): (Hash,) = args(params)?;
    if let Some((batch, index)) = find(context, &hash, BatchParts::Body, asker.reader())? {
        return Ok(to_transaction(&context.chain, &batch, index)?);
    }
    let waiting = context.pool.get(&hash);
    if waiting.is_none() {
        context.check_found()?;
    }
    Ok(waiting.map(|transaction| pending(&transaction)))
}

/// `eth_getTransactionByBlockNumberAndIndex` and `eth_getTransactionByBlockHashAndIndex`
pub(super) fn by_index<I: DeserializeOwned + Into<BlockParam>>(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Option<RpcTransaction>> {
    let (id, Strict(index)): (I, Strict<u64>) = args(params)?;
    let Some(batch) = context.batch(id.into().0, BatchParts::Body, asker.reader())? else { return Ok(None) };
    Ok(to_transaction(&context.chain, &batch, usize::try_from(index).unwrap_or(usize::MAX))?)
}

/// `eth_getTransactionReceipt`
pub(super) fn receipt(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Option<WeighedAnswer<TransactionReceipt>>> {
    let (Strict(hash),): (Hash,) = args(params)?;
    let receipt = receipt_of(context, &hash, asker.reader())?;
    if receipt.is_none() {
        check_unknown(context, &hash)?;
    }
    Ok(receipt)
}

/// # Errors
/// If a missing transaction may have been executed: it is not in the pool, and this node cannot know.
pub(super) fn check_unknown(context: &RpcContext, hash: &B256) -> Result<(), RpcError> {
    if context.pool.contains(hash) { Ok(()) } else { context.check_found() }
}

/// The receipt of a transaction, if it is committed.
pub(super) fn receipt_of(
    context: &RpcContext,
    hash: &B256,
    reader: Reader<'_>,
) -> Result<Option<WeighedAnswer<TransactionReceipt>>, RpcError> {
    let Some((batch, index)) = find(context, hash, BatchParts::Both, reader)? else { return Ok(None) };
    let weight = Weight::of_receipts(batch.receipt(index)?);
    let weighed = context.batches.weigh(weight, reader, || to_receipt(&context.chain, &batch, index))?;
    Ok(weighed.transpose())
}

/// The position of a committed transaction, and its batch with the body and the requested parts. `None` if the
/// transaction is unknown.
pub(super) fn find(
    context: &RpcContext,
    hash: &B256,
    parts: BatchParts,
    reader: Reader<'_>,
) -> Result<Option<(Batch, usize)>, RpcError> {
    for (number, index) in context.store.transaction_places(hash)? {
        let index = index as usize;
        if let Some(batch) = context.batches.get(number, parts, reader)?
            && batch.transaction_hash(index).as_ref() == Some(hash)
        {
            return Ok(Some((batch, index)));
        }
    }
    Ok(None)
}

/// A transaction of a batch; `None` if `index` is past the last one.
pub(super) fn to_transaction(
    chain: &ChainConfig,
    batch: &Batch,
    index: usize,
) -> Result<Option<RpcTransaction>, RpcError> {
    let Some(decoded) = batch.transaction(index, chain)? else { return Ok(None) };
    Ok(Some(RpcTransaction {
        block_hash: Some(batch.hash),
        block_number: Some(batch.number().get()),
        transaction_index: Some(index as u64),
        effective_gas_price: Some(effective_gas_price(chain, batch, &decoded)),
        block_timestamp: Some(batch.timestamp_s()),
        ..pending(&decoded)
    }))
}

/// A transaction that is in no batch yet.
pub(super) fn pending(decoded: &Decoded) -> RpcTransaction {
    RpcTransaction {
        inner: Recovered::new_unchecked((*decoded.envelope).clone(), decoded.sender),
        block_hash: None,
        block_number: None,
        transaction_index: None,
        effective_gas_price: Some(decoded.max_fee_wei()),
        block_timestamp: None,
    }
}

fn effective_gas_price(chain: &ChainConfig, batch: &Batch, decoded: &Decoded) -> u128 {
    let base_fee_wei = chain.rules_at(batch.header.number, batch.header.timestamp_ms).base_fee_wei;
    u128::from(base_fee_wei) + decoded.tip_wei(base_fee_wei).unwrap_or(0)
}

/// The receipt of a transaction of a batch; `None` if `index` is past the last one.
pub(super) fn to_receipt(
    chain: &ChainConfig,
    batch: &Batch,
    index: usize,
) -> Result<Option<TransactionReceipt>, RpcError> {
    let Some(receipt) = batch.receipt(index)? else { return Ok(None) };
    let Some(decoded) = batch.transaction(index, chain)? else { return Ok(None) };
    let inner = ReceiptWithBloom {
        receipt: Receipt {
            status: Eip658Value::Eip658(receipt.success),
            cumulative_gas_used: batch.before(index).0 + receipt.gas_used,
            logs: to_logs(batch, index)?,
        },
        logs_bloom: receipt.bloom(),
    };
    let created = decoded.to().is_none().then(|| decoded.sender.create(decoded.nonce()));
    Ok(Some(TransactionReceipt {
        inner: ReceiptEnvelope::from_typed(
            TxType::try_from(receipt.tx_type).unwrap_or(TxType::Legacy),
            inner,
        ),
        transaction_hash: decoded.hash,
        transaction_index: Some(index as u64),
        block_hash: Some(batch.hash),
        block_number: Some(batch.number().get()),
        gas_used: receipt.gas_used,
        effective_gas_price: effective_gas_price(chain, batch, &decoded),
        blob_gas_used: None,
        blob_gas_price: None,
        from: decoded.sender,
        to: decoded.to(),
        contract_address: created,
    }))
}

/// The logs of one transaction; empty if it is missing.
fn to_logs(batch: &Batch, index: usize) -> Result<Vec<Log>, RpcError> {
    let Some(receipt) = batch.receipt(index)? else { return Ok(Vec::new()) };
    let numbered = receipt.logs.iter().zip(batch.before(index).1..);
    Ok(numbered.map(|(log, at)| to_log(batch, index, log, at)).collect())
}

/// Converts a log of a batch: log number `at` of the batch, from its transaction `index`.
pub(super) fn to_log(batch: &Batch, index: usize, log: &slipstream_types::Log, at: u64) -> Log {
    Log {
        inner: log.into(),
        block_hash: Some(batch.hash),
        block_number: Some(batch.number().get()),
        block_timestamp: Some(batch.timestamp_s()),
        transaction_hash: batch.transaction_hash(index),
        transaction_index: Some(index as u64),
        log_index: Some(at),
        removed: false,
    }
}
