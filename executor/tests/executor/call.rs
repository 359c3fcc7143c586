//! Compares calls and gas estimates with transactions that do the same.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use crate::support::*;
use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, Bytes, U256};
use slipstream_executor::{
    BatchEnv, CallRequest, EstimateError, ExecuteError, Interrupt, Rejection, call, estimate_gas, execute,
};
use slipstream_storage::MemoryState;

/// An account without any row in the state.
const POOR: Address = Address::repeat_byte(0x77);

fn request(to: Address, data: &[u8]) -> CallRequest {
    CallRequest { from: account(1), to: Some(to), data: Bytes::copy_from_slice(data), ..Default::default() }
}

/// `Error(string)` as Solidity encodes it.
fn solidity_error(text: &str) -> Vec<u8> {
    let mut data = bytes("08c379a0");
    data.extend(word(32));
    data.extend(word(text.len() as u64));
    data.extend(text.as_bytes());
    data.resize(4 + 96, 0);
    data
}

/// Whether the call succeeds as a transaction with that gas limit.
fn suffices(state: &MemoryState, env: &BatchEnv, request: &CallRequest, gas_limit: u64) -> bool {
    let to = request.to.map_or(alloy_primitives::TxKind::Create, alloy_primitives::TxKind::Call);
    let tx = TxEip1559 {
        gas_limit,
        to,
        value: request.value,
        input: request.data.clone(),
        ..dynamic(0, Address::ZERO)
    };
    let outcome = execute(state, env, &[decode(sign(1, tx))]);
    outcome.is_ok_and(|outcome| outcome.receipts.receipts[0].success)
}

#[test]
fn a_call_returns_and_changes_nothing() {
    let (state, _, env) = chain();
    // SLOAD(0), as code of a contract under creation: return it.
    let create = CallRequest { to: None, data: bytes("602a5f5260205ff3").into(), ..request(COUNTER, &[]) };
    let outcome = call(&state, &env, &create, &Interrupt::never()).unwrap();
    assert!(outcome.success && outcome.revert_reason.is_none() && outcome.halt.is_none());
    assert_eq!(outcome.output.to_vec(), word(0x2a));
    let before = state.clone();
    assert!(call(&state, &env, &request(COUNTER, &[]), &Interrupt::never()).unwrap().success);
    assert_eq!(state, before);
}

#[test]
fn nobody_needs_money_or_a_nonce_or_to_be_no_contract() {
    let (state, _, env) = chain();
    for from in [account(9), COUNTER, Address::ZERO] {
        let request = CallRequest { from, nonce: Some(77), ..request(COUNTER, &[]) };
        assert!(call(&state, &env, &request, &Interrupt::never()).unwrap().success);
    }
    let priced = CallRequest { from: account(9), max_fee_wei: FEE, ..request(COUNTER, &[]) };
    let error = call(&state, &env, &priced, &Interrupt::never()).unwrap_err();
    assert!(matches!(error, ExecuteError::InvalidCall(Rejection::InsufficientFunds { .. })), "{error}");
    let cheap = CallRequest { max_fee_wei: 1, gas: Some(100_000), ..request(COUNTER, &[]) };
    let error = call(&state, &env, &cheap, &Interrupt::never()).unwrap_err();
    assert!(matches!(error, ExecuteError::InvalidCall(Rejection::FeeBelowBase)), "{error}");
}

#[test]
fn a_revert_keeps_its_data_and_says_why() {
    let (state, _, env) = chain();
    let data = solidity_error("not today");
    let outcome = call(&state, &env, &request(REVERTER, &data), &Interrupt::never()).unwrap();
    assert!(!outcome.success);
    assert_eq!(outcome.output.to_vec(), data);
    assert!(outcome.revert_reason.as_ref().unwrap().contains("not today"), "{outcome:?}");
    let error = estimate_gas(&state, &env, &request(REVERTER, &data), &Interrupt::never()).unwrap_err();
    let EstimateError::Reverted { output, reason } = &error else { panic!("{error}") };
    assert_eq!(output.to_vec(), data);
    assert!(reason.as_ref().unwrap().contains("not today"));
    assert!(error.to_string().starts_with("execution reverted"));
}

#[test]
fn a_halt_is_named() {
    let (state, _, env) = chain();
    // Jumps to itself for ever.
    let endless =
        CallRequest { to: None, data: bytes("5b5f56").into(), gas: Some(100_000), ..request(COUNTER, &[]) };
    let outcome = call(&state, &env, &endless, &Interrupt::never()).unwrap();
    assert!(!outcome.success && outcome.halt.is_some() && outcome.gas_used == 100_000);
    let error = estimate_gas(&state, &env, &endless, &Interrupt::never()).unwrap_err();
    assert!(matches!(error, EstimateError::Allowance { gas_limit: 100_000 }), "{error}");
}

#[test]
fn estimates_suffice_and_are_tight() {
    let (mut state, _, env) = chain();
    state.insert(
        slipstream_types::StateKey::Slot(WRITER, alloy_primitives::B256::ZERO),
        slipstream_types::StateValue::Slot(U256::from(1)),
    );
    let cases = [
        ("transfer", request(account(2), &[])),
        ("call data floor (EIP-7623)", request(account(2), &[1; 2_000])),
        ("write", request(COUNTER, &[])),
        ("refund: clears a slot", request(WRITER, &word(0))),
        ("asks for more gas than it uses", request(GREEDY, &[])),
        (
            "create",
            CallRequest {
                to: None,
                data: bytes("64 5f355f5500 5f52 6005 601b f3").into(),
                ..request(COUNTER, &[])
            },
        ),
    ];
    for (name, request) in cases {
        let gas = estimate_gas(&state, &env, &request, &Interrupt::never()).unwrap();
        assert!(suffices(&state, &env, &request, gas), "{name}: {gas} must suffice");
        assert!(!suffices(&state, &env, &request, gas - gas / 50), "{name}: {gas} is more than 2 % too much");
    }
    assert_eq!(estimate_gas(&state, &env, &request(account(2), &[]), &Interrupt::never()).unwrap(), 21_000);
}

/// Goal: the gas price that a contract sees is the price that the sender would pay, not the most that it offers.
#[test]
fn a_call_sees_its_effective_gas_price() {
    let (state, _, env) = chain();
    // GASPRICE PUSH0 MSTORE PUSH1 32 PUSH0 RETURN
    let base = CallRequest { to: None, data: bytes("3a5f5260205ff3").into(), ..request(COUNTER, &[]) };
    let price = |max_fee_wei, max_tip_wei| {
        let request = CallRequest { max_fee_wei, max_tip_wei, gas: Some(100_000), ..base.clone() };
        call(&state, &env, &request, &Interrupt::never())
            .map(|outcome| U256::from_be_slice(&outcome.output).to::<u128>())
    };
    let base_fee = u128::from(env.base_fee_wei);
    assert_eq!(price(0, 0).unwrap(), 0);
    assert_eq!(price(FEE, FEE).unwrap(), FEE, "a legacy price");
    assert_eq!(price(3 * base_fee, 5).unwrap(), base_fee + 5);
    let error = price(0, 5).unwrap_err();
    assert!(matches!(error, ExecuteError::InvalidCall(Rejection::TipAboveFeeCap)), "{error}");
}

#[test]
fn an_estimate_stays_within_what_the_sender_can_pay() {
    let (mut state, _, env) = chain();
    let poor = slipstream_types::AccountValue { balance: U256::from(30_000 * FEE), ..Default::default() };
    state
        .insert(slipstream_types::StateKey::Account(account(9)), slipstream_types::StateValue::Account(poor));
    let base = CallRequest { from: account(9), max_fee_wei: FEE, ..request(account(2), &[]) };
    assert_eq!(estimate_gas(&state, &env, &base, &Interrupt::never()).unwrap(), 21_000);
    let dear = CallRequest { to: Some(COUNTER), ..base };
    let error = estimate_gas(&state, &env, &dear, &Interrupt::never()).unwrap_err();
    assert_eq!(error.to_string(), "gas required exceeds allowance (30000)");
    let penniless = CallRequest { from: POOR, max_fee_wei: FEE, ..request(account(2), &[]) };
    let error = estimate_gas(&state, &env, &penniless, &Interrupt::never()).unwrap_err();
    assert!(error.to_string().starts_with("insufficient funds for transfer"), "{error}");
    let gift = CallRequest { from: POOR, value: U256::from(1), ..request(account(2), &[]) };
    for error in [
        call(&state, &env, &gift, &Interrupt::never()).unwrap_err().to_string(),
        estimate_gas(&state, &env, &gift, &Interrupt::never()).unwrap_err().to_string(),
    ] {
        assert!(error.contains("insufficient funds for gas * price + value"), "{error}");
    }
}

/// Goal: a call ends soon after its interrupt is due, whether jumps, reads or inner calls keep it busy. An estimate
/// then tries nothing more.
#[test]
fn a_call_ends_when_it_is_interrupted() {
    let (state, _, env) = chain();
    // JUMPDEST PUSH0 JUMP; JUMPDEST GAS BALANCE POP PUSH0 JUMP; JUMPDEST, a STATICCALL to an empty account, POP PUSH0
    // JUMP.
    for code in ["5b5f56", "5b5a31505f56", "5b5f5f5f5f60775afa505f56"] {
        let endless = CallRequest { to: None, data: bytes(code).into(), ..request(COUNTER, &[]) };
        for asked_before in [0, 10, 1_000] {
            let (asked, counted) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            let interrupt = |asked: &Arc<AtomicU32>| {
                let asked = asked.clone();
                Interrupt::when(move || asked.fetch_add(1, Ordering::Relaxed) >= asked_before)
            };
            let error = call(&state, &env, &endless, &interrupt(&asked)).unwrap_err();
            assert!(matches!(error, ExecuteError::Interrupted), "{code}: {error}");
            // The EVM may read once more before it stops.
            assert!(asked.load(Ordering::Relaxed) <= asked_before + 2, "{code}: it ends at once");
            let error = estimate_gas(&state, &env, &endless, &interrupt(&counted)).unwrap_err();
            assert!(matches!(error, EstimateError::Execute(ExecuteError::Interrupted)), "{code}: {error}");
            assert!(counted.load(Ordering::Relaxed) <= asked_before + 2, "{code}: nothing more is tried");
        }
    }
}

/// Goal: a call that may be interrupted but is not behaves like any other.
#[test]
fn an_interrupt_that_never_comes_changes_nothing() {
    let (state, _, env) = chain();
    let patient = Interrupt::when(|| false);
    for request in [request(COUNTER, &[]), request(GREEDY, &[]), request(REVERTER, &solidity_error("no"))] {
        let plain = call(&state, &env, &request, &Interrupt::never()).unwrap();
        assert_eq!(call(&state, &env, &request, &patient).unwrap(), plain);
    }
    let greedy = request(GREEDY, &[]);
    let plain = estimate_gas(&state, &env, &greedy, &Interrupt::never()).unwrap();
    assert_eq!(estimate_gas(&state, &env, &greedy, &patient).unwrap(), plain);
}
