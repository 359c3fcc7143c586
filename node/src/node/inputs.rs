//! A node's inputs: configuration, key and genesis, checked before anything is written; then the data directory and its store.

use std::{net::SocketAddr, path::Path, time::Duration};

use slipstream_config::{NodeConfig, Role};
use slipstream_network::{Ban, Orders, Transport};
use slipstream_storage::Store;
use slipstream_sync::{Patience, SyncError, fetch_genesis};
use slipstream_types::{BatchNumber, ChainConfig, Genesis, SecretKey, Waypoint};
use tokio::net::TcpListener;

use super::DATABASE;
use crate::{
    api::starting::Starting,
    bans_file::{self, BansFile},
    error::NodeError,
    genesis_file,
    kept_file::Kept,
    keys,
    lock::{self, DataLock},
    orders_file::{self, OrdersFile},
    repair, schedule_file,
};

/// How long peers are asked for the genesis of a waypoint before the node gives up and reports their answers.
const GENESIS_PATIENCE: Duration = Duration::from_secs(30);
/// How long they are asked where a file has the genesis: they can only show sooner that the waypoint is another ledger's.
const WAYPOINT_PATIENCE: Duration = Duration::from_secs(10);

/// The files that the configuration names, read and checked; nothing is written yet.
pub(super) struct Inputs {
    pub(super) key: SecretKey,
    pub(super) genesis: Option<Genesis>,
}

/// A data directory that is this node's.
pub(super) struct Opened {
    pub(super) lock: DataLock,
    pub(super) store: Store,
    pub(super) orders: OrdersFile,
    pub(super) bans: BansFile,
}

/// What the run before left for the network's start, which comes before the lock.
pub(super) struct Before {
    pub(super) orders: Kept<Orders>,
    /// Those that the node itself spoke.
    pub(super) bans: Kept<Vec<Ban>>,
}

impl Before {
    /// Reads it and changes nothing.
    pub(super) fn read(config: &NodeConfig) -> Before {
        Before { orders: orders_file::read(&config.data_dir), bans: bans_file::read(&config.data_dir) }
    }
}

/// Reads key and genesis and checks them against each other and against the rest of the configuration.
pub(super) fn read_inputs(config: &NodeConfig) -> Result<Inputs, NodeError> {
    let key = keys::load(&config.key_file)?;
    let Some(path) = &config.genesis else { return Ok(Inputs { key, genesis: None }) };
    let genesis = genesis_file::load(path)?;
    if let Some(path) = &config.schedule {
        let chain = ChainConfig { schedule: schedule_file::load(path)?, ..genesis.chain.clone() };
        chain.check_schedule().map_err(|source| NodeError::Schedule { path: path.clone(), source })?;
    }
    let peer = key.public();
    // Where validators may come and go, this one may come later.
    let is_fixed = genesis.validators_contract.is_none();
    if config.role == Role::Validator && is_fixed && genesis.validator_set().index_of(&peer).is_none() {
        return Err(NodeError::NotAValidator { peer, genesis: path.clone() });
    }
    let found = Waypoint::of(&genesis.ledger_info()?);
    match config.waypoint {
        // A later waypoint is checked when the ledger gets there.
        Some(waypoint) if waypoint.number == BatchNumber::GENESIS && waypoint != found => {
            Err(NodeError::WrongWaypoint { waypoint, found, genesis: path.clone() })
        }
        _ => Ok(Inputs { key, genesis: Some(genesis) }),
    }
}

/// Locks the data directory, opens the store in it and makes sure that it holds the chain. Files of orders or bans that are damaged are set
/// aside.
pub(super) async fn open_store(
    config: &NodeConfig,
    genesis: Option<Genesis>,
    transport: &dyn Transport,
    api: &TcpListener,
    starting: &Starting,
    before: Before,
) -> Result<Opened, NodeError> {
    let dir = config.data_dir.join(DATABASE);
    // An unknown waypoint must leave nothing behind, so the genesis comes before the directory.
    let mut genesis = match genesis {
        genesis if dir.exists() => genesis,
        genesis => agree(config, genesis, fetch(config, transport, starting).await?)?,
    };
    let lock = lock::acquire(&config.data_dir, Some(address_of(api)?))?;
    let orders = OrdersFile::establish(&config.data_dir, before.orders)
        .map_err(|source| NodeError::Io { action: "take over the operator's orders on peers", source })?;
    let bans = BansFile::establish(&config.data_dir, before.bans)
        .map_err(|source| NodeError::Io { action: "take over the node's own bans", source })?;
    starting.stage("opening the store");
    let store = repair::open_repaired(config, &dir, transport, starting).await?;
    if genesis.is_none() && !store.is_initialized() {
        genesis = fetch(config, transport, starting).await?;
    }
    if let Some(genesis) = genesis {
        store.initialize(&genesis)?;
    }
    Ok(Opened { lock, store, orders, bans })
}

pub(super) fn address_of(listener: &TcpListener) -> Result<SocketAddr, NodeError> {
    listener.local_addr().map_err(|source| NodeError::Io { action: "read the API's own address", source })
}

/// Asks peers for the genesis of the configured waypoint. If a file has the genesis, the validators come from there, and sync stops
/// at a ledger that does not pass through the waypoint. Then peers may still be below the waypoint.
async fn fetch(
    config: &NodeConfig,
    transport: &dyn Transport,
    starting: &Starting,
) -> Result<Option<Genesis>, NodeError> {
    let has_file = config.genesis.is_some();
    // Batch 0 is the genesis itself: `read_inputs` compares it without peers where there is a file.
    let Some(waypoint) = config.waypoint.filter(|it| it.number > BatchNumber::GENESIS || !has_file) else {
        return Ok(None);
    };
    starting.stage("asking peers for the genesis");
    let patience = match has_file {
        true => Patience::AtMost(WAYPOINT_PATIENCE),
        false => Patience::WhileHopeful(GENESIS_PATIENCE),
    };
    tracing::info!(%waypoint, ?patience, "asking peers for the genesis");
    match fetch_genesis(transport, &waypoint, patience).await {
        Err(SyncError::UnknownWaypoint { answers, .. }) if has_file => {
            tracing::info!(%waypoint, %answers, "no peer knows the waypoint yet; the node stops at its batch if the ledger does not pass through it");
            Ok(None)
        }
        fetched => Ok(Some(fetched?)),
    }
}

/// The genesis of a new node: the file's, the waypoint's, or both if they are the same.
fn agree(
    config: &NodeConfig,
    given: Option<Genesis>,
    proved: Option<Genesis>,
) -> Result<Option<Genesis>, NodeError> {
    if let (Some(given), Some(proved), Some(waypoint), Some(path)) =
        (&given, &proved, config.waypoint, &config.genesis)
        && given != proved
    {
        let expected = proved.header()?.digest();
        return Err(NodeError::GenesisNotOfWaypoint { waypoint, expected, genesis: path.clone() });
    }
    Ok(given.or(proved))
}

/// Opening reads the whole state back into the tree: not on a thread that others wait for.
pub(crate) async fn open_database(config: &NodeConfig, dir: &Path) -> Result<Store, NodeError> {
    let (storage, dir) = (config.storage.clone(), dir.to_owned());
    let opened = tokio::task::spawn_blocking(move || Store::open(&storage, &dir)).await;
    let store = opened.map_err(|error| NodeError::Io {
        action: "open the store",
        source: std::io::Error::other(error),
    })??;
    Ok(store)
}
