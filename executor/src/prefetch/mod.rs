//! [`Prefetcher`]: reads hinted keys before the batches that need them, so that execution does not wait for the disk.
//!
//! ```text
//!  hints ─ PrefetchRequest ─▶ Prefetcher::read_ahead ─▶ WarmState ─▶ execute
//!                          │                    ▲ │ reads unclaimed keys itself, and waits for keys that are loading
//!                          ▼                    │ ▼
//!            pool: threads ─ chunks of keys ─▶ Load: queued ─▶ loading ─▶ found │ absent
//!                                                          └─ (read failed) ─▶ queued
//! ```
//!
//! Keys are read in chunks. First-use order decides which chunk comes first; within a chunk, keys are read in the
//! table's order. No key is read twice through one [`WarmState`]. The batches that execute next come first.
//! [`PrefetchLimits`] bounds the read-ahead, so memory and wasted reads stay bounded however many batches wait.
//!
//! Hints are advice from strangers. A missing or wrong hint costs a plain read, and a surplus hint costs a useless
//! read. Results never change: every value comes from one fixed state, which also answers the misses.
//!
//! Hints with values ([`PrefetchRequest::values`]) are the exception, for callers that ask for them. The hint's value
//! answers a read of a key that is not loaded yet, and the key's row is loaded all the same. Results that used shipped
//! values count only once [`WarmState::confirm`] has compared the values with the rows.

mod load;
mod pace;
mod pool;
mod probe;
mod shipped;
#[cfg(test)]
mod tests;
mod warm;

use alloy_primitives::Address;
use slipstream_types::{Digest, Hints, StateKey, hints::RowBefore};

pub(crate) use self::pace::{Pace, ReadCounts, SLOW};
pub use self::{
    pool::Prefetcher,
    probe::PrefetchBackend,
    warm::{PrefetchStats, WarmState, WarmStats},
};

/// The keys and code to read ahead for a batch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PrefetchRequest {
    /// Accounts and slots, in the order in which they are needed. Duplicates count once.
    pub keys: Vec<StateKey>,
    /// Code by its Keccak-256.
    pub codes: Vec<Digest>,
    /// Accounts among the keys whose code is needed too: their rows hold the code's hash.
    pub codes_of: Vec<Address>,
    /// Values that hints claim for some of the keys. Execution does not wait for those keys, so its result must be
    /// confirmed ([`WarmState::confirm`]).
    pub values: Vec<RowBefore>,
    /// Whether the keys were read a moment ago. Their read times then say nothing about the disk.
    pub was_read: bool,
}

impl From<&Hints> for PrefetchRequest {
    fn from(hints: &Hints) -> PrefetchRequest {
        let (keys, codes_of) = (hints.keys().collect(), hints.codes().collect());
        PrefetchRequest { keys, codes_of, ..PrefetchRequest::default() }
    }
}

/// The limits of reading ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefetchLimits {
    /// Threads that read. 0 counts as 1.
    pub threads: usize,
    /// Number of batches that are read ahead, in addition to the oldest one that is not executed.
    pub readahead_batches: usize,
    /// Maximum bytes that are read ahead and not dropped yet. Beyond this number, only the oldest batch is read ahead.
    pub readahead_bytes: usize,
    /// How keys are read; `None` lets a probe decide.
    pub backend: Option<PrefetchBackend>,
}

impl Default for PrefetchLimits {
    fn default() -> Self {
        Self { threads: 16, readahead_batches: 8, readahead_bytes: 64 << 20, backend: None }
    }
}
