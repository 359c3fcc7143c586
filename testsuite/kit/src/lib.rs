//! The shared part of all code that builds chains: validators with public and secret keys, headers, certificates,
//! signed transactions. It serves tests, benchmarks and simulations; no node depends on it.
//!
//! A test decides its chain's content, and which part of it is wrong. This crate has what every such chain needs.
//!
//! ```text
//!  validators: keys ─▶ members, set, genesis                              (types)
//!  ledger:     header ─▶ certify ─▶ the next header                       (types)
//!  executed:   Wallet ─▶ transactions ─▶ [execute, seal] ─▶ Batch::commit (executor, storage: the feature `executor`)
//! ```
//!
//! [`run_example`] runs a crate's examples, so that each crate's tests cover its own.
//!
//! # Who may use it
//!
//! Cargo compiles a crate's unit tests separately from the library that others link. If this crate depends on that
//! library, the unit tests see each of its types twice, and the two copies are different types. Hence:
//!
//! * Unit tests of `types`, `storage`, `predict` and `executor` keep builders of their own.
//! * Their integration tests, in `tests/`, link the same library as this crate, and may use it.
//! * All other crates may use it in every test. `model`, `simulation` and `bench`, which only search and measure, may
//!   use it everywhere. Therefore this crate must not depend on them.
//!
//! Invariants:
//! * Equal arguments give equal keys, headers and signatures, so that simulation traces and test vectors repeat.
//! * Its chains are well formed; a test that needs a malformed chain changes a field.
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

mod examples;
#[cfg(feature = "executor")]
mod executed;
mod ledger;
mod validators;

pub use examples::run_example;
#[cfg(feature = "executor")]
pub use executed::{Batch, Wallet, signed};
pub use ledger::{BATCH_INTERVAL_MS, certify, header, info, next_header, sign};
pub use validators::{Members, genesis, key, keys, members, set};
