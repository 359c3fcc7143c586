//! The network as the crates above see it: the interface over QUIC or memory.

use std::{fmt, future::Future, net::SocketAddr, pin::Pin, time::Duration};

use bytes::Bytes;
use slipstream_types::{PublicKey, limits};
use tokio::time::Instant;

use crate::{Ban, Contacts, ExchangeStatus, NetworkError, Payload, PeerChanges, PeerRejection, Refusal};

/// A peer is its ed25519 public key.
pub type PeerId = PublicKey;

/// A future behind a pointer, so that [`Handler`] and [`Transport`] can be trait objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Maximum bytes of one request, response or message. The longest honest message is an order. Before compression it has
/// a body of up to 16 MiB, hints of up to 8 MiB and a few KiB more. The limit keeps one message from filling a node's
/// memory.
pub const MESSAGE_BYTES_MAX: usize = limits::MESSAGE_BYTES_MAX;

/// The order of messages to one peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, strum::VariantArray)]
pub enum Priority {
    /// Announcements with their certificates, and notices: other messages depend on them.
    First,
    /// Bodies, which are executed.
    Second,
    /// Hints, which make execution faster.
    Third,
}

impl Priority {
    /// All priorities, the most urgent first.
    pub const ALL: &'static [Priority] = <Priority as strum::VariantArray>::VARIANTS;
}

/// The component of the peer that handles a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Protocol(pub u8);

impl Protocol {
    /// State sync: ranges, snapshots, genesis.
    pub const SYNC: Protocol = Protocol(1);
    /// Proposals, votes and decisions among validators.
    pub const CONSENSUS: Protocol = Protocol(2);
    /// Transactions on their way to the proposer.
    pub const TRANSACTIONS: Protocol = Protocol(3);
    /// Asks a peer for other peers. The network answers it itself.
    pub const PEERS: Protocol = Protocol(4);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Protocol::SYNC => f.write_str("sync"),
            Protocol::CONSENSUS => f.write_str("consensus"),
            Protocol::TRANSACTIONS => f.write_str("transactions"),
            Protocol::PEERS => f.write_str("peers"),
            Protocol(other) => write!(f, "protocol {other}"),
        }
    }
}

/// Limits that the requester sets for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLimits {
    /// Time from the call to the last byte of the answer.
    pub deadline: Duration,
    /// Maximum bytes of the answer; [`MESSAGE_BYTES_MAX`] applies as well. The peer learns the limit: it reserves room
    /// of this size for the answer, and other requests wait meanwhile. So a tight limit serves the requester. A longer
    /// answer is refused before any of it is read.
    pub response_bytes_max: usize,
}

/// Handles requests and messages from peers. The payload is untrusted; the peer's key is proven.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. Requests of one peer run concurrently, up to `request_concurrency_max`.
    ///
    /// The future runs to its end even if the requester has given up. It is dropped when the connection ends or the
    /// node shuts down. Work that must not be cancelled at an await point belongs in a task of its own.
    fn request<'a>(
        &'a self,
        peer: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>>;

    /// Maximum bytes of a request of the protocol that is accepted from the peer; 0 accepts none. The network calls
    /// this as soon as a request announces its length. So a peer cannot make this node read bytes that the handler
    /// would ignore.
    fn request_bytes_max(&self, _peer: PeerId, _protocol: Protocol) -> usize {
        MESSAGE_BYTES_MAX
    }

    /// Approximate bytes of the answer to a request, for which room is reserved before the answer is made; the
    /// requester's limit applies as well. A longer answer without enough room is discarded, and its requester told to
    /// retry.
    fn answer_bytes_expected(&self, _peer: PeerId, _protocol: Protocol, _payload: &[u8]) -> usize {
        MESSAGE_BYTES_MAX
    }

    /// Handles one message that has no answer. Messages of one peer come one after another, in the peer's order. While
    /// the future runs, later ones wait in a bounded queue that drops the oldest. Peers take turns, so the future
    /// should be quick. It is dropped like the future of [`Handler::request`].
    fn message<'a>(&'a self, peer: PeerId, payload: Vec<u8>) -> BoxFuture<'a, ()>;
}

/// Statistics of one connected peer.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerStats {
    /// Key of the peer.
    pub id: PeerId,
    /// The peer's address; `None` for a memory transport.
    pub address: Option<SocketAddr>,
    /// Bytes sent on this connection, headers and retransmissions included.
    pub bytes_sent: u64,
    /// Bytes received on this connection.
    pub bytes_received: u64,
    /// Smoothed round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// When the connection was made.
    pub since: Instant,
}

/// The network as the crates above use it.
pub trait Transport: Send + Sync + 'static {
    /// This node's own id.
    fn local(&self) -> PeerId;

    /// The connected peers, sorted by id.
    fn peers(&self) -> Vec<PeerId>;

    /// The reports of changes of [`Transport::peers`]. A wrapper that adds peers reports theirs here too.
    fn peer_changes(&self) -> PeerChanges;

    /// The time of the connection to a peer, or `None` if it is not connected.
    fn connected_since(&self, peer: &PeerId) -> Option<Instant>;

    /// Asks one peer and waits for its answer within the limits. Dropping the future cancels the request.
    fn request<'a>(
        &'a self,
        peer: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
        limits: RequestLimits,
    ) -> BoxFuture<'a, Result<Vec<u8>, NetworkError>>;

    /// Sends a message to one peer, best effort and without waiting. Each peer has a bounded queue in which more urgent
    /// messages go first, and which drops the oldest of the least urgent. A message above [`MESSAGE_BYTES_MAX`] is
    /// dropped, and logged as an error of the caller. A message to an unconnected peer is dropped too.
    fn send(&self, peer: PeerId, message: Bytes, priority: Priority);

    /// Ends the connection to a peer and refuses new ones for the duration, at most
    /// [`OWN_BAN_MAX`](crate::OWN_BAN_MAX). Sends the reason to the peer, and logs it.
    fn ban(&self, peer: PeerId, reason: &str, duration: Duration);

    /// Credits a peer with this many useful bytes: useful peers keep their places.
    fn credit(&self, _peer: PeerId, _bytes: usize) {}

    /// One entry per connected peer, sorted by id.
    fn peer_stats(&self) -> Vec<PeerStats>;

    /// The state of each configured peer, and the keys that several nodes use. A transport that dials no peers itself
    /// returns the default.
    fn contacts(&self) -> Contacts {
        Contacts::default()
    }

    /// The current bans: the operator's first, and in each group the longest first.
    fn bans(&self) -> Vec<Ban> {
        Vec::new()
    }

    /// Whether this peer is banned now, even if it never connects.
    fn is_banned(&self, _peer: &PeerId) -> bool {
        false
    }

    /// The state of peer exchange, or `None` without it.
    fn exchange(&self) -> Option<ExchangeStatus> {
        None
    }

    /// Returns how much work was turned away since the start, by reason. Empty if the transport does not count.
    fn rejections(&self) -> Vec<(PeerRejection, u64)> {
        Vec::new()
    }
}
