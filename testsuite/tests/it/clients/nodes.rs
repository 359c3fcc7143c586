//! One client at three nodes.

use std::time::Duration;

use serde_json::{Value, json};
use slipnet::{
    devnet::{Devnet, DevnetOptions, SyncMode},
    load::{self, LoadOptions, Rate, Workload},
    progress::Progress,
    rpc::Rpc,
};

use crate::common::deadline;

/// A chain as its reader sees it.
struct Chain {
    blocks: Vec<Value>,
    receipts: Vec<Value>,
    logs: Vec<Value>,
}

/// Reads the batches up to this one, each in all available ways.
async fn read(rpc: &Rpc, head: u64) -> Chain {
    let numbers: Vec<_> = (0..=head).map(|number| format!("{number:#x}")).collect();
    let whole: Vec<_> = numbers.iter().map(|number| json!([number, true])).collect();
    let blocks: Vec<Value> = rpc.batch_all("eth_getBlockByNumber", &whole).await.unwrap();
    let hashes: Vec<_> = blocks.iter().map(|block| json!([block["hash"], true])).collect();
    assert!(rpc.batch_all::<Value>("eth_getBlockByHash", &hashes).await.unwrap() == blocks);

    let numbers: Vec<_> = numbers.iter().map(|number| json!([number])).collect();
    let receipts: Vec<Value> = rpc.batch_all("eth_getBlockReceipts", &numbers).await.unwrap();
    let one_by_one: Vec<_> = receipts.iter().flat_map(|block| block.as_array().unwrap()).cloned().collect();
    let hashes: Vec<_> = one_by_one.iter().map(|receipt| json!([receipt["transactionHash"]])).collect();
    assert!(rpc.batch_all::<Value>("eth_getTransactionReceipt", &hashes).await.unwrap() == one_by_one);

    let range = json!([{ "fromBlock": "0x0", "toBlock": format!("{head:#x}") }]);
    let logs: Vec<Value> = rpc.call("eth_getLogs", range).await.unwrap();
    let in_receipts = one_by_one.iter().flat_map(|receipt| receipt["logs"].as_array().unwrap());
    assert!(logs.iter().eq(in_receipts), "{} has other logs than receipts", rpc.url());
    Chain { blocks, receipts, logs }
}

/// Goal: a client gets the same blocks, receipts and logs from three nodes: the validator that made the blocks, a
/// fullnode that executed them again, and a fullnode that applied their changes.
#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_read_the_same_blocks_receipts_and_logs() {
    let options = DevnetOptions { validators: 1, accounts: 20, ..DevnetOptions::default() };
    let mut devnet = Devnet::start(options).await.unwrap();
    for mode in [SyncMode::Replay, SyncMode::Delta] {
        devnet.add_fullnode(mode.name(), mode).await.unwrap();
    }
    let manifest = devnet.manifest().await.unwrap();
    for workload in [Workload::Transfers, Workload::Erc20] {
        let defaults = LoadOptions::for_manifest(&manifest, 20).unwrap();
        let options = LoadOptions {
            workload: workload.into(),
            rate: Rate::constant(100),
            duration: Duration::from_secs(2),
            ..defaults
        };
        load::run(&options, Progress::Quiet).await.unwrap();
    }
    let head = devnet.proposer().status().await.unwrap().head.number;
    for index in 0..3 {
        devnet.node_mut(index).wait_head(head, deadline()).await.unwrap();
    }

    let [validator, followers @ ..] = devnet.nodes() else { panic!("three nodes") };
    let made = read(validator.rpc(), head).await;
    assert!(made.logs.len() >= 200, "{} logs", made.logs.len());
    for follower in followers {
        let read = read(follower.rpc(), head).await;
        for number in 0..made.blocks.len() {
            let same = (&made.blocks[number], &made.receipts[number]);
            assert!((&read.blocks[number], &read.receipts[number]) == same, "{}: {number}", follower.name());
        }
        assert!(read.logs == made.logs, "{}", follower.name());
    }
    devnet.stop().await.unwrap();
}
