//! web3.py, from PyPI, against a fullnode.

use serde_json::json;
use slipnet::devnet::DevnetOptions;

use super::{ARTIFACTS, fullnode_and_key, programs::Client};
use crate::common::pair;

/// Goal: the unmodified web3.py from PyPI sends each kind of transaction, deploys, and reads events in all of its ways.
/// It requests past states, overrides, access lists, simulations and traces, in batches, in parallel and over a
/// WebSocket. It recognises errors.
#[tokio::test(flavor = "multi_thread")]
async fn web3py_works_against_a_fullnode() {
    let Some(web3) = Client::pip("web3") else { return };
    let devnet = pair(DevnetOptions { accounts: 1, ..DevnetOptions::default() }).await;
    let (url, key) = fullnode_and_key(&devnet);
    let seen = web3.run("web3py.py", &[&url, &key, ARTIFACTS]).await;
    assert_eq!(
        seen,
        json!({
            "chain": 7357,
            "sent": [2, 1, 0, 1],
            "block": [true, true],
            "pending": [null, null, null, 0, true],
            "balance": 11,
            "events": {
                "receipt": [400],
                "logs": [1000, 400],
                "filter": [400],
                "all": [400],
                "removed": true,
            },
            "revert": true,
            "past": { "call": [0, 1000, 600], "nonce": 1, "code": 0, "balance": 0, "slot": 1000 },
            "override": 42,
            "access_list": [2],
            "simulated": 1,
            "fees": [3, 2, true],
            "blob_base_fee": 1,
            "raw": true,
            "pool": ["pending", "queued"],
            "trace": 1,
            "batch": [true, 600],
            "async": true,
            "told": [true, [0, 1, 2]],
            "delegated": [4, true],
            "undelegated": "",
            "replaced": [1, 2],
            "low_nonce": true,
        })
    );
    devnet.stop().await.unwrap();
}
