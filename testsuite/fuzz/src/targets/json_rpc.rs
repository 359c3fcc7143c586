//! JSON-RPC bodies. Every request in a body is answered, in JSON. No request makes a method panic or causes an internal
//! error of the node.

use std::sync::LazyLock;

use serde_json::{Value, json};
use slipstream_api::fuzzed::JsonRpcDoor;
use slipstream_types::{Address, B256};
use tokio::runtime::{Builder, Runtime};

use super::world::{CHAIN, CONTRACT, wallet};

/// "Internal error" in JSON-RPC 2.0.
const INTERNAL_ERROR_CODE: i64 = -32_603;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

/// One node's API for all inputs, because it starts threads. It remembers transactions and filters of earlier inputs,
/// which change no guarantee.
static DOOR: LazyLock<JsonRpcDoor> =
    LazyLock::new(|| RUNTIME.block_on(async { JsonRpcDoor::over(&CHAIN.genesis, CHAIN.store.clone()) }));

pub(super) fn run(bytes: &[u8]) {
    let door = &*DOOR;
    let answered = RUNTIME.block_on(door.answer(bytes));
    let asked = serde_json::from_slice::<Value>(bytes);
    let Some(answered) = answered else {
        assert!(asked.is_ok(), "invalid JSON got no answer");
        return;
    };
    let answered: Value = serde_json::from_slice(&answered).expect("an answer is JSON");
    let requests = match &asked {
        Ok(Value::Array(requests)) => requests.len().max(1),
        _ => 1,
    };
    let answers = match &answered {
        Value::Array(answers) => answers.as_slice(),
        one => std::slice::from_ref(one),
    };
    assert!(answers.len() <= requests, "{} answers to {requests} requests", answers.len());
    for answer in answers {
        assert_eq!(answer["jsonrpc"], "2.0");
        assert!(answer.get("result").is_some() != answer.get("error").is_some(), "{answer}");
        assert_ne!(answer["error"]["code"].as_i64(), Some(INTERNAL_ERROR_CODE), "{answer}");
    }
}

/// Returns a call of each method with valid parameters, and an array.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let account = wallet(&CHAIN.genesis).address();
    let (hash, slot) = (B256::repeat_byte(3), B256::with_last_byte(1));
    let call = json!({ "from": account, "to": CONTRACT, "data": "0x01020304", "gas": "0x30d40" });
    let overrides = json!({ (CONTRACT.to_string()): {
        "code": "0x5f5ffd", "balance": "0x1", "nonce": "0x2", "stateDiff": { (slot.to_string()): hash },
    }});
    let filter = json!({ "fromBlock": "0x0", "toBlock": "latest", "address": [CONTRACT], "topics": [hash, null, [hash]] });
    let block = json!({ "blockOverrides": { "number": "0x9", "time": "0x7fffffff" }, "stateOverrides": overrides, "calls": [call] });
    let raw = super::transaction::seeds().swap_remove(0);
    let raw: String = raw.iter().fold("0x".into(), |text, byte| format!("{text}{byte:02x}"));
    let of = |method: &str| match method {
        "web3_sha3" => json!(["0x00ff"]),
        "eth_getBalance" | "eth_getTransactionCount" | "eth_getCode" => json!([account, "latest"]),
        "eth_getStorageAt" => json!([CONTRACT, "0x1", { "blockNumber": "0x1" }]),
        "eth_getStorageValues" => json!([{ (CONTRACT.to_string()): [slot, hash] }, "latest"]),
        "eth_getProof" | "slipstream_getProof" => json!([CONTRACT, [slot], "latest"]),
        "eth_call" | "eth_estimateGas" => json!([call, "latest", overrides]),
        "eth_createAccessList" => json!([call, "pending"]),
        "eth_simulateV1" => json!([{ "blockStateCalls": [block], "traceTransfers": true, "validation": false }, "latest"]),
        "eth_feeHistory" => json!(["0x3", "latest", [1, 50.5, 99]]),
        "debug_traceCall" => json!([call, "latest", { "tracer": "callTracer", "tracerConfig": { "withLog": true } }]),
        "debug_traceTransaction" => json!([hash, { "tracer": "prestateTracer", "tracerConfig": { "diffMode": true } }]),
        "trace_call" => json!([call, ["trace", "stateDiff", "vmTrace"], "latest"]),
        "trace_filter" => json!([{ "fromBlock": "0x1", "toBlock": "0x3", "fromAddress": [account], "count": 3 }]),
        "trace_replayTransaction" => json!([hash, ["trace"]]),
        "eth_getLogs" | "eth_newFilter" => json!([filter]),
        "eth_sendRawTransaction" | "trace_rawTransaction" => json!([raw, ["trace"]]),
        "eth_sendRawTransactionSync" => json!([raw, "0x1"]),
        "eth_subscribe" => json!(["logs", filter]),
        "txpool_contentFrom" => json!([account]),
        method if method.contains("AndIndex") => json!(["0x1", "0x0"]),
        method if method.contains("ByNumber") || method.contains("Receipts") || method.contains("Block") => {
            json!(["0x1", true])
        }
        method if method.contains("Hash") || method.contains("Transaction") => json!([hash, false]),
        _ => json!([]),
    };
    let request = |(id, method): (usize, &str)| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": of(method) });
    let requests: Vec<Value> = DOOR.methods().enumerate().map(request).collect();
    let some: Vec<&Value> = requests.iter().step_by(7).collect();
    let unknown = json!([{ "jsonrpc": "2.0", "method": "eth_nothing" }, 7, { "jsonrpc": "2.0", "id": Address::ZERO }]);
    requests.iter().map(Value::to_string).chain([json!(some).to_string(), unknown.to_string()]).map(String::into_bytes).collect()
}
