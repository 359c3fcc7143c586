//! [`Devnet`]: a chain of real `slipstream` processes on loopback.
//!
//! ```text
//!  seed ──▶ genesis.json, node.key, node.yaml ──▶ processes ──▶ ready: /v1/status answers and the head moves
//!                     (files)                     (process)                    (node)
//! ```
//!
//! Validators are meshed; a fullnode peers with every validator and with the fullnodes that were there before it. All
//! processes end with the [`Devnet`], whatever happens to the program that owns it.

mod directory;
pub(crate) mod files;
mod holder;
mod node;
mod peak;
mod ports;
mod process;
mod seats;
mod twin;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use slipstream_types::Genesis;

use self::directory::Directory;
pub use self::files::{SyncMode, genesis, write_key};
pub use self::node::{EpochStatus, HeadStatus, Node, NodeEnd, SnapshotStatus, Status, SyncStatus};
pub use self::ports::FreePort;
pub use self::peak::MemoryPeak;
pub use self::process::{Process, binary, die_with_parent, exists};
pub(crate) use self::seats::{dials, seat};
pub use self::twin::copy_data;
use crate::{
    accounts::{Account, node_key},
    manifest::{self, Manifest, ManifestAccount, Role},
};

/// How long a devnet may take until every node is ready: far above the second or two it takes, for loaded machines.
const READY_DEADLINE: Duration = Duration::from_secs(180);

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
    /// Milliseconds between two batches, empty ones too; the nodes' defaults when it is not given.
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
    /// The program that it runs; [`binary`]'s when it is not given.
    pub program: Option<PathBuf>,
    /// `KEY=VALUE` for `slipstream run --set`: above everything that its node.yaml says.
    pub overrides: Vec<String>,
    /// Variables of its environment, beside those of this process.
    pub environment: BTreeMap<String, String>,
}

/// Where a node dials another one: by the dialling one's place, and the other's place and entry of `network.peers`.
pub type Route<'a> = &'a (dyn Fn(usize, usize, String) -> Result<String> + Sync);

impl Default for DevnetOptions {
    fn default() -> Self {
        Self {
            validators: 4,
            fullnodes: 0,
            accounts: 200,
            predeploys: true,
            unprotected_transactions: true,
            seed: crate::accounts::DEFAULT_SEED.to_owned(),
            base_port: None,
            dir: None,
            keep: false,
            snapshot_interval_batches: 100,
            batch_interval_ms: None,
            block_cache_mib: Some(files::BLOCK_CACHE_MIB),
            state_history: None,
            outbound: None,
            sync_mode: SyncMode::Auto,
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

    fn settings<'a>(
        &'a self,
        mode: SyncMode,
        peers: &'a [String],
        waypoint: Option<&'a str>,
    ) -> files::Settings<'a> {
        files::Settings {
            peers,
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

/// A running devnet.
pub struct Devnet {
    // Nodes before the directory: fields drop in order, and a process must be gone before its files are.
    nodes: Vec<Node>,
    directory: Directory,
    options: DevnetOptions,
    genesis: Genesis,
    accounts: Vec<Account>,
    ports: ports::Ports,
    /// Nodes that ended badly while the devnet ran, and how.
    failed: Vec<String>,
}

impl Devnet {
    /// Writes the files, starts all nodes and waits until each is ready and its head has moved.
    pub async fn start(options: DevnetOptions) -> Result<Devnet> {
        Devnet::start_routed(options, &|_, _, peer| Ok(peer)).await
    }

    /// As [`Devnet::start`], over links that somebody else lays.
    ///
    /// # Errors
    /// As [`Devnet::start`].
    pub async fn start_routed(options: DevnetOptions, route: Route<'_>) -> Result<Devnet> {
        let validators_max = slipstream_types::limits::VALIDATORS_MAX;
        ensure!(
            (1..=validators_max).contains(&(options.validators as usize)),
            "a devnet has 1 to {validators_max} validators, not {}",
            options.validators
        );
        let binary = binary()?;
        let directory = Directory::open(&options)?;
        let accounts = Account::derive_many(&options.seed, options.accounts);
        let genesis = files::genesis(&options.seed, options.validators, &accounts);
        let genesis = files::write_genesis(&genesis, files::Extras::of(&options), &directory.path)?;

        let mut ports = ports::Ports::new(options.base_port);
        let mut nodes = Vec::new();
        for index in 0..options.validators + options.fullnodes {
            let (role, name) = seat(index, options.validators);
            let own = options.nodes.get(&name).cloned();
            let node = Node::new(&options.seed, index, name, role, &directory.path, &mut ports, &binary)?;
            nodes.push(with_options(node, own));
        }
        let mut devnet = Devnet { nodes, directory, options, genesis, accounts, ports, failed: Vec::new() };
        if let Err(error) = devnet.start_all(route).await {
            let dir = devnet.keep_directory();
            return Err(error
                .context(format!("the devnet did not start; its files and logs are in {}", dir.display())));
        }
        Ok(devnet)
    }

    async fn start_all(&mut self, route: Route<'_>) -> Result<()> {
        for index in 0..self.nodes.len() {
            let peers = self.peers_of(index).into_iter();
            let peers = peers.map(|(other, peer)| route(index, other, peer)).collect::<Result<Vec<_>>>()?;
            self.configure(index, self.options.sync_mode, &peers, None)?;
            self.nodes[index].start()?;
        }
        let deadline = Instant::now() + READY_DEADLINE;
        for node in &mut self.nodes {
            node.wait_ready(deadline).await?;
        }
        for node in &mut self.nodes {
            node.wait_head(1, deadline).await?;
        }
        self.write_manifest().await
    }

    /// The peers that a node knows by default, and their places: everybody before it, and all validators.
    fn peers_of(&self, index: usize) -> Vec<(usize, String)> {
        let validators = self.options.validators as usize;
        let peers = self.nodes.iter().enumerate().filter(|(other, _)| dials(index, *other, validators));
        peers.map(|(other, node)| (other, node.peer_address())).collect()
    }

    /// Of the next node.
    fn peers_by_default(&self) -> Vec<String> {
        self.peers_of(self.nodes.len()).into_iter().map(|(_, peer)| peer).collect()
    }

    fn configure(
        &self,
        index: usize,
        mode: SyncMode,
        peers: &[String],
        waypoint: Option<&str>,
    ) -> Result<()> {
        self.nodes[index].configure(&self.settings(mode, peers, waypoint))
    }

    fn settings<'a>(
        &'a self,
        mode: SyncMode,
        peers: &'a [String],
        waypoint: Option<&'a str>,
    ) -> files::Settings<'a> {
        self.options.settings(mode, peers, waypoint)
    }

    /// Starts one more fullnode with an empty data directory, and waits until it answers, not until it has caught up.
    pub async fn add_fullnode(&mut self, name: &str, mode: SyncMode) -> Result<usize> {
        let peers = self.peers_by_default();
        self.add_fullnode_behind(name, mode, &peers).await
    }

    /// As [`Devnet::add_fullnode`], with these entries of `network.peers` instead of the devnet's nodes.
    pub async fn add_fullnode_behind(
        &mut self,
        name: &str,
        mode: SyncMode,
        peers: &[String],
    ) -> Result<usize> {
        self.add_fullnode_from(Ipv4Addr::LOCALHOST, name, mode, peers).await
    }

    /// As [`Devnet::add_fullnode_behind`], at another address of this machine's: its peers take it for a stranger from elsewhere.
    pub async fn add_fullnode_from(
        &mut self,
        host: Ipv4Addr,
        name: &str,
        mode: SyncMode,
        peers: &[String],
    ) -> Result<usize> {
        self.add_node(host, name, Role::Fullnode, mode, peers, None).await
    }

    /// Starts one more fullnode that trusts a waypoint and has no genesis.
    pub async fn add_fullnode_by_waypoint(
        &mut self,
        name: &str,
        mode: SyncMode,
        waypoint: &str,
    ) -> Result<usize> {
        let peers = self.peers_by_default();
        self.add_node(Ipv4Addr::LOCALHOST, name, Role::Fullnode, mode, &peers, Some(waypoint)).await
    }

    /// Starts one more fullnode that trusts a waypoint and has no genesis, with these entries of `network.peers`.
    ///
    /// # Errors
    /// As [`Devnet::add_fullnode`].
    pub async fn add_fullnode_by_waypoint_behind(
        &mut self,
        name: &str,
        mode: SyncMode,
        waypoint: &str,
        peers: &[String],
    ) -> Result<usize> {
        self.add_node(Ipv4Addr::LOCALHOST, name, Role::Fullnode, mode, peers, Some(waypoint)).await
    }

    /// As [`Devnet::add_candidate`], with these entries of `network.peers`.
    ///
    /// # Errors
    /// As [`Devnet::add_candidate`].
    pub async fn add_candidate_behind(&mut self, name: &str, peers: &[String]) -> Result<usize> {
        self.add_node(Ipv4Addr::LOCALHOST, name, Role::Validator, SyncMode::Auto, peers, None).await
    }

    /// Starts a node that validates as soon as the chain's set names it, and follows until then.
    pub async fn add_candidate(&mut self, name: &str) -> Result<usize> {
        let peers = self.peers_by_default();
        self.add_node(Ipv4Addr::LOCALHOST, name, Role::Validator, SyncMode::Auto, &peers, None).await
    }

    async fn add_node(
        &mut self,
        host: Ipv4Addr,
        name: &str,
        role: Role,
        mode: SyncMode,
        peers: &[String],
        waypoint: Option<&str>,
    ) -> Result<usize> {
        let index = self.nodes.len();
        let node_index = u32::try_from(index).context("too many nodes")?;
        let name = name.to_owned();
        let own = self.options.nodes.get(&name).cloned();
        let node = Node::new(
            &self.options.seed,
            node_index,
            name,
            role,
            &self.directory.path,
            &mut self.ports,
            &binary()?,
        )?;
        let node = with_options(node.at(host), own);
        ensure!(!node.has_data(), "{} already has data: choose another name", node.dir().display());
        self.nodes.push(node);
        self.configure(index, mode, peers, waypoint)?;
        self.nodes[index].start()?;
        self.nodes[index].wait_ready(Instant::now() + READY_DEADLINE).await?;
        Ok(index)
    }

    /// All nodes, validators first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node, by its place in [`Devnet::nodes`].
    pub fn node_mut(&mut self, index: usize) -> &mut Node {
        &mut self.nodes[index]
    }

    /// The place of the node of this name in [`Devnet::nodes`].
    pub fn find(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name() == name)
    }

    /// The first validator, which proposes.
    pub fn proposer(&self) -> &Node {
        &self.nodes[0]
    }

    /// The funded accounts.
    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// The owner of the validators contract.
    pub fn owner(&self) -> Account {
        Account::owner(&self.options.seed)
    }

    /// Where files and logs are.
    pub fn dir(&self) -> &Path {
        &self.directory.path
    }

    /// The chain's genesis.
    pub fn genesis_file(&self) -> PathBuf {
        self.directory.path.join(files::GENESIS)
    }

    /// Keeps the files when the devnet ends, and says where they are.
    pub fn keep_directory(&mut self) -> PathBuf {
        self.directory.keep();
        self.directory.path.clone()
    }

    /// What other tools need.
    ///
    /// # Errors
    /// If no node answers.
    pub async fn manifest(&self) -> Result<Manifest> {
        let account =
            |account: &Account| ManifestAccount { address: account.address, key: account.key_hex() };
        let status = self.first_status().await?;
        Ok(Manifest {
            chain_id: self.genesis.chain.chain_id,
            genesis_file: self.genesis_file(),
            accounts: self.accounts.iter().map(account).collect(),
            owner: Some(account(&self.owner())),
            seed: Some(self.options.seed.clone()),
            nodes: self.nodes.iter().map(Node::manifest).collect(),
            waypoint: status.waypoint,
        })
    }

    /// Of the first node that answers: the proposer may be the one that is stopped.
    async fn first_status(&self) -> Result<Status> {
        let mut failed = None;
        for node in self.nodes.iter().filter(|node| node.pid().is_some()) {
            match node.status().await {
                Ok(status) => return Ok(status),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| anyhow::anyhow!("no node of the devnet runs")))
    }

    /// Writes the manifest into the devnet's directory: again where nodes have other processes since.
    ///
    /// # Errors
    /// As [`Devnet::manifest`], or if the file cannot be written.
    pub async fn write_manifest(&self) -> Result<()> {
        let path = self.directory.path.join(manifest::FILE);
        let text = serde_json::to_string_pretty(&self.manifest().await?)?;
        std::fs::write(&path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }

    /// The nodes that have ended by themselves since the last call. The others go on.
    pub fn take_ended(&mut self) -> Result<Vec<NodeEnd>> {
        let ended: Result<Vec<_>> =
            self.nodes.iter_mut().filter_map(|node| node.take_ended().transpose()).collect();
        let ended = ended?;
        self.failed.extend(ended.iter().filter_map(NodeEnd::failure));
        Ok(ended)
    }

    /// This node's end was wanted after all: [`Devnet::stop`] does not tell it.
    pub(crate) fn forgive(&mut self, end: &NodeEnd) {
        let failure = end.failure();
        if let Some(place) = self.failed.iter().rposition(|failed| failure.as_ref() == Some(failed)) {
            self.failed.remove(place);
        }
    }

    /// The nodes that somebody started again with `slipstream run` after they had ended: their files are in use.
    pub fn started_by_hand(&self) -> Vec<String> {
        self.nodes.iter().filter(|node| node.runs_by_hand()).map(|node| node.name().to_owned()).collect()
    }

    /// Stops all nodes and waits for them: first politely, then not. An error if one stops badly, or had ended badly before.
    pub async fn stop(mut self) -> Result<()> {
        for node in &mut self.nodes {
            node.ask_to_stop();
        }
        let mut failed = std::mem::take(&mut self.failed);
        for node in &mut self.nodes {
            if let Err(error) = node.wait_stopped().await {
                failed.push(format!("{error:#}"));
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        let dir = self.keep_directory();
        bail!("{}; logs are in {}", failed.join("; "), dir.display());
    }
}

/// The node with what is said of it alone.
fn with_options(mut node: Node, own: Option<NodeOptions>) -> Node {
    if let Some(NodeOptions { program, overrides, environment }) = own {
        node.set_overrides(overrides);
        node.set_environment(environment);
        if let Some(program) = program {
            node.set_program(program);
        }
    }
    node
}
