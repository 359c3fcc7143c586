//! Tests of traces and errors that must equal geth's literally. The client tests of the testsuite compare them with
//! geth itself.

use alloy_primitives::{Address, U256, hex};
use serde_json::{Value, json};
use slipstream_executor::{CallRequest, Interrupt, call, trace::trace_call};

use crate::support::*;

const CODED: Address = Address::repeat_byte(0x77);
const NOBODY: Address = Address::repeat_byte(0x78);

/// A call to an account with this code, with 3 wei.
fn request(code: &str) -> CallRequest {
    let (from, value) = (account(1), U256::from(3));
    let mut request =
        CallRequest { from, to: Some(CODED), value, gas: Some(100_000), ..CallRequest::default() };
    request.overrides.accounts.entry(CODED).or_default().code = Some(bytes(code).into());
    request
}

fn traced(code: &str, tracer: Value) -> Value {
    let (state, _, env) = chain();
    let options = serde_json::from_value(tracer).unwrap();
    let trace = trace_call(&state, &env, &request(code), &options, 64 << 20, &Interrupt::never());
    serde_json::to_value(trace.unwrap()).unwrap()
}

/// Goal: a contract that self-destructs with itself as beneficiary moves no ether, and traces show the destruction with
/// its balance.
#[test]
fn destructions_that_move_nothing() {
    let destroys = "30ff";
    let calls = traced(destroys, json!({ "tracer": "callTracer" }));
    let destroyed = &calls["calls"][0];
    assert_eq!((&destroyed["type"], &destroyed["value"]), (&json!("SELFDESTRUCT"), &json!("0x3")));
    assert_eq!((&destroyed["from"], &destroyed["to"]), (&json!(CODED), &json!(CODED)));
    assert_eq!(calls["calls"].as_array().unwrap().len(), 1);
    let flat = traced(destroys, json!({ "tracer": "flatCallTracer" }));
    let expected = json!({ "address": CODED, "refundAddress": CODED, "balance": "0x3" });
    assert_eq!(flat[1]["action"], expected);
    assert_eq!(flat[0]["result"]["gasUsed"], calls["gasUsed"], "the gas of the whole transaction");
}

/// Goal: steps show the refunds of the whole transaction, from the SSTORE on that earns one, and in calls too. The cost
/// of a creation excludes the gas that it passes on. Empty fields are not shown.
#[test]
fn steps_count_gas_as_geth_does() {
    // Fills a slot and clears it, then calls itself with a byte of input, which makes it stop at once.
    let code = "36 6015 57 6001 5f 55 5f 5f 55 5f 5f 6001 5f 5f 30 5a f1 00 5b 00";
    let trace = traced(code, json!({ "enableMemory": true, "enableReturnData": true }));
    let steps = trace["structLogs"].as_array().unwrap();
    let earns = steps.iter().rposition(|step| step["op"] == "SSTORE").unwrap();
    let (before, after) = steps.split_at(earns);
    assert!(before.iter().all(|step| step.get("refund").is_none()), "{trace}");
    assert!(after.iter().all(|step| step["refund"] == 19_900), "{trace}");
    assert!(after.iter().any(|step| step["depth"] == 2), "{trace}");
    let is_bare = |step: &Value| step.get("memory").is_none() && step.get("returnData").is_none();
    assert!(is_bare(&steps[0]) && !steps.iter().all(is_bare), "{trace}");

    let trace = traced("5f5f5ff000", json!({}));
    assert_eq!(
        (&trace["structLogs"][3]["op"], &trace["structLogs"][3]["gasCost"]),
        (&json!("CREATE"), &json!(32_000))
    );
}

/// Goal: the state before a payment lacks a recipient that did not exist.
#[test]
fn a_diff_begins_without_new_accounts() {
    let pays = format!("5f5f5f5f600173{}5af100", hex::encode(NOBODY));
    let options = json!({ "tracer": "prestateTracer", "tracerConfig": { "diffMode": true } });
    let diff = traced(&pays, options.clone());
    let nobody = NOBODY.to_string().to_lowercase();
    assert_eq!(diff["post"][&nobody], json!({ "balance": "0x1" }));
    assert!(diff["pre"].get(&nobody).is_none(), "{diff}");
    let mux = json!({ "tracer": "muxTracer", "tracerConfig": { "prestateTracer": options["tracerConfig"] } });
    assert_eq!(traced(&pays, mux)["prestateTracer"], diff);
}

/// Goal: logs of a call that reverts are undone, also those of the outermost call.
#[test]
fn undone_logs_are_not_shown() {
    let options = json!({ "tracer": "callTracer", "tracerConfig": { "withLog": true } });
    assert!(traced("5f5fa0 5f5ffd", options.clone()).get("logs").is_none());
    assert_eq!(traced("5f5fa0 00", options)["logs"].as_array().unwrap().len(), 1);
}

/// Goal: failures have geth's texts, because tools look for them.
#[test]
fn failures_have_geths_words() {
    let (state, _, env) = chain();
    let overflow = "5f".repeat(1_025);
    for (code, words, step) in [
        ("fe", "invalid opcode: INVALID", None),
        ("0c", "invalid opcode", None),
        ("01", "stack underflow", Some("stack underflow")),
        (overflow.as_str(), "stack limit reached 1024 (1023)", Some("stack limit reached 1024 (1023)")),
        ("60ff56", "invalid jump destination", None),
        ("6001 5f 5f 3e", "return data out of bounds", None),
        ("6001 62ffffff 52", "out of gas", Some("out of gas")),
        ("5b 5f 56", "out of gas", Some("out of gas")),
    ] {
        let outcome = call(&state, &env, &request(code), &Interrupt::never()).unwrap();
        assert_eq!(outcome.halt.as_deref(), Some(words), "{code}");
        let calls = traced(code, json!({ "tracer": "callTracer" }));
        assert_eq!(calls["error"], words, "{code}");
        let trace = traced(code, json!({ "disableStack": true }));
        let last = trace["structLogs"].as_array().unwrap().last().unwrap();
        assert_eq!(last.get("error"), step.map(|text| json!(text)).as_ref(), "{code}");
    }
}
