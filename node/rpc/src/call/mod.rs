//! `eth_call` and `eth_estimateGas`, on the state at the head, with the caller's overrides.

pub(super) mod overrides;
pub(super) mod request;

use std::time::{Duration, Instant};

use alloy_primitives::{Bytes, U64};
use alloy_rpc_types_eth::BlockId;
use jsonrpsee_types::Params;
use slipstream_executor::{
    BatchEnv, CallRequest, EstimateError, ExecuteError, Interrupt, Overrides, call as execute, estimate_gas,
};
use slipstream_storage::View;

use self::{
    overrides::{AccountsObject, BlockObject},
    request::CallObject,
};
use super::{
    RpcContext,
    errors::{RpcError, RpcResult},
    params::{BlockParam, args},
    table::CallContext,
};

/// `eth_call`
pub(super) fn call(context: &RpcContext, params: &Params<'_>, asker: &CallContext<'_>) -> RpcResult<Bytes> {
    let CallParams { view, env, request } = CallParams::read(context, params)?;
    let outcome = execute(&view, &env, &request, &context.interrupt(asker));
    let outcome = outcome.map_err(|error| context.execute_error(error, asker))?;
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
pub(super) fn estimate(context: &RpcContext, params: &Params<'_>, asker: &CallContext<'_>) -> RpcResult<U64> {
    let CallParams { view, env, request } = CallParams::read(context, params)?;
    match estimate_gas(&view, &env, &request, &context.interrupt(asker)) {
        Ok(gas) => Ok(U64::from(gas)),
        Err(EstimateError::Reverted { output, reason }) => {
            RpcError::check_output(&output)?;
            Err(RpcError::reverted(reason, output).into())
        }
        Err(EstimateError::Execute(error)) => Err(context.execute_error(error, asker).into()),
        Err(error) => Err(RpcError::Rejected(error.to_string()).into()),
    }
}

/// The parameters of one call.
pub(super) struct CallParams {
    pub(super) view: View,
    pub(super) env: BatchEnv,
    pub(super) request: CallRequest,
}

impl CallParams {
    pub(super) fn read(context: &RpcContext, params: &Params<'_>) -> Result<CallParams, RpcError> {
        let (object, id, accounts, block): (
            CallObject,
            Option<BlockParam>,
            Option<AccountsObject>,
            Option<BlockObject>,
        ) = args(params)?;
        let id = id.unwrap_or_default().0;
        let overrides = Overrides {
            accounts: accounts.unwrap_or_default().into_overrides()?,
            block: block.unwrap_or_default().into_overrides()?,
        };
        let request = CallRequest { overrides, ..object.into_request(context.chain.chain_id)? };
        let view = context.state_at(id)?;
        let env = context.env(&view, id);
        Ok(CallParams { view, env, request })
    }
}

/// The time limit of work that executes calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallLimit {
    pub(super) time_max: Duration,
    /// The configuration key that sets it.
    pub(super) key: &'static str,
}

impl CallLimit {
    /// Interrupts a call when its time, counted from now, is over, or when its caller no longer waits.
    pub(super) fn interrupt(self, asker: &CallContext<'_>) -> Interrupt {
        let (leash, end) = (asker.leash.clone(), Instant::now() + self.time_max);
        Interrupt::when(move || leash.is_cut_or(|| Instant::now() >= end))
    }

    /// The error for a call without an outcome.
    pub(super) fn refusal(self, error: ExecuteError, asker: &CallContext<'_>) -> RpcError {
        match error {
            ExecuteError::Interrupted if asker.leash.is_cut() => RpcError::NobodyWaits,
            ExecuteError::Interrupted => RpcError::CallTimedOut { limit: self.time_max, key: self.key },
            error => error.into(),
        }
    }
}

impl RpcContext {
    fn call_limit(&self) -> CallLimit {
        CallLimit { time_max: self.call_time_max, key: "api.call_time_max_ms" }
    }

    /// Interrupts a call when its time is over, or when its caller no longer waits.
    pub(super) fn interrupt(&self, asker: &CallContext<'_>) -> Interrupt {
        self.call_limit().interrupt(asker)
    }

    pub(super) fn execute_error(&self, error: ExecuteError, asker: &CallContext<'_>) -> RpcError {
        self.call_limit().refusal(error, asker)
    }

    /// The environment of a call at the head: the head batch's, or for `pending` that of a batch proposed now.
    pub(super) fn env(&self, view: &View, id: BlockId) -> BatchEnv {
        let head = view.head();
        if id.is_pending() {
            return BatchEnv::new(
                &self.chain,
                head,
                self.clock.now_ms().max(head.timestamp_ms),
                head.proposer,
            );
        }
        BatchEnv::within(&self.chain, head)
    }
}
