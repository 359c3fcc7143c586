//! The pool's contents, transactions as they were signed, and methods that only report something missing.

use slipstream_consensus::ContentLimit;

use super::*;

/// Goal: executable and waiting transactions are listed separately, by sender and nonce, in full and as lines.
#[tokio::test]
async fn the_pool_by_sender_and_nonce() {
    let rpc = Fixture::new();
    let [next, later] = [1, 3].map(|nonce| signed(transfer(nonce, 1_000_000)));
    for raw in [&next, &later] {
        rpc.result("eth_sendRawTransaction", json!([raw])).await;
    }
    assert_eq!(rpc.result("txpool_status", json!([])).await, json!({ "pending": "0x1", "queued": "0x1" }));
    let name = sender().to_checksum(None);
    let all = rpc.result("txpool_content", json!([])).await;
    assert_eq!(all["pending"][&name]["1"]["hash"], json!(keccak256(&next)));
    assert_eq!(all["queued"][&name]["3"]["hash"], json!(keccak256(&later)));
    assert_eq!(all["pending"][&name]["1"]["blockNumber"], Value::Null);
    let own = rpc.result("txpool_contentFrom", json!([sender()])).await;
    assert_eq!((&own["pending"], &own["queued"]), (&all["pending"][&name], &all["queued"][&name]));
    let none = rpc.result("txpool_contentFrom", json!([Address::ZERO])).await;
    assert_eq!(none, json!({ "pending": {}, "queued": {} }));
    let line = format!("{}: 7 wei + 100000 gas × 20000000 wei", Address::repeat_byte(2).to_checksum(None));
    let lines = rpc.result("txpool_inspect", json!([])).await;
    assert_eq!(lines, json!({ "pending": { &name: { "1": line } }, "queued": { &name: { "3": line } } }));
    assert_eq!(rpc.error("txpool_content", json!([1])).await.0, -32602);
}

/// Goal: a pool that does not fit in one answer is refused with its size, and never shown in part.
#[test]
fn a_large_pool_is_refused() {
    let context = context();
    let raw = raw();
    context.forwarder.submit(&raw, None).unwrap();
    let limit = ContentLimit { transactions_max: 0, bytes_max: 1 << 20 };
    for (of, advice) in
        [(None, "ask for one sender with txpool_contentFrom"), (Some(sender()), "ask for it by hash")]
    {
        let refused = txpool::copied(&context, of.as_ref(), limit).unwrap_err().to_string();
        let expected = format!(
            "the pool holds 1 transactions of {} bytes, but one answer shows at most 0 of 1048576; {advice}",
            raw.len()
        );
        assert_eq!(refused, expected);
    }
}

/// Goal: a transaction comes back byte for byte, from the pool and from a batch. A missing one is an empty answer, as
/// in geth.
#[tokio::test]
async fn transactions_as_they_were_signed() {
    let rpc = Fixture::new();
    let raw = signed(transfer(1, 1_000_000));
    let hash = rpc.result("eth_sendRawTransaction", json!([raw])).await;
    for method in ["eth_getRawTransactionByHash", "debug_getRawTransaction"] {
        assert_eq!(rpc.result(method, json!([hash])).await, json!(raw));
        assert_eq!(rpc.result(method, json!([B256::ZERO])).await, "0x");
        assert_eq!(rpc.error(method, json!(["0x12"])).await.0, -32602);
    }
    let batch = batch();
    assert_eq!(batch.raw(1).unwrap().map(keccak256), batch.transaction_hash(1));
    assert_eq!(batch.raw(2).unwrap(), None);
    for (method, id) in [
        ("eth_getRawTransactionByBlockNumberAndIndex", json!("latest")),
        ("eth_getRawTransactionByBlockNumberAndIndex", json!("0x7")),
        ("eth_getRawTransactionByBlockHashAndIndex", json!(B256::ZERO)),
    ] {
        assert_eq!(rpc.result(method, json!([id, "0x0"])).await, "0x", "{method}");
        assert_eq!(rpc.error(method, json!([id])).await.0, -32602);
    }
}

/// Goal: a transaction that was accepted and misses its time is reported with its hash; one that cannot execute is
/// reported at once.
#[tokio::test(start_paused = true)]
async fn a_receipt_that_does_not_come() {
    let rpc = Fixture::new();
    let send = async |nonce, time: Value| {
        let raw = signed(transfer(nonce, 1_000_000));
        (rpc.ask(send_sync::NAME, json!([raw, time])).await["error"].take(), keccak256(&raw))
    };
    let begun = tokio::time::Instant::now();
    let (error, hash) = send(1, json!(50)).await;
    let text = "The transaction was added to the transaction pool but wasn't processed in 50ms";
    assert_eq!(error, json!({ "code": 4, "message": text, "data": hash }));
    assert!(begun.elapsed() >= Duration::from_millis(50));
    let (error, hash) = send(3, json!("0x32")).await;
    assert_eq!((&error["code"], &error["data"]), (&json!(5), &json!(hash)));
    assert!(error["message"].as_str().unwrap().contains("missing nonce or insufficient funds"));
    let (error, _) = send(1, Value::Null).await;
    assert_eq!(error["code"], -32000, "it is known: {error}");
    assert_eq!(rpc.error(send_sync::NAME, json!(["0x00"])).await.0, -32000);
    assert_eq!(rpc.error(send_sync::NAME, json!([])).await.0, -32602);
}

#[tokio::test]
async fn what_is_not_there_and_what_is() {
    let rpc = Fixture::new();
    for (method, id) in [
        ("eth_getUncleByBlockNumberAndIndex", json!("latest")),
        ("eth_getUncleByBlockHashAndIndex", json!(B256::ZERO)),
    ] {
        assert_eq!(rpc.result(method, json!([id, "0x0"])).await, Value::Null);
        assert_eq!(rpc.error(method, json!([id])).await.0, -32602);
    }
    assert_eq!(rpc.result("eth_blobBaseFee", json!([])).await, "0x1");
    let empty = "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470";
    assert_eq!(rpc.result("web3_sha3", json!(["0x"])).await, empty);
    assert_eq!(rpc.error("web3_sha3", json!(["text"])).await.0, -32602);
    let modules = rpc.result("rpc_modules", json!([])).await;
    let namespaces: std::collections::BTreeSet<_> =
        rpc.0.names().map(|name| name.split_once('_').unwrap().0.to_owned()).collect();
    assert!(modules.as_object().unwrap().keys().cloned().eq(namespaces), "{modules}");
    assert!(modules["eth"] == "1.0" && modules["txpool"] == "1.0" && modules["rpc"] == "1.0");
}
