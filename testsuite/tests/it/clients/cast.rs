//! An unmodified client of the ecosystem, cast from npm, against a fullnode.

use serde_json::json;
use slipnet::devnet::DevnetOptions;

use super::{fullnode_and_key, programs::Client};
use crate::common::pair;

/// Goal: the unmodified cast from npm re-executes transactions on the states that a fullnode keeps, and shows the
/// node's own traces.
#[tokio::test(flavor = "multi_thread")]
async fn cast_works_against_a_fullnode() {
    let Some(cast) = Client::npm("foundry") else { return };
    let options = DevnetOptions { accounts: 1, ..DevnetOptions::default() };
    let devnet = pair(options).await;
    let (url, key) = fullnode_and_key(&devnet);
    let seen = cast.run("cast.mjs", &[&url, &key]).await;
    let seven = format!("0x{:064x}", 7);
    assert_eq!(
        seen,
        json!({
            "slot": seven,
            "before": [format!("0x{:064x}", 0), "0x", "1"],
            "spent": true,
            "sync": 1,
            "pool": ["pending", "queued"],
            "run": [true, true],
            "trace": true,
            "accessList": [1],
            "calls": [true, true],
            "steps": ["PUSH19", "PUSH0", "MSTORE", "PUSH1", "PUSH1", "RETURN"],
            "diff": [seven],
        })
    );
    devnet.stop().await.unwrap();
}
