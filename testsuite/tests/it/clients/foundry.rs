//! Forge and anvil, from npm, against a fullnode.

use serde_json::json;
use slipnet::devnet::DevnetOptions;

use super::{fullnode_and_key, programs::Client};
use crate::common::pair;

/// Goal: a forge script simulates and sends while the head moves. Forge's tests run on forks of the head, of the past
/// and of the middle of a batch. A forked anvil reads the state of that time, and keeps its own changes to itself.
#[tokio::test(flavor = "multi_thread")]
async fn forge_and_anvil_fork_a_fullnode() {
    let Some(foundry) = Client::npm("foundry") else { return };
    let options = DevnetOptions { accounts: 1, batch_interval_ms: Some(50), ..DevnetOptions::default() };
    let devnet = pair(options).await;
    let (url, key) = fullnode_and_key(&devnet);
    let seen = foundry.run("foundry.mjs", &[&url, &key]).await;
    assert_eq!(
        seen,
        json!({
            "script": ["CREATE", "CREATE2", "CALL", "CALL"],
            "receipts": [1, 1, 1, 1],
            "numbers": [7, 8],
            "tests": [
                ["testForksBeforeATransaction()", "Success"],
                ["testGoesBack()", "Success"],
                ["testReads()", "Success"],
                ["testWrites()", "Success"],
            ],
            "fork": { "number": 7, "made": 7, "status": 1, "written": 9, "before": 7, "node": 7, "logs": [7, 9] },
        })
    );
    devnet.stop().await.unwrap();
}
