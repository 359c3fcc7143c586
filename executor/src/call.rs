//! Calls that are no transactions: JSON-RPC's `eth_call` and `eth_estimateGas`. Nothing that they do is kept.

use alloy_eips::eip2930::AccessList;
use alloy_primitives::{Address, Bytes, U256};
use alloy_sol_types::decode_revert_reason;

use crate::{
    env::BatchEnv,
    error::{ExecuteError, Rejection},
    evm::{Executed, Machine, RunError, transaction_gas_max},
    reader::StateReader,
};

/// Most gas that a call may use, whatever the chain's limit: it bounds the time that one request can take from a node.
pub const CALL_GAS_MAX: u64 = 50_000_000;

/// A call as JSON-RPC describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CallRequest {
    /// Who calls; needs no signature.
    pub from: Address,
    /// Who is called; none creates a contract.
    pub to: Option<Address>,
    /// Gas limit; none for as much as is allowed.
    pub gas: Option<u64>,
    /// Wei per gas; none or zero for a call without a fee, for which BASEFEE is zero too.
    pub gas_price: Option<u128>,
    /// Wei sent; the caller must have them.
    pub value: U256,
    /// Call data, or the code that creates a contract.
    pub data: Bytes,
    /// The caller's nonce; not checked.
    pub nonce: Option<u64>,
    /// EIP-2930 access list.
    pub access_list: AccessList,
}

/// What a call did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallOutcome {
    /// Whether it returned.
    pub success: bool,
    /// What it returned, or the data that it reverted with.
    pub output: Bytes,
    /// Gas used.
    pub gas_used: u64,
    /// The text in the data of a revert, if it is Solidity's `Error(string)` or `Panic(uint256)`.
    pub revert_reason: Option<String>,
    /// Why it stopped, if it neither returned nor reverted.
    pub halt: Option<String>,
}

/// Why no gas limit can be named.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    /// It reverts with any amount of gas.
    #[error("execution reverted{}", reason.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Reverted {
        /// The data that it reverted with.
        output: Bytes,
        /// The text in it, if it is Solidity's.
        reason: Option<String>,
    },
    /// It stops for another reason, out of gas among them, with as much gas as is allowed.
    #[error("the call fails with the most gas it may use, {gas_limit}: {reason}")]
    Halted {
        /// The EVM's name for it.
        reason: String,
        /// The most gas it may use.
        gas_limit: u64,
    },
    /// It cannot be tried at all.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

/// Executes a call on a state.
///
/// # Errors
/// If it cannot be tried; a call that reverts is an outcome.
pub fn call(
    state: &dyn StateReader,
    env: &BatchEnv,
    request: &CallRequest,
) -> Result<CallOutcome, ExecuteError> {
    let gas_limit = gas_limit_max(request, env.gas_limit);
    let executed = Machine::for_call(state, env, request).call(request, gas_limit).map_err(error)?;
    let reverted = !executed.success && executed.halt.is_none();
    Ok(CallOutcome {
        success: executed.success,
        revert_reason: reverted.then(|| decode_revert_reason(&executed.output)).flatten(),
        output: executed.output,
        gas_used: executed.gas_used,
        halt: executed.halt,
    })
}

/// A gas limit with which the call succeeds, at most 1.5 % above the lowest one.
///
/// The gas that a call uses may not suffice as its limit: refunds come at the end, a call passes on only 63/64 of what is left,
/// and contracts may ask for more than they use. So the limit is searched for by bisection.
pub fn estimate_gas(
    state: &dyn StateReader,
    env: &BatchEnv,
    request: &CallRequest,
) -> Result<u64, EstimateError> {
    let mut machine = Machine::for_call(state, env, request);
    let mut high = gas_limit_max(request, transaction_gas_max(env));
    if let Some(price) = request.gas_price.filter(|price| *price > 0) {
        let account = state.account(&request.from).map_err(ExecuteError::State)?.unwrap_or_default();
        let affordable = account.balance.saturating_sub(request.value) / U256::from(price);
        high = high.min(affordable.saturating_to());
    }
    let most = machine.call(request, high).map_err(error)?;
    if !most.success {
        return Err(estimate_error(most, high));
    }
    let used = most.gas_used;
    if succeeds(&mut machine, request, used)? {
        return Ok(used);
    }
    let mut low = used;
    // Enough for most: the refund is at most a fifth, a call with value gives a stipend, and one level keeps back 1/64.
    let likely = ((used + used / 4 + 2_300) / 63).saturating_mul(64).saturating_add(64);
    let mut next = likely;
    while low + 1 < high && (high - low) as u128 * 200 > high as u128 * 3 {
        let middle = if next > low && next < high { next } else { low + (high - low) / 2 };
        next = 0;
        if succeeds(&mut machine, request, middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}

fn gas_limit_max(request: &CallRequest, max: u64) -> u64 {
    request.gas.unwrap_or(u64::MAX).min(max).min(CALL_GAS_MAX)
}

fn succeeds(machine: &mut Machine<'_>, request: &CallRequest, gas_limit: u64) -> Result<bool, ExecuteError> {
    match machine.call(request, gas_limit) {
        Ok(executed) => Ok(executed.success),
        Err(RunError::Rejected(Rejection::IntrinsicGas { .. })) => Ok(false),
        Err(other) => Err(error(other)),
    }
}

fn estimate_error(executed: Executed, gas_limit: u64) -> EstimateError {
    match executed.halt {
        Some(reason) => EstimateError::Halted { reason, gas_limit },
        None => {
            let reason = decode_revert_reason(&executed.output);
            EstimateError::Reverted { output: executed.output, reason }
        }
    }
}

fn error(error: RunError) -> ExecuteError {
    match error {
        RunError::Rejected(reason) => ExecuteError::InvalidCall(reason),
        RunError::Failed(error) => error,
    }
}
