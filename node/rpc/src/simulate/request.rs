//! The request of a simulation, in the execution APIs' form.

use alloy_eips::eip7702::SignedAuthorization;
use alloy_rpc_types_eth::BlockId;
use jsonrpsee_types::Params;
use serde::Deserialize;
use serde_json::value::RawValue;
use slipstream_executor::{CALL_GAS_MAX, CallRequest, Overrides, SimulationRules};

use super::{BLOCKS_MAX, code};
use crate::{
    call::{
        overrides::{AccountsObject, BlockObject, OverrideTotals},
        request::CallObject,
    },
    errors::RpcError,
    params::{AtMost, BlockParam, args, part},
};

/// Maximum number of calls in one request: the gas that they share pays for no more.
const CALLS_MAX: usize = (CALL_GAS_MAX / 21_000) as usize;

/// The request as received. Its blocks are parsed one by one, so a request of many small calls is refused before it
/// takes memory.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Payload {
    block_state_calls: AtMost<Box<RawValue>, { BLOCKS_MAX as usize }>,
    trace_transfers: Option<bool>,
    validation: Option<bool>,
    return_full_transactions: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BlockStateCalls {
    block_overrides: Option<BlockObject>,
    state_overrides: Option<AccountsObject>,
    calls: Option<AtMost<CallObject, CALLS_MAX>>,
}

/// A whole request, checked.
pub(super) struct SimulationRequest {
    pub(super) id: BlockId,
    pub(super) blocks: Vec<BlockAsked>,
    pub(super) rules: SimulationRules,
    /// Whether the answer contains full transactions.
    pub(super) is_full: bool,
}

/// One block of the request.
#[derive(Default)]
pub(super) struct BlockAsked {
    /// `None` means the number after the previous block's.
    pub(super) number: Option<u64>,
    pub(super) time_s: Option<u64>,
    /// The other overrides of the block.
    pub(super) overrides: Overrides,
    pub(super) calls: Vec<CallRequest>,
    /// The signed authorizations of each call.
    pub(super) authorizations: Vec<Vec<SignedAuthorization>>,
}

impl SimulationRequest {
    pub(super) fn read(params: &Params<'_>, chain_id: u64) -> Result<SimulationRequest, RpcError> {
        let (payload, id): (Payload, Option<BlockParam>) = args(params)?;
        let list = payload.block_state_calls;
        if list.len == 0 {
            return Err(RpcError::InvalidParams("empty input: blockStateCalls has no block".into()));
        }
        if list.len > list.first.len() {
            let text = format!("too many blocks: {} > {BLOCKS_MAX}", list.len);
            return Err(RpcError::Simulation { code: code::LIMIT, text });
        }
        let (mut calls, mut overridden) = (0, OverrideTotals::default());
        let mut blocks = Vec::with_capacity(list.first.len());
        for (index, text) in list.first.iter().enumerate() {
            let block = part::<BlockStateCalls>(text.get(), &format!("blockStateCalls[{index}]"), 0)?;
            calls += block.calls.as_ref().map_or(0, |calls| calls.len);
            if calls > CALLS_MAX {
                let text = format!(
                    "too many calls: {calls} in the first {} blocks, but all calls together have gas for {CALLS_MAX}",
                    index + 1
                );
                return Err(RpcError::Simulation { code: code::LIMIT, text });
            }
            blocks.push(block.read(chain_id, &mut overridden)?);
        }
        let is = |flag: Option<bool>| flag.unwrap_or(false);
        let rules = SimulationRules {
            is_validated: is(payload.validation),
            has_transfer_logs: is(payload.trace_transfers),
            output_bytes_max: 0,
        };
        let is_full = is(payload.return_full_transactions);
        Ok(SimulationRequest { id: id.unwrap_or_default().0, blocks, rules, is_full })
    }
}

impl BlockStateCalls {
    fn read(self, chain_id: u64, overridden: &mut OverrideTotals) -> Result<BlockAsked, RpcError> {
        let accounts = self.state_overrides.unwrap_or_default().into_overrides_beside(overridden)?;
        let mut block = self.block_overrides.unwrap_or_default().into_overrides()?;
        // A number that is too high saturates, and stays above every number that a simulation may have.
        let number = block.number.take().map(|number| number.saturating_to());
        let time_s = block.timestamp_s.take();
        let calls = self.calls.unwrap_or_default().first;
        let read = calls.into_iter().map(|call| call.into_ordered(chain_id));
        let read = read.collect::<Result<Vec<_>, _>>()?;
        let (calls, authorizations) = read.into_iter().unzip();
        Ok(BlockAsked { number, time_s, overrides: Overrides { accounts, block }, calls, authorizations })
    }
}
