//! [`Link`]: one live connection, and the requesting side of a request.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use quinn::{ConnectionError, ReadError, VarInt, WriteError};
use tokio::time::{Instant, timeout};

use super::frames::{FrameError, SHORT_BYTES, Sender, code, read_response};
use crate::{
    NetworkConfig, NetworkError, PeerId, PeerStats, Priority, Protocol, Refusal, RequestLimits,
    budget::Share,
    origin::canonical,
    pace::Pace,
    peers::{AdmissionError, Useful},
    queue::Outbox,
    refusal::clipped,
    usefulness::Usefulness,
};

/// Why a connection is closed, as an application error code of QUIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goodbye {
    Shutdown,
    Duplicate,
    Banned,
    Full,
}

impl Goodbye {
    fn code(self) -> VarInt {
        VarInt::from_u32(match self {
            Goodbye::Shutdown => 0,
            Goodbye::Duplicate => 1,
            Goodbye::Banned => 2,
            Goodbye::Full => 3,
        })
    }
}

impl From<AdmissionError> for Goodbye {
    fn from(unwanted: AdmissionError) -> Self {
        match unwanted {
            AdmissionError::Own | AdmissionError::Duplicate => Goodbye::Duplicate,
            AdmissionError::Banned => Goodbye::Banned,
            AdmissionError::Full | AdmissionError::Crowded => Goodbye::Full,
        }
    }
}

/// Closes a connection with a reason that the other side logs.
pub(crate) fn close(connection: &quinn::Connection, goodbye: Goodbye, text: &str) {
    connection.close(goodbye.code(), clipped(text).as_bytes());
}

/// One connection to one peer.
pub(crate) struct Link {
    pub(crate) peer: PeerId,
    pub(crate) connection: quinn::Connection,
    /// The address where the peer proved its key. It never changes, because the peer's shares and reports are counted
    /// by this address.
    pub(crate) address: SocketAddr,
    /// Broadcasts waiting to be sent to the peer.
    pub(crate) outbox: Outbox<Bytes>,
    /// Bytes of messages that move on the connection, in each direction.
    pub(crate) sent: Arc<Pace>,
    pub(crate) received: Pace,
    usefulness: Usefulness,
}

impl Useful for Arc<Link> {
    fn used(&self) -> Option<Instant> {
        self.usefulness.last_used()
    }

    fn served(&self, now: Instant) -> f64 {
        self.usefulness.served_bytes(now)
    }
}

impl Link {
    pub(crate) fn new(
        peer: PeerId,
        connection: quinn::Connection,
        address: SocketAddr,
        outgoing: Share,
        config: &NetworkConfig,
    ) -> Link {
        let outbox = Outbox::new(config.broadcast_queue_items_max, outgoing);
        Link {
            peer,
            connection,
            address: canonical(address),
            outbox,
            sent: Arc::new(Pace::new(config.transfer_timeout())),
            received: Pace::new(config.transfer_timeout()),
            usefulness: Usefulness::default(),
        }
    }

    /// Credits the peer with this many useful bytes.
    pub(crate) fn credit(&self, bytes: usize) {
        self.usefulness.served(bytes, Instant::now());
    }

    /// Records that the peer asked, answered or reported something.
    pub(crate) fn used_now(&self) {
        self.usefulness.used(Instant::now());
    }

    /// Queues a broadcast. Returns the number of dropped broadcasts, perhaps including this one.
    pub(crate) fn push(&self, message: Bytes, priority: Priority) -> usize {
        if message.len() > SHORT_BYTES && self.outbox.is_barred(Instant::now()) {
            return 1;
        }
        self.outbox.push(priority, message)
    }

    /// Sends a request to the peer, within the limits.
    pub(crate) async fn request(
        &self,
        protocol: Protocol,
        payload: Vec<u8>,
        limits: RequestLimits,
    ) -> Result<Vec<u8>, NetworkError> {
        let peer = self.peer;
        let deadline = NetworkError::Deadline { peer, deadline: limits.deadline };
        match timeout(limits.deadline, self.exchange(protocol, payload, limits.response_bytes_max)).await {
            Err(_) => Err(deadline),
            Ok(Err(FrameError::Read(ReadError::Reset(reset)))) if reset == code::TOO_SLOW => Err(deadline),
            Ok(Err(error)) => Err(self.explain(error)),
            Ok(Ok(outcome)) => {
                // Answers of peer exchange earn no credit: any peer gives them.
                if protocol != Protocol::PEERS {
                    let bytes = outcome.as_ref().map_or(0, Vec::len);
                    self.credit(bytes);
                }
                outcome.map_err(|refusal| NetworkError::Refused { peer, refusal })
            }
        }
    }

    async fn exchange(
        &self,
        protocol: Protocol,
        payload: Vec<u8>,
        response_bytes_max: usize,
    ) -> Result<Result<Vec<u8>, Refusal>, FrameError> {
        let (send, mut receive) = self.connection.open_bi().await.map_err(ReadError::from)?;
        let mut sender = Sender::new(send, self.sent.clone());
        match sender.request(protocol, response_bytes_max, payload.into()).await {
            // A peer that stops the request early gives the reason in its response.
            Ok(()) | Err(WriteError::Stopped(_)) => {}
            Err(WriteError::ConnectionLost(error)) => return Err(ReadError::from(error).into()),
            Err(WriteError::ClosedStream | WriteError::ZeroRttRejected) => {
                return Err(ReadError::ClosedStream.into());
            }
        }
        let outcome = read_response(&mut receive, response_bytes_max, &self.received).await?;
        sender.complete();
        Ok(outcome)
    }

    fn explain(&self, error: FrameError) -> NetworkError {
        let peer = self.peer;
        match error {
            FrameError::TooLong { bytes, bytes_max } => NetworkError::TooLong { peer, bytes, bytes_max },
            FrameError::Trailing => NetworkError::Malformed { peer, what: "bytes follow the message" },
            FrameError::UnknownStatus(_) => NetworkError::Malformed { peer, what: "unknown status" },
            FrameError::Truncated => {
                NetworkError::Malformed { peer, what: "the stream ended inside the message" }
            }
            FrameError::Read(ReadError::Reset(reset)) if reset == code::MALFORMED => {
                NetworkError::Malformed { peer, what: "the peer could not read the request" }
            }
            FrameError::NoRoom | FrameError::Read(_) => NetworkError::Closed { peer },
        }
    }

    pub(crate) fn stats(&self, since: Instant) -> PeerStats {
        let stats = self.connection.stats();
        PeerStats {
            id: self.peer,
            address: Some(self.address),
            bytes_sent: stats.udp_tx.bytes,
            bytes_received: stats.udp_rx.bytes,
            rtt_ms: stats.path.rtt.as_secs_f64() * 1_000.0,
            since,
        }
    }
}

/// How a connection ended.
pub(crate) struct Disconnection {
    /// The reason in words; see [`describe`].
    pub(crate) text: String,
    /// Whether the peer ended it because another connection with this node's key stays.
    pub(crate) is_displaced: bool,
}

impl Disconnection {
    pub(crate) fn of(error: &ConnectionError) -> Disconnection {
        let duplicate = Goodbye::Duplicate.code();
        let is_displaced =
            matches!(error, ConnectionError::ApplicationClosed(close) if close.error_code == duplicate);
        Disconnection { text: describe(error), is_displaced }
    }
}

/// Describes the end of a connection for the log; a peer's own text is bounded and cleaned.
pub(crate) fn describe(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            let text = clipped(&String::from_utf8_lossy(&close.reason));
            format!("closed by the peer: {text}")
        }
        other => other.to_string(),
    }
}
