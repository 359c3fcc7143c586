//! Spreads new batches from the validators to all nodes: one mesh, in which payloads are coded, checked at every hop,
//! and repaired.
//!
//! ```text
//!  validator ── publish ──▶ plans, signed ──▶ Mesh ◀── messages ── peers
//!                                              │  effects: send, run a check, ban
//!  Broadcaster (network, clock, threads) ◀─────┤
//!  sync ◀── Delivery: header, certificate, body, hints
//! ```
//!
//! The mesh first sends header and certificate, with the signed plans of the payloads. Then chunks of the body and of the hints go,
//! independently, to the peers that want them. `slipstream-coding` cuts payloads; the [`Mesh`] decides which peer gets what and when. The
//! message formats are in `docs/formats.md`, the operator's view in `docs/network.md`.
//!
//! The mesh trusts nobody. It checks a certificate against the ledger and the validators of its epoch. It checks a plan against its
//! signer, a chunk against its plan, and a whole body against the header.

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
