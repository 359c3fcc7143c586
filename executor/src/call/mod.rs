//! Calls that are not transactions: JSON-RPC's `eth_call` and `eth_estimateGas`. Their effects are discarded.

mod overridden;

use alloy_primitives::{Bytes, U256};
use alloy_sol_types::decode_revert_reason;
use slipstream_storage::StateReader;

use crate::{
    error::{ExecuteError, Rejection},
    evm::{BatchEnv, ExecutedTransaction, ExecutionState, Machine, RunError},
    interrupt::Interrupt,
    request::CallRequest,
};

pub(crate) use self::overridden::OverriddenState;

/// Maximum gas that a call may use, whatever the chain's limit. This limit bounds the time that one request can take
/// from a node.
pub const CALL_GAS_MAX: u64 = 50_000_000;

/// Gas of a plain transfer. An estimate ignores a lower limit in the request.
pub(crate) const TRANSFER_GAS: u64 = 21_000;

/// The result of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallOutcome {
    /// Whether the call returned; false if it reverted or failed.
    pub success: bool,
    /// The returned data, or the revert data.
    pub output: Bytes,
    /// Gas used, after refunds.
    pub gas_used: u64,
    /// The text in the revert data, if it is Solidity's `Error(string)` or `Panic(uint256)`.
    pub revert_reason: Option<String>,
    /// Why the call stopped, if it neither returned nor reverted.
    pub halt: Option<String>,
}

/// Why a gas estimate failed.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    /// The call reverts with any amount of gas.
    #[error("execution reverted{}", reason.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Reverted {
        /// The revert data.
        output: Bytes,
        /// The text in the revert data, if Solidity wrote it.
        reason: Option<String>,
    },
    /// Even the most gas that is allowed, or that the sender can pay for, does not suffice.
    #[error("gas required exceeds allowance ({gas_limit})")]
    Allowance {
        /// The most gas that the call may use.
        gas_limit: u64,
    },
    /// The call offers a fee, but its value leaves none of the sender's balance.
    #[error(
        "insufficient funds for transfer: the sender has {balance} wei, but needs {value} wei and the fee"
    )]
    Funds {
        /// Balance of the sender, in wei.
        balance: U256,
        /// Value that the call sends, in wei.
        value: U256,
    },
    /// The call stops for another reason, even with the most gas that is allowed.
    #[error("{reason} (with the most gas that the call may use, {gas_limit})")]
    Halted {
        /// The EVM's name for the reason.
        reason: String,
        /// The most gas that the call may use.
        gas_limit: u64,
    },
    /// The call cannot be tried at all.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

/// Executes a call on a state.
///
/// # Errors
/// If the call cannot be tried, or was interrupted. A call that reverts is an outcome, not an error.
pub fn call(
    state: &dyn ExecutionState,
    env: &BatchEnv,
    request: &CallRequest,
    interrupt: &Interrupt,
) -> Result<CallOutcome, ExecuteError> {
    let state = OverriddenState::new(state, &request.overrides);
    let env = env.overridden(&request.overrides.block, &state)?;
    let gas_limit = request.gas.unwrap_or(CALL_GAS_MAX).min(CALL_GAS_MAX);
    let executed = Machine::for_call(&state, &env, request, interrupt)?.call(request, gas_limit);
    Ok(CallOutcome::of(&executed.map_err(RunError::of_call)?))
}

impl CallOutcome {
    pub(crate) fn of(executed: &ExecutedTransaction) -> CallOutcome {
        let reverted = !executed.success && executed.halt.is_none();
        CallOutcome {
            success: executed.success,
            output: executed.output.clone(),
            gas_used: executed.gas_used,
            revert_reason: reverted.then(|| decode_revert_reason(&executed.output)).flatten(),
            halt: executed.halt.as_ref().map(|halt| halt.reason.clone()),
        }
    }
}

/// Returns a gas limit with which the call succeeds, at most 1.5 % above the lowest one.
///
/// The gas that a call uses may be too little as its limit. Refunds come at the end, an inner call gets 63/64 of the
/// remaining gas, and contracts may ask for more than they use. So a bisection finds the limit.
///
/// # Errors
/// If no limit suffices, or the search was interrupted.
pub fn estimate_gas(
    state: &dyn ExecutionState,
    env: &BatchEnv,
    request: &CallRequest,
    interrupt: &Interrupt,
) -> Result<u64, EstimateError> {
    let state = OverriddenState::new(state, &request.overrides);
    let env = env.overridden(&request.overrides.block, &state).map_err(ExecuteError::State)?;
    let mut high = env.gas_limit.min(env.transaction_gas_max).min(CALL_GAS_MAX);
    if let Some(gas) = request.gas.filter(|gas| *gas >= TRANSFER_GAS) {
        high = high.min(gas);
    }
    if request.max_fee_wei > 0 {
        let account = state.account(&request.from).map_err(ExecuteError::State)?.unwrap_or_default();
        let (balance, value) = (account.balance, request.value);
        if balance <= value {
            return Err(EstimateError::Funds { balance, value });
        }
        high = high.min(((balance - value) / U256::from(request.max_fee_wei)).saturating_to());
    }
    let mut machine = Machine::for_call(&state, &env, request, interrupt)?;
    let used = match machine.call(request, high) {
        Ok(most) if most.success => most.gas_used,
        Ok(most) => return Err(estimate_error(most, high)),
        Err(RunError::Rejected(Rejection::IntrinsicGas { .. })) => {
            return Err(EstimateError::Allowance { gas_limit: high });
        }
        Err(other) => return Err(other.of_call().into()),
    };
    if succeeds(&mut machine, request, used)? {
        return Ok(used);
    }
    let mut low = used;
    // Enough for most calls: the refund is at most a fifth, a call with value gives a stipend, and one level keeps back
    // 1/64.
    let likely = ((used + used / 4 + 2_300) / 63).saturating_mul(64).saturating_add(64);
    let mut next = likely;
    while low + 1 < high && (high - low) as u128 * 200 > high as u128 * 3 {
        let middle = if next > low && next < high { next } else { low + (high - low) / 2 };
        next = 0;
        if succeeds(&mut machine, request, middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}

fn succeeds(machine: &mut Machine<'_>, request: &CallRequest, gas_limit: u64) -> Result<bool, ExecuteError> {
    match machine.call(request, gas_limit) {
        Ok(executed) => Ok(executed.success),
        Err(RunError::Rejected(Rejection::IntrinsicGas { .. })) => Ok(false),
        Err(other) => Err(other.of_call()),
    }
}

fn estimate_error(executed: ExecutedTransaction, gas_limit: u64) -> EstimateError {
    match executed.halt {
        Some(halt) if halt.out_of_gas => EstimateError::Allowance { gas_limit },
        Some(halt) => EstimateError::Halted { reason: halt.reason, gas_limit },
        None => {
            let reason = decode_revert_reason(&executed.output);
            EstimateError::Reverted { output: executed.output, reason }
        }
    }
}
