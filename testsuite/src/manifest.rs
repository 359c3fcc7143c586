//! [`Manifest`]: everything another tool needs to use a running devnet.

use std::path::{Path, PathBuf};

use alloy_primitives::Address;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::accounts::Account;

/// The file name of a manifest in a devnet's directory.
pub const FILE: &str = "manifest.json";

/// A node's part in its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Proposes and certifies batches.
    Validator,
    /// Follows the validators' batches.
    Fullnode,
}

impl Role {
    /// As node.yaml writes it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Validator => "validator",
            Role::Fullnode => "fullnode",
        }
    }
}

/// A devnet and everything that other tools need of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The chain's id for EIP-155.
    pub chain_id: u64,
    /// The chain's genesis file.
    pub genesis_file: PathBuf,
    /// The accounts with ether.
    pub accounts: Vec<ManifestAccount>,
    /// The owner of the validators contract: `slipstream validators` signs with its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<ManifestAccount>,
    /// All keys come from it; loads and faults take it too, so that one seed repeats a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// The running nodes.
    pub nodes: Vec<ManifestNode>,
    /// Where trust may start instead of at the genesis; see `slipstream init --waypoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waypoint: Option<String>,
}

/// An account with ether.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ManifestAccount {
    /// The account's address.
    pub address: Address,
    /// Its secret key. Anybody who knows the seed knows it: never use it outside tests.
    pub key: String,
}

/// A node that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ManifestNode {
    /// Name of the node and of its directory.
    pub name: String,
    /// The node's part in the chain.
    pub role: Role,
    /// Its ed25519 public key.
    pub peer_id: String,
    /// The id of its process.
    pub pid: u32,
    /// JSON-RPC, `/v1/status` and `/metrics`.
    pub api: String,
    /// Where peers reach it.
    pub network: String,
    /// Its configuration, data and log.
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

    /// The nodes of one role.
    pub fn of_role(&self, role: Role) -> impl Iterator<Item = &ManifestNode> {
        self.nodes.iter().filter(move |node| node.role == role)
    }

    /// The accounts with their keys, at most `count`.
    pub fn accounts(&self, count: usize) -> Result<Vec<Account>> {
        self.accounts.iter().take(count).map(|account| Account::from_hex(&account.key)).collect()
    }
}
