//! The shared part of all makers of chains: validators with public keys and secrets, headers, certificates, signed transactions.
//! For tests, benchmarks and simulations; no node depends on it.
//!
//! A test decides its chain's content, and which part of it is wrong. Here stands what all of them need alike.
//!
//! ```text
//!  validators: keys ─▶ members, set, genesis                              (types)
//!  ledger:     header ─▶ certify ─▶ the next header                       (types)
//!  executed:   Wallet ─▶ transactions ─▶ [execute, seal] ─▶ Batch::commit (executor, storage: the feature `executor`)
//! ```
//!
//! # Who may use it
//!
//! Cargo compiles the unit tests of a crate apart from the library that others link. If this crate depends on that library, the tests would
//! see each of its types twice, and the two do not mix. Hence:
//!
//! * Unit tests of `types`, `storage` and `executor` keep makers of their own.
//! * Their integration tests, in `tests/`, link the library that this crate links, and may use it.
//! * All other crates may use it in every test; `model`, `simulation` and `bench`, which only search and measure, may use it
//!   everywhere. Therefore this crate depends on none of them. It must stay so.
//!
//! Invariants:
//! * Equal arguments give equal keys, headers and signatures: traces of simulations and vectors of formats repeat.
//! * Its chains are well formed; a test that needs a wrong one changes a field.
//!
//! ```
//! use slipstream_testkit::{certify, genesis, keys, next_header};
//! use slipstream_types::{Digest, accumulator::Accumulator};
//!
//! let keys = keys(1..=4);
//! let genesis = genesis(&keys, 1_000);
//! let mut accumulator = Accumulator::default();
//! accumulator.append(genesis.header().unwrap().digest());
//!
//! let header = next_header(&genesis.header().unwrap(), Digest::ZERO);
//! let certificate = certify(&accumulator, &header, None, &keys);
//! certificate.verify(&genesis.validator_set()).unwrap();
//! ```

#[cfg(feature = "executor")]
mod executed;
mod ledger;
mod validators;

#[cfg(feature = "executor")]
pub use executed::{Batch, Wallet, signed};
pub use ledger::{BATCH_INTERVAL_MS, certify, header, info, next_header, sign};
pub use validators::{Members, genesis, key, keys, members, set};
