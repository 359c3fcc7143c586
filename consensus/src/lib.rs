//! Validators: the transaction pool, proposing, voting, certificates; and how transactions reach the proposer.
//!
//! It decides *which* batch comes next and proves it by a quorum's signatures. What a batch does is `executor`'s concern, how
//! it is stored `storage`'s, and how nodes that do not vote get it `sync`'s; announcing decided batches is left to `node`.
//!
//! ```text
//!  JSON-RPC ──▶ Forwarder ──▶ Pool ── candidates ──▶ proposer ── Propose ──▶ validators: check, execute, record, sign
//!  peers ─────────▲             ▲                       │ ◀──── Vote ───────────┘
//!                               │                       ▼ quorum
//!                        maintain (deltas) ◀── Store ◀─ Certificate ── Decide ──▶ validators: commit
//!                                                       └──▶ Decided ──▶ node announces it to fullnodes
//! ```
//!
//! * [`Pool`]: bounded, by nonce within a sender and by effective tip across senders.
//! * [`Validator`]: a handle to the actor, its [`Driver`], that votes and, as the first of the set, proposes. `protocol` has its messages
//!   and decides without I/O, and is the place that Eve's execute-verify protocol takes later.
//! * [`Forwarder`]: every node's way to the proposer; [`Journal`] keeps what users gave it.
//!
//! Invariants: a validator records its vote durably before anybody learns of it, and never signs two ledger infos of one
//! number, across restarts. It signs only what it has executed itself. A batch is committed only with a certificate.
//! What it trusts: its store, its clock (to 10 s; a proposer only while a quorum's agree with it), and any quorum of the set.
//!
//! ```
//! use slipstream_consensus::{Pool, PoolConfig};
//! use slipstream_executor::{Candidates, Room};
//! use slipstream_storage::{StorageConfig, Store};
//! use slipstream_types::{Address, Genesis, SecretKey, Validator, bounded::BoundedVec};
//!
//! let validator = Validator { public_key: SecretKey::from_seed([1; 32]).public(), fee_recipient: Address::ZERO };
//! let validators = BoundedVec::new(vec![validator]).unwrap();
//! let genesis = Genesis { validators, ..Genesis::default() };
//! let store = Store::memory(&StorageConfig::default());
//! store.initialize(&genesis).unwrap();
//! let pool = Pool::new(PoolConfig::default(), genesis.chain, store).unwrap();
//! assert!(pool.candidates().draw(Room { gas: 30_000_000, bytes: 1 << 20 }).is_none());
//! ```

mod config;
mod error;
mod forward;
mod journal;
mod pool;
mod protocol;
#[cfg(test)]
mod testing;
mod validator;

pub use config::{ConsensusConfig, PoolConfig};
pub use error::{ConsensusError, ProposalError, RecordError};
pub use forward::{Forwarder, SubmitError};
pub use journal::{Journal, JournalError};
pub use pool::{Candidates, DropReason, Pool, PoolError, PoolStatus, Refused, maintain};
pub use validator::{ConsensusStatus, Decided, Driver, Validator};
