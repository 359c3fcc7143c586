//! A node that begins at a snapshot fetches the history behind it, and then answers as one that executed every batch.

use std::time::Duration;

use serde_json::{Value, json};
use slipnet::{
    devnet::{DevnetOptions, SyncMode},
    load::{self, LoadOptions, Rate, Workload},
    progress::Progress,
    rpc::Rpc,
};

use crate::common::{deadline, fullnode, pair, until};

/// One parameter for each call of a method that takes a batch's number and more.
fn calls(last: u64, more: &[Value]) -> Vec<Value> {
    let numbers = (1..=last).map(|number| json!(format!("{number:#x}")));
    numbers.map(|number| Value::Array([&[number], more].concat())).collect()
}

/// The answers of a node about all batches up to one: blocks, receipts, and logs.
async fn answers(rpc: &Rpc, last: u64) -> [Vec<Value>; 3] {
    let blocks = rpc.batch_all("eth_getBlockByNumber", &calls(last, &[json!(true)])).await.unwrap();
    let receipts = rpc.batch_all("eth_getBlockReceipts", &calls(last, &[])).await.unwrap();
    let filter = json!({ "fromBlock": "0x1", "toBlock": format!("{last:#x}") });
    [blocks, receipts, vec![rpc.call("eth_getLogs", json!([filter])).await.unwrap()]]
}

/// The hashes of the transactions in some blocks.
fn hashes(blocks: &[Value]) -> Vec<Value> {
    let transactions = blocks.iter().flat_map(|block| block["transactions"].as_array().unwrap());
    transactions.map(|transaction| json!([transaction["hash"]])).collect()
}

/// Goal: after a snapshot, and a kill on the way, every batch, receipt and log of before is there, by number and by hash.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_from_a_snapshot_has_the_whole_history() {
    let options = DevnetOptions {
        accounts: 20,
        batch_interval_ms: Some(100),
        snapshot_interval_batches: 10,
        sync_mode: SyncMode::Replay,
        ..DevnetOptions::default()
    };
    let mut devnet = pair(options).await;
    let manifest = devnet.manifest().await.unwrap();
    let defaults = LoadOptions::for_manifest(&manifest, devnet.accounts().len()).unwrap();
    let (workload, rate, duration) = (Workload::Erc20.into(), Rate::constant(60), Duration::from_secs(5));
    let sent =
        load::run(&LoadOptions { workload, rate, duration, ..defaults }, Progress::Quiet).await.unwrap();
    assert!(sent.committed > 0, "{sent}");

    let last = devnet.proposer().status().await.unwrap().head.number;
    let index = devnet.add_fullnode("late", SyncMode::Snapshot).await.unwrap();
    let late = devnet.node_mut(index);
    let status = late.wait_head(last, deadline()).await.unwrap();
    let begun = status.sync.snapshot.expect("it began at a snapshot").number;
    assert!(begun > 0, "there is history before it");
    late.kill();
    late.start().unwrap();
    late.wait_ready(deadline()).await.unwrap();
    let late = &devnet.nodes()[index];
    until("the history is complete", async || {
        let first = late.rpc().call::<Value>("eth_getBlockReceipts", json!(["0x1"])).await;
        match (first, late.status().await.unwrap().sync.backfill) {
            (Ok(_), None) => Ok(()),
            (first, backfill) => Err(format!("{first:?}, {backfill:?}")),
        }
    })
    .await;

    let replayed = fullnode(&devnet).rpc();
    let expected = answers(replayed, last).await;
    let hashes = hashes(&expected[0]);
    assert!(!hashes.is_empty() && !expected[2][0].as_array().unwrap().is_empty());
    assert_eq!(answers(late.rpc(), last).await, expected);
    for method in ["eth_getTransactionReceipt", "eth_getTransactionByHash"] {
        let theirs: Vec<Value> = replayed.batch_all(method, &hashes).await.unwrap();
        let ours: Vec<Value> = late.rpc().batch_all(method, &hashes).await.unwrap();
        assert_eq!(ours, theirs, "{method}");
    }
    devnet.stop().await.unwrap();
}
