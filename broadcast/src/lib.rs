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
//!
//! A [`Mesh`] by hand:
//!
//! ```
//! use slipstream_broadcast::{BroadcastConfig, Effect, Head, Mesh, Message, Wants};
//! use slipstream_types::accumulator::Accumulator;
//! use tokio::time::Instant;
//!
//! let keys = slipstream_testkit::keys(1..=4);
//! let genesis = slipstream_testkit::genesis(&keys, 1_000);
//! let (number, digest) = (genesis.header()?.number, genesis.header()?.digest());
//! let mut accumulator = Accumulator::default();
//! accumulator.append(digest);
//! let head = Head { number, digest, accumulator, set: genesis.validator_set().into() };
//! let wants = Wants { body: true, hints: false };
//! let mut mesh = Mesh::new(BroadcastConfig::default(), wants, head, [7; 32]);
//!
//! // A peer connects: it is told what this node wants, and asked the same.
//! let (peer, now) = (keys[0].public(), Instant::now());
//! mesh.handle_peers(&[peer], now);
//! let Some(Effect::Send { message, .. }) = mesh.poll_effect() else { panic!("nothing is sent") };
//! assert!(matches!(Message::decode(&message)?, Message::Wants { asks: true, .. }));
//!
//! // The peer asks in turn, and is answered. Later it is told once more, in case a message was lost.
//! mesh.handle_message(peer, &Message::Wants { wants, asks: true }.encode()?, now);
//! assert!(matches!(mesh.poll_effect(), Some(Effect::Send { .. })) && mesh.poll_effect().is_none());
//! let due = mesh.poll_timeout().expect("the next round of wants");
//! mesh.handle_timeout(due);
//! assert!(due > now && matches!(mesh.poll_effect(), Some(Effect::Send { .. })));
//! # Ok::<(), slipstream_types::CodecError>(())
//! ```

mod config;
mod driver;
mod mesh;
mod message;
mod work;

pub use config::BroadcastConfig;
pub use driver::{Broadcaster, Ledger, LedgerError, NewBatch};
pub use mesh::{
    CodecStatus, DECODED_MS, Delivery, Done, Effect, Head, Job, JobId, LeadRequest, Mesh, MeshStatus, Moved,
    PayloadStatus, Source,
};
pub use message::{Announced, MESSAGE_BYTES_MAX, Message, Part, PayloadId, SignedPlan, Wants};
pub use work::{Coded, Outcome, Threads, Work, Workers};
