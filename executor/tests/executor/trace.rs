//! Tests of batches that are executed again: tracers show what the transactions did the first time.

use std::collections::BTreeMap;

use crate::{simulate::transaction, support::*};
use alloy_consensus::TxEip1559;
use alloy_eips::{eip2935, eip4788};
use alloy_primitives::{Address, B256, Bytes, U256, hex, keccak256};
use proptest::prelude::*;
use serde_json::{Value, json};
use slipstream_executor::{
    BatchEnv, CallRequest, Interrupt, Outcome, Overrides, Transaction, execute,
    trace::{
        GethDebugTracingOptions, GethTrace, PastTransaction, Rerun, TraceError, TraceType, TraceTypes,
        TransactionInfo, replay_calls, trace_call,
    },
};
use slipstream_storage::MemoryState;
use slipstream_types::{AccountValue, Digest, Receipt, StateKey, StateValue};

const BYTES_MAX: usize = 64 << 20;
const CALLER: Address = Address::repeat_byte(0x77);

fn options(value: Value) -> GethDebugTracingOptions {
    serde_json::from_value(value).unwrap()
}

fn types(all: &[TraceType]) -> TraceTypes {
    all.iter().copied().collect()
}

fn pasts<'a>(transactions: &'a [Transaction], outcome: &'a Outcome) -> Vec<PastTransaction<'a>> {
    let receipts = &outcome.receipts.receipts;
    let past =
        |(transaction, receipt)| PastTransaction { transaction, receipt, info: TransactionInfo::default() };
    transactions.iter().zip(receipts).map(past).collect()
}

/// Executes the transactions, and returns what one of geth's tracers shows of each when they are executed again.
fn traced(
    state: &MemoryState,
    env: &BatchEnv,
    transactions: &[Transaction],
    tracer: Value,
) -> Vec<GethTrace> {
    let outcome = execute(state, env, transactions).unwrap();
    let options = options(tracer);
    let mut rerun = Rerun::new(state, env, BYTES_MAX, &Interrupt::never()).unwrap();
    let mut traces = Vec::new();
    for past in pasts(transactions, &outcome) {
        let (next, trace) = rerun.geth(&past, &options).unwrap();
        rerun = next;
        traces.push(trace);
    }
    traces
}

fn one(state: &MemoryState, transaction: Transaction, tracer: Value) -> Value {
    let (_, _, env) = chain();
    serde_json::to_value(&traced(state, &env, &[transaction], tracer)[0]).unwrap()
}

/// The chain with code for [`CALLER`].
fn with_code(code: &str) -> MemoryState {
    let (mut state, _, _) = chain();
    let code_hash = Some(state.insert_code(bytes(code).into()));
    let account = AccountValue { nonce: 1, code_hash, ..AccountValue::default() };
    state.insert(StateKey::Account(CALLER), StateValue::Account(account));
    state
}

/// Code that calls an account with all gas that is left, and with `wei` wei.
fn calls(address: Address, wei: u8) -> String {
    format!("5f5f5f5f60{wei:02x}73{}5af150", hex::encode(address))
}

fn call_tracer() -> Value {
    json!({ "tracer": "callTracer", "tracerConfig": { "withLog": true } })
}

/// Applies a diff of geth's `prestateTracer` to a state.
fn apply_diff(state: &mut BTreeMap<StateKey, StateValue>, diff: &Value) {
    let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let (pre, post) = (object(&diff["pre"]), object(&diff["post"]));
    for (address, before) in &pre {
        let key: Address = address.parse().unwrap();
        let Some(after) = post.get(address) else {
            state
                .retain(|row, _| !matches!(row, StateKey::Account(of) | StateKey::Slot(of, _) if *of == key));
            continue;
        };
        for slot in object(&before["storage"]).keys().filter(|slot| after["storage"].get(*slot).is_none()) {
            state.remove(&StateKey::Slot(key, slot.parse().unwrap()));
        }
    }
    for (address, after) in &post {
        let key: Address = address.parse().unwrap();
        let mut account = match state.get(&StateKey::Account(key)) {
            Some(StateValue::Account(account)) => *account,
            _ => AccountValue::default(),
        };
        if let Some(balance) = after["balance"].as_str() {
            account.balance = balance.parse().unwrap();
        }
        if let Some(nonce) = after["nonce"].as_u64() {
            account.nonce = nonce;
        }
        if let Some(code) = after["code"].as_str() {
            account.code_hash = Some(Digest::from(keccak256(code.parse::<Bytes>().unwrap())));
        }
        state.insert(StateKey::Account(key), StateValue::Account(account));
        for (slot, value) in object(&after["storage"]) {
            let value: B256 = value.as_str().unwrap().parse().unwrap();
            state.insert(StateKey::Slot(key, slot.parse().unwrap()), StateValue::Slot(value.into()));
        }
    }
}

fn rows(state: &MemoryState) -> BTreeMap<StateKey, StateValue> {
    // The system calls belong to no transaction.
    let system = [eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS];
    let is_system = |key: &StateKey| matches!(key, StateKey::Slot(of, _) if system.contains(of));
    state.iter().filter(|(key, _)| !is_system(key)).map(|(key, value)| (*key, *value)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Goal: the state diffs in the traces of a batch's transactions, applied one after the other, give the batch's
    /// changes.
    #[test]
    fn the_differences_of_all_transactions_are_the_batchs(
        draws in prop::collection::vec(any::<(u8, u8, u8)>(), 1..12)
    ) {
        let (state, _, env) = chain();
        let mut nonces = BTreeMap::new();
        let transactions: Vec<_> = draws.into_iter().map(|draw| transaction(&mut nonces, draw)).collect();
        let outcome = execute(&state, &env, &transactions).unwrap();
        let mut shown = rows(&state);
        let tracer = json!({ "tracer": "prestateTracer", "tracerConfig": { "diffMode": true } });
        for trace in traced(&state, &env, &transactions, tracer) {
            apply_diff(&mut shown, &serde_json::to_value(trace).unwrap());
        }
        prop_assert_eq!(shown, rows(&after(&state, &outcome.delta)));
    }

    /// Goal: the other tracers show the same number of transactions and the same gas as the receipts.
    #[test]
    fn tracers_agree_with_receipts(draws in prop::collection::vec(any::<(u8, u8, u8)>(), 1..8)) {
        let (state, _, env) = chain();
        let mut nonces = BTreeMap::new();
        let transactions: Vec<_> = draws.into_iter().map(|draw| transaction(&mut nonces, draw)).collect();
        let outcome = execute(&state, &env, &transactions).unwrap();
        let calls = traced(&state, &env, &transactions, call_tracer());
        let steps = traced(&state, &env, &transactions, json!({}));
        for (index, receipt) in outcome.receipts.receipts.iter().enumerate() {
            let call = serde_json::to_value(&calls[index]).unwrap();
            prop_assert_eq!(&call["gasUsed"], &json!(format!("0x{:x}", receipt.gas_used)));
            prop_assert_eq!(call.get("error").is_none(), receipt.success);
            let steps = serde_json::to_value(&steps[index]).unwrap();
            prop_assert_eq!((&steps["gas"], &steps["failed"]), (&json!(receipt.gas_used), &json!(!receipt.success)));
        }
    }
}

/// Goal: nested calls, a revert with its reason, a precompile and logs appear where they happened.
#[test]
fn the_tree_of_calls() {
    let reason = {
        let mut data = bytes("08c379a0");
        data.extend(word(32));
        data.extend(word(9));
        data.extend(b"not today");
        data.resize(100, 0);
        data
    };
    // Calls the counter, which logs; the identity precompile; the reverter with its own call data.
    let code = format!(
        "{} {} 365f5f37 5f5f365f5f73{}5af150 00",
        calls(COUNTER, 0),
        calls(Address::with_last_byte(4), 0),
        hex::encode(REVERTER)
    );
    let state = with_code(&code);
    let input = reason.clone().into();
    let tree = one(&state, decode(sign(1, TxEip1559 { input, ..dynamic(0, CALLER) })), call_tracer());
    assert_eq!(
        (&tree["type"], &tree["from"], &tree["to"]),
        (&json!("CALL"), &json!(account(1)), &json!(CALLER))
    );
    let inner = tree["calls"].as_array().unwrap();
    let to: Vec<_> = inner.iter().map(|call| call["to"].clone()).collect();
    assert_eq!(to, [json!(COUNTER), json!(Address::with_last_byte(4)), json!(REVERTER)]);
    assert_eq!(inner[0]["logs"][0]["topics"], json!([B256::with_last_byte(0x2a)]));
    assert_eq!(
        (&inner[2]["error"], &inner[2]["revertReason"]),
        (&json!("execution reverted"), &json!("not today"))
    );
    assert_eq!(inner[2]["output"], json!(Bytes::from(reason)));
    assert!(tree.get("error").is_none());

    // A contract that a transaction creates, and one that destroys itself in the transaction that creates it.
    let made = one(&chain().0, create(1, 0, "64 5f355f5500 5f52 6005 601b f3"), call_tracer());
    assert_eq!((&made["type"], &made["output"]), (&json!("CREATE"), &json!("0x5f355f5500")));
    assert_eq!(made["to"], json!(account(1).create(0)));
    let gone = one(&chain().0, create(1, 0, &format!("73{}ff", hex::encode(account(3)))), call_tracer());
    assert_eq!(gone["calls"][0]["type"], "SELFDESTRUCT");
    assert_eq!(gone["calls"][0]["to"], json!(account(3)));
}

/// Goal: the trace of a delegated account (EIP-7702) has the code that runs, and its diff has the delegation.
#[test]
fn delegated_accounts() {
    let (state, _, _) = chain();
    let delegated = decode(sign(1, delegation(0, account(2), 2, COUNTER)));
    let tree = one(&state, delegated.clone(), call_tracer());
    assert_eq!(tree["logs"][0]["address"], json!(account(2)));
    let diff = json!({ "tracer": "prestateTracer", "tracerConfig": { "diffMode": true } });
    let diff = one(&state, delegated, diff);
    let after = &diff["post"][account(2).to_string().to_lowercase()];
    assert_eq!(after["code"], json!(format!("0xef0100{}", hex::encode(COUNTER))));
    assert_eq!(after["nonce"], 1);
}

/// Goal: each of geth's tracers works; other names are refused by name.
#[test]
fn tracers_by_name() {
    let (state, _, env) = chain();
    let counted = || invoke(1, 0, COUNTER, &[1, 2, 3, 4]);
    let steps = one(&state, counted(), json!({}));
    let ops: Vec<_> = steps["structLogs"].as_array().unwrap().iter().map(|step| step["op"].clone()).collect();
    let [first, .., last] = &ops[..] else { panic!("{ops:?}") };
    assert_eq!((first, last, ops.len()), (&json!("PUSH1"), &json!("STOP"), 11));
    assert_eq!(steps["structLogs"][3]["stack"], json!(["0x0", "0x1"]));
    let named = |name: &str| one(&state, counted(), json!({ "tracer": name }));
    assert_eq!(named("4byteTracer"), json!({ "0x01020304-0": 1 }));
    assert_eq!(named("noopTracer"), json!({}));
    assert_eq!(named("flatCallTracer")[0]["action"]["to"], json!(COUNTER));
    assert_eq!(
        named("prestateTracer")[account(1).to_string().to_lowercase()]["balance"],
        "0x56bc75e2d63100000"
    );
    // geth ignores the configuration of tracers without options.
    for none in [json!(null), json!({}), json!({ "onlyTopCall": true })] {
        let tracers = json!({ "callTracer": {}, "4byteTracer": none, "noopTracer": none });
        let mux = one(&state, counted(), json!({ "tracer": "muxTracer", "tracerConfig": tracers }));
        assert_eq!(mux["4byteTracer"], json!({ "0x01020304-0": 1 }));
        assert_eq!((&mux["noopTracer"], &mux["callTracer"]["to"]), (&json!({}), &json!(COUNTER)));
    }

    let transactions = [counted()];
    let outcome = execute(&state, &env, &transactions).unwrap();
    let refused = |tracer: Value| {
        let rerun = Rerun::new(&state, &env, BYTES_MAX, &Interrupt::never()).unwrap();
        rerun.geth(&pasts(&transactions, &outcome)[0], &options(tracer)).err().unwrap()
    };
    let script = refused(json!({ "tracer": "{ result: function() {} }" }));
    assert!(matches!(script, TraceError::JavaScript), "{script}");
    assert!(script.to_string().contains("callTracer, prestateTracer"));
    let other = refused(json!({ "tracer": "erc7562Tracer" }));
    assert!(matches!(other, TraceError::UnknownTracer), "{other}");
}

/// Goal: parity's traces and state diffs are right.
#[test]
fn parity_traces() {
    let (state, _, env) = chain();
    let transactions = [invoke(1, 0, WRITER, &word(7)), transfer(2, 0, account(3), 5)];
    let outcome = execute(&state, &env, &transactions).unwrap();
    let pasts = pasts(&transactions, &outcome);
    let rerun = Rerun::new(&state, &env, BYTES_MAX, &Interrupt::never()).unwrap();
    let all = types(&[TraceType::Trace, TraceType::StateDiff, TraceType::VmTrace]);
    let (rerun, results) = rerun.replay(&pasts[0], &all).unwrap();
    let results = serde_json::to_value(&results).unwrap();
    assert_eq!(results["trace"][0]["action"]["to"], json!(WRITER));
    let slot = &results["stateDiff"][WRITER.to_string().to_lowercase()]["storage"][B256::ZERO.to_string()];
    assert_eq!(slot["*"]["to"], json!(B256::with_last_byte(7)), "{results}");
    assert_eq!(results["vmTrace"]["ops"].as_array().unwrap().len(), 5);
    let (_, traces) = rerun.calls(&pasts[1]).unwrap();
    assert_eq!(serde_json::to_value(&traces).unwrap()[0]["action"]["value"], "0x5");

    let call = |data: &[u8]| CallRequest {
        from: account(1),
        to: Some(WRITER),
        data: Bytes::copy_from_slice(data),
        ..CallRequest::default()
    };
    let never = Interrupt::never();
    let diff = types(&[TraceType::StateDiff]);
    let calls = [(call(&word(3)), diff.clone()), (call(&word(4)), diff)];
    let traces = replay_calls(&state, &env, &Overrides::default(), &calls, BYTES_MAX, &never).unwrap();
    let second = serde_json::to_value(&traces[1]).unwrap();
    let slot =
        &second["stateDiff"][WRITER.to_string().to_lowercase()]["storage"][B256::ZERO.to_string()]["*"];
    assert_eq!(slot, &json!({ "from": B256::with_last_byte(3), "to": B256::with_last_byte(4) }));
}

/// Goal: any transaction that differs from its first execution has no trace.
#[test]
fn what_differs_is_no_trace() {
    let (state, _, env) = chain();
    let transactions = [invoke(1, 0, COUNTER, &[]), transfer(2, 0, account(3), 5)];
    let outcome = execute(&state, &env, &transactions).unwrap();
    let good = pasts(&transactions, &outcome);
    let receipt = |change: &dyn Fn(&mut Receipt)| {
        let mut receipt = good[0].receipt.clone();
        change(&mut receipt);
        receipt
    };
    for wrong in [
        receipt(&|receipt| receipt.gas_used += 1),
        receipt(&|receipt| receipt.success = false),
        receipt(&|receipt| receipt.logs = Default::default()),
    ] {
        let past = PastTransaction { receipt: &wrong, ..good[0] };
        let begin = || Rerun::new(&state, &env, BYTES_MAX, &Interrupt::never()).unwrap();
        let errors = [
            begin().pass(&past).err(),
            begin().calls(&past).err(),
            begin().geth(&past, &options(json!({}))).err(),
        ];
        for error in errors {
            let error = error.expect("it differs");
            assert!(matches!(error, TraceError::Differs { .. }), "{error}");
            assert!(error.to_string().contains(&transactions[0].hash.to_string()), "{error}");
        }
    }
    // On another state, as in a damaged store.
    let mut damaged = state.clone();
    damaged.insert(StateKey::Slot(COUNTER, B256::ZERO), StateValue::Slot(U256::from(9)));
    let mut rerun = Rerun::new(&damaged, &env, BYTES_MAX, &Interrupt::never()).unwrap();
    assert!(matches!(rerun.pass(&good[0]), Err(TraceError::Differs { .. })));
}

/// Goal: a trace ends when it would take too much memory, whatever fills it. The limit is shared by all transactions of
/// a batch.
#[test]
fn traces_are_bounded() {
    let (state, _, env) = chain();
    let limit = 4 << 20;
    let call = |code: &str| {
        let mut request = CallRequest { from: account(1), to: Some(CALLER), ..CallRequest::default() };
        request.overrides.accounts.entry(CALLER).or_default().code = Some(bytes(code).into());
        request
    };
    // Endless code: a jump; memory that grows by a word; a new slot; a call with a megabyte; a call that reverts with a
    // megabyte.
    let jumps = "5b5f56";
    let grows = "5f 5b 6020 01 80 80 52 6001 56";
    let reads = "5f 5b 6001 01 80 54 50 6001 56";
    let sends = "5b 5f5f 62100000 5f 611234 61ffff fa 50 5f56";
    let logs = "5b 62010000 5f a0 5f56";
    let reverts = format!("3615600b57 62100000 5ffd 5b 5f5f60015f73{}5afa 50 600b 56", hex::encode(CALLER));
    let memory = json!({ "enableMemory": true, "disableStack": true, "disableStorage": true });
    let storage = json!({ "disableStack": true });
    for (name, code, tracer) in [
        ("steps", jumps, json!({})),
        ("memory", grows, memory),
        ("slots", reads, storage),
        ("inputs", sends, json!({ "tracer": "callTracer" })),
        ("inputs", sends, json!({ "tracer": "flatCallTracer" })),
        ("inputs", sends, json!({ "tracer": "prestateTracer" })),
        ("inputs", sends, json!({ "tracer": "muxTracer", "tracerConfig": { "callTracer": {} } })),
        ("logs", logs, json!({ "tracer": "callTracer", "tracerConfig": { "withLog": true } })),
        ("reverts", reverts.as_str(), json!({ "tracer": "callTracer" })),
    ] {
        let request = call(code);
        let error = trace_call(&state, &env, &request, &options(tracer), limit, &Interrupt::never());
        let error = error.err().unwrap_or_else(|| panic!("{name} are not bounded"));
        assert!(matches!(error, TraceError::TooLong { max } if max == limit), "{name}: {error}");
        assert!(error.to_string().contains("more than 4 MiB"), "{error}");
    }
    let vm = types(&[TraceType::VmTrace]);
    let calls = [(call(jumps), vm)];
    let overrides = calls[0].0.overrides.clone();
    let error = replay_calls(&state, &env, &overrides, &calls, limit, &Interrupt::never());
    assert!(matches!(error.err().unwrap(), TraceError::TooLong { .. }));
    let interrupted = Interrupt::when(|| true);
    let endless = trace_call(&state, &env, &call(jumps), &options(json!({})), limit, &interrupted);
    assert!(matches!(endless.err().unwrap(), TraceError::Execute(_)));

    // Enough for one of two transactions, not for both.
    let transactions = [invoke(1, 0, FILLER, &[word(0), word(3)].concat()), invoke(2, 0, COUNTER, &[])];
    let outcome = execute(&state, &env, &transactions).unwrap();
    let pasts = pasts(&transactions, &outcome);
    let steps = options(json!({}));
    let rerun = |bytes_max| Rerun::new(&state, &env, bytes_max, &Interrupt::never()).unwrap();
    let (after_one, _) = rerun(BYTES_MAX).geth(&pasts[0], &steps).unwrap();
    let used = BYTES_MAX - after_one.bytes_left();
    assert!(rerun(used - 1).geth(&pasts[0], &steps).is_err());
    let (next, _) = rerun(used).geth(&pasts[0], &steps).unwrap();
    assert_eq!(next.bytes_left(), 0);
    assert!(matches!(next.geth(&pasts[1], &steps).err().unwrap(), TraceError::TooLong { .. }));
}
