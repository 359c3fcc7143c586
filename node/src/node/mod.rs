//! A whole node, assembled here and nowhere else.
//!
//! A start reads before it writes. It first checks configuration, key, genesis, the lock of an existing directory, and
//! ports. Only then does it create or open the data directory (`inputs.rs`). So a node that fails to start has changed
//! nothing. `assemble.rs` builds the parts on the open store and spawns the tasks that run them; this file starts and
//! stops a node. A stop goes from the outside in: API, consensus, sync, network, and finally the store.

mod assemble;
mod inputs;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use slipstream_api::{listener, starting::Starting};
use slipstream_base::{
    Log, NodeError,
    lock::{self, DataLock},
    tasks::{TaskFailure, Tasks},
};
use slipstream_config::NodeConfig;
use slipstream_network::{Network, PeerAddress};
use slipstream_storage::Store;

use self::{
    assemble::assemble,
    inputs::{PreviousRun, open_store, read_inputs},
};
use crate::{open_files, repair, router::Router};

/// How long each group of tasks may take to end. Five groups together stay below the time after which service managers
/// kill a process.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// The order in which tasks are stopped.
const STOP_ORDER: [&str; 18] = [
    "api",
    "status",
    "events",
    "resources",
    "speed",
    "consensus",
    "announcer",
    "forwarder",
    "mesh",
    "sync",
    "archives",
    "pool",
    "pruner",
    "scrub",
    "log index",
    "addresses",
    "bans",
    "network",
];

/// A running node; [`Node::stop`] ends it.
///
/// ```
/// use slipstream_base::{Log, genesis_file, keys};
/// use slipstream_config::{NodeConfig, Role};
/// use slipstream_node::Node;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let dir = tempfile::tempdir()?;
/// let path = |name| dir.path().join(name);
/// let mut config = NodeConfig { role: Role::Validator, ..NodeConfig::default() };
/// (config.data_dir, config.key_file) = (path("data"), path("node.key"));
/// config.genesis = Some(path("genesis.json"));
/// config.network.listen = "127.0.0.1:0".parse()?;
/// config.api.listen = "127.0.0.1:0".parse()?;
///
/// // The only validator of a new chain.
/// let key = keys::create(&config.key_file)?;
/// genesis_file::save(&path("genesis.json"), &slipstream_testkit::genesis(&[key], 1_700_000_000_000))?;
/// let node = Node::start(&config, Log::open(&config.log)?).await?;
/// assert!(node.ready_line().starts_with("slipstream ready api=http://127.0.0.1:"));
/// node.stop().await?;
/// # Ok(()) })
/// # }
/// ```
pub struct Node {
    tasks: Tasks,
    network: Arc<Network>,
    store: Store,
    api_address: SocketAddr,
    peer_address: PeerAddress,
    /// Held until the store is closed.
    _lock: DataLock,
}

impl Node {
    /// Starts a node; returns once its API and network answer. `log` is the log whose lost lines the node reports.
    pub async fn start(config: &NodeConfig, log: Log) -> Result<Node, NodeError> {
        let inputs = read_inputs(config)?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let config = &NodeConfig { api: open_files::fit(&config.api, limit)?, ..config.clone() };
        lock::check_free(&config.data_dir)?;
        let listener = listener::bind(config.api.listen)?;
        let starting = Starting::serve(&listener, slipstream_api::vouched(&config.api.trusted_addresses))
            .map_err(|source| NodeError::Io { action: "answer on the API's port", source })?;
        let router = Arc::new(Router::default());
        let before = PreviousRun::read(config);
        let (orders, bans) = (&before.orders.content, &before.bans.content);
        let network =
            Network::start_with_orders(&config.network, &inputs.key, router.clone(), orders, bans).await?;
        let opened = open_store(config, inputs.genesis, &*network, &listener, &starting, before).await;
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                network.shutdown().await;
                return Err(error);
            }
        };
        let store = opened.store.clone();
        let node = assemble(config, inputs.key, listener, &router, network.clone(), opened, log);
        if node.is_err() {
            network.shutdown().await;
            store.close();
        }
        starting.end().await;
        node
    }

    /// The address on which the API answers.
    pub fn api_address(&self) -> SocketAddr {
        self.api_address
    }

    /// The node's id, and the address at which peers reach it.
    pub fn peer_address(&self) -> PeerAddress {
        self.peer_address
    }

    /// The line that reports the node as up, for people and for the program that started the process.
    pub fn ready_line(&self) -> String {
        format!("slipstream ready api=http://{} network={}", self.api_address, self.peer_address)
    }

    /// Runs until a task fails; the caller must then stop the node.
    pub async fn failure(&mut self) -> TaskFailure {
        self.tasks.failure().await
    }

    /// Whether the next start may repair the cause of `failure`, a wrong state. Records the failure for that start.
    pub async fn is_to_be_repaired(&self, config: &NodeConfig, failure: &TaskFailure) -> bool {
        repair::note(config, &self.store, failure).await
    }

    /// Ends every task, then the network, then the store. Committed batches stay committed.
    pub async fn stop(mut self) -> Result<(), NodeError> {
        let failures = self.tasks.stop(&STOP_ORDER, STOP_PATIENCE).await;
        self.network.shutdown().await;
        let store = self.store.clone();
        // The last fsync may take a while on a slow disk.
        let _ = tokio::task::spawn_blocking(move || store.close()).await;
        match failures.into_iter().next() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }
}

/// Checks everything that `run` checks before it opens a port or writes anything.
pub fn check(config: &NodeConfig) -> Result<(), NodeError> {
    read_inputs(config).map(|_| ())
}
