//! Transactions as they were signed, byte for byte. A missing transaction gives an empty answer, as in geth.

use alloy_primitives::{B256, Bytes};
use jsonrpsee_types::Params;
use serde::de::DeserializeOwned;

use super::{
    RpcContext,
    batches::{BatchParts, Reader},
    errors::{RpcError, RpcResult},
    params::{BlockParam, Hash, Strict, args},
    table::CallContext,
    transactions::find,
};

/// `eth_getRawTransactionByHash` and its synonym `debug_getRawTransaction`, for transactions committed or waiting in
/// the pool.
pub(super) fn by_hash(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Bytes> {
    let (Strict(hash),): (Hash,) = args(params)?;
    Ok(of(context, &hash, asker.reader())?)
}

fn of(context: &RpcContext, hash: &B256, reader: Reader<'_>) -> Result<Bytes, RpcError> {
    if let Some((batch, index)) = find(context, hash, BatchParts::Body, reader)? {
        return Ok(batch.raw(index)?.unwrap_or_default());
    }
    let Some(waiting) = context.pool.get(hash) else {
        context.check_found()?;
        return Ok(Bytes::new());
    };
    Ok(waiting.raw)
}

/// `eth_getRawTransactionByBlockNumberAndIndex` and `eth_getRawTransactionByBlockHashAndIndex`
pub(super) fn by_index<I: DeserializeOwned + Into<BlockParam>>(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Bytes> {
    let (id, Strict(index)): (I, Strict<u64>) = args(params)?;
    let Some(batch) = context.batch(id.into().0, BatchParts::Body, asker.reader())? else {
        return Ok(Bytes::new());
    };
    Ok(batch.raw(usize::try_from(index).unwrap_or(usize::MAX))?.unwrap_or_default())
}
