//! A node that starts from a snapshot downloads the history before it, and then answers like a node that executed every
//! batch.

use std::{fs, time::Duration};

use alloy_primitives::Address;
use serde_json::{Value, json};
use slipnet::{
    accounts::Account,
    devnet::{DevnetOptions, Node, SyncMode},
    load::{self, LoadOptions, Rate, Workload},
    progress::Progress,
    rpc::{Rpc, RpcError},
};

use crate::common::{deadline, fullnode, pair, until};

/// The error code "Pruned history unavailable".
const GONE: i64 = 4444;
/// The storage section of a node's configuration, and the same with windows of a few batches.
const STORAGE: &str = "storage:\n";
const SMALL_WINDOW: &str = "\
storage:
  prune: { bodies: 10, receipts: 10, deltas: 10, hints: 10 }
";

/// Returns the parameters of one call per batch, for a method that takes a batch number and more.
fn calls(last: u64, more: &[Value]) -> Vec<Value> {
    let numbers = (1..=last).map(|number| json!(format!("{number:#x}")));
    numbers.map(|number| Value::Array([&[number], more].concat())).collect()
}

/// Returns a node's answers about all batches up to `last`: blocks, receipts, logs, and the accounts' state after each.
async fn answers(rpc: &Rpc, accounts: &[Account], last: u64) -> [Vec<Value>; 4] {
    let blocks = rpc.batch_all("eth_getBlockByNumber", &calls(last, &[json!(true)])).await.unwrap();
    let receipts = rpc.batch_all("eth_getBlockReceipts", &calls(last, &[])).await.unwrap();
    let filter = json!({ "fromBlock": "0x1", "toBlock": format!("{last:#x}") });
    let logs = rpc.call("eth_getLogs", json!([filter])).await.unwrap();
    let mut states = Vec::new();
    for account in accounts {
        let numbers = 1..=last;
        let asked: Vec<Value> =
            numbers.map(|number| json!([account.address, format!("{number:#x}")])).collect();
        states.extend(rpc.batch_all::<Value>("eth_getBalance", &asked).await.unwrap());
        states.extend(rpc.batch_all::<Value>("eth_getTransactionCount", &asked).await.unwrap());
    }
    [blocks, receipts, vec![logs], states]
}

/// Waits until a node has the receipts of this batch, which has transactions, and the first state, and downloads
/// nothing more.
async fn wait_complete(node: &Node, batch: &Value, account: Address) {
    until("the history is complete", async || {
        let first = node.rpc().call::<Value>("eth_getBlockReceipts", json!([batch])).await;
        let state = node.rpc().call::<Value>("eth_getBalance", json!([account, "0x1"])).await;
        match (first, state, node.status().await.unwrap().sync.backfill) {
            (Ok(_), Ok(_), None) => Ok(()),
            (first, state, backfill) => Err(format!("{first:?}, {state:?}, {backfill:?}")),
        }
    })
    .await;
}

/// Restarts a node with another configuration.
async fn restart(node: &mut Node, config: &str) {
    node.stop().await.unwrap();
    fs::write(node.config(), config).unwrap();
    node.start().unwrap();
    node.wait_ready(deadline()).await.unwrap();
}

/// Returns the hashes of the transactions in some blocks.
fn hashes(blocks: &[Value]) -> Vec<Value> {
    let transactions = blocks.iter().flat_map(|block| block["transactions"].as_array().unwrap());
    transactions.map(|transaction| json!([transaction["hash"]])).collect()
}

/// Goal: after a snapshot and a kill during the backfill, every earlier batch, receipt, log and state is available, by
/// number and by hash. The same holds again after a smaller window has pruned them.
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
    let accounts = devnet.accounts()[..3].to_vec();
    let replayed = fullnode(&devnet).rpc();
    let expected = answers(replayed, &accounts, last).await;
    let has_transactions = |block: &&Value| !block["transactions"].as_array().unwrap().is_empty();
    let first = expected[0].iter().find(has_transactions).unwrap()["number"].clone();
    wait_complete(late, &first, accounts[0].address).await;
    let hashes = hashes(&expected[0]);
    assert!(!hashes.is_empty() && !expected[2][0].as_array().unwrap().is_empty());
    assert!(expected[3].first() != expected[3].last(), "the accounts send");
    assert_eq!(answers(late.rpc(), &accounts, last).await, expected);
    for method in ["eth_getTransactionReceipt", "eth_getTransactionByHash"] {
        let theirs: Vec<Value> = replayed.batch_all(method, &hashes).await.unwrap();
        let ours: Vec<Value> = late.rpc().batch_all(method, &hashes).await.unwrap();
        assert_eq!(ours, theirs, "{method}");
    }

    let late = devnet.node_mut(index);
    let config = fs::read_to_string(late.config()).unwrap();
    assert!(config.contains(STORAGE), "{config}");
    restart(late, &config.replace(STORAGE, SMALL_WINDOW)).await;
    until("the history is pruned", async || {
        match late.rpc().call::<Value>("eth_getBlockReceipts", json!([first])).await {
            Err(error) if error.downcast_ref::<RpcError>().is_some_and(|error| error.code == GONE) => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await;
    restart(late, &config).await;
    wait_complete(late, &first, accounts[0].address).await;
    assert_eq!(answers(late.rpc(), &accounts, last).await, expected, "after another window");
    devnet.stop().await.unwrap();
}
