//! [`create_access_list`]: JSON-RPC's `eth_createAccessList`.

use std::collections::{BTreeMap, BTreeSet};

use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip7702::RecoveredAuthorization,
};
use alloy_primitives::{Address, B256, U256};
use slipstream_storage::StateReader;

use crate::{
    call::{CALL_GAS_MAX, OverriddenState},
    error::ExecuteError,
    evm::{BatchEnv, ExecutionState, Listing, Machine, RunError, is_precompile},
    interrupt::Interrupt,
    request::CallRequest,
};

/// The access list of a call, and the gas that the call uses with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessListOutcome {
    /// The list, sorted by address and by slot.
    pub access_list: AccessList,
    /// Gas used with that list.
    pub gas_used: u64,
    /// Why the call failed, or `None` if it returned.
    pub error: Option<String>,
}

/// Finds the access list of a call by running it repeatedly. With each list, the call may take another path. The list
/// is complete once the call touches only keys that the list names. The transaction's price covers the sender, the
/// called or created account, precompiles and authorizers. So the list names these accounts only with slots.
///
/// # Errors
/// If the call cannot be tried, or was interrupted.
pub fn create_access_list(
    state: &dyn ExecutionState,
    env: &BatchEnv,
    request: &CallRequest,
    interrupt: &Interrupt,
) -> Result<AccessListOutcome, ExecuteError> {
    let state = OverriddenState::new(state, &request.overrides);
    let env = env.overridden(&request.overrides.block, &state)?;
    let gas_limit = request.gas.unwrap_or(CALL_GAS_MAX).min(CALL_GAS_MAX);
    let paid = paid_anyway(&state, env.chain_id, request)?;
    let is_paid = |address: &Address| paid.contains(address) || is_precompile(address, &env);
    let mut request = request.clone();
    request.access_list = needed(std::mem::take(&mut request.access_list), is_paid);
    let mut machine = Listing::new(Machine::for_call(&state, &env, &request, interrupt)?);
    loop {
        let (executed, touched) = machine.call(&request, gas_limit).map_err(RunError::of_call)?;
        // Keys touched in earlier runs stay, so the list only grows and the runs end.
        let both = request.access_list.0.iter().cloned().chain(touched.0);
        let touched = needed(AccessList(both.collect()), is_paid);
        if touched == request.access_list {
            let reverted = || "execution reverted".to_owned();
            let error = (!executed.success).then(|| executed.halt.map_or_else(reverted, |halt| halt.reason));
            return Ok(AccessListOutcome { access_list: touched, gas_used: executed.gas_used, error });
        }
        request.access_list = touched;
    }
}

/// Accounts that every transaction loads before its first instruction.
fn paid_anyway(
    state: &dyn StateReader,
    chain_id: u64,
    request: &CallRequest,
) -> Result<BTreeSet<Address>, ExecuteError> {
    let called = match request.to {
        Some(to) => to,
        None => request.from.create(state.account(&request.from)?.unwrap_or_default().nonce),
    };
    let here = |one: &&RecoveredAuthorization| one.chain_id.is_zero() || one.chain_id == U256::from(chain_id);
    let authorizations = request.authorizations.iter().flatten().filter(here);
    let authorities = authorizations.filter_map(|one| one.authority());
    Ok(authorities.chain([request.from, called]).collect())
}

/// Returns the list in canonical order, each account and slot once, without accounts that the transaction would pay for
/// twice.
fn needed(list: AccessList, is_paid: impl Fn(&Address) -> bool) -> AccessList {
    let mut accounts: BTreeMap<Address, BTreeSet<B256>> = BTreeMap::new();
    for item in list.0 {
        accounts.entry(item.address).or_default().extend(item.storage_keys);
    }
    let item = |(address, slots): (Address, BTreeSet<B256>)| AccessListItem {
        address,
        storage_keys: slots.into_iter().collect(),
    };
    let needed = accounts.into_iter().filter(|(address, slots)| !slots.is_empty() || !is_paid(address));
    AccessList(needed.map(item).collect())
}
