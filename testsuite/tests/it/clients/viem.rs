//! An unmodified client of the ecosystem, viem from npm, against a fullnode.

use serde_json::json;
use slipnet::devnet::DevnetOptions;

use super::{fullnode_and_key, programs::Client};
use crate::common::pair;

/// Goal: the unmodified viem from npm works with two nodes alike. It sends a thousand calls at once, overrides state
/// and block, estimates with authorizations, simulates blocks and requests access lists. It recognises errors by their
/// texts, gets a receipt with its transaction, and receives notifications over a WebSocket.
#[tokio::test(flavor = "multi_thread")]
async fn viem_works_against_a_fullnode() {
    let Some(viem) = Client::npm("viem") else { return };
    let options = DevnetOptions { accounts: 1, ..DevnetOptions::default() };
    let devnet = pair(options).await;
    let (url, key) = fullnode_and_key(&devnet);
    let other = devnet.proposer().rpc().url();
    let seen = viem.run("viem.mjs", &[&url, &key, other]).await;
    assert_eq!(
        seen,
        json!({
            "batch": 1_000,
            "balance": "77",
            "stateDiff": "99",
            "number": "123456789",
            "time": "4102444800",
            "baseFee": "7",
            "latest": true,
            "pending": [null, null, 0, true],
            "authorization": true,
            "simulated": ["1", "1", "0xeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"],
            "simulatedCalls": ["success", "-7"],
            "accessList": [1, 1],
            "multicall": true,
            "create2": "0x5f355f5500",
            "unfunded": true,
            "unfundedCall": true,
            "missing": true,
            "blobs": "transaction type not supported",
            "blobBaseFee": "1",
            "deployed": "success",
            "raw": true,
            "txpool": { "pending": "0x0", "queued": "0x0" },
            "gap": 5,
            "watched": { "blocks": true, "log": "42", "gaps": [], "same": true },
        })
    );
    devnet.stop().await.unwrap();
}
