//! Go's ethclient and bind, from the Go module proxy, against a fullnode.

use serde_json::json;
use slipnet::devnet::DevnetOptions;

use super::{ARTIFACTS, fullnode_and_key, programs, run::run};
use crate::common::pair;

/// Goal: a Go program reads blocks with and without transactions, and hears of new heads. It sends, deploys and waits
/// with geth's own packages, and finds logs and states of the past. It takes block hashes from answers, because the
/// hashes that it would compute itself differ.
#[tokio::test(flavor = "multi_thread")]
async fn go_works_against_a_fullnode() {
    let Some(client) = programs::go() else { return };
    let devnet = pair(DevnetOptions { accounts: 1, ..DevnetOptions::default() }).await;
    let (url, key) = fullnode_and_key(&devnet);
    let seen = run(tokio::process::Command::new(client).args([&*url, &*key, ARTIFACTS])).await;
    assert_eq!(
        seen,
        json!({
            "chain": 7357,
            "empty": [0, 3],
            "heads": [2, true, true, false],
            "transfer": [1, 21_000, 2],
            "balance": 5,
            "full": [true, true, true, true],
            "logs": [1000, 400],
            "places": true,
            "told": [1000, 400],
            "past": [1000, 600],
            "pending": [true, 0, 0],
            "missing": [true, true, true],
        })
    );
    devnet.stop().await.unwrap();
}

/// Goal: the client has the version that `./x tools` compiles and that nodes are compared with.
#[test]
fn the_client_is_of_geths_version() {
    let geth = include_str!("../../../../x").split("GETH=").nth(1).unwrap();
    let version = geth.split_whitespace().next().unwrap();
    let modules = include_str!("../../../clients/go/go.mod");
    assert!(
        modules.contains(&format!("github.com/ethereum/go-ethereum {version}\n")),
        "{version}: {modules}"
    );
}
