//! A modelled device: a state in memory whose reads take a fixed time, with a fixed number in parallel. It shows the
//! same reads on a slower disk than this machine's. Its figures are labelled as modelled.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, Bytes, U256};
use parking_lot::Mutex;
use slipstream_executor::ExecutionState;
use slipstream_storage::{MemoryState, StateReader, StorageError};
use slipstream_types::{AccountValue, BatchNumber, Digest, StateKey, StateValue};

/// The number of concurrent reads; a further one waits until one is done.
pub(super) const PARALLEL: usize = 16;

/// The modelled device.
#[derive(Clone)]
pub(super) struct Modelled {
    state: Arc<MemoryState>,
    read: Duration,
    /// When each slot of the device is free again.
    free_at: Arc<Mutex<[Instant; PARALLEL]>>,
}

impl Modelled {
    pub(super) fn new(state: Arc<MemoryState>, read: Duration) -> Modelled {
        Modelled { state, read, free_at: Arc::new(Mutex::new([Instant::now(); PARALLEL])) }
    }

    /// Waits for `reads` reads that are issued together.
    #[allow(clippy::disallowed_methods, reason = "the wait is the model")]
    fn wait(&self, reads: usize) {
        let now = Instant::now();
        let mut done = now;
        {
            let mut free_at = self.free_at.lock();
            for _ in 0..reads {
                let next = free_at.iter_mut().min().expect("the device has places");
                *next = (*next).max(now) + self.read;
                done = done.max(*next);
            }
        }
        std::thread::sleep(done - now);
    }
}

impl StateReader for Modelled {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        self.wait(1);
        self.state.account(address)
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.wait(1);
        self.state.slot(address, slot)
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.wait(1);
        self.state.code(hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.state.header_digest(number)
    }

    fn rows(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, StorageError> {
        self.wait(keys.len());
        self.state.rows(keys)
    }

    fn codes(&self, hashes: &[Digest]) -> Result<Vec<Option<Bytes>>, StorageError> {
        self.wait(hashes.len());
        self.state.codes(hashes)
    }
}

impl ExecutionState for Modelled {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_beyond_the_parallel_ones_wait_for_their_turn() {
        let read = Duration::from_millis(5);
        let device = Modelled::new(Arc::default(), read);
        let keys = vec![StateKey::Account(Address::ZERO); PARALLEL + 1];
        let start = Instant::now();
        device.rows(&keys).unwrap();
        assert!(start.elapsed() >= 2 * read);
        device.account(&Address::ZERO).unwrap();
        assert!(start.elapsed() >= 3 * read);
    }
}
