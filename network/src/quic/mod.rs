//! The transport over QUIC.

#[cfg(test)]
mod absent_tests;
mod answer;
mod broadcasts;
#[cfg(test)]
mod contact_tests;
mod dial;
mod door;
mod driver;
mod endpoint;
mod exchange;
mod exchange_tasks;
#[cfg(test)]
mod exchange_tests;
#[cfg(test)]
mod frame_tests;
mod frames;
mod link;
#[cfg(test)]
mod name_tests;
mod orders;
mod resources;
mod runtime;
mod serve;
#[cfg(test)]
mod siege_tests;
#[cfg(test)]
mod tests;
mod tls;
mod transport;
#[cfg(test)]
mod untaken_tests;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use quinn::{AsyncUdpSocket, Endpoint, VarInt};
use slipstream_types::{Clock, CodecError, Digest, SecretKey};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, info, warn};

use self::{
    door::Door,
    driver::{Driver, Ledger},
    endpoint::{open, open_on, server_config, transport_config},
    exchange::{Exchange, ExchangeHandler},
    link::Link,
    orders::{DialTask, obey},
    resources::Resources,
};
use crate::{
    Ban, Handler, NetworkConfig, NetworkError, PeerId, PeerTarget, Resolver, SystemResolver,
    contacts::Attempts, journal::Journal, peers::Peers, rejection::PeerRejectionCounts,
    shared_keys::SharedKeys,
};

/// How long [`Network::shutdown`] waits for tasks and for goodbyes to arrive, and then for quinn to release the socket.
const SHUTDOWN_TASKS: Duration = Duration::from_millis(1_500);
const SHUTDOWN_SOCKET: Duration = Duration::from_millis(400);

pub use orders::{OrderError, Orders};

/// The network over QUIC.
///
/// The network dials configured peers, and redials with growing waits when a connection is lost. It accepts strangers
/// that prove a key while a place is free. If two nodes dial each other at the same moment, both keep the connection
/// that the lower id dialled, without negotiating. Requests in flight on the other one end with
/// [`NetworkError::Closed`] and can be retried.
///
/// Dropping the last handle ends the tasks too, but without waiting; [`Network::shutdown`] waits.
pub struct Network {
    local: PeerId,
    local_address: SocketAddr,
    peers: Arc<Mutex<Peers<Arc<Link>>>>,
    ledger: Arc<Mutex<Ledger>>,
    /// The peers of `network.peers`.
    configured: Vec<PeerTarget>,
    /// The peers that are dialled: the configured ones that the operator has not removed, and those that the operator
    /// added.
    dialled: Mutex<BTreeMap<PeerId, DialTask>>,
    /// Weak: the network holds neither the handler nor its tasks.
    driver: Weak<Driver>,
    /// `None` after shutdown, so that the port is free even while a caller still holds this handle.
    endpoint: Mutex<Option<Endpoint>>,
    rejections: Arc<PeerRejectionCounts>,
    exchange: Arc<Exchange>,
    stop: CancellationToken,
    /// Why no connection is accepted any more, or `None` while connections are accepted.
    failure: watch::Receiver<Option<String>>,
    tasks: TaskTracker,
    quinn_tasks: TaskTracker,
}

impl Network {
    /// Listens, accepts and starts to dial. Returns once the socket is open, before any connection is made.
    pub async fn start(
        config: &NetworkConfig,
        key: &SecretKey,
        handler: Arc<dyn Handler>,
    ) -> Result<Arc<Network>, NetworkError> {
        Self::start_with(config, key, handler, Arc::new(SystemResolver::default())).await
    }

    /// As [`Network::start`], with a resolver of the caller's instead of the system's.
    ///
    /// # Errors
    /// As [`Network::start`].
    pub async fn start_with(
        config: &NetworkConfig,
        key: &SecretKey,
        handler: Arc<dyn Handler>,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Arc<Network>, NetworkError> {
        Self::begin(config, key, handler, resolver, &Orders::default(), &[], |server, tasks| {
            open(config.listen, server, tasks)
        })
    }

    /// As [`Network::start`], with the operator's earlier orders and the node's [own bans](Network::own_bans). They
    /// apply before any peer is dialled or admitted.
    ///
    /// # Errors
    /// As [`Network::start`].
    pub async fn start_with_orders(
        config: &NetworkConfig,
        key: &SecretKey,
        handler: Arc<dyn Handler>,
        orders: &Orders,
        own_bans: &[Ban],
    ) -> Result<Arc<Network>, NetworkError> {
        let resolver = Arc::new(SystemResolver::default());
        Self::begin(config, key, handler, resolver, orders, own_bans, |server, tasks| {
            open(config.listen, server, tasks)
        })
    }

    /// As [`Network::start`], on a socket of the caller's, such as a simulated network's. Under tokio's paused clock
    /// its behaviour follows from `seed`, the arrivals and their times, and `resolver`.
    ///
    /// # Errors
    /// As [`Network::start`].
    pub async fn start_on(
        config: &NetworkConfig,
        key: &SecretKey,
        handler: Arc<dyn Handler>,
        socket: Arc<dyn AsyncUdpSocket>,
        resolver: Arc<dyn Resolver>,
        seed: [u8; 32],
    ) -> Result<Arc<Network>, NetworkError> {
        Self::begin(config, key, handler, resolver, &Orders::default(), &[], |server, tasks| {
            open_on(socket, seed, server, tasks)
                .map_err(|source| NetworkError::Bind { address: config.listen, source })
        })
    }

    fn begin(
        config: &NetworkConfig,
        key: &SecretKey,
        handler: Arc<dyn Handler>,
        resolver: Arc<dyn Resolver>,
        orders: &Orders,
        own_bans: &[Ban],
        open: impl FnOnce(quinn::ServerConfig, TaskTracker) -> Result<Endpoint, NetworkError>,
    ) -> Result<Arc<Network>, NetworkError> {
        config.check()?;
        let local = key.public();
        let tls_error = |source| NetworkError::Tls { source };
        let identity = tls::Identity::new(key).map_err(tls_error)?;
        let quic = Arc::new(transport_config(config));
        let quinn_tasks = TaskTracker::new();
        let endpoint = open(server_config(config, &identity).map_err(tls_error)?, quinn_tasks.clone())?;
        let local_address =
            endpoint.local_addr().map_err(|source| NetworkError::Bind { address: config.listen, source })?;
        let reserved = config.others(local).map(|peer| peer.id).filter(|id| !orders.removed.contains(id));
        // A crossing attempt began at most one handshake before the other one ended, on either clock.
        let mut peers = Peers::new(local, config.peers_max, reserved, 2 * config.handshake_timeout());
        let dialled = obey(&mut peers, orders, own_bans, config, local, Instant::now());
        let ledger = Ledger {
            attempts: Attempts::default(),
            shared_keys: SharedKeys::new(local),
            journal: Journal::new(Instant::now()),
        };
        let peers = Arc::new(Mutex::new(peers));
        let exchange = Arc::new(Exchange::new(config, key, local_address, peers.clone()));
        let (failed, failure) = watch::channel(None);
        let driver = Arc::new(Driver {
            config: config.clone(),
            identity,
            quic,
            endpoint: endpoint.clone(),
            handler: Arc::new(ExchangeHandler { handler, exchange: exchange.clone() }),
            resolver,
            peers,
            ledger: Arc::new(Mutex::new(ledger)),
            door: Door::new(config.others(local).filter_map(PeerTarget::address)),
            resources: Resources::new(config, local),
            exchange: exchange.clone(),
            unbanned: Notify::new(),
            stop: CancellationToken::new(),
            failure: failed,
            tasks: TaskTracker::new(),
        });
        driver.spawn(driver.clone().accept());
        driver.spawn(driver.clone().exchange_peers());
        let configured: Vec<PeerTarget> = config.others(local).cloned().collect();
        let dialled = dialled.into_iter().map(|peer| (peer.id, DialTask::begin(&driver, peer))).collect();
        info!(peer = %local, address = %local_address, "listening for peers");
        Ok(Arc::new(Network {
            rejections: driver.resources.rejections.clone(),
            exchange,
            local,
            local_address,
            peers: driver.peers.clone(),
            ledger: driver.ledger.clone(),
            configured,
            dialled: Mutex::new(dialled),
            driver: Arc::downgrade(&driver),
            endpoint: Mutex::new(Some(endpoint)),
            stop: driver.stop.clone(),
            failure,
            tasks: driver.tasks.clone(),
            quinn_tasks,
        }))
    }

    /// The address that the network listens on, with the actual port.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Begins peer exchange on a chain, identified by the digest of its genesis header. `saved` is the address book
    /// from [`Network::addresses`] before a restart. An unusable book is ignored, and the log says why. The second call
    /// has no effect.
    ///
    /// # Errors
    /// If the operating system cannot supply randomness.
    pub fn begin_exchange(
        &self,
        chain: Digest,
        clock: Arc<dyn Clock>,
        saved: Option<&[u8]>,
    ) -> Result<(), NetworkError> {
        self.exchange.open(chain, clock, saved)
    }

    /// The address book as a record to store, if it has changed since the last call.
    pub fn addresses(&self) -> Option<Result<Vec<u8>, CodecError>> {
        self.exchange.save()
    }

    /// Resolves, with the reason, when the network has failed by itself: its socket is gone and no peer can connect any
    /// more. A node should stop then. Never resolves because of [`Network::shutdown`].
    pub async fn failed(&self) -> String {
        let mut failure = self.failure.clone();
        let failed = failure.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        match failed {
            Some(reason) => reason,
            // Shut down without a failure.
            None => std::future::pending().await,
        }
    }

    /// Says goodbye to every peer, ends every task and frees the port, within two seconds. A connection stays for three
    /// timeouts after its goodbye (RFC 9000, section 10.2). So with a distant peer the port may become free some
    /// seconds later.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        let Some(endpoint) = self.endpoint.lock().take() else { return };
        endpoint.close(VarInt::from_u32(0), b"the node shuts down");
        let (tasks, goodbyes) = tokio::join!(
            timeout(SHUTDOWN_TASKS, self.tasks.wait()),
            timeout(SHUTDOWN_TASKS, endpoint.wait_idle())
        );
        if tasks.is_err() {
            warn!(tasks = self.tasks.len(), "network tasks did not end in time: a handler blocks its thread");
        }
        if goodbyes.is_err() {
            debug!("some peers did not confirm the end of their connection");
        }
        drop(endpoint);
        self.quinn_tasks.close();
        if timeout(SHUTDOWN_SOCKET, self.quinn_tasks.wait()).await.is_err() {
            debug!(address = %self.local_address, "the UDP port stays in use until distant peers have heard the goodbye");
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
