//! [`Stalls`]: measures how long execution waits for rows and code.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, Bytes, U256};
use serde::{Deserialize, Serialize};
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{AccountValue, BatchNumber, Digest};

use crate::{
    evm::{AnalysedCode, ExecutionState},
    prefetch::{ReadCounts, SLOW},
};

/// Waits of executions since the session began.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StallStats {
    /// Reads of rows and code that took 12 us or longer: no cache of this process had them, or a thread was still
    /// reading them.
    pub stalls: u64,
    /// Seconds that executing threads waited for them.
    pub seconds: f64,
}

/// Sums over all executions of a session.
#[derive(Default)]
pub(super) struct Stalls {
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Stalls {
    pub(super) fn stats(&self) -> StallStats {
        let seconds = Duration::from_nanos(self.nanos.load(Relaxed)).as_secs_f64();
        StallStats { stalls: self.count.load(Relaxed), seconds }
    }

    /// A reader for one execution that times its reads.
    pub(super) fn of<'a>(&'a self, inner: &'a dyn ExecutionState) -> TimedReader<'a> {
        TimedReader { inner, stalls: self, reads: AtomicU32::new(0), slow: AtomicU32::new(0) }
    }
}

/// A reader that times its reads; see [`Stalls::of`].
pub(super) struct TimedReader<'a> {
    inner: &'a dyn ExecutionState,
    stalls: &'a Stalls,
    reads: AtomicU32,
    slow: AtomicU32,
}

impl TimedReader<'_> {
    /// The reads so far.
    pub(super) fn reads(&self) -> ReadCounts {
        ReadCounts { all: self.reads.load(Relaxed), slow: self.slow.load(Relaxed) }
    }

    fn time<T>(&self, read: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let found = read();
        let took = begin.elapsed();
        self.reads.fetch_add(1, Relaxed);
        if took >= SLOW {
            self.slow.fetch_add(1, Relaxed);
            self.stalls.count.fetch_add(1, Relaxed);
            self.stalls.nanos.fetch_add(took.as_nanos() as u64, Relaxed);
        }
        found
    }
}

impl StateReader for TimedReader<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        self.time(|| self.inner.account(address))
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.time(|| self.inner.slot(address, slot))
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.time(|| self.inner.code(hash))
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.inner.header_digest(number)
    }
}

impl ExecutionState for TimedReader<'_> {
    fn analysed(&self, hash: &Digest) -> Option<AnalysedCode> {
        self.inner.analysed(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipstream_storage::MemoryState;

    /// A state with slow reads, as from a disk.
    struct Slow(MemoryState, Duration);

    impl StateReader for Slow {
        fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
            std::thread::park_timeout(self.1);
            self.0.account(address)
        }

        fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
            self.0.slot(address, slot)
        }

        fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
            self.0.code(hash)
        }

        fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
            self.0.header_digest(number)
        }
    }

    impl ExecutionState for Slow {}

    #[test]
    fn what_takes_long_counts() {
        let stalls = Stalls::default();
        let slow = Slow(MemoryState::default(), Duration::from_millis(2));
        let timed = stalls.of(&slow);
        for _ in 0..3 {
            assert_eq!(timed.account(&Address::ZERO).unwrap(), None);
        }
        let stats = stalls.stats();
        assert!(stats.stalls >= 3 && stats.seconds >= 0.006, "{stats:?}");
        assert_eq!(timed.reads(), ReadCounts { all: 3, slow: 3 });
    }
}
