//! Calls that replace precompiles with code, or move them.

use crate::support::*;
use alloy_eips::eip2930::AccessListItem;
use alloy_primitives::{Address, Bytes, U256, address, hex};
use serde_json::json;
use slipstream_executor::{
    AccountOverride, BatchEnv, CallRequest, ExecuteError, Interrupt, MoveError, Overrides, Simulation,
    SimulationRules, call, create_access_list, estimate_gas, trace::trace_call,
};

const SHA256: Address = address!("0x0000000000000000000000000000000000000002");
/// Returns its input.
const IDENTITY: Address = address!("0x0000000000000000000000000000000000000004");
/// Accounts that the state does not have.
const CALLER: Address = Address::repeat_byte(0x77);
const THERE: Address = Address::repeat_byte(0x78);
/// Returns the word 42.
const ANSWER: &str = "602a 5f52 60205ff3";
const INPUT: &[u8] = b"abc";

fn coded(code: &str) -> AccountOverride {
    AccountOverride { code: Some(bytes(code).into()), ..AccountOverride::default() }
}

fn moved(to: Address) -> AccountOverride {
    AccountOverride { precompile_to: Some(to), ..AccountOverride::default() }
}

/// Code that calls an account with its own input, and returns the answer.
fn forwards(to: Address) -> String {
    format!("365f5f37 5f5f365f73{}5afa50 3d5f5f3e 3d5ff3", hex::encode(to))
}

fn overrides(accounts: &[(Address, AccountOverride)]) -> Overrides {
    Overrides { accounts: accounts.iter().cloned().collect(), ..Overrides::default() }
}

fn asks(to: Address, accounts: &[(Address, AccountOverride)]) -> CallRequest {
    CallRequest {
        from: account(1),
        to: Some(to),
        data: Bytes::from_static(INPUT),
        overrides: overrides(accounts),
        ..CallRequest::default()
    }
}

/// Returns the output of a call, which must succeed.
fn answer(to: Address, accounts: &[(Address, AccountOverride)]) -> Bytes {
    let (state, _, env) = chain();
    let outcome = call(&state, &env, &asks(to, accounts), &Interrupt::never()).unwrap();
    assert!(outcome.success, "{:?}", outcome.halt);
    outcome.output
}

/// Goal: a test that mocks a precompile with code gets the code's answer, from a direct call and from an inner one.
#[test]
fn code_replaces_a_precompile() {
    let from_within = (CALLER, coded(&forwards(IDENTITY)));
    let mocked = [(IDENTITY, coded(ANSWER)), from_within.clone()];
    for to in [IDENTITY, CALLER] {
        assert_eq!(&answer(to, std::slice::from_ref(&from_within))[..], INPUT);
        assert_eq!(&answer(to, &mocked)[..], word(42));
    }
    assert_eq!(answer(IDENTITY, &[(IDENTITY, coded(""))]), Bytes::new(), "an account without code");
    let rich = AccountOverride { balance: Some(U256::from(1)), ..AccountOverride::default() };
    for other in [rich, AccountOverride::default()] {
        assert_eq!(answer(IDENTITY, &[(IDENTITY, other)]), Bytes::new(), "as in geth: any override");
    }

    let (state, _, env) = chain();
    let gas = |accounts: &[(Address, AccountOverride)]| {
        estimate_gas(&state, &env, &asks(IDENTITY, accounts), &Interrupt::never()).unwrap()
    };
    assert!(gas(&[]) < 23_000);
    assert!(gas(&[(IDENTITY, coded("6001 5f 55 00"))]) > 43_000, "it writes a slot");
}

#[test]
fn a_precompile_moves() {
    let goes = (IDENTITY, moved(THERE));
    let caller = |to| (CALLER, coded(&forwards(to)));
    for to in [THERE, CALLER] {
        assert_eq!(&answer(to, &[goes.clone(), caller(THERE)])[..], INPUT);
    }
    for to in [IDENTITY, CALLER] {
        assert_eq!(
            answer(to, &[goes.clone(), caller(IDENTITY)]),
            Bytes::new(),
            "it is gone from its address"
        );
    }
    // Code in its place can call the precompile at its new address.
    let wraps = AccountOverride { precompile_to: Some(THERE), ..coded(&forwards(THERE)) };
    assert_eq!(&answer(IDENTITY, &[(IDENTITY, wraps)])[..], INPUT);
    // It hides what is at its new address: another precompile, or the state's code.
    for to in [SHA256, COUNTER] {
        assert_eq!(&answer(to, &[(IDENTITY, moved(to))])[..], INPUT);
    }
    assert_eq!(answer(SHA256, &[goes]).len(), 32, "the others stay");
}

/// Goal: a moved precompile is cold, as in geth, where the fork's addresses stay warm. Its new address belongs in an
/// access list, its old one does not.
#[test]
fn a_moved_precompile_is_listed() {
    let (state, _, env) = chain();
    let touches = |to: Address| format!("5f5f5f5f5f73{}5af150", hex::encode(to));
    let code = coded(&format!("{} {} 00", touches(IDENTITY), touches(THERE)));
    let request = asks(CALLER, &[(CALLER, code), (IDENTITY, moved(THERE))]);
    let listed = create_access_list(&state, &env, &request, &Interrupt::never()).unwrap();
    assert_eq!(listed.access_list.0, [AccessListItem { address: THERE, storage_keys: Vec::new() }]);
    assert_eq!(listed.error, None);
}

#[test]
fn a_traced_call_finds_it_moved() {
    let (state, _, env) = chain();
    let options = serde_json::from_value(json!({ "tracer": "callTracer" })).unwrap();
    let trace = |accounts: &[(Address, AccountOverride)]| {
        let request = asks(CALLER, accounts);
        trace_call(&state, &env, &request, &options, 1 << 20, &Interrupt::never())
    };
    let caller = (CALLER, coded(&forwards(THERE)));
    let shown = serde_json::to_value(trace(&[caller.clone(), (IDENTITY, moved(THERE))]).unwrap()).unwrap();
    assert_eq!(shown["output"], hex::encode_prefixed(INPUT));
    assert_eq!(shown["calls"][0]["output"], hex::encode_prefixed(INPUT));
    let error = trace(&[caller, (THERE, moved(IDENTITY))]).err().unwrap();
    assert_eq!(error.to_string(), format!("account {THERE} is not a precompile"));
}

/// Goal: overridden precompiles belong to one simulated batch, as in geth; the next batch has the fork's.
#[test]
fn a_simulated_batch_has_its_own() {
    let (state, _, env) = chain();
    for has_transfer_logs in [false, true] {
        let rules = SimulationRules { is_validated: false, has_transfer_logs, output_bytes_max: 1 << 20 };
        let mut simulation = Simulation::new(&state, rules, Interrupt::never());
        let calls = [asks(IDENTITY, &[]), asks(THERE, &[])];
        let mut outputs = |number, accounts: &[(Address, AccountOverride)]| {
            let env = BatchEnv { number, ..env.clone() };
            let batch = simulation.batch(env, &overrides(accounts), &calls).unwrap();
            batch.calls.into_iter().map(|call| call.outcome.output).collect::<Vec<_>>()
        };
        let mock = AccountOverride { precompile_to: Some(THERE), ..coded(ANSWER) };
        assert_eq!(outputs(1, &[(IDENTITY, mock)]), [Bytes::from(word(42)), Bytes::from_static(INPUT)]);
        assert_eq!(outputs(2, &[]), [Bytes::from_static(INPUT), Bytes::new()]);
        let error = simulation.batch(env.clone(), &overrides(&[(THERE, moved(CALLER))]), &calls).unwrap_err();
        assert_eq!(error.to_string(), format!("account {THERE} is not a precompile"));
    }
}

/// Goal: an impossible move is refused in geth's words and never ignored.
#[test]
fn moves_that_are_refused() {
    let (state, _, env) = chain();
    let beside = || (THERE, coded(ANSWER));
    for (accounts, expected, text) in [
        (vec![(THERE, moved(CALLER))], MoveError::NoPrecompile(THERE), "is not a precompile"),
        (vec![(COUNTER, moved(CALLER))], MoveError::NoPrecompile(COUNTER), "is not a precompile"),
        (vec![(IDENTITY, moved(IDENTITY))], MoveError::ToItself(IDENTITY), "is already overridden"),
        (vec![(IDENTITY, moved(THERE)), beside()], MoveError::ToOverridden(THERE), "is already overridden"),
        (
            vec![(IDENTITY, moved(SHA256)), (SHA256, moved(THERE))],
            MoveError::ToOverridden(SHA256),
            "is already overridden",
        ),
        (
            vec![(IDENTITY, moved(THERE)), (SHA256, moved(THERE))],
            MoveError::ToTheSame(THERE),
            "has already been overridden by a precompile",
        ),
    ] {
        let request = asks(CALLER, &accounts);
        let error = call(&state, &env, &request, &Interrupt::never()).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert!(matches!(error, ExecuteError::Move(found) if found == expected), "{error}");
        assert!(estimate_gas(&state, &env, &request, &Interrupt::never()).is_err(), "{expected}");
        assert!(create_access_list(&state, &env, &request, &Interrupt::never()).is_err(), "{expected}");
    }
}
