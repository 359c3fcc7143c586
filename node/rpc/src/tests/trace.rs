//! `debug_trace…` and `trace_…`, over executed batches.

use slipstream_executor::{BatchContext, HintsMode, Transaction, execute, seal};

use super::*;

/// Commits a batch of these transactions as the head.
pub(super) fn commit(context: &RpcContext, raws: &[Bytes]) {
    let store = &context.store;
    let parent = store.head().unwrap().header;
    let transactions: Vec<_> =
        raws.iter().map(|raw| Transaction::decode(raw, &context.chain).unwrap()).collect();
    let timestamp_ms = parent.timestamp_ms + 1_000;
    let basis = BatchContext { parent: &parent, epoch: parent.epoch, timestamp_ms, proposer: Address::ZERO };
    let outcome = execute(&store.view().unwrap(), &basis.env(&context.chain), &transactions).unwrap();
    let speculation = store.speculate(&outcome.delta).unwrap();
    let sealed = seal(HintsMode::Off, &basis, &transactions, &outcome, speculation.root()).unwrap();
    let hashes: Vec<_> = transactions.iter().map(|transaction| transaction.hash).collect();
    store.commit(sealed.commit_batch(&outcome.delta, &hashes), Some(speculation)).unwrap();
}

fn invoke(nonce: u64, to: Address, input: &[u8]) -> Bytes {
    let input = Bytes::copy_from_slice(input);
    signed(TxEip1559 { to: TxKind::Call(to), value: U256::ZERO, input, ..transfer(nonce, 1) })
}

/// A chain of two batches: a transfer and a call that returns, then a call that reverts.
fn chain_of_two() -> (RpcContext, Vec<Bytes>) {
    let context = context();
    let raws = vec![signed(transfer(1, 1)), invoke(2, CONTRACT, &[]), invoke(3, CONTRACT, &[1])];
    commit(&context, &raws[..2]);
    commit(&context, &raws[2..]);
    (context, raws)
}

fn fixture() -> (Fixture, Vec<B256>) {
    let (context, raws) = chain_of_two();
    (Fixture(table(context)), raws.iter().map(keccak256).collect())
}

/// Goal: transactions and blocks are traced with the named tracers, on the state before them.
#[tokio::test]
async fn geths_traces() {
    let (rpc, hashes) = fixture();
    let call_tracer = json!({ "tracer": "callTracer" });
    let reverted = rpc.result("debug_traceTransaction", json!([hashes[2], call_tracer])).await;
    assert_eq!((&reverted["error"], &reverted["to"]), (&json!("execution reverted"), &json!(CONTRACT)));
    let steps = rpc.result("debug_traceTransaction", json!([hashes[1]])).await;
    assert_eq!((&steps["failed"], &steps["structLogs"][0]["op"]), (&json!(false), &json!("CALLDATASIZE")));
    assert_eq!(steps["returnValue"], json!(B256::with_last_byte(0x2a)));
    let receipt = rpc.result("eth_getTransactionReceipt", json!([hashes[1]])).await;
    assert_eq!(json!(format!("0x{:x}", steps["gas"].as_u64().unwrap())), receipt["gasUsed"]);
    let block = rpc.result("eth_getBlockByNumber", json!(["0x1", false])).await;
    let by_hash = rpc.result("debug_traceBlockByHash", json!([block["hash"], call_tracer])).await;
    let by_number = rpc.result("debug_traceBlockByNumber", json!(["0x1", call_tracer])).await;
    assert_eq!(by_hash, by_number);
    assert_eq!((&by_number[0]["txHash"], &by_number[1]["txHash"]), (&json!(hashes[0]), &json!(hashes[1])));
    assert_eq!(by_number[0]["result"]["value"], "0x7");

    let call = json!({ "from": sender(), "to": CONTRACT });
    // NUMBER, returned, in place of the contract's code.
    let options = json!({
        "tracer": "callTracer",
        "stateOverrides": { (CONTRACT.to_string()): { "code": "0x435f5260205ff3" } },
        "blockOverrides": { "number": "0x7b" },
    });
    let traced = rpc.result("debug_traceCall", json!([call, "0x1", options])).await;
    assert_eq!(traced["output"], json!(B256::with_last_byte(0x7b)));
    let plain = rpc.result("debug_traceCall", json!([call])).await;
    assert_eq!(plain["returnValue"], json!(B256::with_last_byte(0x2a)));
}

/// Goal: parity's traces carry their positions, a missing one is null, and filters accept callers and callees.
#[tokio::test]
async fn paritys_traces() {
    let (rpc, hashes) = fixture();
    let block = rpc.result("trace_block", json!(["0x1"])).await;
    let places = |traces: &Value| {
        let place = |trace: &Value| (trace["transactionHash"].clone(), trace["transactionPosition"].clone());
        traces.as_array().unwrap().iter().map(place).collect::<Vec<_>>()
    };
    let [first, second] = [0, 1].map(|index| (json!(hashes[index]), json!(index)));
    assert_eq!(places(&block), [first.clone(), second.clone()]);
    assert_eq!((&block[1]["blockNumber"], &block[1]["action"]["to"]), (&json!(1), &json!(CONTRACT)));
    let of_one = rpc.result("trace_transaction", json!([hashes[1]])).await;
    assert_eq!(of_one[0], block[1]);
    assert_eq!(rpc.result("trace_get", json!([hashes[1], []])).await, block[1]);
    assert_eq!(rpc.result("trace_get", json!([hashes[1], ["0x0"]])).await, Value::Null);
    for (method, params) in [
        ("trace_block", json!(["0x9"])),
        ("trace_transaction", json!([B256::ZERO])),
        ("trace_replayBlockTransactions", json!(["0x9", ["trace"]])),
    ] {
        assert_eq!(rpc.result(method, params).await, Value::Null, "{method}");
    }
    let found = rpc
        .result(
            "trace_filter",
            json!([{ "fromBlock": "earliest", "toBlock": "latest", "toAddress": [CONTRACT] }]),
        )
        .await;
    assert_eq!(places(&found), [second.clone(), (json!(hashes[2]), json!(0))]);
    let nobody = json!([{ "fromBlock": "0x1", "fromAddress": [CONTRACT], "toAddress": [CONTRACT], "mode": "intersection" }]);
    assert_eq!(rpc.result("trace_filter", nobody).await, json!([]));
    let one = json!([{ "fromBlock": "0x1", "fromAddress": [sender()], "after": 1, "count": 1 }]);
    assert_eq!(places(&rpc.result("trace_filter", one).await), [second]);

    let replayed = rpc.result("trace_replayBlockTransactions", json!(["0x1", ["stateDiff"]])).await;
    assert_eq!(replayed[0]["transactionHash"], json!(hashes[0]));
    let moved = &replayed[0]["stateDiff"][Address::repeat_byte(2).to_string().to_lowercase()]["balance"];
    assert_eq!(moved["+"], "0x7", "{replayed}");
    let single = rpc.result("trace_replayTransaction", json!([hashes[0], ["stateDiff"]])).await;
    assert_eq!(single["stateDiff"], replayed[0]["stateDiff"]);
    let call = json!({ "from": sender(), "to": CONTRACT });
    let called = rpc.result("trace_call", json!([call, ["trace", "vmTrace"], "latest"])).await;
    assert_eq!(called["output"], json!(B256::with_last_byte(0x2a)));
    let many = rpc.result("trace_callMany", json!([[[call, ["trace"]], [call, ["stateDiff"]]]])).await;
    assert_eq!((many.as_array().unwrap().len(), &many[0]["output"]), (2, &called["output"]));
    let raw = rpc.result("trace_rawTransaction", json!([invoke(4, CONTRACT, &[]), ["trace"]])).await;
    assert_eq!(raw["trace"][0]["action"]["from"], json!(sender()));
}

/// Goal: a trace that cannot be built is refused with the part that is missing, wrong or too large.
#[tokio::test]
async fn refusals() {
    let (rpc, hashes) = fixture();
    let hash = hashes[1];
    for (method, params, code, text) in [
        ("debug_traceTransaction", json!([B256::ZERO]), -32000, "transaction not found"),
        ("debug_traceBlockByNumber", json!(["0x0"]), -32000, "genesis is not traceable"),
        ("debug_traceBlockByNumber", json!(["0x9"]), -32000, "block not found"),
        (
            "debug_traceTransaction",
            json!([hash, { "tracer": "{}" }]),
            -32602,
            "this node does not run tracers in JavaScript",
        ),
        ("debug_traceCall", json!([{}, "latest", { "txIndex": "0x0" }]), -32602, "txIndex is not supported"),
        ("debug_traceCall", json!([{ "gas": "0x5" }]), -32000, "intrinsic gas too low"),
        ("trace_replayTransaction", json!([hash, ["nonsense"]]), -32602, "invalid argument 1"),
        ("trace_replayTransaction", json!([hash, vec!["trace"; 4]]), -32602, "4 types of traces"),
        (
            "trace_filter",
            json!([{ "fromBlock": "0x2", "toBlock": "0x1" }]),
            -32602,
            "blocks 2 to 1 are not a range",
        ),
        ("trace_filter", json!([{ "fromBlock": "0x9" }]), -32602, "block 0x9 does not exist yet"),
        ("trace_rawTransaction", json!([invoke(9, CONTRACT, &[]), ["trace"]]), -32000, "nonce too high"),
        ("trace_call", json!([{ "to": "0x1" }, ["trace"]]), -32602, "invalid argument 0: to: "),
    ] {
        let (found, message) = rpc.error(method, params).await;
        assert!(found == code && message.starts_with(text), "{method}: {found} {message}");
    }
}

/// Goal: a trace, even of a whole block, has limits on time and memory, and its error names the configuration key.
#[tokio::test]
async fn traces_have_limits() {
    let endless = json!({ (CONTRACT.to_string()): { "code": "0x5b5f56" } });
    let with = |limits| {
        let (context, raws) = chain_of_two();
        (Fixture(table(RpcContext { trace_limits: limits, ..context })), raws)
    };
    let (time_max, bytes_max) = (Duration::from_secs(60), 1 << 20);
    let (rpc, raws) = with(TraceLimits { time_max, bytes_max });
    let call = json!([{ "to": CONTRACT }, "latest", { "stateOverrides": endless }]);
    let (code, text) = rpc.error("debug_traceCall", call).await;
    assert_eq!(code, -32005);
    assert!(
        text.starts_with("the trace takes more than 1 MiB") && text.contains("`api.trace_mib_max`"),
        "{text}"
    );
    assert!(rpc.ask("debug_traceTransaction", json!([keccak256(&raws[1])])).await.get("result").is_some());

    let (rpc, raws) = with(TraceLimits { time_max, bytes_max: 20_000 });
    for index in [0, 1] {
        let traced = rpc.ask("debug_traceTransaction", json!([keccak256(&raws[index])])).await;
        assert!(traced.get("result").is_some(), "{traced}");
    }
    let (code, _) = rpc.error("debug_traceBlockByNumber", json!(["0x1"])).await;
    assert_eq!(code, -32005, "both together are too much");

    let time_max = Duration::from_millis(1);
    let (rpc, _) = with(TraceLimits { time_max, bytes_max: usize::MAX });
    let noop = json!({ "tracer": "noopTracer", "stateOverrides": endless });
    let (code, text) = rpc.error("debug_traceCall", json!([{ "to": CONTRACT }, "latest", noop])).await;
    assert_eq!(code, -32000);
    assert!(
        text.starts_with("execution aborted (timeout = 1ms)") && text.contains("`api.trace_time_max_ms`"),
        "{text}"
    );
}

/// Goal: a batch without transactions has no traces, however old it is. An explorer that is refused retries for ever.
#[tokio::test]
async fn empty_batches_have_no_traces_at_any_age() {
    let context = context();
    (0..260).for_each(|_| commit(&context, &[]));
    let rpc = Fixture(table(context));
    assert_eq!(rpc.error("eth_getBalance", json!([sender(), "0x1"])).await.0, -32000, "its state is gone");
    for (method, params) in [
        ("trace_block", json!(["0x0"])),
        ("trace_block", json!(["0x2"])),
        ("trace_block", json!(["latest"])),
        ("trace_replayBlockTransactions", json!(["0x0", ["trace"]])),
        ("trace_replayBlockTransactions", json!(["0x2", ["trace"]])),
        ("debug_traceBlockByNumber", json!(["0x2"])),
        ("debug_traceBlockByNumber", json!(["0x2", { "tracer": "callTracer" }])),
    ] {
        assert_eq!(rpc.result(method, params).await, json!([]), "{method}");
    }
}

/// Goal: a batch whose earlier state was pruned is refused like any request for a state that is not kept.
#[tokio::test]
async fn old_states_are_not_traced() {
    let (context, raws) = chain_of_two();
    for nonce in 4..270 {
        commit(&context, &[invoke(nonce, CONTRACT, &[])]);
    }
    let rpc = Fixture(table(context));
    let (code, text) = rpc.error("debug_traceTransaction", json!([keccak256(&raws[0])])).await;
    assert_eq!(code, -32000);
    assert!(text.starts_with("missing trie node: state of batch 0 is not kept"), "{text}");
    let newest = rpc.result("trace_block", json!(["latest"])).await;
    assert_eq!(newest.as_array().unwrap().len(), 1);
}

/// Goal: a receipt that contradicts its transaction's execution gives an error instead of a trace.
#[tokio::test]
async fn damage_is_no_trace() {
    let (context, raws) = chain_of_two();
    let number = BatchNumber::new(1);
    let open = context.batches.get(number, BatchParts::Receipts, Reader::NODE).unwrap().unwrap();
    let mut receipts = open.receipts().unwrap().receipts.to_vec();
    receipts[0].gas_used += 1;
    let receipts = Receipts { receipts: BoundedVec::new(receipts).unwrap() };
    context.batches.replace(number, receipts);
    let rpc = Fixture(table(context));
    for method in ["debug_traceTransaction", "trace_transaction"] {
        let (code, text) = rpc.error(method, json!([keccak256(&raws[1])])).await;
        assert_eq!(code, -32603, "{method}: {text}");
        assert!(text.contains("again contradicts its receipt"), "{text}");
    }
}
