//! What is read from the state at the head, and calls on it.

use alloy_primitives::{Address, B256, Bytes, U64, U256};
use alloy_rpc_types_eth::{BlockId, BlockNumberOrTag, TransactionRequest};
use jsonrpsee::types::{Params, ParamsSequence};
use slipstream_executor::{BatchEnv, CallRequest, EstimateError, call, estimate_gas};
use slipstream_storage::View;

use super::{
    RpcContext,
    errors::{RpcError, RpcResult},
};

impl RpcContext {
    /// The state that a block id names, if it is the head's: no other is kept.
    fn state_at(&self, id: BlockId) -> Result<View, RpcError> {
        let view = self.store.view()?;
        let head = view.head().number;
        let asked = match id {
            BlockId::Number(BlockNumberOrTag::Number(number)) => slipstream_types::BatchNumber(number),
            BlockId::Number(BlockNumberOrTag::Earliest) => slipstream_types::BatchNumber(0),
            // A certified batch is final, and what is pending is not executed anywhere yet.
            BlockId::Number(_) => head,
            BlockId::Hash(hash) => {
                let found = self.store.find_header(&hash.block_hash.into())?;
                found.ok_or(RpcError::UnknownBlock(hash.block_hash))?
            }
        };
        match asked.cmp(&head) {
            std::cmp::Ordering::Equal => Ok(view),
            std::cmp::Ordering::Less => Err(RpcError::StateNotKept { asked, head }),
            std::cmp::Ordering::Greater => Err(RpcError::BeyondHead { asked, head }),
        }
    }

    /// The environment of a batch that would be made now, on top of a state.
    fn env(&self, view: &View) -> BatchEnv {
        let parent = view.head();
        BatchEnv::new(&self.chain, parent, self.clock.now_ms().max(parent.timestamp_ms), parent.proposer)
    }
}

/// The block id at the end of most parameter lists; the head if it is left out.
fn block_id(args: &mut ParamsSequence<'_>) -> RpcResult<BlockId> {
    Ok(args.optional_next()?.unwrap_or_default())
}

/// `eth_getBalance`
pub(super) fn balance(context: &RpcContext, params: &Params<'_>) -> RpcResult<U256> {
    let mut args = params.sequence();
    let address: Address = args.next()?;
    let account = context.state_at(block_id(&mut args)?)?.account(&address).map_err(RpcError::from)?;
    Ok(account.unwrap_or_default().balance)
}

/// `eth_getTransactionCount`; `pending` counts the sender's executable transactions in the pool as well.
pub(super) fn nonce(context: &RpcContext, params: &Params<'_>) -> RpcResult<U64> {
    let mut args = params.sequence();
    let address: Address = args.next()?;
    let id = block_id(&mut args)?;
    let account = context.state_at(id)?.account(&address).map_err(RpcError::from)?.unwrap_or_default();
    let waiting = if id.is_pending() { context.pool.pending_nonce(&address) } else { None };
    Ok(U64::from(waiting.unwrap_or(0).max(account.nonce)))
}

/// `eth_getCode`
pub(super) fn code(context: &RpcContext, params: &Params<'_>) -> RpcResult<Bytes> {
    let mut args = params.sequence();
    let address: Address = args.next()?;
    let view = context.state_at(block_id(&mut args)?)?;
    let account = view.account(&address).map_err(RpcError::from)?.unwrap_or_default();
    let Some(hash) = account.code_hash else { return Ok(Bytes::new()) };
    Ok(view.code(&hash).map_err(RpcError::from)?.unwrap_or_default())
}

/// `eth_getStorageAt`
pub(super) fn storage(context: &RpcContext, params: &Params<'_>) -> RpcResult<B256> {
    let mut args = params.sequence();
    let address: Address = args.next()?;
    // A quantity or 32 bytes: clients send both.
    let slot: U256 = args.next()?;
    let view = context.state_at(block_id(&mut args)?)?;
    Ok(view.slot(&address, &slot.into()).map_err(RpcError::from)?.into())
}

/// `eth_call`
pub(super) fn call_at_head(context: &RpcContext, params: &Params<'_>) -> RpcResult<Bytes> {
    let mut args = params.sequence();
    let request = call_request(args.next()?)?;
    let view = context.state_at(block_id(&mut args)?)?;
    no_overrides(&mut args)?;
    let env = context.env(&view);
    let outcome = call(&view, &env, &request).map_err(RpcError::from)?;
    RpcError::check_output(&outcome.output)?;
    if outcome.success {
        return Ok(outcome.output);
    }
    Err(match outcome.halt {
        Some(halt) => RpcError::Rejected(halt),
        None => RpcError::reverted(outcome.revert_reason, outcome.output),
    }
    .into())
}

/// `eth_estimateGas`
pub(super) fn estimate(context: &RpcContext, params: &Params<'_>) -> RpcResult<U64> {
    let mut args = params.sequence();
    let request = call_request(args.next()?)?;
    let view = context.state_at(block_id(&mut args)?)?;
    no_overrides(&mut args)?;
    let env = context.env(&view);
    match estimate_gas(&view, &env, &request) {
        Ok(gas) => Ok(U64::from(gas)),
        Err(EstimateError::Reverted { output, reason }) => {
            RpcError::check_output(&output)?;
            Err(RpcError::reverted(reason, output).into())
        }
        Err(EstimateError::Execute(error)) => Err(RpcError::from(error).into()),
        Err(error @ EstimateError::Halted { .. }) => Err(RpcError::Rejected(error.to_string()).into()),
    }
}

fn call_request(request: TransactionRequest) -> Result<CallRequest, RpcError> {
    let input =
        request.input.try_into_unique_input().map_err(|error| RpcError::InvalidParams(error.to_string()))?;
    if request.blob_versioned_hashes.is_some() || request.authorization_list.is_some() {
        let text = "blobVersionedHashes and authorizationList are not supported in calls";
        return Err(RpcError::InvalidParams(text.into()));
    }
    Ok(CallRequest {
        from: request.from.unwrap_or_default(),
        to: request.to.and_then(|to| to.to().copied()),
        gas: request.gas,
        gas_price: request.gas_price.or(request.max_fee_per_gas),
        value: request.value.unwrap_or_default(),
        data: input.unwrap_or_default(),
        // A call is not a transaction: whatever nonce a client fills in says nothing about it.
        nonce: None,
        access_list: request.access_list.unwrap_or_default(),
    })
}

/// State overrides would silently be ignored otherwise.
fn no_overrides(args: &mut ParamsSequence<'_>) -> Result<(), RpcError> {
    let overrides: Option<serde_json::Map<String, serde_json::Value>> =
        args.optional_next().map_err(|error| RpcError::InvalidParams(error.to_string()))?;
    match overrides {
        Some(overrides) if !overrides.is_empty() => {
            Err(RpcError::InvalidParams("state overrides are not supported".into()))
        }
        _ => Ok(()),
    }
}
