//! Devnets, and assertions about them.

use std::{
    process::{Command, Output},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use serde_json::{Value, json};
use slipnet::{
    devnet::{Devnet, DevnetOptions, Node, binary, exists},
    manifest::{Manifest, Role},
    rpc::{Rpc, quantity},
};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{deadline, succeed, until, until_blocking};

/// The number of large devnets that run at a time, with four validators, or six or more nodes: each could use the whole
/// machine.
static ROOM: Semaphore = Semaphore::const_new(3);

/// Waits for room for a large devnet. A test calls it before it starts its devnet, and so releases the room after the
/// devnet's end.
pub(crate) async fn room() -> SemaphorePermit<'static> {
    ROOM.acquire().await.unwrap()
}

/// Starts a devnet of one validator and one fullnode; `options` gives the rest.
pub(crate) async fn pair(options: DevnetOptions) -> Devnet {
    Devnet::start(DevnetOptions { validators: 1, fullnodes: 1, ..options }).await.unwrap()
}

/// Returns the first fullnode.
pub(crate) fn fullnode(devnet: &Devnet) -> &Node {
    devnet.nodes().iter().find(|node| node.role() == Role::Fullnode).unwrap()
}

/// Waits until these nodes have the batch. Returns the state root after it, which must be the same at all of them.
pub(crate) async fn agree(devnet: &mut Devnet, nodes: impl IntoIterator<Item = usize>, number: u64) -> B256 {
    let mut roots = Vec::new();
    for index in nodes {
        let node = devnet.node_mut(index);
        node.wait_head(number, deadline()).await.unwrap();
        roots.push((node.name().to_owned(), node.state_root(number).await.unwrap()));
    }
    assert!(roots.iter().all(|(_, root)| *root == roots[0].1), "after batch {number}: {roots:?}");
    roots[0].1
}

/// Waits until the head of a node has not moved for this time, and returns it: batches in progress may still come.
pub(crate) async fn stands(node: &Node, time: Duration) -> u64 {
    let deadline = deadline();
    let (mut head, mut since) = (0, Instant::now());
    while since.elapsed() < time {
        let now = node.status().await.unwrap().head.number;
        if now != head {
            (head, since) = (now, Instant::now());
        }
        assert!(Instant::now() < deadline, "the head of {} goes on: batch {head}", node.name());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    head
}

/// Waits until the first load of a chain is under way: the second account has a transaction in a batch.
pub(crate) async fn load_runs(devnet: &Devnet, rpc: &Rpc) {
    let address = devnet.accounts()[1].address;
    until("the load begins", async || {
        let count = rpc.call::<Value>("eth_getTransactionCount", json!([address, "latest"])).await;
        match quantity(&count.unwrap()).unwrap() {
            0 => Err("no transaction of the second account is in a batch".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
}

/// Waits for the receipt of a transaction that was sent.
pub(crate) async fn receipt(rpc: &Rpc, hash: &Value) -> Value {
    until("a receipt", async || {
        let receipt: Value = rpc.call("eth_getTransactionReceipt", json!([hash])).await.unwrap();
        if receipt.is_null() { Err(format!("{hash} is in no batch")) } else { Ok(receipt) }
    })
    .await
}

/// Runs `slipstream read` with all nodes of a devnet.
pub(crate) fn read(devnet: &Devnet, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary().unwrap());
    command.arg("read").arg("--genesis").arg(devnet.genesis_file());
    for node in devnet.nodes() {
        command.arg("--validator").arg(node.rpc().url());
    }
    command.args(arguments).output().unwrap()
}

/// Returns the output of [`read`], once a quorum answers in time.
pub(crate) fn agreed(devnet: &Devnet, arguments: &[&str]) -> String {
    let answer = until_blocking("a quorum answers", || {
        let answer = read(devnet, arguments);
        let is_late = answer.status.code() == Some(75);
        if is_late { Err(String::from_utf8_lossy(&answer.stderr).into_owned()) } else { Ok(answer) }
    });
    succeed(&answer)
}

/// Checks that all processes of a devnet have ended.
pub(crate) fn gone(manifest: &Manifest) -> Result<(), String> {
    match manifest.nodes.iter().find(|node| exists(node.pid)) {
        None => Ok(()),
        Some(node) => Err(format!("{} outlived its devnet", node.name)),
    }
}

/// Returns the addresses of a devnet's nodes.
pub(crate) fn ports(manifest: &Manifest) -> Vec<(String, String)> {
    manifest.nodes.iter().map(|node| (node.api.clone(), node.network.clone())).collect()
}
