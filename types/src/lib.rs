//! The vocabulary that every crate of Slipstream shares: pure data, and pure functions over it.
//!
//! ```text
//!  Genesis ──▶ BatchHeader 0           Body ─┐
//!                  │ leaf             Receipts ├─ digests ─▶ BatchHeader n ─ leaf ─▶ Accumulator ─ root ─▶ LedgerInfo
//!                  ▼                    Delta ─┘                                                            │ signed by a quorum
//!             Accumulator                                                                                   ▼
//!                                                                                                      Certificate
//! ```
//!
//! * [`batch`]: headers and bodies; [`Totals`]: sums over the ledger, in headers; [`receipt`], [`delta`], [`hints`],
//!   [`conflicts`]: the results of executing a body.
//! * [`accumulator`]: the append-only Merkle tree over headers, and range proofs in it.
//! * [`chain`]: the rules of batches; [`schedule`]: how they change without another genesis; [`ChainConfig`]: both, for
//!   one chain.
//! * [`certificate`] and [`validators`]: statements and their signers. [`validators_contract`]: the source of later
//!   epochs' validators. [`waypoint`]: where trust starts if it does not start at genesis.
//! * [`state`] and [`tree`]: keys, values and paths of the EVM state, and the canonical Merkle tree over them.
//! * [`blob`], [`bounded`], [`codec`]: canonical BCS with explicit limits; [`limits`] has all limits in one place.
//!
//! Invariants: every decoder refuses more than its limit before it allocates, refuses trailing bytes, and accepts
//! exactly one encoding of a value. Nothing here trusts its input.
//!
//! ```
//! use slipstream_types::{blob::{Blob, BlobKind}, batch::Body};
//!
//! let body = Body::new(vec![vec![2, 3, 4]]).unwrap();
//! let blob = Blob::seal(BlobKind::Body, &body).unwrap();
//! assert_eq!(blob.open::<Body>(BlobKind::Body).unwrap(), body);
//! ```

pub mod accumulator;
pub mod batch;
pub mod blob;
pub mod bounded;
pub mod certificate;
pub mod chain;
mod chain_config;
pub mod clock;
pub mod codec;
pub mod conflicts;
pub mod delta;
pub mod digest;
pub mod genesis;
pub mod hints;
pub mod keys;
pub mod limits;
pub mod predeploys;
pub mod receipt;
pub mod schedule;
mod schema;
pub mod signature_cache;
pub mod state;
mod totals;
pub mod tree;
pub mod validators;
pub mod validators_contract;
pub mod waypoint;

pub use alloy_primitives::{Address, B256, Bloom, Bytes, U256, keccak256};
pub use batch::{BatchHeader, BatchNumber, Body, Epoch};
pub use blob::{Blob, BlobKind};
pub use certificate::{Certificate, CommitStatement, LedgerInfo};
pub use chain::{Rules, RulesId};
pub use chain_config::ChainConfig;
pub use clock::Clock;
pub use codec::CodecError;
pub use conflicts::Conflicts;
pub use delta::Delta;
pub use digest::Digest;
pub use genesis::Genesis;
pub use hints::Hints;
pub use keys::{PublicKey, SecretKey, Signature};
pub use receipt::{Log, Receipt, Receipts};
pub use schedule::{Schedule, ScheduledFork};
pub use state::{AccountValue, Path, StateKey, StateValue};
pub use totals::Totals;
pub use validators::{Failures, Validator, ValidatorSet};
pub use waypoint::Waypoint;
