//! The questions about a program, for both nodes.

use serde_json::{Value, json};

use super::programs::{PROGRAM, SENDER, accounts, with_other_precompiles};

/// A call of a method, with its name in the table of differences.
pub(super) struct Question {
    pub(super) name: &'static str,
    pub(super) method: &'static str,
    pub(super) params: Value,
}

/// Returns the questions about a program with this code. Each has the same state and block for both nodes.
pub(super) fn questions(code: &str) -> Vec<Question> {
    let call = json!({ "from": SENDER, "to": PROGRAM, "gas": "0x186a0", "value": "0x3",
        "input": format!("0x12345678{:064x}", 0) });
    let accounts = accounts(code);
    let block = json!({
        "number": "0x3e8", "time": "0x77359400", "gasLimit": "0x1c9c380", "prevRandao": format!("0x{:064x}", 7),
        "feeRecipient": "0x00000000000000000000000000000000c01b0001",
    });
    let trace = |(name, mut options): (&'static str, Value)| {
        options["stateOverrides"] = accounts.clone();
        options["blockOverrides"] = block.clone();
        Question { name, method: "debug_traceCall", params: json!([call, "latest", options]) }
    };
    let mut questions: Vec<_> = tracers().into_iter().map(trace).collect();
    // With other precompiles, the same differences are allowed.
    let others = with_other_precompiles(accounts.clone());
    let options = json!({ "tracer": "callTracer", "stateOverrides": others, "blockOverrides": block });
    let params = json!([call, "latest", options]);
    questions.push(Question { name: "calls", method: "debug_traceCall", params });
    let (name, method) = ("eth_call", "eth_call");
    questions.push(Question { name, method, params: json!([call, "latest", others, block]) });
    let blocks = json!([{ "stateOverrides": others, "calls": [call] }]);
    let (name, method) = ("eth_simulateV1", "eth_simulateV1");
    questions.push(Question { name, method, params: json!([{ "blockStateCalls": blocks }, "latest"]) });
    let plain = json!([call, "latest", accounts, block]);
    for method in ["eth_call", "eth_estimateGas"] {
        questions.push(Question { name: method, method, params: plain.clone() });
    }
    let method = "eth_createAccessList";
    questions.push(Question { name: method, method, params: json!([call, "latest", accounts]) });
    for (name, transfers) in [("eth_simulateV1", false), ("eth_simulateV1 with transfers", true)] {
        let blocks = json!([{ "stateOverrides": accounts, "calls": [call] }]);
        let params = json!([{ "blockStateCalls": blocks, "traceTransfers": transfers }, "latest"]);
        questions.push(Question { name, method: "eth_simulateV1", params });
    }
    questions
}

/// Returns the options of `debug_traceCall`, by name.
fn tracers() -> Vec<(&'static str, Value)> {
    let tracer = |name: &str, config: Value| json!({ "tracer": name, "tracerConfig": config });
    vec![
        ("steps", json!({})),
        ("steps with memory", json!({ "enableMemory": true, "enableReturnData": true })),
        ("steps alone", json!({ "disableStack": true, "disableStorage": true })),
        ("three steps", json!({ "limit": 3 })),
        ("calls", tracer("callTracer", json!({}))),
        ("calls with logs", tracer("callTracer", json!({ "withLog": true }))),
        ("top call", tracer("callTracer", json!({ "onlyTopCall": true }))),
        ("top call with logs", tracer("callTracer", json!({ "onlyTopCall": true, "withLog": true }))),
        ("prestate", tracer("prestateTracer", json!({}))),
        ("prestate alone", tracer("prestateTracer", json!({ "disableCode": true, "disableStorage": true }))),
        ("diff", tracer("prestateTracer", json!({ "diffMode": true }))),
        ("selectors", json!({ "tracer": "4byteTracer" })),
        ("flat calls", json!({ "tracer": "flatCallTracer" })),
        (
            "flat calls as parity's",
            tracer("flatCallTracer", json!({ "convertParityErrors": true, "includePrecompiles": true })),
        ),
        ("nothing", json!({ "tracer": "noopTracer" })),
        ("several", tracer("muxTracer", json!({ "callTracer": {}, "4byteTracer": {} }))),
    ]
}
