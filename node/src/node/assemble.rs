//! Builds a node's parts, and the tasks that run them.
//!
//! ```text
//!   Core: pool, forwarder, follower, mesh, seat ─▶ Surface: serving, status, API ─▶ tasks
//! ```

use std::{sync::Arc, time::Duration};

use slipstream_api::{Api, operator::Operator};
use slipstream_base::{
    DATABASE, Log, NodeError,
    bans_file::{self, BansFile},
    clock::SystemClock,
    operator_token::OperatorToken,
    schedule_file,
    tasks::{TaskError, Tasks},
};
use slipstream_broadcast::Broadcaster;
use slipstream_config::NodeConfig;
use slipstream_consensus::{DecidedBatch, Forwarder, Journal, Pool, maintain};
use slipstream_executor::Session;
use slipstream_fair::Workers;
use slipstream_network::{Network, PeerAddress, Transport};
use slipstream_rpc::{Batches, Congestion, Feed, Keeps, LogIndex, RpcContext, TraceLimits};
use slipstream_status::{
    DataPaths, Names, Resources, StatusSource,
    events::{Ring, tell_heads},
    health::{HealthSource, Rules},
    metrics::Metrics,
    seat::{self, Seat},
    speed::MachineSpeed,
};
use slipstream_storage::{SNAPSHOTS_DIR, Store};
use slipstream_sync::{Follower, SyncServer};
use slipstream_types::{ChainConfig, Clock, Genesis, SecretKey, Waypoint};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    Node,
    inputs::{OpenedDataDir, address_of},
};
use crate::{
    addresses,
    archives::Archives,
    mesh::{self, NodeLedger},
    router::{Router, Services},
    scrub,
};

/// The file in the data directory that journals the transactions that users submitted to this node.
const JOURNAL: &str = "transactions.journal";
/// Maximum number of decided batches that wait to be announced. When the queue is full, consensus waits, which bounds
/// its memory.
const DECIDED_MAX: usize = 16;
/// Time between two pruning runs. Each run costs the commits one small write, and the disk does not fill within
/// seconds.
const PRUNE_INTERVAL: Duration = Duration::from_secs(5);

/// The parts that follow the chain and agree on it.
struct Core {
    store: Store,
    genesis: Genesis,
    chain: ChainConfig,
    clock: Arc<dyn Clock>,
    network: Arc<Network>,
    transport: Arc<dyn Transport>,
    address: PeerAddress,
    pool: Pool,
    forwarder: Arc<Forwarder>,
    archives: Arc<Archives>,
    follower: Arc<Follower>,
    broadcaster: Arc<Broadcaster>,
    seat: Arc<Seat>,
}

/// The parts that are visible from outside: to syncing peers, callers and operators.
struct Surface {
    server: Arc<SyncServer>,
    resources: Arc<Resources>,
    speed: Arc<MachineSpeed>,
    status: Arc<StatusSource>,
    events: Arc<Ring>,
    log_index: Arc<LogIndex>,
    api: Api,
}

/// Builds a node's parts on its open store, opens them to peers and callers, and starts their tasks.
pub(super) fn assemble(
    config: &NodeConfig,
    key: SecretKey,
    listener: TcpListener,
    router: &Router,
    network: Arc<Network>,
    OpenedDataDir { lock, store, orders, bans }: OpenedDataDir,
    log: Log,
) -> Result<Node, NodeError> {
    let token = OperatorToken::establish(&config.data_dir)?;
    let api_address = address_of(&listener)?;
    let (core, decided) = Core::new(config, key, network.clone(), store.clone())?;
    let bans = Arc::new(bans);
    let operator = Operator {
        token,
        network: core.network.clone(),
        follower: core.follower.clone(),
        log,
        orders: Arc::new(orders),
        bans: bans.clone(),
    };
    let surface = Surface::new(config, &core, operator)?;
    // Orders from before the restart still hold, and the validator set may have changed since.
    let _ = surface.status.tell_barred();
    let peer_address = core.address;
    router.open(Services {
        server: surface.server.clone(),
        broadcaster: core.broadcaster.clone(),
        forwarder: core.forwarder.clone(),
        seat: core.seat.clone(),
    });
    let mut tasks = Tasks::default();
    core.run(&mut tasks, decided);
    surface.run(config, &mut tasks, &store, listener);
    keep(&mut tasks, &store, &network, bans);
    Ok(Node { tasks, network, store, api_address, peer_address, _lock: lock })
}

impl Core {
    /// Returns the parts, and the receiver of the batches that consensus will decide.
    fn new(
        config: &NodeConfig,
        key: SecretKey,
        network: Arc<Network>,
        store: Store,
    ) -> Result<(Core, mpsc::Receiver<DecidedBatch>), NodeError> {
        let genesis = store.genesis()?;
        if let Some(path) = &config.schedule {
            store.follow_schedule(schedule_file::load(path)?)?;
        }
        let chain = ChainConfig::clone(&*store.chain()?);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let transport: Arc<dyn Transport> = network.clone();
        let address = PeerAddress { id: key.public(), address: network.local_address() };
        let pool = Pool::new(config.consensus.pool.clone(), chain.clone(), store.clone())?;
        let journal = open_journal(config)?;
        let forwarder =
            Forwarder::new(pool.clone(), &chain, transport.clone(), &[], journal).map_err(|source| {
                NodeError::Io { action: "start the threads that take peers' transactions", source }
            })?;
        // The waypoint binds both committers: sync, and this validator's consensus.
        if let Some(waypoint) = &config.waypoint {
            store.expect_waypoint(waypoint)?;
        }
        let session = Session::new(&config.executor, chain.clone())?
            .with_senders(pool.senders().clone())
            .with_saved(&store)?;
        let session = Arc::new(session);
        let archives = Archives::new(&config.sync.archives, &store, &genesis, transport.clone());
        let follower = Follower::new(
            config.sync.clone(),
            store.clone(),
            archives.clone(),
            session.clone(),
            config.waypoint,
            Duration::ZERO,
        )?;
        let broadcaster = mesh::broadcaster(config, &store, transport.clone(), key.clone())?;
        addresses::open(&network, &store, genesis.header()?.digest(), clock.clone())?;
        let (sender, decided) = mpsc::channel(DECIDED_MAX);
        let seat = Seat::new(seat::SeatParts {
            config: config.clone(),
            session,
            chain: chain.clone(),
            store: store.clone(),
            pool: pool.clone(),
            key,
            transport: transport.clone(),
            clock: clock.clone(),
            forwarder: forwarder.clone(),
            follower: follower.clone(),
            broadcaster: broadcaster.clone(),
            decided: sender,
        })?;
        let core = Core {
            store,
            genesis,
            chain,
            clock,
            network,
            transport,
            address,
            pool,
            forwarder,
            archives,
            follower,
            broadcaster,
            seat,
        };
        Ok((core, decided))
    }

    fn run(self, tasks: &mut Tasks, mut decided: mpsc::Receiver<DecidedBatch>) {
        let Core { store, pool, forwarder, archives, follower, broadcaster, seat, .. } = self;
        tasks.spawn("consensus", |shutdown| seat.run(shutdown));
        let announcer = broadcaster.clone();
        tasks.spawn("announcer", |shutdown| async move {
            loop {
                let decided = tokio::select! {
                    () = shutdown.cancelled() => return Ok(()),
                    Some(decided) = decided.recv() => decided,
                };
                announcer.publish(mesh::fresh(decided));
            }
        });
        let ledger = Arc::new(NodeLedger { store, follower: follower.clone() });
        tasks.spawn("mesh", |shutdown| broadcaster.run(ledger, shutdown));
        tasks.spawn("archives", |shutdown| until_shutdown(archives.run(shutdown.clone()), shutdown));
        tasks.spawn("sync", |shutdown| async move { Ok(follower.run(shutdown).await?) });
        tasks.spawn("pool", |shutdown| until_shutdown(maintain(pool, shutdown.clone()), shutdown));
        tasks.spawn("forwarder", |shutdown| until_shutdown(forwarder.run(shutdown.clone()), shutdown));
    }
}

impl Surface {
    fn new(config: &NodeConfig, core: &Core, operator: Operator) -> Result<Surface, NodeError> {
        let Core { store, genesis, clock, transport, follower, seat, .. } = core;
        let head_age_max_s = u64::from(config.sync.head_age_max_s);
        let head_lag_max = u64::from(config.sync.head_lag_max_batches);
        let rules = Rules {
            head_age_max: (head_age_max_s > 0).then(|| Duration::from_secs(head_age_max_s)),
            head_lag_max: (head_lag_max > 0).then_some(head_lag_max),
        };
        let names = Arc::new(Names::new(&config.network.names).with_archives(&config.sync.archives));
        let health = Arc::new(HealthSource::new(
            rules,
            store.clone(),
            follower.clone(),
            Some(seat.clone()),
            transport.clone(),
            clock.clone(),
            names.clone(),
        ));
        let known = config.network.peers.iter().map(|peer| peer.id);
        let server = Arc::new(SyncServer::with_peers(store.clone(), &config.sync, known, transport.clone()));
        let events = Ring::new(clock.now_ms());
        let resources = Resources::new(places(config), store.clone(), &**clock);
        let view = Duration::from_millis(config.consensus.view_timeout_ms.get());
        let speed = MachineSpeed::new(config.data_dir.clone(), store.clone(), view);
        let status = Arc::new(StatusSource {
            role: config.role,
            address: core.address,
            chain_id: core.chain.chain_id,
            genesis: genesis.header()?.digest(),
            origin: Waypoint::of(&genesis.ledger_info()?),
            store: store.clone(),
            pool: core.pool.clone(),
            forwarder: core.forwarder.clone(),
            follower: follower.clone(),
            server: server.clone(),
            seat: seat.clone(),
            validators_contract: genesis.validators_contract,
            transport: transport.clone(),
            broadcaster: core.broadcaster.clone(),
            health: health.clone(),
            resources: resources.clone(),
            speed: speed.clone(),
            log: operator.log.clone(),
            names,
        });
        let log_index = Arc::new(LogIndex::new(store.clone()));
        let context = context(config, core, log_index.clone(), health)?;
        let metrics = Metrics::new().map_err(|error| NodeError::Api(error.to_string()))?;
        let api = Api::new(context, Arc::new(metrics), status.clone(), operator, events.clone(), &config.api);
        Ok(Surface { server, resources, speed, status, events, log_index, api })
    }

    fn run(self, config: &NodeConfig, tasks: &mut Tasks, store: &Store, listener: TcpListener) {
        let Surface { resources, speed, status, events, log_index, api, .. } = self;
        let (told, follower) = (events.clone(), status.follower.clone());
        tasks.spawn("status", |shutdown| slipstream_status::watch(status, told, shutdown));
        let heads = store.clone();
        tasks.spawn("events", |shutdown| tell_heads(heads, events, shutdown));
        tasks.spawn("resources", |shutdown| slipstream_status::sample_resources(resources, shutdown));
        tasks.spawn("speed", |shutdown| speed.run(move || follower.status().phase.catches_up(), shutdown));
        tasks.spawn("log index", |shutdown| until_shutdown(log_index.run(shutdown.clone()), shutdown));
        let api_config = config.api.clone();
        tasks.spawn("api", |shutdown| slipstream_api::serve(listener, api_config, Arc::new(api), shutdown));
    }
}

/// The context that JSON-RPC answers from.
fn context(
    config: &NodeConfig,
    core: &Core,
    log_index: Arc<LogIndex>,
    health: Arc<HealthSource>,
) -> Result<RpcContext, NodeError> {
    let Core { store, pool, .. } = core;
    Ok(RpcContext {
        batches: Batches::new(store.clone(), pool.senders().clone(), config.sync.history),
        congestion: Congestion::default(),
        keeps: Keeps::of(config),
        log_index,
        filters: Arc::default(),
        feed: Feed::new(store, pool.clone())?,
        call_time_max: Duration::from_millis(config.api.call_time_max_ms.get()),
        send_sync_time_max: Duration::from_millis(config.api.send_sync_time_max_ms.get()),
        trace_limits: TraceLimits {
            time_max: Duration::from_millis(config.api.trace_time_max_ms.get()),
            // At most 4 GiB.
            bytes_max: (config.api.trace_mib_max.get() as usize) << 20,
        },
        store: store.clone(),
        chain: core.chain.clone(),
        pool: pool.clone(),
        pool_reader: Workers::begun("pool reader"),
        forwarder: core.forwarder.clone(),
        transport: core.transport.clone(),
        health,
        clock: core.clock.clone(),
    })
}

/// Starts the tasks that maintain the store and the network.
fn keep(tasks: &mut Tasks, store: &Store, network: &Arc<Network>, bans: Arc<BansFile>) {
    let pruned = store.clone();
    tasks.spawn("pruner", |shutdown| prune(pruned, shutdown));
    let scrubbed = store.clone();
    tasks.spawn("scrub", |shutdown| scrub::run(scrubbed, shutdown));
    let (exchanging, kept) = (network.clone(), store.clone());
    tasks.spawn("addresses", |shutdown| addresses::keep(exchanging, kept, shutdown));
    let banning = network.clone();
    tasks.spawn("bans", |shutdown| bans_file::keep(banning, bans, shutdown));
    let watched = network.clone();
    tasks.spawn("network", |shutdown| async move {
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            // An unreachable node must not look alive.
            reason = watched.failed() => Err(reason.into()),
        }
    });
}

/// Wraps a task that has nothing to report; an end before its shutdown signal counts as a failure.
async fn until_shutdown(
    work: impl Future<Output = ()>,
    shutdown: CancellationToken,
) -> Result<(), TaskError> {
    work.await;
    if shutdown.is_cancelled() { Ok(()) } else { Err("it ended by itself".into()) }
}

/// Drops blobs that leave the windows of `storage.prune` as the head advances.
async fn prune(store: Store, shutdown: CancellationToken) -> Result<(), TaskError> {
    let mut head = store.watch_head();
    loop {
        let pruning = store.clone();
        for pruned in tokio::task::spawn_blocking(move || pruning.prune()).await?? {
            if pruned.bytes > 0 {
                tracing::info!(kind = pruned.kind.name(), lowest = %pruned.lowest, bytes = pruned.bytes, "pruned");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(PRUNE_INTERVAL) => {}
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            changed = head.changed() => changed?,
        }
    }
}

/// The paths of the data directory's parts.
fn places(config: &NodeConfig) -> DataPaths {
    let database = config.data_dir.join(DATABASE);
    DataPaths {
        snapshots: database.join(SNAPSHOTS_DIR),
        journal: config.data_dir.join(JOURNAL),
        data: config.data_dir.clone(),
        database,
    }
}

/// Opens the journal of users' transactions, if configured. The caller holds the data directory's lock.
fn open_journal(config: &NodeConfig) -> Result<Option<Journal>, NodeError> {
    match config.consensus.pool.journal_mib {
        0 => Ok(None),
        mib => Ok(Some(Journal::open(&config.data_dir.join(JOURNAL), mib << 20)?)),
    }
}
