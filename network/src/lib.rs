//! Authenticated peers, requests and messages: the transport between nodes, independent of the content.
//!
//! ```text
//!   sync  consensus  node                         sync  consensus  node
//!     │ request / send                              ▲ Handler
//!     ▼                                             │
//!  Transport ── Network ──── QUIC, one stream ──── Network ── Transport
//!     │          a peer *is* its ed25519 key, both sides prove it
//!     └─────── MemoryTransport ── MemoryHub: the in-process twin for tests
//! ```
//!
//! This crate moves opaque bytes. The crates above judge a payload's meaning and truth, and score its peer. They call
//! [`Transport::ban`] for a peer that lied.
//!
//! * A **peer** is an ed25519 public key ([`PeerId`]). TLS 1.3 with raw public keys (RFC 7250) proves it on both sides,
//!   so no certificates need to be issued or renewed. [`PeerAddress`] is the address that a peer listens at.
//!   [`PeerTarget`] is the address at which a configured peer is dialled, or a name that a [`Resolver`] looks up at
//!   each attempt.
//! * A **request** is one bidirectional stream with a deadline and a limit on the answer, both chosen by the requester.
//! * [`Transport::peer_changes`] reports every change of the connected peers, so no user polls.
//! * [`Network::begin_exchange`] begins **peer exchange**: peers tell each other about peers, in records that those
//!   peers have signed. The node keeps some connections of its own choice beside the configured ones.
//! * A **message** goes to one peer, best effort and without an answer. More urgent messages go first; a slow peer
//!   misses the oldest of the least urgent.
//!
//! Wire format, ALPN `slipstream/2`; lengths are 32-bit little-endian and checked before anything is allocated:
//!
//! ```text
//! request    protocol (1 byte)  answer_bytes_max (4)  length (4)  payload      on a bidirectional stream of the requester
//! response   status (1 byte)  length (4)  payload      0 answer; refusals: 1 busy, 2 not kept, 3 malformed, 4 failed
//! message    length (4)  payload                         on a unidirectional stream
//! ```
//!
//! The payload of a refusal is its text. For "busy", the text follows the milliseconds (4) after which to retry.
//!
//! Invariants:
//! * At most one connection exists per peer, whichever side dialled; see [`Network`] for how both sides agree which one
//!   stays.
//! * Everything that a peer can fill has a limit: handshakes, connections, streams, running handlers, queues, bans,
//!   texts of refusals, and bytes of requests and answers. Answers count until the requester has them. One peer uses
//!   only its own share, and one host at most two shares. Strangers never use the share of configured peers.
//! * The peers that the node dials by choice are drawn with a secret of the node. Reports of strangers only fill their
//!   part of the address book.
//! * A stalled transfer is aborted: with a time limit alone, a peer could occupy its share without using it.
//! * Every task belongs to the [`Network`] and ends at [`Network::shutdown`].
//!
//! Nothing that comes from a peer is trusted except its key.
//!
//! ```
//! use slipstream_network::PeerAddress;
//!
//! let text = format!("{}@127.0.0.1:7400", "ab".repeat(32));
//! let peer: PeerAddress = text.parse().unwrap();
//! assert_eq!(peer.to_string(), text);
//! ```

mod address;
mod bans;
mod bucket;
mod budget;
mod config;
mod contacts;
mod error;
mod exchange;
mod fair;
mod inbox;
mod journal;
mod memory;
mod meter;
mod names;
mod origin;
mod pace;
mod payload;
mod peer_changes;
mod peers;
mod queue;
mod quic;
mod refusal;
mod registry;
mod rejection;
mod resolver;
mod shared_keys;
mod target;
mod transport;
mod usefulness;

#[cfg(test)]
mod tests;

pub use bytes::Bytes;

pub use address::{ParsePeerAddressError, PeerAddress};
pub use bans::{Ban, BanEnd, BannedBy, OWN_BAN_MAX};
pub use config::NetworkConfig;
pub use contacts::{ConfiguredPeer, ContactFailure, ContactKind, ContactState, Contacts};
pub use error::NetworkError;
pub use exchange::{ExchangeEvent, ExchangeStatus};
pub use fair::{FairLimits, FairQueue};
pub use memory::{MemoryHub, MemoryTransport};
pub use names::{ParsePeerNameError, PeerName};
pub use payload::Payload;
pub use peer_changes::{PeerChanges, PeerWatch};
pub use quic::{Network, OrderError, Orders};
pub use refusal::{REFUSAL_BYTES_MAX, Refusal, RefusalKind};
pub use rejection::PeerRejection;
pub use resolver::{NoNames, Resolver, SystemResolver};
pub use shared_keys::SharedKey;
pub use target::{PeerHost, PeerTarget};
pub use transport::{
    BoxFuture, Handler, MESSAGE_BYTES_MAX, PeerId, PeerStats, Priority, Protocol, RequestLimits, Transport,
};
