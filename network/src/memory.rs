//! [`MemoryHub`]: an in-process network for tests, without sockets, keys or real time.
//!
//! A request runs the other side's handler in a task of its own. So the handler continues when the requester gives up,
//! as over QUIC. A broadcast goes through the same kind of queue, and one task per connection and direction delivers
//! it. Under tokio's paused clock and on one thread a run is deterministic.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    Ban, BannedBy, BoxFuture, Handler, MESSAGE_BYTES_MAX, NetworkConfig, NetworkError, Payload, PeerChanges,
    PeerId, PeerStats, Priority, Protocol, Refusal, RequestLimits, Transport,
    budget::Budget,
    peers::{Direction, Peers, Useful},
    queue::Outbox,
};

/// The connections between nodes of one process. Dropping the hub ends its tasks.
#[derive(Clone, Default)]
pub struct MemoryHub {
    nodes: Arc<Mutex<BTreeMap<PeerId, Node>>>,
    /// Shared by all nodes: a transport outlives its node's entry, and serves the next node with the same id.
    changes: PeerChanges,
}

struct Node {
    handler: Arc<dyn Handler>,
    peers: Peers<Arc<MemoryLink>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its transports have no peers any more.
        self.peers.changes.report();
    }
}

/// One end of a connection, through which its owner sends.
struct MemoryLink {
    /// The handler on the other side.
    remote: Arc<dyn Handler>,
    outbox: Arc<Outbox<Bytes>>,
    /// Bounds this end's requests that the other side handles at once, as a real transport does.
    slots: Arc<Semaphore>,
    /// Payload bytes in each direction; the other end has the same two, swapped.
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    /// Cancelled when the connection ends; shared by both ends.
    closed: CancellationToken,
    /// Cancels `closed` when both tables have dropped the connection.
    _guard: Arc<DropGuard>,
}

/// Places are unlimited here, so usefulness does not matter.
impl Useful for Arc<MemoryLink> {
    fn used(&self) -> Option<Instant> {
        None
    }
}

impl MemoryHub {
    /// A hub without nodes.
    pub fn new() -> MemoryHub {
        MemoryHub::default()
    }

    /// Adds a node. A node that has this id already is replaced, as by a restart: its connections end.
    pub fn join(&self, id: PeerId, handler: Arc<dyn Handler>) -> Arc<MemoryTransport> {
        self.leave(id);
        let mut peers = Peers::new(id, usize::MAX, [], Duration::ZERO);
        peers.changes = self.changes.clone();
        self.nodes.lock().insert(id, Node { handler, peers });
        let (nodes, changes) = (Arc::downgrade(&self.nodes), self.changes.clone());
        Arc::new(MemoryTransport { local: id, nodes, changes })
    }

    /// Removes a node; its connections end.
    pub fn leave(&self, id: PeerId) {
        let mut nodes = self.nodes.lock();
        let Some(node) = nodes.remove(&id) else { return };
        for (peer, _, _) in node.peers.iter() {
            cut(&mut nodes, peer, id);
        }
        for (_, _, end) in node.peers.iter() {
            end.closed.cancel();
        }
        // Dropping the node drops its handler, which may then use its transport, and so this lock.
        drop(nodes);
    }

    /// Connects two nodes. Returns false if one of them does not exist or has banned the other; true if they are
    /// already connected. Must be called inside a tokio runtime, which delivers the broadcasts.
    pub fn connect(&self, a: PeerId, b: PeerId) -> bool {
        let mut nodes = self.nodes.lock();
        let now = Instant::now();
        let (Some(first), Some(second)) = (nodes.get(&a), nodes.get(&b)) else { return false };
        if a == b || first.peers.banned_until(b, now).is_some() || second.peers.banned_until(a, now).is_some()
        {
            return false;
        }
        if first.peers.get(b).is_some() {
            return true;
        }
        let closed = CancellationToken::new();
        let guard = Arc::new(closed.clone().drop_guard());
        let (forth, back) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let ends = [
            (a, b, second.handler.clone(), (forth.clone(), back.clone())),
            (b, a, first.handler.clone(), (back, forth)),
        ];
        let ends = ends.map(|(from, to, remote, counters)| {
            let end = Arc::new(MemoryLink::new(remote, counters, closed.clone(), guard.clone()));
            deliver(from, &end);
            (from, to, end)
        });
        for (from, to, end) in ends {
            if let Some(node) = nodes.get_mut(&from) {
                let admitted = node.peers.admit(to, Direction::Dialled, None, end, now);
                debug_assert!(admitted.is_ok(), "bans and identity were checked, and places are unlimited");
            }
        }
        true
    }

    /// Ends the connection between two nodes; requests in flight end with [`NetworkError::Closed`].
    pub fn disconnect(&self, a: PeerId, b: PeerId) {
        let mut nodes = self.nodes.lock();
        cut(&mut nodes, a, b);
        cut(&mut nodes, b, a);
    }
}

/// Removes the connection to `peer` from a node's table and ends it.
fn cut(nodes: &mut BTreeMap<PeerId, Node>, id: PeerId, peer: PeerId) {
    if let Some(end) = nodes.get_mut(&id).and_then(|node| node.peers.disconnect(peer, Instant::now())) {
        end.closed.cancel();
    }
}

impl MemoryLink {
    fn new(
        remote: Arc<dyn Handler>,
        (sent, received): (Arc<AtomicU64>, Arc<AtomicU64>),
        closed: CancellationToken,
        guard: Arc<DropGuard>,
    ) -> MemoryLink {
        let config = NetworkConfig::default();
        let bytes_max = config.broadcast_queue_bytes_max;
        let share = Budget::new(bytes_max, bytes_max, false).share(None, false);
        let outbox = Outbox::new(config.broadcast_queue_items_max, share);
        MemoryLink {
            remote,
            outbox: Arc::new(outbox),
            slots: Arc::new(Semaphore::new(config.request_concurrency_max)),
            sent,
            received,
            closed,
            _guard: guard,
        }
    }

    /// The other side's answer, or `None` if the connection ended or the handler panicked.
    async fn ask(
        &self,
        from: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
    ) -> Option<Result<Payload, Refusal>> {
        let bytes_max = self.remote.request_bytes_max(from, protocol);
        if payload.len() > bytes_max {
            return Some(Err(Refusal::too_long(payload.len(), bytes_max)));
        }
        let slot = self.slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (remote, closed) = (self.remote.clone(), self.closed.clone());
        let handling = tokio::spawn(async move {
            let _slot = slot;
            closed.run_until_cancelled(remote.request(from, protocol, payload)).await
        });
        handling.await.ok().flatten()
    }

    fn count(counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Starts the task that delivers this end's broadcasts to the other side. It does not keep the end alive.
fn deliver(from: PeerId, end: &MemoryLink) {
    let (outbox, remote, closed) = (end.outbox.clone(), end.remote.clone(), end.closed.clone());
    tokio::spawn(async move {
        let delivering = async {
            loop {
                let (payload, _held) = outbox.pop().await;
                remote.message(from, payload.into()).await;
            }
        };
        closed.run_until_cancelled(delivering).await
    });
}

/// A node's view of a [`MemoryHub`].
pub struct MemoryTransport {
    local: PeerId,
    /// Weak, because the hub owns the handlers and a handler may own its transport.
    nodes: Weak<Mutex<BTreeMap<PeerId, Node>>>,
    changes: PeerChanges,
}

impl MemoryTransport {
    fn with<T>(&self, read: impl FnOnce(&mut BTreeMap<PeerId, Node>) -> T) -> Option<T> {
        Some(read(&mut self.nodes.upgrade()?.lock()))
    }

    /// Accesses this node's own entry. Returns `None` if the node left.
    fn with_own<T>(&self, read: impl FnOnce(&mut Node) -> T) -> Option<T> {
        self.with(|nodes| nodes.get_mut(&self.local).map(read)).flatten()
    }

    fn end(&self, peer: PeerId) -> Result<Arc<MemoryLink>, NetworkError> {
        let found = self.with_own(|node| match node.peers.banned_until(peer, Instant::now()) {
            Some(_) => Err(NetworkError::Banned { peer }),
            None => node.peers.get(peer).cloned().ok_or(NetworkError::UnknownPeer { peer }),
        });
        found.unwrap_or(Err(NetworkError::UnknownPeer { peer }))
    }
}

impl Transport for MemoryTransport {
    fn local(&self) -> PeerId {
        self.local
    }

    fn peers(&self) -> Vec<PeerId> {
        self.with_own(|node| node.peers.iter().map(|(id, _, _)| id).collect()).unwrap_or_default()
    }

    fn peer_changes(&self) -> PeerChanges {
        self.changes.clone()
    }

    fn connected_since(&self, peer: &PeerId) -> Option<Instant> {
        self.with_own(|node| node.peers.since(*peer)).flatten()
    }

    fn request<'a>(
        &'a self,
        peer: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
        limits: RequestLimits,
    ) -> BoxFuture<'a, Result<Vec<u8>, NetworkError>> {
        Box::pin(async move {
            let too_long = |bytes, bytes_max| Err(NetworkError::TooLong { peer, bytes, bytes_max });
            if payload.len() > MESSAGE_BYTES_MAX {
                return too_long(payload.len(), MESSAGE_BYTES_MAX);
            }
            let end = self.end(peer)?;
            MemoryLink::count(&end.sent, payload.len());
            let outcome = tokio::select! {
                biased;
                () = end.closed.cancelled() => return Err(NetworkError::Closed { peer }),
                outcome = timeout(limits.deadline, end.ask(self.local, protocol, payload)) => outcome,
            };
            let bytes_max = limits.response_bytes_max.min(MESSAGE_BYTES_MAX);
            match outcome {
                Err(_) => Err(NetworkError::Deadline { peer, deadline: limits.deadline }),
                Ok(None) => Err(NetworkError::Closed { peer }),
                Ok(Some(Err(refusal))) => Err(NetworkError::Refused { peer, refusal }),
                Ok(Some(Ok(response))) if response.len() > bytes_max => too_long(response.len(), bytes_max),
                Ok(Some(Ok(response))) => {
                    MemoryLink::count(&end.received, response.len());
                    Ok(response.into_vec())
                }
            }
        })
    }

    fn send(&self, peer: PeerId, message: Bytes, priority: Priority) {
        if message.len() > MESSAGE_BYTES_MAX {
            tracing::error!(bytes = message.len(), "dropped a message that exceeds the limit");
            return;
        }
        self.with_own(|node| {
            if let Some(end) = node.peers.get(peer) {
                MemoryLink::count(&end.sent, message.len());
                end.outbox.push(priority, message);
            }
        });
    }

    fn ban(&self, peer: PeerId, reason: &str, duration: Duration) {
        let now = Instant::now();
        tracing::warn!(%peer, reason, ?duration, "banned a peer");
        self.with(|nodes| {
            let banned = nodes
                .get_mut(&self.local)
                .and_then(|node| node.peers.ban(peer, BannedBy::Node, reason, duration, now));
            if let Some(end) = banned {
                end.closed.cancel();
                cut(nodes, peer, self.local);
            }
        });
    }

    fn bans(&self) -> Vec<Ban> {
        self.with_own(|node| node.peers.bans.list(Instant::now())).unwrap_or_default()
    }

    fn is_banned(&self, peer: &PeerId) -> bool {
        self.with_own(|node| node.peers.banned_until(*peer, Instant::now()).is_some()).unwrap_or(false)
    }

    fn peer_stats(&self) -> Vec<PeerStats> {
        let stats = |(id, since, end): (PeerId, Instant, &Arc<MemoryLink>)| PeerStats {
            id,
            address: None,
            bytes_sent: end.sent.load(Ordering::Relaxed),
            bytes_received: end.received.load(Ordering::Relaxed),
            rtt_ms: 0.0,
            since,
        };
        self.with_own(|node| node.peers.iter().map(stats).collect()).unwrap_or_default()
    }
}
