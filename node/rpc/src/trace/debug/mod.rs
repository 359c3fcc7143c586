//! `debug_trace…`, as in geth.

mod options;

use alloy_primitives::B256;
use jsonrpsee_types::Params;
use serde::{Serialize, de::DeserializeOwned};
use slipstream_executor::{
    CallRequest, Overrides,
    trace::{GethTrace, trace_call},
};
use slipstream_types::BatchNumber;

use self::options::{CallOptions, TracerOptions};
use super::{Executable, Request};
use crate::{
    RpcContext,
    batches::BatchParts,
    call::request::CallObject,
    errors::{RpcError, RpcResult},
    params::{BlockParam, Hash, Strict, args},
    table::CallContext,
    transactions,
};

/// One transaction of a block.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Traced {
    tx_hash: B256,
    result: GethTrace,
}

/// `debug_traceTransaction`
pub(super) fn transaction(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<GethTrace> {
    let (Strict(hash), options): (Hash, Option<TracerOptions>) = args(params)?;
    let (request, options) = (Request::begin(context, asker), options.unwrap_or_default().0);
    let Some((batch, index)) = transactions::find(context, &hash, BatchParts::Both, asker.reader())? else {
        transactions::check_unknown(context, &hash)?;
        return Err(RpcError::Rejected("transaction not found".into()).into());
    };
    let batch = Executable::open(context, batch)?;
    Ok(batch.one(&request, index, |rerun, past| rerun.geth(past, &options))?)
}

/// `debug_traceBlockByNumber` and `debug_traceBlockByHash`
pub(super) fn block<I: DeserializeOwned + Into<BlockParam>>(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Vec<Traced>> {
    let (id, options): (I, Option<TracerOptions>) = args(params)?;
    let (request, options) = (Request::begin(context, asker), options.unwrap_or_default().0);
    let Some(batch) = context.batch(id.into().0, BatchParts::Both, asker.reader())? else {
        return Err(RpcError::Rejected("block not found".into()).into());
    };
    // An empty batch needs no state. geth says of the genesis that it is not traceable.
    if batch.is_empty() && batch.number() != BatchNumber::GENESIS {
        return Ok(Vec::new());
    }
    let batch = Executable::open(context, batch)?;
    let (traces, _) = batch.all(&request, request.bytes_max(), |rerun, past| {
        let (rerun, result) = rerun.geth(past, &options)?;
        Ok((rerun, Traced { tx_hash: past.transaction.hash, result }))
    })?;
    Ok(traces)
}

/// `debug_traceCall`
pub(super) fn call(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<GethTrace> {
    let (object, id, options): (CallObject, Option<BlockParam>, Option<CallOptions>) = args(params)?;
    let options = options.unwrap_or_default();
    if options.has_tx_index {
        let text = "txIndex is not supported: a call is traced after the whole block";
        return Err(RpcError::InvalidParams(text.into()).into());
    }
    let overrides = Overrides {
        accounts: options.state_overrides.unwrap_or_default().into_overrides()?,
        block: options.block_overrides.unwrap_or_default().into_overrides()?,
    };
    let request = Request::begin(context, asker);
    let id = id.unwrap_or_default().0;
    let view = context.state_at(id)?;
    let env = context.env(&view, id);
    let call = CallRequest { overrides, ..object.into_request(context.chain.chain_id)? };
    let (bytes_max, interrupt) = (request.bytes_max(), &request.interrupt);
    let trace = trace_call(&view, &env, &call, &options.tracer.0, bytes_max, interrupt);
    Ok(trace.map_err(|error| request.refusal(error))?)
}
