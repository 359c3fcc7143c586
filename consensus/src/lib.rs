//! Validators: the transaction pool, ordering, execution ahead, voting, certificates; and how transactions reach the primary.
//!
//! The crate drives `slipstream_eve`, which decides *which* batch comes next and proves it by a quorum's signatures. `executor` knows
//! what a batch does, `storage` how it is stored, and `sync` how non-voting nodes get it; `node` announces decided batches.
//!
//! ```text
//!  JSON-RPC ──▶ Forwarder ──▶ Pool ── candidates ──▶ primary: build ── Order ──▶ validators: execute, keep durably
//!  peers ─────────▲             ▲                                                     │ Verify
//!                               │                                                     ▼
//!                        maintain (deltas) ◀── Store ◀─ commit ◀─ Certificate ◀── Prepare, Commit: remember, sign
//!                                                                    └──▶ DecidedBatch ──▶ node announces it to fullnodes
//! ```
//!
//! * [`Pool`]: bounded, by nonce within a sender and by effective tip across senders.
//! * [`Validator`]: a handle to its actor, the [`Driver`], which executes and votes, and orders while it is the
//!   primary.
//! * [`Forwarder`]: brings every node's transactions to the primary; [`Journal`] keeps those that users submitted.
//!
//! Invariants: a validator makes its votes and announced outcomes durable before anybody learns of them. It announces
//! only outcomes that it executed itself. It commits a batch only with a certificate. It trusts its store, its clock
//! (to 10 s), and any quorum of the set.
//!
//! ```
//! use slipstream_consensus::{Pool, PoolConfig};
//! use slipstream_executor::{Candidates, RemainingCapacity};
//! use slipstream_storage::{StorageConfig, Store};
//! use slipstream_types::{Address, Genesis, SecretKey, Validator, bounded::BoundedVec};
//!
//! let validator = Validator { public_key: SecretKey::from_seed([1; 32]).public(), fee_recipient: Address::ZERO };
//! let validators = BoundedVec::new(vec![validator]).unwrap();
//! let genesis = Genesis { validators, ..Genesis::default() };
//! let store = Store::memory(&StorageConfig::default());
//! store.initialize(&genesis).unwrap();
//! let pool = Pool::new(PoolConfig::default(), genesis.chain, store).unwrap();
//! assert!(pool.candidates().draw(RemainingCapacity { gas: 30_000_000, bytes: 1 << 20 }).is_none());
//! ```

mod config;
mod error;
mod forward;
mod journal;
mod planted;
mod pool;
mod seams;
#[doc(hidden)]
pub mod simulated;
#[cfg(test)]
mod testing;
mod validator;

pub use config::{ConsensusConfig, PoolConfig};
pub use error::{ConsensusError, ProposalError, RecordError};
pub use forward::{Forwarder, SubmitError};
pub use journal::{Disk, Journal, JournalError, SystemDisk};
pub use pool::{
    Candidates, ContentLimit, DropReason, Pool, PoolContent, PoolError, PoolStatus, Refused, TooMuchContent,
    maintain,
};
pub use validator::{
    ConsensusStatus, Conviction, DecidedBatch, Driver, EvidenceKind, PeerStanding, Position, Proof, Silence,
    VOTE_RECORD, Validator, Voting, voted_up_to,
};
