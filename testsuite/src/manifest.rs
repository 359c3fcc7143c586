//! [`Manifest`]: what another tool needs to use a running devnet.

use std::path::{Path, PathBuf};

use alloy_primitives::Address;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
pub use slipstream_config::Role;

use crate::accounts::Account;

/// The file name of a manifest in a devnet's directory.
pub const FILE: &str = "manifest.json";

/// A devnet's description for other tools.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The chain's id for EIP-155.
    pub chain_id: u64,
    /// The chain's genesis file.
    pub genesis_file: PathBuf,
    /// The funded accounts.
    pub accounts: Vec<ManifestAccount>,
    /// The owner of the validators contract: `slipstream validators` signs with its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<ManifestAccount>,
    /// The seed of all keys. Loads and faults use it too, so that one seed repeats a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// The running nodes.
    pub nodes: Vec<ManifestNode>,
    /// A waypoint from which trust may start instead of the genesis; see `slipstream init --waypoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waypoint: Option<String>,
}

/// A funded account.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ManifestAccount {
    /// The account's address.
    pub address: Address,
    /// Its secret key. It is known to everyone who knows the seed: never use it outside tests.
    pub key: String,
}

/// A running node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ManifestNode {
    /// The name of the node and of its directory.
    pub name: String,
    /// The node's role in the chain.
    pub role: Role,
    /// Its ed25519 public key.
    pub peer_id: String,
    /// The id of its process.
    pub pid: u32,
    /// The URL of JSON-RPC, `/v1/status` and `/metrics`.
    pub api: String,
    /// The address at which peers reach it.
    pub network: String,
    /// The directory of its configuration, data and log.
    pub dir: PathBuf,
}

impl Manifest {
    /// Reads a manifest that `slipnet up` wrote.
    pub fn load(path: &Path) -> Result<Manifest> {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| {
            format!("cannot read the manifest {}; `slipnet up` writes it", path.display())
        })?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a manifest of slipnet up", path.display()))
    }

    /// Returns the nodes of one role.
    pub fn of_role(&self, role: Role) -> impl Iterator<Item = &ManifestNode> {
        self.nodes.iter().filter(move |node| node.role == role)
    }

    /// Returns at most `count` accounts with their keys.
    pub fn accounts(&self, count: usize) -> Result<Vec<Account>> {
        self.accounts.iter().take(count).map(|account| Account::from_hex(&account.key)).collect()
    }
}
