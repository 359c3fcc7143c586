//! [`DevnetOptions`]: the size and settings of a devnet.

use std::{collections::BTreeMap, net::Ipv4Addr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    READY_DEADLINE,
    files::{self, SyncMode},
    seats::seat,
};
use crate::{
    accounts::{DEFAULT_SEED, node_key},
    manifest::Role,
};

/// The most entries of `network.names` that a node accepts.
const NAMES_MAX: u32 = 1_024;

/// The size and settings of a devnet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevnetOptions {
    /// The number of validators; at least one.
    pub validators: u32,
    /// The number of fullnodes.
    pub fullnodes: u32,
    /// The number of funded accounts.
    pub accounts: u32,
    /// Whether the genesis contains the contracts that Ethereum's tools expect (`slipstream_types::predeploys`).
    pub predeploys: bool,
    /// Whether the chain admits transactions without a chain id, from before EIP-155. Such transactions deploy known
    /// contracts at their known addresses.
    pub unprotected_transactions: bool,
    /// The seed from which all keys are derived.
    pub seed: String,
    /// The first port. If `None`, nodes keep the ports in their existing configuration, and new nodes get free ports.
    pub base_port: Option<u16>,
    /// The directory of all files; a fresh temporary directory if `None`.
    pub dir: Option<PathBuf>,
    /// Whether a temporary directory stays.
    pub keep: bool,
    /// The number of batches between two snapshots.
    pub snapshot_interval_batches: u64,
    /// The value of `consensus.batch_interval_ms` and of the interval between empty batches; the nodes' defaults if
    /// `None`.
    pub batch_interval_ms: Option<u64>,
    /// The size of each node's block cache in MiB; the nodes' default if `None`.
    pub block_cache_mib: Option<u64>,
    /// The number of past states that each node serves; the nodes' default if `None`.
    pub state_history: Option<u64>,
    /// The number of peers that each node chooses by itself (`network.outbound`); the nodes' default if `None`. Use 0
    /// when a node's links are relayed: addresses that its peers announce would bypass the relays.
    pub outbound: Option<u32>,
    /// The sync mode of the fullnodes that start with the devnet.
    pub sync_mode: SyncMode,
    /// The time limit for a node, and for the chain at its start, to become ready.
    pub ready_within: Duration,
    /// The log filter of every node.
    pub log_filter: String,
    /// Further sections of every node's configuration, as lines of YAML. They must not repeat a section that the
    /// options above write.
    pub extra: String,
    /// The options of individual nodes, by name. They also apply to nodes that are added later.
    pub nodes: BTreeMap<String, NodeOptions>,
}

/// The options of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeOptions {
    /// The program that it runs; that of [`binary`](super::binary) if `None`.
    pub program: Option<PathBuf>,
    /// `KEY=VALUE` arguments for `slipstream run --set`. They override its node.yaml.
    pub overrides: Vec<String>,
    /// Environment variables in addition to those of this process.
    pub environment: BTreeMap<String, String>,
}

impl Default for DevnetOptions {
    fn default() -> Self {
        Self {
            validators: 4,
            fullnodes: 0,
            accounts: 200,
            predeploys: true,
            unprotected_transactions: true,
            seed: DEFAULT_SEED.to_owned(),
            base_port: None,
            dir: None,
            keep: false,
            snapshot_interval_batches: 100,
            batch_interval_ms: None,
            block_cache_mib: Some(files::BLOCK_CACHE_MIB),
            state_history: None,
            outbound: None,
            sync_mode: SyncMode::Auto,
            ready_within: READY_DEADLINE,
            log_filter: "info".to_owned(),
            extra: String::new(),
            nodes: BTreeMap::new(),
        }
    }
}

impl DevnetOptions {
    /// Returns a node.yaml with these options, so that they can be checked. Its peer and ports are placeholders.
    pub(crate) fn node_yaml(&self, role: Role) -> String {
        let peer = [format!("{}@127.0.0.1:3", node_key(&self.seed, 0).public())];
        let settings = self.settings(self.sync_mode, &peer, None);
        files::node_yaml(role, (Ipv4Addr::LOCALHOST, 1).into(), 2, &settings)
    }

    /// Returns the names of the nodes that start with the devnet, as `KEY=NAME`.
    fn names(&self) -> Vec<String> {
        let named = |index| {
            let (_, name) = seat(index, self.validators);
            format!("{}={name}", node_key(&self.seed, index).public())
        };
        (0..self.validators.saturating_add(self.fullnodes).min(NAMES_MAX)).map(named).collect()
    }

    /// Returns the settings of a node with this sync mode and these peers.
    pub(super) fn settings<'a>(
        &'a self,
        mode: SyncMode,
        peers: &'a [String],
        waypoint: Option<&'a str>,
    ) -> files::Settings<'a> {
        files::Settings {
            peers,
            names: self.names(),
            mode,
            waypoint,
            snapshot_interval_batches: self.snapshot_interval_batches,
            batch_interval_ms: self.batch_interval_ms,
            block_cache_mib: self.block_cache_mib,
            state_history: self.state_history,
            outbound: self.outbound,
            log_filter: &self.log_filter,
            extra: &self.extra,
        }
    }
}
