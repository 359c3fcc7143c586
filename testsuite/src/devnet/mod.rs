//! [`Devnet`]: a chain of real `slipstream` processes on loopback.
//!
//! ```text
//!  seed ──▶ genesis.json, node.key, node.yaml ──▶ processes ──▶ ready: /v1/status answers and the head moves
//!  (options)          (files)                     (process)                    (node, status)
//! ```
//!
//! Validators are meshed. A fullnode peers with every validator and with the fullnodes that started before it. All
//! processes end with the [`Devnet`], even if the program that owns it is killed.

mod directory;
mod end;
pub(crate) mod files;
mod grow;
mod holder;
mod node;
mod options;
mod peak;
mod ports;
mod process;
mod seats;
mod status;
mod twin;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use slipstream_types::Genesis;

use self::directory::Directory;
pub use self::files::{SyncMode, genesis, write_key};
pub use self::{
    end::NodeEnd,
    node::Node,
    options::{DevnetOptions, NodeOptions},
    peak::MemoryPeak,
    ports::FreePort,
    process::{Process, binary, die_with_parent, exists},
    status::{EpochStatus, HeadStatus, SnapshotStatus, Status, SyncStatus},
    twin::copy_data,
};
pub(crate) use self::{
    grow::Newcomer,
    seats::{dials, seat},
};
use crate::{
    accounts::Account,
    file_names,
    manifest::{self, Manifest, ManifestAccount},
};

/// The time limit until every node of a devnet is ready. Usually that takes a second or two; the rest is for loaded
/// machines.
pub(crate) const READY_DEADLINE: Duration = Duration::from_secs(180);

/// Returns the address at which a node dials another. The arguments are the index of the dialling node, the index of
/// the other node, and the other's entry of `network.peers`.
pub type Route<'a> = &'a (dyn Fn(usize, usize, String) -> Result<String> + Sync);

/// A running devnet.
pub struct Devnet {
    // Nodes come before the directory: fields drop in order, and processes must end before their files are removed.
    nodes: Vec<Node>,
    directory: Directory,
    options: DevnetOptions,
    genesis: Genesis,
    accounts: Vec<Account>,
    ports: ports::Ports,
    /// The nodes that failed while the devnet ran, and how they ended.
    failed: Vec<String>,
}

impl Devnet {
    /// Writes the files, starts all nodes, and waits until each is ready and its head has moved.
    pub async fn start(options: DevnetOptions) -> Result<Devnet> {
        Devnet::start_routed(options, &|_, _, peer| Ok(peer)).await
    }

    /// As [`Devnet::start`], over the links that `route` returns.
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
            nodes.push(node.with(own));
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
        let deadline = Instant::now() + self.options.ready_within;
        self.wait_all(0, deadline).await?;
        self.wait_all(1, deadline).await?;
        self.write_manifest().await
    }

    /// Waits until each node's head has reached batch `number`.
    ///
    /// # Errors
    /// Lists every node that has ended or missed the deadline: one of them may be the cause of the others.
    async fn wait_all(&mut self, number: u64, deadline: Instant) -> Result<()> {
        let mut failed = Vec::new();
        for node in &mut self.nodes {
            // Once a node has failed, the nodes after it are only checked to be alive: they may still reach the batch
            // in time.
            let looked = match failed.is_empty() || Instant::now() > deadline {
                true => node.wait_head(number, deadline).await.map(drop),
                false => node.check_alive(),
            };
            failed.extend(looked.err().map(|error| format!("{error:#}")));
        }
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        Ok(())
    }

    /// Returns the default peers of a node, with their indices: all nodes before it, and all validators.
    fn peers_of(&self, index: usize) -> Vec<(usize, String)> {
        let validators = self.options.validators as usize;
        let peers = self.nodes.iter().enumerate().filter(|(other, _)| dials(index, *other, validators));
        peers.map(|(other, node)| (other, node.peer_address())).collect()
    }

    fn configure(
        &self,
        index: usize,
        mode: SyncMode,
        peers: &[String],
        waypoint: Option<&str>,
    ) -> Result<()> {
        self.nodes[index].configure(&self.options.settings(mode, peers, waypoint))
    }

    /// All nodes, validators first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node, by its index in [`Devnet::nodes`].
    pub fn node_mut(&mut self, index: usize) -> &mut Node {
        &mut self.nodes[index]
    }

    /// Returns the index in [`Devnet::nodes`] of the node with this name.
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

    /// The directory of its files and logs.
    pub fn dir(&self) -> &Path {
        &self.directory.path
    }

    /// The path of the chain's genesis file.
    pub fn genesis_file(&self) -> PathBuf {
        self.directory.path.join(file_names::GENESIS)
    }

    /// Keeps the files when the devnet ends, and returns their directory.
    pub fn keep_directory(&mut self) -> PathBuf {
        self.directory.keep();
        self.directory.path.clone()
    }

    /// Returns the manifest, which other tools read.
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

    /// Returns the status of the first node that answers: the proposer may be stopped.
    async fn first_status(&self) -> Result<Status> {
        let mut failed = None;
        for node in self.nodes.iter().filter(|node| node.pid().is_some()) {
            match node.status().await {
                Ok(status) => return Ok(status),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| anyhow::anyhow!("no node of the devnet is running")))
    }

    /// Writes the manifest into the devnet's directory. Call it again after nodes have restarted, since their process
    /// ids change.
    ///
    /// # Errors
    /// As [`Devnet::manifest`], or if the file cannot be written.
    pub async fn write_manifest(&self) -> Result<()> {
        let path = self.directory.path.join(manifest::FILE);
        let text = serde_json::to_string_pretty(&self.manifest().await?)?;
        std::fs::write(&path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the nodes that have ended by themselves since the last call. The others continue.
    pub fn take_ended(&mut self) -> Result<Vec<NodeEnd>> {
        let ended: Result<Vec<_>> =
            self.nodes.iter_mut().filter_map(|node| node.take_ended().transpose()).collect();
        let ended = ended?;
        self.failed.extend(ended.iter().filter_map(NodeEnd::failure));
        Ok(ended)
    }

    /// Marks this end as expected: [`Devnet::stop`] does not report it.
    pub(crate) fn forgive(&mut self, end: &NodeEnd) {
        let failure = end.failure();
        if let Some(place) = self.failed.iter().rposition(|failed| failure.as_ref() == Some(failed)) {
            self.failed.remove(place);
        }
    }

    /// Returns the nodes that the user started again with `slipstream run` after they had ended: their files are in
    /// use.
    pub fn started_by_hand(&self) -> Vec<String> {
        self.nodes.iter().filter(|node| node.runs_by_hand()).map(|node| node.name().to_owned()).collect()
    }

    /// Stops all nodes and waits until they have ended; kills those that miss the deadline. Returns an error if a node
    /// stops badly, or has failed before.
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
