//! Unmodified programs of Ethereum's ecosystem against a fullnode. docs/clients.md says what each test shows.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod cast;
mod ethers;
mod foundry;
mod geth;
mod hardhat;
mod nodes;
mod page;
mod programs;
mod report;
mod run;
mod viem;
mod wallet;
mod web3;

use slipnet::{
    devnet::{Devnet, DevnetOptions},
    manifest::Role,
};

/// The contracts that the clients deploy.
const ARTIFACTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/contracts/artifacts.json");

/// A devnet of one validator and one fullnode, as these options say beside.
async fn devnet(options: DevnetOptions) -> Devnet {
    Devnet::start(DevnetOptions { validators: 1, fullnodes: 1, ..options }).await.unwrap()
}

/// The API of its fullnode, and the key of its first account.
fn fullnode_and_key(devnet: &Devnet) -> (String, String) {
    let fullnode = devnet.nodes().iter().find(|node| node.role() == Role::Fullnode).unwrap();
    (fullnode.rpc().url().to_owned(), devnet.accounts()[0].key_hex())
}
