//! Peer exchange: finds peers outside the configuration, in such a way that no attacker can choose them.
//!
//! ```text
//!   a peer's own word      PeerRecord ─▶ verified ─▶ AddressBook: heard ──(dialled by this node)──▶ reached
//!   (signed, for a chain)                                     │                                      │
//!                                                             ▼                                      ▼
//!   Chooser: events with their times ─▶ dial, ask, drop          peers that this node has met are passed on
//! ```
//!
//! Keys are free, and so are reports of strangers; addresses cost something. So all limits here count by **blocks**
//! (IPv4 /16, IPv6 /32): an address's block, and that of its **teller**, the peer that reported it. A secret of the
//! node determines the distribution.
//!
//! This folder decides without I/O and clock: times come with the events, and random draws come from the secret.
//! `quic/exchange.rs` moves the bytes.

mod book;
mod chooser;
mod draws;
mod message;
mod record;
mod scope;
mod status;

pub(crate) use book::AddressBook;
pub(crate) use chooser::{Action, AskOutcome, Chooser, ChooserRules, DialOutcome, Neighbour};
pub(crate) use draws::Draws;
pub(crate) use message::{ANSWER_BYTES_MAX, Answer, MessageError, REQUEST_BYTES_MAX, Request};
pub(crate) use record::{PeerRecord, RECORD_ADDRESSES_MAX, UncheckedRecord};
pub(crate) use scope::{Reach, Scope};
pub use status::{ExchangeEvent, ExchangeStatus};

use tokio::time::Instant;

/// A moment, on two clocks: one for waits, one for dates of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    /// For waits while the node runs.
    pub(crate) instant: Instant,
    /// Milliseconds since 1970, for times that outlast the process.
    pub(crate) ms: u64,
}
