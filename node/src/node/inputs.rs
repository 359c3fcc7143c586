//! A node's inputs. Configuration, key and genesis are checked before anything is written; then the data directory and
//! its store open.

use std::{net::SocketAddr, path::Path, time::Duration};

use slipstream_api::starting::Starting;
use slipstream_base::{
    DATABASE, NodeError, YEAR_MS,
    bans_file::{self, BansFile},
    clock::SystemClock,
    genesis_file,
    kept_file::KeptContent,
    keys,
    lock::{self, DataLock},
    orders_file::{self, OrdersFile},
    schedule_file,
};
use slipstream_config::{NodeConfig, Role};
use slipstream_network::{Ban, Orders, Transport};
use slipstream_storage::Store;
use slipstream_sync::{Patience, SyncError, fetch_genesis};
use slipstream_types::{
    BatchNumber, ChainConfig, Clock as _, Genesis, Schedule, SecretKey, Waypoint, schedule::Activation,
};
use tokio::net::TcpListener;

use crate::repair;

/// How long the node asks peers for the genesis of a waypoint before it gives up and reports their answers.
const GENESIS_PATIENCE: Duration = Duration::from_secs(30);
/// How long the node asks peers if a file supplies the genesis. Their answers can then only reveal sooner that the
/// waypoint belongs to another ledger.
const WAYPOINT_PATIENCE: Duration = Duration::from_secs(10);

/// A time further ahead of the clock than this has the wrong unit: microseconds lie thousands of years ahead, seconds
/// lie in 1970. A chain may be planned years before it begins.
const TIME_MAX_MS: u64 = 20 * YEAR_MS;

/// The files that the configuration names, read and checked. Nothing is written yet.
pub(super) struct Inputs {
    pub(super) key: SecretKey,
    pub(super) genesis: Option<Genesis>,
}

/// A data directory that this node has locked and opened.
pub(super) struct OpenedDataDir {
    pub(super) lock: DataLock,
    pub(super) store: Store,
    pub(super) orders: OrdersFile,
    pub(super) bans: BansFile,
}

/// What the previous run left for the network's start. The network starts before the directory is locked.
pub(super) struct PreviousRun {
    pub(super) orders: KeptContent<Orders>,
    /// The bans that the node itself imposed.
    pub(super) bans: KeptContent<Vec<Ban>>,
}

impl PreviousRun {
    /// Reads the files and changes nothing.
    pub(super) fn read(config: &NodeConfig) -> PreviousRun {
        PreviousRun { orders: orders_file::read(&config.data_dir), bans: bans_file::read(&config.data_dir) }
    }
}

/// Reads the key and genesis, and checks them against each other and the rest of the configuration.
pub(super) fn read_inputs(config: &NodeConfig) -> Result<Inputs, NodeError> {
    let key = keys::load(&config.key_file)?;
    let Some(path) = &config.genesis else { return Ok(Inputs { key, genesis: None }) };
    let genesis = genesis_file::load(path)?;
    let now_ms = SystemClock.now_ms();
    check_time(path, || "the genesis' timestamp".to_owned(), genesis.timestamp_ms, now_ms)?;
    if let Some(path) = &config.schedule {
        let chain = ChainConfig { schedule: schedule_file::load(path)?, ..genesis.chain.clone() };
        check_forks(path, &chain.schedule, now_ms)?;
        chain.check_schedule().map_err(|source| NodeError::Schedule { path: path.clone(), source })?;
    }
    let peer = key.public();
    // With a validators contract the set may change, so this validator may join later.
    let is_fixed = genesis.validators_contract.is_none();
    if config.role == Role::Validator && is_fixed && genesis.validator_set().index_of(&peer).is_none() {
        return Err(NodeError::NotAValidator { peer, genesis: path.clone() });
    }
    let found = Waypoint::of(&genesis.ledger_info()?);
    match config.waypoint {
        // A later waypoint is checked when the ledger reaches it.
        Some(waypoint) if waypoint.number == BatchNumber::GENESIS && waypoint != found => {
            Err(NodeError::WrongWaypoint { waypoint, found, genesis: path.clone() })
        }
        _ => Ok(Inputs { key, genesis: Some(genesis) }),
    }
}

/// Refuses a time that is implausibly far ahead.
fn check_time(
    path: &Path,
    what: impl FnOnce() -> String,
    timestamp_ms: u64,
    now_ms: u64,
) -> Result<(), NodeError> {
    match timestamp_ms > now_ms.saturating_add(TIME_MAX_MS) {
        true => Err(NodeError::WrongTime { path: path.to_owned(), what: what(), timestamp_ms, now_ms }),
        false => Ok(()),
    }
}

/// Refuses a fork whose time lies implausibly far in the past: the time is in seconds, and the fork would take effect
/// at once.
fn check_forks(path: &Path, schedule: &Schedule, now_ms: u64) -> Result<(), NodeError> {
    for (fork, _) in schedule.forks() {
        let Activation::TimeMs(timestamp_ms) = fork.at else { continue };
        let what = || format!("the time of fork {}", fork.name);
        if timestamp_ms > 0 && timestamp_ms < now_ms.saturating_sub(2 * TIME_MAX_MS) {
            return Err(NodeError::WrongTime { path: path.to_owned(), what: what(), timestamp_ms, now_ms });
        }
        check_time(path, what, timestamp_ms, now_ms)?;
    }
    Ok(())
}

/// Locks the data directory, opens its store and ensures that the store holds this chain. Sets damaged files of orders
/// or bans aside.
pub(super) async fn open_store(
    config: &NodeConfig,
    genesis: Option<Genesis>,
    transport: &dyn Transport,
    api: &TcpListener,
    starting: &Starting,
    before: PreviousRun,
) -> Result<OpenedDataDir, NodeError> {
    let dir = config.data_dir.join(DATABASE);
    // An unknown waypoint must leave nothing behind, so the node fetches the genesis before it creates the directory.
    let mut genesis = match genesis {
        genesis if dir.exists() => genesis,
        genesis => agree(config, genesis, fetch(config, transport, starting).await?)?,
    };
    let lock = lock::acquire(&config.data_dir, Some(address_of(api)?))?;
    let orders = OrdersFile::establish(&config.data_dir, before.orders)
        .map_err(|source| NodeError::Io { action: "take over the operator's orders about peers", source })?;
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
    // A node that will stop at its first write must not report itself ready.
    if let Err(error) = store.check_room(0) {
        store.close();
        return Err(error.into());
    }
    Ok(OpenedDataDir { lock, store, orders, bans })
}

pub(super) fn address_of(listener: &TcpListener) -> Result<SocketAddr, NodeError> {
    listener.local_addr().map_err(|source| NodeError::Io { action: "read the API's own address", source })
}

/// Asks peers for the genesis of the configured waypoint. If a file supplies the genesis, the validators come from that
/// file. Sync then stops at a ledger that does not pass through the waypoint, and peers may still be below the
/// waypoint.
async fn fetch(
    config: &NodeConfig,
    transport: &dyn Transport,
    starting: &Starting,
) -> Result<Option<Genesis>, NodeError> {
    let has_file = config.genesis.is_some();
    // Batch 0 is the genesis itself: with a file, `read_inputs` compares the two without peers.
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

/// The genesis of a new node: from the file, from the waypoint, or from both if they agree.
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

#[cfg(test)]
mod tests {
    use slipstream_types::{ScheduledFork, bounded::BoundedVec, chain::Fork};

    use super::*;

    /// Goal: a time in another unit is refused with its file and name; a chain planned for next year is accepted.
    #[test]
    fn times_in_another_unit_are_refused() {
        let (now_ms, path) = (1_800_000_000_000, Path::new("genesis.json"));
        let check = |time_ms| check_time(path, || "the time".to_owned(), time_ms, now_ms);
        for time_ms in [0, 1_700_000_000_000, now_ms + 3_600_000, now_ms + 10 * YEAR_MS] {
            check(time_ms).unwrap();
        }
        let error = check(now_ms * 1_000).unwrap_err().to_string();
        assert!(error.starts_with("genesis.json: the time is 1800000000000000 ms since 1970"), "{error}");
        let forks = |time_ms| {
            let fork = ScheduledFork::evm("osaka", Activation::TimeMs(time_ms), Fork::Osaka);
            check_forks(path, &Schedule::new(BoundedVec::new(vec![fork]).unwrap()), now_ms)
        };
        forks(now_ms - YEAR_MS).unwrap();
        forks(now_ms + YEAR_MS).unwrap();
        for time_ms in [now_ms / 1_000, now_ms * 1_000] {
            let error = forks(time_ms).unwrap_err().to_string();
            assert!(error.contains("the time of fork osaka"), "{error}");
        }
    }
}
