//! Compares access lists of calls with transactions that carry them.

use std::collections::BTreeMap;

use crate::support::*;
use alloy_consensus::TxEip1559;
use alloy_eips::eip2930::{AccessList, AccessListItem};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, hex};
use slipstream_executor::{AccountOverride, CallRequest, Interrupt, Overrides, create_access_list, execute};
use slipstream_storage::MemoryState;
use slipstream_types::{AccountValue, StateKey, StateValue};

/// An account that the state of [`chain`] does not have.
const CALLER: Address = Address::repeat_byte(0x77);

fn with_code(code: &str) -> MemoryState {
    let (mut state, _, _) = chain();
    let code_hash = Some(state.insert_code(bytes(code).into()));
    let account = AccountValue { nonce: 1, code_hash, ..AccountValue::default() };
    state.insert(StateKey::Account(CALLER), StateValue::Account(account));
    state
}

/// Code that calls an account with all gas that is left.
fn calls(address: Address) -> String {
    format!("5f5f5f5f5f73{}5af150", hex::encode(address))
}

fn item(address: Address, slots: &[u64]) -> AccessListItem {
    let storage_keys = slots.iter().map(|slot| B256::from(U256::from(*slot))).collect();
    AccessListItem { address, storage_keys }
}

fn request() -> CallRequest {
    CallRequest { from: account(1), to: Some(CALLER), gas: Some(200_000), ..CallRequest::default() }
}

/// Goal: the list names the keys that the call touches, except the free ones. The gas is what a transaction with that
/// list uses.
#[test]
fn a_list_names_what_is_touched_and_what_it_costs() {
    // Calls two contracts, a precompile and the sender, reads a balance, and reads a slot of its own.
    let code = format!(
        "{} {} {} {} 73{} 3150 6005 5450 00",
        calls(COUNTER),
        calls(HASHES),
        calls(Address::with_last_byte(4)),
        calls(account(1)),
        hex::encode(account(5)),
    );
    let state = with_code(&code);
    let (_, _, env) = chain();
    let listed = create_access_list(&state, &env, &request(), &Interrupt::never()).unwrap();
    let mut expected =
        vec![item(COUNTER, &[0]), item(HASHES, &[0]), item(account(5), &[]), item(CALLER, &[5])];
    expected.sort_by_key(|item| item.address);
    assert_eq!((&listed.access_list.0, &listed.error), (&expected, &None));

    let used = |access_list: AccessList| {
        let transaction = TxEip1559 { access_list, ..dynamic(0, CALLER) };
        execute(&state, &env, &[decode(sign(1, transaction))]).unwrap().gas_used
    };
    assert_eq!(listed.gas_used, used(listed.access_list.clone()));

    // A list in the request counts too, except for keys that every transaction has anyway.
    let there = AccessList(vec![item(CALLER, &[5]), item(account(1), &[]), item(COUNTER, &[7, 0, 7])]);
    let request = CallRequest { access_list: there, ..request() };
    let again = create_access_list(&state, &env, &request, &Interrupt::never()).unwrap();
    let seven = again.access_list.0.iter().find(|item| item.address == COUNTER).unwrap();
    assert_eq!(seven.storage_keys, item(COUNTER, &[0, 7]).storage_keys);
    assert!(!again.access_list.0.iter().any(|item| item.address == account(1)));
    assert_eq!(again.gas_used, used(again.access_list.clone()));
}

/// Goal: a call that takes another path when its list makes it cheaper gets the list of that other path.
#[test]
fn a_list_is_one_that_the_call_keeps_to() {
    // Reads slot 0. If that cost more than 1,000 gas, it also reads slot 1, otherwise slot 2.
    let code = "5a 5f54 50 5a 90 03 6103e8 10 6013 57 6002 54 50 00 5b 6001 54 50 00";
    let state = with_code(code);
    let (_, _, env) = chain();
    let listed = create_access_list(&state, &env, &request(), &Interrupt::never()).unwrap();
    // Keys touched on any of the paths stay in the list, as in geth.
    assert_eq!(listed.access_list.0, [item(CALLER, &[0, 1, 2])]);
    let plain = TxEip1559 { access_list: listed.access_list.clone(), ..dynamic(0, CALLER) };
    let outcome = execute(&state, &env, &[decode(sign(1, plain))]).unwrap();
    assert_eq!(outcome.gas_used, listed.gas_used);
}

/// Goal: the list leaves out accounts that the call creates, and overrides count. A call that reverts has a list and
/// reports the revert.
#[test]
fn creations_overrides_and_reverts() {
    let (state, _, env) = chain();
    // Writes slot 3 of the new contract and calls the counter.
    let data: Bytes = bytes(&format!("6001 6003 55 {} 00", calls(COUNTER))).into();
    let create = CallRequest { to: None, data: data.clone(), ..request() };
    let listed = create_access_list(&state, &env, &create, &Interrupt::never()).unwrap();
    let mut expected = vec![item(account(1).create(0), &[3]), item(COUNTER, &[0])];
    expected.sort_by_key(|item| item.address);
    assert_eq!(listed.access_list.0, expected);
    let access_list = listed.access_list.clone();
    let transaction = TxEip1559 { to: TxKind::Create, input: data, access_list, ..dynamic(0, COUNTER) };
    let outcome = execute(&state, &env, &[decode(sign(1, transaction))]).unwrap();
    assert_eq!(outcome.gas_used, listed.gas_used);

    let code = Some(bytes("6009 54 50 00").into());
    let accounts = BTreeMap::from([(CALLER, AccountOverride { code, ..AccountOverride::default() })]);
    let overrides = Overrides { accounts, ..Overrides::default() };
    let overridden = CallRequest { overrides, ..request() };
    let listed = create_access_list(&state, &env, &overridden, &Interrupt::never()).unwrap();
    assert_eq!(listed.access_list.0, [item(CALLER, &[9])]);

    let reverting = CallRequest { to: Some(REVERTER), ..request() };
    let listed = create_access_list(&state, &env, &reverting, &Interrupt::never()).unwrap();
    assert_eq!(listed.access_list.0, [item(REVERTER, &[0])]);
    assert_eq!(listed.error.as_deref(), Some("execution reverted"));
    assert!(create_access_list(&state, &env, &request(), &Interrupt::when(|| true)).is_err());
}
