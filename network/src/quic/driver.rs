//! [`Driver`]: the shared state of a network's tasks, and the life of a connection from its handshake to its end.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use quinn::{Endpoint, Incoming, TransportConfig, VarInt};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, error, info, warn};

use super::{
    door::{Door, HandshakePlace, KnockDecision},
    endpoint::CONNECTION_WINDOW_BYTES,
    exchange::Exchange,
    link::{Disconnection, Goodbye, Link, close, describe},
    resources::Resources,
    serve, tls,
};
use crate::{
    BanEnd, BannedBy, Handler, NetworkConfig, PeerId, PeerRejection, Resolver, SharedKey,
    contacts::Attempts,
    journal::Journal,
    peers::{AdmissionError, Direction, Peers},
    shared_keys::SharedKeys,
};

/// How long a peer that floods is banned.
const FLOOD_BAN: Duration = Duration::from_secs(60);
const FLOOD: &str = "a flood of broadcasts";

/// Records of connections, for the status and for the log.
pub(super) struct Ledger {
    pub(super) attempts: Attempts,
    pub(super) shared_keys: SharedKeys,
    pub(super) journal: Journal,
}

/// The state that the tasks share. It owns the handler, and lives only as long as a task. The
/// [`Network`](super::Network) refers to it weakly, because the handler may own the network.
pub(super) struct Driver {
    pub(super) config: NetworkConfig,
    pub(super) identity: tls::Identity,
    pub(super) quic: Arc<TransportConfig>,
    pub(super) endpoint: Endpoint,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) resolver: Arc<dyn Resolver>,
    pub(super) peers: Arc<Mutex<Peers<Arc<Link>>>>,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) door: Arc<Door>,
    pub(super) resources: Resources,
    pub(super) exchange: Arc<Exchange>,
    /// Notified when a ban is lifted before its end.
    pub(super) unbanned: Notify,
    pub(super) stop: CancellationToken,
    pub(super) failure: watch::Sender<Option<String>>,
    pub(super) tasks: TaskTracker,
}

impl Driver {
    /// Runs a task until it ends or the network stops.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    pub(super) async fn accept(self: Arc<Self>) {
        let _end = AcceptEnd(&self);
        while let Some(incoming) = self.endpoint.accept().await {
            let (from, is_proven) = (incoming.remote_address(), incoming.remote_address_validated());
            let place = match self.door.knock(from, is_proven, Instant::now()) {
                KnockDecision::Enter(place) => place,
                KnockDecision::Prove => {
                    self.count_rejection(PeerRejection::HandshakeUnproven);
                    // Fails only if the address is proven, which was just ruled out.
                    let _ = incoming.retry();
                    continue;
                }
                KnockDecision::Ignore => {
                    self.count_rejection(PeerRejection::HandshakeCrowded);
                    incoming.ignore();
                    continue;
                }
            };
            let driver = self.clone();
            self.spawn(async move {
                let shaken = driver.shake_hands(incoming, &place).await;
                drop(place);
                match shaken {
                    Ok((connection, peer)) => {
                        driver.run(driver.link(peer, connection, from), Direction::Accepted).await;
                    }
                    Err(error) => debug!(%from, error, "a connection attempt failed"),
                }
            });
        }
    }

    fn count_rejection(&self, reason: PeerRejection) {
        self.resources.rejections.add(reason, 1);
    }

    async fn shake_hands(
        &self,
        incoming: Incoming,
        place: &HandshakePlace,
    ) -> Result<(quinn::Connection, PeerId), String> {
        let connecting = incoming.accept().map_err(|error| describe(&error))?;
        let shaking = timeout(place.patience(self.config.handshake_timeout()), connecting);
        let connection = place
            .displaced
            .run_until_cancelled(shaking)
            .await
            .ok_or("its place went to a peer from another network")?
            .map_err(|_| "the handshake took too long".to_owned())?
            .map_err(|error| describe(&error))?;
        let peer = tls::peer_of(&connection).ok_or("the peer presented no key")?;
        Ok((connection, peer))
    }

    /// Wraps an authenticated connection. `address` is where the handshake came from, or was sent to.
    pub(super) fn link(&self, peer: PeerId, connection: quinn::Connection, address: SocketAddr) -> Arc<Link> {
        let outgoing = self.resources.outgoing(address.ip(), self.is_reserved(&peer));
        Arc::new(Link::new(peer, connection, address, outgoing, &self.config))
    }

    /// Admits or refuses an authenticated connection, and serves it to its end. Returns how it ended.
    pub(super) async fn run(self: &Arc<Self>, link: Arc<Link>, direction: Direction) -> Disconnection {
        let (peer, address, connection) = (link.peer, link.address, link.connection.clone());
        let now = Instant::now();
        let admitted = self.peers.lock().admit(peer, direction, Some(address.ip()), link.clone(), now);
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(unwanted) => return self.refuse(&link, direction, unwanted),
        };
        let registration =
            Registration { driver: self, peer, number: admitted.number, connection: &connection };
        self.exchange.notify();
        let mut is_told = false;
        match admitted.replaced {
            Some(old) => self.replace(&old, direction, address),
            None => is_told = self.ledger.lock().journal.tells(peer, now),
        }
        if is_told {
            info!(%peer, %address, ?direction, "connected");
        }
        if let Some(evicted) = admitted.evicted {
            debug!(peer = %evicted.peer, newcomer = %peer, "ended a connection to admit a peer from another network");
            self.count_rejection(PeerRejection::ConnectionEvicted);
            close(&evicted.connection, Goodbye::Full, "the place goes to a peer from another network");
        }
        let is_configured = self.is_reserved(&peer);
        if is_configured {
            connection.set_receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES));
            connection.set_send_window(u64::from(CONNECTION_WINDOW_BYTES));
        }
        let shares = self.resources.shares(address.ip(), is_configured);
        let served = serve::serve(link, self.handler.clone(), shares, &self.config, &self.tasks).await;
        let end = Disconnection::of(&served.error);
        let is_over = registration.end();
        self.exchange.notify();
        self.tell_end(peer, &end, is_over);
        if served.has_flooded {
            self.ban_flooder(peer);
        }
        end
    }

    /// Ends the connection that a newer one to the same peer replaces.
    fn replace(&self, old: &Link, direction: Direction, address: SocketAddr) {
        let peer = old.peer;
        debug!(%peer, ?direction, "keeping the newer of two connections to a peer");
        let now = Instant::now();
        let shared = self.ledger.lock().shared_keys.displaced(peer, old.address, address, now);
        self.tell_shared(shared);
        close(&old.connection, Goodbye::Duplicate, "another connection between these two peers is kept");
    }

    /// Logs the end of a connection. A replaced connection is of no interest, because the peer stays connected.
    fn tell_end(&self, peer: PeerId, end: &Disconnection, is_over: bool) {
        match is_over && self.ledger.lock().journal.tells(peer, Instant::now()) {
            true => info!(%peer, end = end.text, "connection ended"),
            false => debug!(%peer, end = end.text, is_over, "connection ended"),
        }
    }

    fn ban_flooder(&self, peer: PeerId) {
        let now = Instant::now();
        if self.ledger.lock().journal.tells(peer, now) {
            warn!(%peer, ban = ?FLOOD_BAN, "banned a peer that flooded this node with broadcasts");
        }
        if let Some(link) = self.peers.lock().ban(peer, BannedBy::Node, FLOOD, FLOOD_BAN, now) {
            close(&link.connection, Goodbye::Banned, &format!("banned: {FLOOD}"));
        }
    }

    fn refuse(&self, link: &Link, direction: Direction, unwanted: AdmissionError) -> Disconnection {
        debug!(peer = %link.peer, ?direction, %unwanted, "refused a connection");
        match unwanted {
            AdmissionError::Full => self.count_rejection(PeerRejection::ConnectionFull),
            AdmissionError::Crowded => self.count_rejection(PeerRejection::ConnectionCrowded),
            AdmissionError::Own | AdmissionError::Banned | AdmissionError::Duplicate => {}
        }
        if unwanted == AdmissionError::Own {
            let shared = self.ledger.lock().shared_keys.met_itself(link.address, Instant::now());
            self.tell_shared(shared);
        }
        close(&link.connection, unwanted.into(), &unwanted.to_string());
        Disconnection { text: unwanted.to_string(), is_displaced: false }
    }

    pub(super) fn tell_shared(&self, found: Option<SharedKey>) {
        if let Some(key) = found {
            warn!(peer = %key.id, "{key}");
        }
    }

    pub(super) fn connection(&self, peer: PeerId) -> Option<quinn::Connection> {
        self.peers.lock().get(peer).map(|link| link.connection.clone())
    }

    /// Whether the configuration or the operator names a peer.
    pub(super) fn is_reserved(&self, peer: &PeerId) -> bool {
        self.peers.lock().is_reserved(peer)
    }

    pub(super) fn banned_until(&self, peer: PeerId) -> Option<BanEnd> {
        self.peers.lock().banned_until(peer, Instant::now())
    }

    pub(super) fn client_config(
        &self,
        peer: PeerId,
        found: Arc<OnceLock<PeerId>>,
    ) -> Result<quinn::ClientConfig, rustls::Error> {
        let mut config = quinn::ClientConfig::new(self.identity.client(peer, found)?);
        config.transport_config(self.quic.clone());
        Ok(config)
    }
}

/// Reports to [`Network::failed`](super::Network::failed) if accepting ends without a shutdown, even by a panic.
struct AcceptEnd<'a>(&'a Driver);

impl Drop for AcceptEnd<'_> {
    fn drop(&mut self) {
        if !self.0.stop.is_cancelled() {
            let reason = "the network's UDP socket failed, no peer can connect any more; restart the node";
            error!("{reason}");
            self.0.failure.send_replace(Some(reason.to_owned()));
        }
    }
}

/// A connection's entry in the table, removed however the task that serves it ends.
struct Registration<'a> {
    driver: &'a Driver,
    peer: PeerId,
    number: u64,
    connection: &'a quinn::Connection,
}

impl Registration<'_> {
    /// Removes the entry. Returns false if another connection has replaced it, or it was removed before.
    fn end(&self) -> bool {
        self.driver.peers.lock().remove(self.peer, self.number, Instant::now())
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.end();
        close(self.connection, Goodbye::Shutdown, "the node ends the connection");
    }
}
