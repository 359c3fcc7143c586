//! Unmodified programs of Ethereum's ecosystem against a fullnode. docs/clients.md describes the purpose of each test.

mod cast;
mod ethers;
mod foundry;
mod geth;
mod go;
mod hardhat;
mod nodes;
mod page;
mod programs;
mod report;
pub(crate) mod run;
mod viem;
mod wallet;
mod web3;

use slipnet::devnet::Devnet;

use crate::common::fullnode;

/// The contracts that the clients deploy.
const ARTIFACTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/contracts/artifacts.json");

/// Returns the URL of a devnet's fullnode, and the key of its first account.
fn fullnode_and_key(devnet: &Devnet) -> (String, String) {
    (fullnode(devnet).rpc().url().to_owned(), devnet.accounts()[0].key_hex())
}
