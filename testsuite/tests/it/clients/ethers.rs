//! An unmodified client of the ecosystem, ethers from npm, against a fullnode.

use alloy_primitives::Address;
use serde_json::json;
use slipnet::devnet::DevnetOptions;

use super::{ARTIFACTS, fullnode_and_key, programs::Client};
use crate::common::pair;

/// Goal: the unmodified ethers from npm works through a fullnode that is no validator. It sends both kinds of
/// transactions, deploys a contract, reads receipts with logs, and understands reverts. It starts and stops listening
/// for events, by polling and over a WebSocket without gaps. It finds all logs of a chain of more than a thousand
/// batches.
#[tokio::test(flavor = "multi_thread")]
async fn ethers_works_against_a_fullnode() {
    let Some(ethers) = Client::npm("ethers") else { return };
    // Fast, so that the chain soon is long.
    let options = DevnetOptions { accounts: 2, batch_interval_ms: Some(10), ..DevnetOptions::default() };
    let devnet = pair(options).await;
    let (url, key) = fullnode_and_key(&devnet);
    let seen = ethers.run("ethers.mjs", &[&url, &key, ARTIFACTS]).await;

    let sender = devnet.accounts()[0].address.to_string();
    let receiver = "0x00000000000000000000000000000000000bee01".parse::<Address>().unwrap().to_string();
    let other = "0x00000000000000000000000000000000000bee02".parse::<Address>().unwrap().to_string();
    let zero = Address::ZERO.to_string();
    assert_eq!(
        seen,
        json!({
            "chainId": "7357",
            "transfer": { "status": 1, "gasUsed": "21000", "type": 2, "from": sender },
            "received": "1500000000000000000",
            "legacy": { "status": 1, "type": 0 },
            "block": { "hasTransaction": true, "hash": true, "byHash": true, "prefetchedFrom": sender },
            "pending": { "hash": null, "nonce": null, "transactions": 0, "ahead": true },
            "transaction": "1500000000000000000",
            "deployed": true,
            "code": true,
            "symbol": "ETT",
            "logs": [
                { "name": "Transfer", "from": zero, "to": sender, "value": "1000", "address": true },
                { "name": "Transfer", "from": sender, "to": receiver, "value": "400", "address": true },
            ],
            "balances": ["600", "400"],
            "totalSupply": "1000",
            "nonce": 5,
            "revert": "CALL_EXCEPTION InsufficientBalance 600",
            "estimateRevert": "CALL_EXCEPTION InsufficientBalance",
            "lowNonce": "NONCE_EXPIRED",
            "heard": [format!("{receiver} 7 0"), format!("{other} 8 0")],
            "listeners": 0,
            "socket": { "gaps": [], "transfer": true, "once": true, "chainId": "7357" },
            "all": ["1000", "400", "7", "8"],
            "some": [true],
            "none": [],
        })
    );
    devnet.stop().await.unwrap();
}
