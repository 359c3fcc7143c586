//! Transactions without a chain id (from before EIP-155). Depending on the chain, they are refused or accepted and
//! shown, as in geth.

use super::{trace::commit, *};

fn lax() -> ChainConfig {
    ChainConfig { unprotected_transactions: true, ..chain() }
}

/// A transfer as it was signed before EIP-155.
fn old() -> Bytes {
    signed(TxLegacy {
        chain_id: None,
        nonce: 1,
        gas_price: 30_000_000,
        gas_limit: 21_000,
        to: TxKind::Call(Address::repeat_byte(2)),
        value: U256::from(7),
        input: Bytes::new(),
    })
}

/// Goal: no chain id is shown, and `v` has its value from before EIP-155.
fn check_shape(shown: &Value) {
    assert_eq!((&shown["hash"], &shown["type"]), (&json!(keccak256(old())), &json!("0x0")), "{shown}");
    assert_eq!(shown["from"], json!(sender()), "{shown}");
    assert!(shown.get("chainId").is_none() && shown.get("yParity").is_none(), "{shown}");
    assert!(shown["v"] == "0x1b" || shown["v"] == "0x1c", "{shown}");
}

#[tokio::test]
async fn a_strict_chain_refuses_them_as_geth_does() {
    let rpc = Fixture::new();
    for (method, params) in
        [("eth_sendRawTransaction", json!([old()])), ("trace_rawTransaction", json!([old(), ["trace"]]))]
    {
        let (code, text) = rpc.error(method, params).await;
        let known = "only replay-protected (EIP-155) transactions allowed over RPC: ";
        assert!(code == -32000 && text.starts_with(known), "{method}: {code} {text}");
    }
}

#[tokio::test]
async fn a_lax_chain_takes_and_shows_them() {
    let rpc = Fixture(table(context_under(lax())));
    assert_eq!(rpc.result("trace_rawTransaction", json!([old(), ["trace"]])).await["output"], "0x");
    let hash = rpc.result("eth_sendRawTransaction", json!([old()])).await;
    assert_eq!(hash, json!(keccak256(old())));
    let waiting = rpc.result("eth_getTransactionByHash", json!([hash])).await;
    assert_eq!(waiting["blockHash"], Value::Null);
    check_shape(&waiting);
    let pool = rpc.result("txpool_content", json!([])).await;
    check_shape(&pool["pending"][sender().to_string()]["1"]);
}

#[tokio::test]
async fn a_lax_chain_shows_and_traces_committed_ones() {
    let context = context_under(lax());
    commit(&context, &[old()]);
    let rpc = Fixture(table(context));
    let hash = json!(keccak256(old()));
    check_shape(&rpc.result("eth_getTransactionByHash", json!([hash])).await);
    let block = rpc.result("eth_getBlockByNumber", json!(["0x1", true])).await;
    check_shape(&block["transactions"][0]);
    assert_eq!(rpc.result("eth_getRawTransactionByHash", json!([hash])).await, json!(old()));
    let receipt = rpc.result("eth_getTransactionReceipt", json!([hash])).await;
    assert_eq!((&receipt["status"], &receipt["from"]), (&json!("0x1"), &json!(sender())));
    let receipts = rpc.result("eth_getBlockReceipts", json!(["0x1"])).await;
    assert_eq!(receipts, json!([receipt]));
    let traced = rpc.result("debug_traceTransaction", json!([hash, { "tracer": "callTracer" }])).await;
    assert_eq!((&traced["value"], traced.get("error")), (&json!("0x7"), None), "{traced}");
    let replayed = rpc.result("trace_replayTransaction", json!([hash, ["trace"]])).await;
    assert_eq!(replayed["output"], "0x");
}
