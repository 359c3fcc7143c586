//! [`Driver`]: what the tasks of a network share, and the life of a connection from its handshake to its end.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use quinn::{Endpoint, Incoming, TransportConfig};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, error, info, warn};

use super::{
    link::{End, Goodbye, Link, close, describe},
    serve, tls,
};
use crate::{
    Handler, NetworkConfig, PeerId, SharedKey,
    contacts::Attempts,
    journal::Journal,
    peers::{Direction, Peers, Unwanted},
    shared_keys::SharedKeys,
};

/// Inbound handshakes at once; a flood of connection attempts costs no more memory and CPU than that.
pub(super) const HANDSHAKES_MAX: usize = 64;
/// Above this many, a stranger's address must be proven by a round trip before any work is done for it.
const HANDSHAKES_UNPROVEN_MAX: usize = HANDSHAKES_MAX / 2;

/// What came of connections: for the status, and for what the log says of them.
pub(super) struct Ledger {
    pub(super) attempts: Attempts,
    pub(super) shared_keys: SharedKeys,
    pub(super) journal: Journal,
}

/// What the tasks share. It holds the handler and not the other way round, and lives only as long as a task: a handler
/// may own the [`Network`](super::Network).
pub(super) struct Driver {
    pub(super) config: NetworkConfig,
    pub(super) identity: tls::Identity,
    pub(super) quic: Arc<TransportConfig>,
    pub(super) endpoint: Endpoint,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) peers: Arc<Mutex<Peers<Arc<Link>>>>,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) handshakes: Arc<Semaphore>,
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
            let Ok(place) = self.handshakes.clone().try_acquire_owned() else {
                incoming.ignore();
                continue;
            };
            let busy = HANDSHAKES_MAX - self.handshakes.available_permits() > HANDSHAKES_UNPROVEN_MAX;
            if busy && !incoming.remote_address_validated() {
                // Fails only if the address is validated, which was just ruled out.
                let _ = incoming.retry();
                continue;
            }
            let driver = self.clone();
            self.spawn(async move {
                let from = incoming.remote_address();
                let shaken = driver.shake_hands(incoming).await;
                drop(place);
                match shaken {
                    Ok((connection, peer)) => {
                        driver.run(connection, peer, Direction::Accepted).await;
                    }
                    Err(error) => debug!(%from, error, "a connection attempt failed"),
                }
            });
        }
    }

    async fn shake_hands(&self, incoming: Incoming) -> Result<(quinn::Connection, PeerId), String> {
        let connecting = incoming.accept().map_err(|error| describe(&error))?;
        let connection = timeout(self.config.handshake_timeout(), connecting)
            .await
            .map_err(|_| "the handshake took too long".to_owned())?
            .map_err(|error| describe(&error))?;
        let peer = tls::peer_of(&connection).ok_or("the peer presented no key")?;
        Ok((connection, peer))
    }

    /// Lets an authenticated connection in or not, and serves it to its end. Returns how it ended.
    pub(super) async fn run(
        self: &Arc<Self>,
        connection: quinn::Connection,
        peer: PeerId,
        direction: Direction,
    ) -> End {
        let link = Arc::new(Link::new(peer, connection.clone(), &self.config));
        let address = connection.remote_address();
        let now = Instant::now();
        let admitted = self.peers.lock().admit(peer, direction, Some(address.ip()), link.clone(), now);
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(unwanted) => return self.refuse(&connection, peer, direction, unwanted),
        };
        let _registration =
            Registration { driver: self, peer, number: admitted.number, connection: &connection };
        let is_told = admitted.replaced.is_none() && self.ledger.lock().journal.tells(peer, now);
        if is_told {
            info!(%peer, %address, ?direction, "connected");
        }
        if let Some(old) = admitted.replaced {
            debug!(%peer, ?direction, "a newer connection to the same peer stays");
            let old_address = old.connection.remote_address();
            let shared = self.ledger.lock().shared_keys.displaced(peer, old_address, address, now);
            self.tell_shared(shared);
            close(&old.connection, Goodbye::Duplicate, "another connection between the same two peers stays");
        }
        let end = End::of(&serve::serve(link, self.handler.clone(), &self.config, &self.tasks).await);
        let is_told = is_told && self.ledger.lock().journal.tells(peer, Instant::now());
        match is_told {
            true => info!(%peer, end = end.text, "connection ended"),
            false => debug!(%peer, end = end.text, "connection ended"),
        }
        end
    }

    fn refuse(
        &self,
        connection: &quinn::Connection,
        peer: PeerId,
        direction: Direction,
        unwanted: Unwanted,
    ) -> End {
        debug!(%peer, ?direction, %unwanted, "refused a connection");
        if unwanted == Unwanted::Own {
            let address = connection.remote_address();
            let shared = self.ledger.lock().shared_keys.met_itself(address, Instant::now());
            self.tell_shared(shared);
        }
        close(connection, unwanted.into(), &unwanted.to_string());
        End { text: unwanted.to_string(), is_displaced: false }
    }

    pub(super) fn tell_shared(&self, found: Option<SharedKey>) {
        if let Some(key) = found {
            warn!(peer = %key.id, "{key}");
        }
    }

    pub(super) fn connection(&self, peer: PeerId) -> Option<quinn::Connection> {
        self.peers.lock().get(peer).map(|link| link.connection.clone())
    }

    pub(super) fn banned_until(&self, peer: PeerId) -> Option<Instant> {
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

/// Tells [`Network::failed`] when accepting ends, by a panic too, without having been told to.
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

/// A connection's place in the table; given back however the task that serves it ends.
struct Registration<'a> {
    driver: &'a Driver,
    peer: PeerId,
    number: u64,
    connection: &'a quinn::Connection,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.driver.peers.lock().remove(self.peer, self.number);
        close(self.connection, Goodbye::Shutdown, "the node ends the connection");
    }
}
