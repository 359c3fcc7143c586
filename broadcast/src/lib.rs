//! How a new batch gets from the validators to everybody: one mesh, in which payloads are coded, checked at every hop, and repaired.
//!
//! ```text
//!  validator ── publish ──▶ plans, signed ──▶ Mesh ◀── messages ── peers
//!                                              │  effects: send, run a check, ban
//!  Broadcaster (network, clock, threads) ◀─────┤
//!  sync ◀── Delivery: header, certificate, body, hints
//! ```
//!
//! Header and certificate go first, with the signed plans of the payloads; then chunks of the body and of the hints, apart from each other, to
//! the peers that want them. How a payload is cut is `slipstream-coding`'s; which peer gets what and when is the [`Mesh`]'s. The
//! message formats are in `docs/formats.md`, what operators see in `docs/network.md`.
//!
//! Trusted: nobody. A certificate is checked against the validators of its epoch and the ledger, a plan against its signer, a chunk
//! against its plan, a whole body against the header.

mod config;
mod driver;
mod mesh;
mod message;
mod work;

pub use config::BroadcastConfig;
pub use driver::{Broadcaster, Fresh, Ledger, LedgerError};
pub use mesh::{
    CodecStatus, DECODED_MS, Delivery, Done, Effect, Head, Job, JobId, Lead, Mesh, MeshStatus, Moved,
    PayloadStatus, Source,
};
pub use message::{Announced, MESSAGE_BYTES_MAX, Message, Part, PayloadId, SignedPlan, Wants};
pub use work::{Coded, Outcome, Threads, Work, Workers};
