//! Cuts a payload into chunks, commits to them, checks each one, passes chunks on and puts the payload together: three
//! codecs behind one trait.
//!
//! ```text
//!  payload ── encode ──▶ Plan ── signed and announced by the mesh ──▶ open
//!     │                                                                │
//!     ▼                                                                ▼
//!   Codec ── next_chunk ──▶ bytes ──▶ accept ──▶ check ─▶ Check::run (a worker thread) ─▶ checked ──▶ payload
//!     ▲                                             │
//!     └───────────────── next_chunk ◀───────────────┘  as soon as something is verified, before the whole is here
//! ```
//!
//! * [`CodecKind::Gossip`]: the payload is one chunk.
//! * [`CodecKind::ReedSolomon`]: data and parity shards under a Merkle root; any `data` of them are enough. A relay
//!   passes shards on unchanged.
//! * [`CodecKind::Rlnc`]: the payload is `N` vectors of scalars, each with a Pedersen commitment on Ristretto. A chunk is a random linear
//!   combination of them, with its coefficients. Any `N` independent chunks suffice, and a relay makes fresh ones from those that it has
//!   verified.
//!
//! Callers decide who signs a [`Plan`], what binds it, and which peers get chunks. They also decide when a peer has
//! sent too many useless chunks, and when to give up. The crate has neither clock nor thread nor socket, and takes its
//! randomness from the caller.
//!
//! Invariants:
//! * [`Codec::next_chunk`] returns only chunks verified here against the plan, so a relay is never blamed for a
//!   source's lies.
//! * [`Codec::payload`] has the digest of the plan.
//! * Only the sender of a chunk that contradicts the plan is blamed for the chunk. If all chunks fit a plan that
//!   contradicts itself, the plan's signer is at fault ([`Verdict::WrongPlan`]).
//! * A codec holds at most [`Codec::held_bytes_max`], and compares each length with the plan's before it allocates.
//!
//! Trust: the caller has checked the signature on the plan.
//!
//! ```
//! use std::sync::Arc;
//!
//! use rand::{SeedableRng, rngs::StdRng};
//! use slipstream_coding::{CodecKind, Parameters, encode, open};
//! use slipstream_types::PublicKey;
//!
//! let (source, receiver) = (PublicKey([1; 32]), PublicKey([2; 32]));
//! let mut rng = StdRng::seed_from_u64(7);
//! let payload: Arc<[u8]> = vec![42; 5_000].into();
//! let (plan, mut sender) = encode(CodecKind::Rlnc, payload.clone(), &Parameters::default_for(5_000))?;
//! let mut codec = open(&plan)?;
//! while codec.payload().is_none() {
//!     let chunk = sender.next_chunk(&receiver, &mut rng).expect("the receiver needs more");
//!     codec.accept(source, &chunk);
//!     while let Some(check) = codec.check(&mut rng) {
//!         codec.checked(check.run());
//!     }
//! }
//! assert_eq!(codec.payload(), Some(payload));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod codec;
mod codecs;
mod error;
mod gossip;
mod limits;
mod peers;
mod plan;
mod reed_solomon;
mod rlnc;
mod whole;

pub use codec::{Accepted, Check, Checked, Codec, Held, Malformed, Verdict, Work};
pub use codecs::{encode, open};
pub use error::{EncodeError, PlanError};
pub use limits::*;
pub use plan::{CodecKind, Commitment, Parameters, Plan, UnknownCodec, payload_digest};
pub use rlnc::{Verifier, warm_up};
