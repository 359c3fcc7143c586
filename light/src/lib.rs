//! A light client: it follows a chain's validators and checks proofs of accounts and slots, so it need not trust the
//! answering node.
//!
//! ```text
//!  genesis, or a waypoint ──▶ LightClient ── learn(epoch changes) ──▶ validators of the newest epoch
//!                                  │
//!  AccountProof ─── certificate ◀──┘ a quorum of them signed it
//!                       │ accumulator root
//!                       ├──▶ genesis: leaf 0, so the certificate is of this chain
//!                       └──▶ header: its leaf ─ state root ─▶ account, slots: there with these values, or not there
//! ```
//!
//! * [`LightClient`]: the trusted validators, and how they change.
//! * [`AccountProof`], [`WaypointProof`], [`EpochChanges`]: the answers of `slipstream_getProof`,
//!   `slipstream_getWaypoint` and `slipstream_getEpochChanges`, in the JSON that nodes send. docs/formats.md specifies
//!   them.
//! * [`Question`]: the question that a proof must answer. The client refuses a proof of something else, even if it is
//!   true.
//!
//! The crate has no I/O and no clock. The caller chooses the nodes to ask and the age that it accepts;
//! docs/light-clients.md lists these duties, and the limits of proofs.
//!
//! Invariants: the client checks every proof before it trusts the answer. Only a certificate by an epoch's own
//! validators ends that epoch. Every decoder refuses more than its limit before it allocates.
//!
//! ```
//! use slipstream_light::{AccountProof, BatchTag, EpochChanges, LightClient, Question};
//!
//! # let file = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors.json"));
//! # let vectors: serde_json::Value = serde_json::from_str(file).unwrap();
//! # let genesis_json = vectors["genesis"].to_string();
//! # let epoch_changes = vectors["epochChanges"].to_string();
//! # let answer = vectors["proofs"][0]["answer"].to_string();
//! # let address = vectors["proofs"][0]["address"].as_str().unwrap().parse().unwrap();
//! # let now_ms = vectors["nowMs"].as_u64().unwrap();
//! let mut client = LightClient::from_genesis(&serde_json::from_str(&genesis_json).unwrap())?;
//! client.learn(&EpochChanges::from_json(&epoch_changes)?.certificates())?;
//! let question = Question { address, slots: &[], at: BatchTag::Latest { now_ms, age_ms_max: 60_000 } };
//! let verified = client.verify(&question, &AccountProof::from_json(&answer)?)?;
//! println!("{} wei at batch {}", verified.account.unwrap_or_default().balance, verified.number);
//! # Ok::<(), slipstream_light::LightError>(())
//! ```

mod client;
mod error;
mod limits;
mod wire;

pub use client::{BatchTag, LightClient, Question, VerifiedAccount};
pub use error::{EpochEndFault, LightError};
pub use limits::{ANSWER_BYTES_MAX, EPOCH_CHANGES_MAX, SLOTS_MAX};
pub use wire::{Account, AccountProof, Encoded, EpochChanges, Part, SlotProof, WaypointProof};
