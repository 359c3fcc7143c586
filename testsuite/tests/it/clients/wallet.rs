//! MetaMask's middleware, from npm, against a fullnode.

use serde_json::json;
use slipnet::devnet::DevnetOptions;

use super::{ARTIFACTS, fullnode_and_key, programs::Client};
use crate::common::pair;

/// Goal: a wallet's requests at `latest` read the batch that it polled, even 100 batches later: balances, nonces, code,
/// slots and calls. After the next poll, they read the head. Nodes keep the default windows.
#[tokio::test(flavor = "multi_thread")]
async fn a_wallet_reads_at_the_batch_that_it_polled() {
    let Some(wallet) = Client::npm("wallet") else { return };
    let options = DevnetOptions { accounts: 1, batch_interval_ms: Some(20), ..DevnetOptions::default() };
    let devnet = pair(options).await;
    let (url, key) = fullnode_and_key(&devnet);
    let seen = wallet.run("wallet.mjs", &[&url, &key, ARTIFACTS]).await;
    assert_eq!(
        seen,
        json!({
            "polled": { "balance": "0", "nonce": 2, "code": true, "slot": "1000", "call": "0" },
            "asked": ["eth_call", "eth_getBalance", "eth_getCode", "eth_getStorageAt", "eth_getTransactionCount"],
            "head": { "balance": "5", "nonce": 4, "code": true, "slot": "1400", "call": "400" },
            "confirm": { "nonce": 4, "fees": [5, 6], "gas": "21000", "network": "7357" },
        })
    );
    devnet.stop().await.unwrap();
}
