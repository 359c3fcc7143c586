//! An unmodified client of the ecosystem, cast from npm, against a fullnode.

use serde_json::json;
use slipnet::{
    devnet::{Devnet, DevnetOptions},
    manifest::Role,
};

use crate::programs::Client;

/// Goal: cast, as it comes from npm, executes transactions again on the states that a fullnode keeps, and shows the node's own
/// traces.
#[tokio::test(flavor = "multi_thread")]
async fn cast_works_against_a_fullnode() {
    let Some(cast) = Client::npm("foundry") else { return };
    let options = DevnetOptions { validators: 1, fullnodes: 1, accounts: 1, ..DevnetOptions::default() };
    let devnet = Devnet::start(options).await.unwrap();
    let fullnode = devnet.nodes().iter().find(|node| node.role() == Role::Fullnode).unwrap();
    let seen = cast.run("cast.mjs", &[fullnode.rpc().url(), &devnet.accounts()[0].key_hex()]).await;
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
