//! [`DevnetOptions`]: what a devnet consists of.

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

/// Entries of `network.names` that a node takes.
const NAMES_MAX: u32 = 1_024;

/// What a devnet consists of.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevnetOptions {
    /// Nodes that certify; at least one.
    pub validators: u32,
    /// Nodes that follow.
    pub fullnodes: u32,
    /// Funded accounts.
    pub accounts: u32,
    /// Whether the chain begins with the contracts that Ethereum's tools expect (`slipstream_types::predeploys`).
    pub predeploys: bool,
    /// Whether the chain admits transactions that name no chain, from before EIP-155: those that deploy known contracts at their known
    /// addresses are such ones.
    pub unprotected_transactions: bool,
    /// All keys come from it.
    pub seed: String,
    /// The first port; when it is not given, nodes keep the ports that a directory says they had, and new ones get free ones.
    pub base_port: Option<u16>,
    /// Where files go; a fresh temporary directory when it is not given.
    pub dir: Option<PathBuf>,
    /// Whether a temporary directory stays.
    pub keep: bool,
    /// Batches between two snapshots.
    pub snapshot_interval_batches: u64,
    /// `consensus.batch_interval_ms`, and the same between empty batches; the nodes' defaults when it is not given.
    pub batch_interval_ms: Option<u64>,
    /// MiB of each node's block cache; the nodes' default when it is not given.
    pub block_cache_mib: Option<u64>,
    /// States of the past that each node answers for; the nodes' default when it is not given.
    pub state_history: Option<u64>,
    /// Peers that each node chooses by itself (`network.outbound`); the nodes' default when it is not given. 0 where links are laid
    /// for a node: what its peers tell it of lies behind them.
    pub outbound: Option<u32>,
    /// How the fullnodes that are there from the start follow.
    pub sync_mode: SyncMode,
    /// How long a node, and the chain at its beginning, may take until it is ready.
    pub ready_within: Duration,
    /// The log filter of all nodes.
    pub log_filter: String,
    /// Further sections of all nodes' configuration, as lines of YAML; of none that the options above write.
    pub extra: String,
    /// What differs for some nodes, by their names; for those that are added later too.
    pub nodes: BTreeMap<String, NodeOptions>,
}

/// What differs for one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeOptions {
    /// The program that it runs; [`binary`](super::binary)'s when it is not given.
    pub program: Option<PathBuf>,
    /// `KEY=VALUE` for `slipstream run --set`: above everything that its node.yaml says.
    pub overrides: Vec<String>,
    /// Variables of its environment, beside those of this process.
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
    /// What a node's node.yaml says of it, for whoever wants to have it checked: with a peer and ports that nobody has.
    pub(crate) fn node_yaml(&self, role: Role) -> String {
        let peer = [format!("{}@127.0.0.1:3", node_key(&self.seed, 0).public())];
        let settings = self.settings(self.sync_mode, &peer, None);
        files::node_yaml(role, (Ipv4Addr::LOCALHOST, 1).into(), 2, &settings)
    }

    /// What the nodes that are there from the start call each other: `KEY=NAME`.
    fn names(&self) -> Vec<String> {
        let named = |index| {
            let (_, name) = seat(index, self.validators);
            format!("{}={name}", node_key(&self.seed, index).public())
        };
        (0..self.validators.saturating_add(self.fullnodes).min(NAMES_MAX)).map(named).collect()
    }

    /// For a node that follows so, with these peers.
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
