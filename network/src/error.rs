//! [`NetworkError`].

use std::{io, net::SocketAddr, time::Duration};

use crate::{PeerId, Refusal};

/// Why a request failed, or the network did not start.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The peer is not connected.
    #[error("no connection to peer {peer}; ask another peer, or retry when it is connected again")]
    UnknownPeer {
        /// The peer that the request was for.
        peer: PeerId,
    },
    /// The answer did not come in time.
    #[error("peer {peer} did not answer within {deadline:?}")]
    Deadline {
        /// The peer that the request was for.
        peer: PeerId,
        /// The deadline that the requester set.
        deadline: Duration,
    },
    /// A payload is longer than allowed. An answer that is too long is not read.
    #[error("a payload of {bytes} bytes to or from peer {peer} exceeds the limit of {bytes_max}")]
    TooLong {
        /// The peer that the request was for.
        peer: PeerId,
        /// The length as announced.
        bytes: usize,
        /// The limit that applies.
        bytes_max: usize,
    },
    /// The peer refused the request, with a reason.
    #[error("peer {peer} refused: {refusal}")]
    Refused {
        /// The peer that refused.
        peer: PeerId,
        /// The kind of the refusal, and its text.
        refusal: Refusal,
    },
    /// The connection ended while the request was in flight.
    #[error("the connection to peer {peer} ended before its answer was complete")]
    Closed {
        /// The peer that the request was for.
        peer: PeerId,
    },
    /// The peer is banned by this node.
    #[error("peer {peer} is banned by this node")]
    Banned {
        /// The banned peer.
        peer: PeerId,
    },
    /// The answer breaks the wire format.
    #[error("the answer of peer {peer} breaks the protocol: {what}")]
    Malformed {
        /// The peer that sent it.
        peer: PeerId,
        /// The rule that the message breaks.
        what: &'static str,
    },
    /// Another process uses the UDP port.
    #[error(
        "cannot listen on {address}: another process uses this UDP port; \
         change network.listen in the configuration or stop the other process"
    )]
    AddressInUse {
        /// The address from the configuration.
        address: SocketAddr,
    },
    /// The socket could not be opened for another reason.
    #[error("cannot listen on {address}; check network.listen in the configuration")]
    Bind {
        /// The address from the configuration.
        address: SocketAddr,
        /// The operating system's error.
        source: io::Error,
    },
    /// The configuration cannot work.
    #[error("{key} {reason}")]
    Config {
        /// The key, with its section.
        key: &'static str,
        /// The rule that the setting breaks.
        reason: String,
    },
    /// The operating system cannot supply randomness.
    #[error("cannot draw a secret from the operating system: {0}")]
    NoRandomness(String),
    /// The node's key could not be used for TLS.
    #[error("cannot use the node's key for TLS")]
    Tls {
        /// The error of rustls.
        source: rustls::Error,
    },
}

impl NetworkError {
    /// The peer's refusal, if this is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            NetworkError::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// Whether the same request may succeed later without any change.
    pub fn is_retryable(&self) -> bool {
        match self {
            NetworkError::UnknownPeer { .. }
            | NetworkError::Deadline { .. }
            | NetworkError::Closed { .. } => true,
            NetworkError::Refused { refusal, .. } => refusal.retry_after().is_some(),
            NetworkError::TooLong { .. }
            | NetworkError::Banned { .. }
            | NetworkError::Malformed { .. }
            | NetworkError::AddressInUse { .. }
            | NetworkError::Bind { .. }
            | NetworkError::Config { .. }
            | NetworkError::NoRandomness(_)
            | NetworkError::Tls { .. } => false,
        }
    }
}
