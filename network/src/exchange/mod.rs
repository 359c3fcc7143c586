//! Peer exchange: finds peers outside of the configuration, so that no attacker can choose them.
//!
//! ```text
//!   a peer's own word      PeerRecord ─▶ verified ─▶ Book: heard ──(dialled by this node)──▶ reached
//!   (signed, for a chain)                              │                                      │
//!                                                      ▼                                      ▼
//!   Chooser: what happened, and when ─▶ dial, ask, drop          what was met by this node itself is passed on
//! ```
//!
//! Keys are free, addresses cost something, and words of strangers are free too. So the **blocks** (IPv4 /16, IPv6 /32) of the
//! address and of its teller limit everything here, and a secret of the node distributes it.
//!
//! The folder decides without I/O and clock: times come in with the events, and draws come from the secret. `quic/exchange.rs`
//! moves the bytes.

mod book;
mod chooser;
mod draws;
mod message;
mod record;
mod scope;
mod status;

pub(crate) use book::Book;
pub(crate) use chooser::{Action, Asked, Chooser, Dialled, Neighbour, Rules};
pub(crate) use draws::Draws;
pub(crate) use message::{ANSWER_BYTES_MAX, Answer, MessageError, REQUEST_BYTES_MAX, Request};
pub(crate) use record::{PeerRecord, RECORD_ADDRESSES_MAX, UncheckedRecord};
pub(crate) use scope::{Reach, Scope};
pub use status::{ExchangeEvent, ExchangeStatus};

use tokio::time::Instant;

/// A moment, by the clock that waits are measured with and by the one that records are dated with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Now {
    /// For waits while the node runs.
    pub(crate) instant: Instant,
    /// Milliseconds since 1970, for what outlasts it.
    pub(crate) ms: u64,
}
