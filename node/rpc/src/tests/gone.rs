//! Requests for missing history get the codes and words that clients recognise.

use slipstream_storage::{CommitBatch, PruneConfig, Window};
use slipstream_types::Delta;

use super::*;
use crate::{Batches, logs::tests::commit};

/// Commits an empty batch with a certificate, because pruning keeps headers without one.
fn commit_certified(store: &Store) {
    let head = store.head().unwrap();
    let header = BatchHeader { number: head.header.number.next(), parent: head.digest, ..head.header };
    let keys = [slipstream_testkit::key(1)];
    let certificate = slipstream_testkit::certify(&head.accumulator, &header, None, &keys);
    let delta = Delta::default();
    let batch = CommitBatch { certificate: Some(&certificate), ..CommitBatch::new(&header, &delta) };
    store.commit(batch, None).unwrap();
}

/// Goal: a batch whose header was pruned differs from one that does not exist: an indexer that gets null retries for
/// ever.
#[tokio::test]
async fn pruned_headers_are_no_missing_blocks() {
    let prune = PruneConfig { headers: Window::Batches(1), ..PruneConfig::of_batches([2; 4]) };
    let storage = StorageConfig {
        prune,
        state_history: StateHistory::Batches(0),
        snapshot_interval_batches: 0,
        ..StorageConfig::default()
    };
    let context = context_keeping(chain(), &storage);
    let store = context.store.clone();
    (0..300).for_each(|_| commit(&store, &[]));
    commit_certified(&store);
    store.prune().unwrap();
    let floor = store.headers_floor().get();
    assert!((2..300).contains(&floor), "{floor}");

    let rpc = Fixture(table(context));
    let gone = format!("{:#x}", floor - 1);
    for (method, params) in [
        ("eth_getBlockByNumber", json!([gone, false])),
        ("eth_getBlockReceipts", json!([gone])),
        ("eth_getBlockTransactionCountByNumber", json!([gone])),
        ("eth_getUncleCountByBlockNumber", json!([gone])),
        ("eth_getTransactionByBlockNumberAndIndex", json!([gone, "0x0"])),
        ("eth_getRawTransactionByBlockNumberAndIndex", json!([gone, "0x0"])),
        ("debug_traceBlockByNumber", json!([gone])),
        ("trace_block", json!([gone])),
        ("trace_replayBlockTransactions", json!([gone, ["trace"]])),
        ("trace_filter", json!([{ "fromBlock": gone, "toBlock": gone }])),
    ] {
        let (code, text) = rpc.error(method, params).await;
        let words = format!("pruned history unavailable: this node has no header of batch {}: ", floor - 1);
        assert!(code == 4444 && text.starts_with(&words), "{method}: {code} {text}");
    }
    // The error for a range says where to continue.
    for (from, to) in [("0x0", "0x1"), ("0x1", "0x1"), (&gone, &gone)] {
        let (_, text) = rpc.error("trace_filter", json!([{ "fromBlock": from, "toBlock": to }])).await;
        assert!(text.ends_with(&format!("; ask from batch {floor} ({floor:#x}) on")), "{from}: {text}");
    }
    for kept in ["0x0".to_owned(), format!("{floor:#x}")] {
        assert_eq!(rpc.result("eth_getBlockByNumber", json!([kept, false])).await["number"], kept);
    }
    assert_eq!(rpc.result("eth_getBlockByNumber", json!(["0x7000", false])).await, Value::Null);
}

/// Goal: a node that keeps no bodies never claims that an executed transaction does not exist. It accepts no
/// transaction whose receipt it will never have. It answers from the pool, blocks and headers, which it has.
#[tokio::test]
async fn a_node_without_bodies_knows_of_no_execution() {
    let keeps = Keeps { bodies: false, places: false };
    let rpc = Fixture(table(RpcContext { keeps, ..context() }));
    let (code, text) = rpc.error("eth_sendRawTransactionSync", json!([raw()])).await;
    assert!(code == 4444 && text.contains("`sync.history`"), "{code} {text}");
    assert_eq!(rpc.result("txpool_status", json!([])).await["pending"], "0x0", "it was not taken");

    for (method, params) in [
        ("eth_getTransactionByHash", json!([B256::ZERO])),
        ("eth_getTransactionReceipt", json!([B256::ZERO])),
        ("eth_getRawTransactionByHash", json!([B256::ZERO])),
        ("debug_getRawTransaction", json!([B256::ZERO])),
        ("debug_traceTransaction", json!([B256::ZERO])),
        ("trace_transaction", json!([B256::ZERO])),
        ("trace_get", json!([B256::ZERO, []])),
        ("trace_replayTransaction", json!([B256::ZERO, ["trace"]])),
        ("eth_newFilter", json!([{}])),
    ] {
        let (code, text) = rpc.error(method, params).await;
        let words = "pruned history unavailable: this node does not keep the transactions and receipts";
        assert!(code == 4444 && text.starts_with(words), "{method}: {code} {text}");
    }

    let hash = rpc.result("eth_sendRawTransaction", json!([raw()])).await;
    assert_eq!(rpc.result("eth_getTransactionByHash", json!([hash])).await["hash"], hash);
    assert_eq!(rpc.result("eth_getTransactionReceipt", json!([hash])).await, Value::Null, "it waits");
    assert_eq!(rpc.result("eth_getRawTransactionByHash", json!([hash])).await, json!(raw()));
    assert_eq!(rpc.result("eth_getHeaderByNumber", json!(["latest"])).await["number"], "0x0");
    rpc.result("eth_newBlockFilter", json!([])).await;
}

/// Goal: a node without the transaction index says that it cannot find a transaction by hash, and what to request
/// instead.
#[tokio::test]
async fn a_node_without_the_index_finds_no_transaction_by_its_hash() {
    let keeps = Keeps { bodies: true, places: false };
    let rpc = Fixture(table(RpcContext { keeps, ..context() }));
    for (method, params) in
        [("eth_getTransactionReceipt", json!([B256::ZERO])), ("eth_sendRawTransactionSync", json!([raw()]))]
    {
        let (code, text) = rpc.error(method, params).await;
        assert!(code == 4444 && text.contains("`storage.transaction_index`"), "{method}: {code} {text}");
    }
    rpc.result("eth_newFilter", json!([{}])).await;
}

/// Goal: history that a backfill still fetches differs from pruned history, and the error reports its progress.
#[tokio::test]
async fn history_to_come_is_no_pruned_history() {
    let storage = StorageConfig { snapshot_interval_batches: 0, ..StorageConfig::default() };
    let context = context_keeping(chain(), &storage);
    let store = context.store.clone();
    // Batches with transactions whose bodies and receipts are missing, as after a range delta.
    for _ in 0..3 {
        let head = store.head().unwrap();
        let number = head.header.number.next();
        let header = BatchHeader { number, parent: head.digest, tx_count: 1, ..head.header };
        store.commit(CommitBatch::new(&header, &Delta::default()), None).unwrap();
    }
    let batches = |backfills| Batches::new(store.clone(), context.pool.senders().clone(), backfills);
    let (gone, to_come) = (batches(false), batches(true));
    let rpc = Fixture(table(RpcContext { batches: to_come, ..context }));
    for (method, params) in [
        ("eth_getBlockByNumber", json!(["0x2", false])),
        ("eth_getBlockReceipts", json!(["0x2"])),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["0x2", "0x0"])),
        ("eth_getLogs", json!([{ "fromBlock": "0x2", "toBlock": "0x2" }])),
        ("debug_traceBlockByNumber", json!(["0x2"])),
    ] {
        let (code, text) = rpc.error(method, params).await;
        let progress = "of batch 2 yet: the backfill has all batches from 4 on, and fetches the earlier ones down to 1; ";
        assert!(code == 4444 && text.contains(progress), "{method}: {code} {text}");
    }
    let refused = gone.missing("receipts", BatchNumber::new(2));
    assert!(matches!(refused, crate::errors::RpcError::NotStored { .. }), "{refused:?}");
}
