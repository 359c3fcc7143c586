//! A whole node: everything is put together here, and nowhere else.
//!
//! Starting goes from what can only be read to what is written: configuration, key, genesis, lock of a directory that is
//! there, ports; only then the data directory is created or opened. So a node that cannot start has changed nothing.
//! Stopping goes from the outside to the inside: API, consensus, sync, network, and at last the store.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use slipstream_broadcast::Broadcaster;
use slipstream_config::{NodeConfig, Role};
use slipstream_consensus::{Decided, Forwarder, Journal, Pool, maintain};
use slipstream_executor::Session;
use slipstream_network::{Network, PeerAddress, Transport};
use slipstream_storage::{SNAPSHOTS_DIR, Store};
use slipstream_sync::{Follower, Patience, SyncError, SyncServer, fetch_genesis};
use slipstream_types::{BatchNumber, ChainConfig, Clock, Genesis, SecretKey, Waypoint};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    Log, addresses,
    api::{self, Api, listener, metrics::Metrics, operator::Operator, starting::Starting},
    archives::Archives,
    clock::SystemClock,
    error::NodeError,
    events::{Ring, tell_heads},
    genesis_file,
    health::{HealthSource, Rules},
    keys,
    lock::{self, DataLock},
    mesh::{self, NodeLedger},
    operator_token::OperatorToken,
    repair,
    router::{Router, Services},
    rpc::{Batches, Feed, LogIndex, RpcContext, TraceLimits},
    schedule_file, scrub,
    seat::{Parts, Seat},
    status::{self, Places, Resources, StatusSource},
    tasks::{TaskError, TaskFailure, Tasks},
};

/// The database's directory in the data directory.
pub(crate) const DATABASE: &str = "db";
/// The file in the data directory that keeps what users gave this node.
const JOURNAL: &str = "transactions.journal";
/// How long peers are asked for the genesis of a waypoint before the node gives up and says what they answered.
const GENESIS_PATIENCE: Duration = Duration::from_secs(30);
/// How long they are asked where a file has the genesis: they can only show sooner that the waypoint is another ledger's.
const WAYPOINT_PATIENCE: Duration = Duration::from_secs(10);
/// Decided batches that wait to be announced; when it is full consensus waits, which bounds the memory they take.
const DECIDED_MAX: usize = 16;
/// How long each group of tasks may take to end. Five groups stay below what service managers wait before they kill.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two prunings: each costs the commits one small write, and the disk is not filled in seconds.
const PRUNE_INTERVAL: Duration = Duration::from_secs(5);
/// The order in which tasks are told to stop.
const STOP_ORDER: [&str; 16] = [
    "api",
    "status",
    "events",
    "resources",
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
    "network",
];

/// What the configuration names, read and checked; nothing is written yet.
struct Inputs {
    key: SecretKey,
    genesis: Option<Genesis>,
}

/// A data directory that is this node's.
struct Opened {
    lock: DataLock,
    store: Store,
}

/// A running node.
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
    /// Starts a node; returns when its API and its network answer. The log is the one that it tells the losses of.
    pub async fn start(config: &NodeConfig, log: Log) -> Result<Node, NodeError> {
        let inputs = read_inputs(config)?;
        lock::check_free(&config.data_dir)?;
        let listener = listener::bind(config.api.listen)?;
        let starting = Starting::serve(&listener, api::vouched(&config.api.trusted_addresses))
            .map_err(|source| NodeError::Io { action: "answer on the API's port", source })?;
        let router = Arc::new(Router::default());
        let network = Network::start(&config.network, &inputs.key, router.clone()).await?;
        let opened = open_store(config, inputs.genesis, &*network, &listener, &starting).await;
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                network.shutdown().await;
                return Err(error);
            }
        };
        let store = opened.store.clone();
        let node = Self::assemble(config, inputs.key, listener, &router, network.clone(), opened, log);
        if node.is_err() {
            network.shutdown().await;
            store.close();
        }
        starting.end().await;
        node
    }

    fn assemble(
        config: &NodeConfig,
        key: SecretKey,
        listener: TcpListener,
        router: &Router,
        network: Arc<Network>,
        Opened { lock, store }: Opened,
        log: Log,
    ) -> Result<Node, NodeError> {
        let token = OperatorToken::establish(&config.data_dir)?;
        let genesis = store.genesis()?;
        if let Some(path) = &config.schedule {
            store.follow_schedule(schedule_file::load(path)?)?;
        }
        let chain = ChainConfig::clone(&*store.chain()?);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let transport: Arc<dyn Transport> = network.clone();
        let peer_address = PeerAddress { id: key.public(), address: network.local_address() };
        let api_address = address_of(&listener)?;

        let pool = Pool::new(config.consensus.pool.clone(), chain.clone(), store.clone())?;
        let journal = open_journal(config)?;
        let forwarder =
            Forwarder::new(pool.clone(), &chain, transport.clone(), &[], journal).map_err(|source| {
                NodeError::Io { action: "start the threads that take peers' transactions", source }
            })?;
        // Whoever commits, sync or this validator's consensus.
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
        let mut tasks = Tasks::default();
        addresses::open(&network, &store, genesis.header()?.digest(), clock.clone())?;
        let (decided, announced) = mpsc::channel(DECIDED_MAX);
        let seat = Seat::new(Parts {
            config: config.clone(),
            session,
            chain: chain.clone(),
            store: store.clone(),
            pool: pool.clone(),
            key: key.clone(),
            transport: transport.clone(),
            clock: clock.clone(),
            forwarder: forwarder.clone(),
            follower: follower.clone(),
            broadcaster: broadcaster.clone(),
            decided,
        })?;
        spawn_seat(&mut tasks, seat.clone(), announced, broadcaster.clone());
        let head_age_max_s = u64::from(config.sync.head_age_max_s);
        let rules = Rules { head_age_max: (head_age_max_s > 0).then(|| Duration::from_secs(head_age_max_s)) };
        let health = Arc::new(HealthSource::new(
            rules,
            store.clone(),
            follower.clone(),
            Some(seat.clone()),
            transport.clone(),
            clock.clone(),
        ));
        let known = config.network.peers.iter().map(|peer| peer.id);
        let server = Arc::new(SyncServer::with_known(store.clone(), &config.sync, known));
        let clock_ms = clock.now_ms();
        let resources = Resources::new(places(config), store.clone(), &*clock);
        let status = Arc::new(StatusSource {
            role: config.role,
            address: peer_address,
            chain_id: chain.chain_id,
            genesis: genesis.header()?.digest(),
            origin: Waypoint::of(&genesis.ledger_info()?),
            store: store.clone(),
            pool: pool.clone(),
            forwarder: forwarder.clone(),
            follower: follower.clone(),
            server: server.clone(),
            seat: seat.clone(),
            validators_contract: genesis.validators_contract,
            transport: transport.clone(),
            broadcaster: broadcaster.clone(),
            health: health.clone(),
            resources: resources.clone(),
            log: log.clone(),
        });
        let log_index = Arc::new(LogIndex::new(store.clone()));
        let feed = Feed::new(&store, pool.clone())?;
        let context = RpcContext {
            batches: Batches::new(store.clone(), pool.senders().clone()),
            log_index: log_index.clone(),
            filters: Arc::default(),
            feed,
            call_time_max: Duration::from_millis(config.api.call_time_max_ms.get()),
            send_sync_time_max: Duration::from_millis(config.api.send_sync_time_max_ms.get()),
            trace_limits: TraceLimits {
                time_max: Duration::from_millis(config.api.trace_time_max_ms.get()),
                // At most 4 GiB.
                bytes_max: (config.api.trace_mib_max.get() as usize) << 20,
            },
            store: store.clone(),
            chain,
            pool: pool.clone(),
            forwarder: forwarder.clone(),
            transport,
            health: health.clone(),
            clock,
        };
        let metrics = Metrics::new().map_err(|error| NodeError::Api(error.to_string()))?;
        let operator = Operator { token, network: network.clone(), follower: follower.clone(), log };
        let events = Ring::new(clock_ms);
        let api = Api::new(context, Arc::new(metrics), status.clone(), operator, events.clone(), &config.api);

        let services =
            Services { server, broadcaster: broadcaster.clone(), forwarder: forwarder.clone(), seat };
        router.open(services);
        let ledger = Arc::new(NodeLedger { store: store.clone(), follower: follower.clone() });
        tasks.spawn("mesh", |shutdown| broadcaster.run(ledger, shutdown));
        tasks.spawn("archives", |shutdown| until_shutdown(archives.run(shutdown.clone()), shutdown));
        tasks.spawn("sync", |shutdown| async move { Ok(follower.run(shutdown).await?) });
        tasks.spawn("pool", |shutdown| until_shutdown(maintain(pool, shutdown.clone()), shutdown));
        tasks.spawn("forwarder", |shutdown| until_shutdown(forwarder.run(shutdown.clone()), shutdown));
        let told = events.clone();
        tasks.spawn("status", |shutdown| status::watch(status, told, shutdown));
        let heads = store.clone();
        tasks.spawn("events", |shutdown| tell_heads(heads, events, shutdown));
        tasks.spawn("resources", |shutdown| status::sample_resources(resources, shutdown));
        let pruned = store.clone();
        tasks.spawn("pruner", |shutdown| prune(pruned, shutdown));
        let scrubbed = store.clone();
        tasks.spawn("scrub", |shutdown| scrub::run(scrubbed, shutdown));
        tasks.spawn("log index", |shutdown| until_shutdown(log_index.run(shutdown.clone()), shutdown));
        let (exchanging, kept) = (network.clone(), store.clone());
        tasks.spawn("addresses", |shutdown| addresses::keep(exchanging, kept, shutdown));
        let watched = network.clone();
        tasks.spawn("network", |shutdown| async move {
            tokio::select! {
                () = shutdown.cancelled() => Ok(()),
                // A node that nobody can reach any more must not look alive.
                reason = watched.failed() => Err(reason.into()),
            }
        });
        let api_config = config.api.clone();
        tasks.spawn("api", |shutdown| api::serve(listener, api_config, Arc::new(api), shutdown));
        Ok(Node { tasks, network, store, api_address, peer_address, _lock: lock })
    }

    /// Where the API answers.
    pub fn api_address(&self) -> SocketAddr {
        self.api_address
    }

    /// Who the node is and where its peers find it.
    pub fn peer_address(&self) -> PeerAddress {
        self.peer_address
    }

    /// The line that says that the node is up, for people and for whoever started the process.
    pub fn ready_line(&self) -> String {
        format!("slipstream ready api=http://{} network={}", self.api_address, self.peer_address)
    }

    /// Runs until a task fails; a node that has lost one must not go on without it.
    pub async fn failure(&mut self) -> TaskFailure {
        self.tasks.failure().await
    }

    /// Whether the next start may mend what a task failed of, because the state is wrong. Notes it for that start.
    pub async fn is_to_be_repaired(&self, config: &NodeConfig, failure: &TaskFailure) -> bool {
        repair::note(config, &self.store, failure).await
    }

    /// Ends every task, then the network, then the store. What is committed stays committed.
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

/// A task that has nothing to report; ending before it was told to is a failure like any other.
async fn until_shutdown(
    work: impl Future<Output = ()>,
    shutdown: CancellationToken,
) -> Result<(), TaskError> {
    work.await;
    if shutdown.is_cancelled() { Ok(()) } else { Err("it ended by itself".into()) }
}

/// Drops what is beyond the windows of `storage.prune` as the head moves on.
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

fn spawn_seat(
    tasks: &mut Tasks,
    seat: Arc<Seat>,
    mut decided: mpsc::Receiver<Decided>,
    broadcaster: Arc<Broadcaster>,
) {
    tasks.spawn("consensus", |shutdown| seat.run(shutdown));
    tasks.spawn("announcer", |shutdown| async move {
        loop {
            let decided = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Some(decided) = decided.recv() => decided,
            };
            broadcaster.publish(mesh::fresh(decided));
        }
    });
}

/// Reads key and genesis and checks them against each other and against the rest of the configuration.
fn read_inputs(config: &NodeConfig) -> Result<Inputs, NodeError> {
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

/// Checks everything that `run` checks before it opens a port or writes anything.
pub fn check(config: &NodeConfig) -> Result<(), NodeError> {
    read_inputs(config).map(|_| ())
}

/// Locks the data directory, opens the store in it and makes sure that it holds the chain.
async fn open_store(
    config: &NodeConfig,
    genesis: Option<Genesis>,
    transport: &dyn Transport,
    api: &TcpListener,
    starting: &Starting,
) -> Result<Opened, NodeError> {
    let dir = config.data_dir.join(DATABASE);
    // A waypoint that no peer knows must leave nothing behind: the genesis comes before the directory.
    let mut genesis = match genesis {
        genesis if dir.exists() => genesis,
        genesis => agree(config, genesis, fetch(config, transport, starting).await?)?,
    };
    let lock = lock::acquire(&config.data_dir, Some(address_of(api)?))?;
    starting.stage("opening the store");
    let store = repair::open_repaired(config, &dir, transport, starting).await?;
    if genesis.is_none() && !store.is_initialized() {
        genesis = fetch(config, transport, starting).await?;
    }
    if let Some(genesis) = genesis {
        store.initialize(&genesis)?;
    }
    Ok(Opened { lock, store })
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, NodeError> {
    listener.local_addr().map_err(|source| NodeError::Io { action: "read the API's own address", source })
}

/// Asks peers for the genesis of the configured waypoint. Where a file has the genesis, the validators come from there, and sync
/// stops at a ledger that does not pass through the waypoint: then nobody has to know the waypoint yet.
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

/// Where the parts of the data directory lie.
fn places(config: &NodeConfig) -> Places {
    let database = config.data_dir.join(DATABASE);
    Places {
        snapshots: database.join(SNAPSHOTS_DIR),
        journal: config.data_dir.join(JOURNAL),
        data: config.data_dir.clone(),
        database,
    }
}

/// The journal of users' transactions, if it is configured. The data directory's lock is held.
fn open_journal(config: &NodeConfig) -> Result<Option<Journal>, NodeError> {
    match config.consensus.pool.journal_mib {
        0 => Ok(None),
        mib => Ok(Some(Journal::open(&config.data_dir.join(JOURNAL), mib << 20)?)),
    }
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
