//! Hardhat with ignition, from npm, against a fullnode.

use serde_json::json;
use slipnet::devnet::DevnetOptions;

use super::{ARTIFACTS, fullnode_and_key, programs::Client};
use crate::common::pair;

/// Goal: ignition deploys contracts that depend on each other. Assertions compare the state before and after a
/// transaction. A fork by EDR reads and executes on a state 128 batches ago.
#[tokio::test(flavor = "multi_thread")]
async fn hardhat_deploys_asserts_and_forks() {
    let Some(hardhat) = Client::npm("hardhat") else { return };
    // With 50 batches per second and the default of 256 states, a fork 128 batches back would last only 2.5 seconds.
    let options = DevnetOptions {
        accounts: 1,
        batch_interval_ms: Some(20),
        state_history: Some(3_000),
        ..DevnetOptions::default()
    };
    let devnet = pair(options).await;
    let (url, key) = fullnode_and_key(&devnet);
    let seen = hardhat.run("hardhat.mjs", &[&url, &key, ARTIFACTS]).await;
    assert_eq!(
        seen,
        json!({
            "ignition": ["1000", "1000"],
            "assertions": true,
            "fork": { "behind": true, "before": "7", "status": "success", "after": ["18", "7", "7"] },
        })
    );
    devnet.stop().await.unwrap();
}
