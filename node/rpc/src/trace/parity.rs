//! `trace_…`, as in parity.

use alloy_primitives::{B256, Bytes};
use jsonrpsee_types::Params;
use serde::{Deserialize, Serialize};
use slipstream_executor::{
    BatchEnv, CallRequest, Overrides, Transaction,
    trace::{LocalizedTransactionTrace, Rerun, TraceResults, TraceType, TraceTypes, replay_calls},
};

use super::{Executable, Request};
use crate::{
    RpcContext,
    batches::BatchParts,
    call::{
        overrides::{AccountsObject, BlockObject},
        request::CallObject,
    },
    errors::{RpcError, RpcResult},
    params::{AtMost, BlockParam, Hash, Strict, args},
    table::CallContext,
    transactions,
};

/// Maximum number of calls in one `trace_callMany`: the gas that they share pays for no more.
const CALLS_MAX: usize = (slipstream_executor::CALL_GAS_MAX / 21_000) as usize;
/// The number of trace types; each may appear once.
const TYPES_MAX: usize = 3;

/// The parts of a transaction to show: `trace`, `vmTrace`, `stateDiff`.
type Types = AtMost<TraceType, TYPES_MAX>;

fn types(asked: Types) -> Result<TraceTypes, RpcError> {
    if asked.len > TYPES_MAX {
        return Err(RpcError::InvalidParams(format!(
            "{} types of traces are too many: there are {TYPES_MAX}",
            asked.len
        )));
    }
    Ok(asked.first.into_iter().collect())
}

/// The replay of one transaction of a block.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Replayed {
    #[serde(flatten)]
    results: TraceResults,
    transaction_hash: B256,
}

/// `trace_block`: all calls of a block; null if the block is missing. A block without transactions, such as the
/// genesis, needs no state.
pub(super) fn block(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Option<Vec<LocalizedTransactionTrace>>> {
    let (BlockParam(id),) = args(params)?;
    let request = Request::begin(context, asker);
    let Some(batch) = context.batch(id, BatchParts::Both, asker.reader())? else { return Ok(None) };
    if batch.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let batch = Executable::open(context, batch)?;
    let (traces, _) = batch.all(&request, request.bytes_max(), Rerun::calls)?;
    Ok(Some(traces.concat()))
}

/// `trace_transaction`: all calls of a transaction; null if it is missing.
pub(super) fn transaction(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Option<Vec<LocalizedTransactionTrace>>> {
    let (Strict(hash),): (Hash,) = args(params)?;
    Ok(calls(context, hash, asker)?)
}

/// `trace_get`: the call at a position in the tree of a transaction's calls.
pub(super) fn get(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Option<LocalizedTransactionTrace>> {
    let (Strict(hash), place): (Hash, AtMost<Strict<u64>, 1_024>) = args(params)?;
    // No call lies that deep.
    if place.len > place.first.len() {
        return Ok(None);
    }
    let is_there = |trace: &LocalizedTransactionTrace| {
        let at = trace.trace.trace_address.iter().map(|index| *index as u64);
        at.eq(place.first.iter().map(|index| index.0))
    };
    Ok(calls(context, hash, asker)?.and_then(|traces| traces.into_iter().find(is_there)))
}

fn calls(
    context: &RpcContext,
    hash: B256,
    asker: &CallContext<'_>,
) -> Result<Option<Vec<LocalizedTransactionTrace>>, RpcError> {
    let request = Request::begin(context, asker);
    let Some((batch, index)) = transactions::find(context, &hash, BatchParts::Both, asker.reader())? else {
        transactions::check_unknown(context, &hash)?;
        return Ok(None);
    };
    let batch = Executable::open(context, batch)?;
    batch.one(&request, index, Rerun::calls).map(Some)
}

/// `trace_replayTransaction`
pub(super) fn replay(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<TraceResults> {
    let (Strict(hash), asked): (Hash, Types) = args(params)?;
    let (request, types) = (Request::begin(context, asker), types(asked)?);
    let Some((batch, index)) = transactions::find(context, &hash, BatchParts::Both, asker.reader())? else {
        transactions::check_unknown(context, &hash)?;
        return Err(RpcError::Rejected("transaction not found".into()).into());
    };
    let batch = Executable::open(context, batch)?;
    Ok(batch.one(&request, index, |rerun, past| rerun.replay(past, &types))?)
}

/// `trace_replayBlockTransactions`; null if the block is missing.
pub(super) fn replay_block(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Option<Vec<Replayed>>> {
    let (BlockParam(id), asked): (BlockParam, Types) = args(params)?;
    let (request, types) = (Request::begin(context, asker), types(asked)?);
    let Some(batch) = context.batch(id, BatchParts::Both, asker.reader())? else { return Ok(None) };
    if batch.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let batch = Executable::open(context, batch)?;
    let (traces, _) = batch.all(&request, request.bytes_max(), |rerun, past| {
        let (rerun, results) = rerun.replay(past, &types)?;
        Ok((rerun, Replayed { results, transaction_hash: past.transaction.hash }))
    })?;
    Ok(Some(traces))
}

/// `trace_call`, with the overrides of `eth_call`.
pub(super) fn call(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<TraceResults> {
    type Arguments = (CallObject, Types, Option<BlockParam>, Option<AccountsObject>, Option<BlockObject>);
    let (object, asked, id, accounts, block): Arguments = args(params)?;
    let overrides = Overrides {
        accounts: accounts.unwrap_or_default().into_overrides()?,
        block: block.unwrap_or_default().into_overrides()?,
    };
    let calls = [(object.into_request(context.chain.chain_id)?, types(asked)?)];
    let mut traces = replayed(context, asker, id, &overrides, &calls)?;
    Ok(traces.pop().ok_or_else(|| RpcError::Damaged("a call left no trace".into()))?)
}

/// One call of several, and the parts of it to show.
#[derive(Deserialize)]
struct CallAndTypes(CallObject, Types);

/// `trace_callMany`: each call runs on the state that the earlier ones left.
pub(super) fn call_many(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Vec<TraceResults>> {
    let (calls, id): (AtMost<CallAndTypes, CALLS_MAX>, Option<BlockParam>) = args(params)?;
    if calls.len > CALLS_MAX {
        let text = format!("{} calls are too many: together they have gas for {CALLS_MAX}", calls.len);
        return Err(RpcError::InvalidParams(text).into());
    }
    let read = |CallAndTypes(object, asked): CallAndTypes| -> Result<_, RpcError> {
        Ok((object.into_request(context.chain.chain_id)?, types(asked)?))
    };
    let calls = calls.first.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    Ok(replayed(context, asker, id, &Overrides::default(), &calls)?)
}

fn replayed(
    context: &RpcContext,
    asker: &CallContext<'_>,
    id: Option<BlockParam>,
    overrides: &Overrides,
    calls: &[(CallRequest, TraceTypes)],
) -> Result<Vec<TraceResults>, RpcError> {
    let (request, id) = (Request::begin(context, asker), id.unwrap_or_default().0);
    let view = context.state_at(id)?;
    let env = context.env(&view, id);
    let traces = replay_calls(&view, &env, overrides, calls, request.bytes_max(), &request.interrupt);
    traces.map_err(|error| request.refusal(error))
}

/// `trace_rawTransaction`: the trace of a signed transaction in a batch proposed now, or after another one.
pub(crate) fn raw(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<TraceResults> {
    let (Strict(raw), asked, id): (Strict<Bytes>, Types, Option<BlockParam>) = args(params)?;
    let types = types(asked)?;
    let transaction = Transaction::decode(&raw, &context.chain).map_err(RpcError::from)?;
    let request = Request::begin(context, asker);
    let view = context.state_at(id.unwrap_or_default().0)?;
    let head = view.head();
    let now_ms = context.clock.now_ms().max(head.timestamp_ms);
    let env = BatchEnv::new(&context.chain, head, now_ms, head.proposer);
    let rerun = Rerun::new(&view, &env, request.bytes_max(), &request.interrupt);
    let trace = rerun.and_then(|rerun| rerun.attempt(&transaction, &types));
    Ok(trace.map_err(|error| request.refusal(error))?)
}
