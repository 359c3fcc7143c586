//! An unmodified client of the ecosystem, ethers from npm, against a fullnode.
//!
//! Its version is pinned by `clients/package-lock.json`; it is installed once into the target directory. Without npm the
//! test says that it skips, unless `SLIPSTREAM_REQUIRE_CLIENTS=1`.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use alloy_primitives::Address;
use serde_json::{Value, json};
use slipnet::{
    devnet::{Devnet, DevnetOptions},
    manifest::Role,
};

/// The directory with ethers and our script, or why there is none.
fn install() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = program.ancestors().nth(3).ok_or("no target directory")?;
    let dir = target.join("slipnet-clients");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
    // The lock file last: the copy of it says that an installation of exactly these versions was finished.
    let lock = fs::read(source.join("package-lock.json")).map_err(|error| error.to_string())?;
    let installed = fs::read(dir.join("installed.json")).is_ok_and(|installed| installed == lock);
    for file in ["package.json", "package-lock.json", "ethers.mjs"] {
        fs::copy(source.join(file), dir.join(file)).map_err(|error| error.to_string())?;
    }
    if !installed {
        let npm = Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&dir).output();
        let npm = npm.map_err(|error| format!("npm cannot be started: {error}"))?;
        if !npm.status.success() {
            return Err(format!("npm ci failed: {}", String::from_utf8_lossy(&npm.stderr)));
        }
        fs::write(dir.join("installed.json"), lock).map_err(|error| error.to_string())?;
    }
    Ok(dir)
}

/// Goal: ethers, as it comes from npm, sends both kinds of transactions, deploys a contract, reads receipts with logs, and
/// understands reverts, all through a fullnode that is no validator.
#[tokio::test(flavor = "multi_thread")]
async fn ethers_works_against_a_fullnode() {
    let dir = match install() {
        Ok(dir) => dir,
        Err(reason) if std::env::var("SLIPSTREAM_REQUIRE_CLIENTS").is_ok_and(|value| value == "1") => {
            panic!("ethers cannot be installed: {reason}")
        }
        Err(reason) => {
            eprintln!(
                "SKIPPED: ethers cannot be installed (SLIPSTREAM_REQUIRE_CLIENTS=1 makes this an error): {reason}"
            );
            return;
        }
    };
    let options = DevnetOptions { validators: 1, fullnodes: 1, accounts: 2, ..DevnetOptions::default() };
    let devnet = Devnet::start(options).await.unwrap();
    let fullnode = devnet.nodes().iter().find(|node| node.role() == Role::Fullnode).unwrap();
    let account = &devnet.accounts()[0];
    let artifacts = Path::new(env!("CARGO_MANIFEST_DIR")).join("contracts/artifacts.json");
    let mut node = tokio::process::Command::new("node");
    node.arg("ethers.mjs").arg(fullnode.rpc().url()).arg(account.key_hex()).arg(artifacts).current_dir(dir);
    let output = tokio::time::timeout(Duration::from_secs(90), node.kill_on_drop(true).output()).await;
    let output = output.expect("ethers.mjs ends").unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ethers failed: {stderr}");
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();

    let sender = account.address.to_string();
    let receiver = "0x00000000000000000000000000000000000bee01".parse::<Address>().unwrap().to_string();
    let zero = Address::ZERO.to_string();
    assert_eq!(
        seen,
        json!({
            "chainId": "7357",
            "transfer": { "status": 1, "gasUsed": "21000", "type": 2, "from": sender },
            "received": "1500000000000000000",
            "legacy": { "status": 1, "type": 0 },
            "block": { "hasTransaction": true, "hash": true, "byHash": true, "prefetchedFrom": sender },
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
        })
    );
    devnet.stop().await.unwrap();
}
