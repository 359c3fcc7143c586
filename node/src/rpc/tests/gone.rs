//! History that is gone, by the codes and words that clients know it by.

use slipstream_storage::{CommitBatch, PruneConfig, Window};
use slipstream_types::Delta;

use super::*;
use crate::rpc::logs::tests::commit;

/// Commits an empty batch with a certificate, without which headers stay.
fn commit_certified(store: &Store) {
    let head = store.head().unwrap();
    let header = BatchHeader { number: head.header.number.next(), parent: head.digest, ..head.header };
    let keys = [slipstream_testkit::key(1)];
    let certificate = slipstream_testkit::certify(&head.accumulator, &header, None, &keys);
    let delta = Delta::default();
    let batch = CommitBatch { certificate: Some(&certificate), ..CommitBatch::new(&header, &delta) };
    store.commit(batch, None).unwrap();
}

/// Goal: a batch whose header was pruned is told from one that does not exist: an indexer that is told null asks for ever.
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
    for kept in ["0x0".to_owned(), format!("{floor:#x}")] {
        assert_eq!(rpc.result("eth_getBlockByNumber", json!([kept, false])).await["number"], kept);
    }
    assert_eq!(rpc.result("eth_getBlockByNumber", json!(["0x7000", false])).await, Value::Null);
}
