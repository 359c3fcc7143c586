//! [`Paced`]: a state whose reads tell whether reading ahead pays.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Instant,
};

use alloy_primitives::{Address, B256, Bytes, U256};
use slipstream_storage::StorageError;
use slipstream_types::{AccountValue, BatchNumber, Digest};

use crate::{evm::AnalysedCode, prefetch::Pace, reader::StateReader};

/// One of so many reads is timed.
const EVERY: u32 = 16;

/// See the module. For who reads while it foretells: what is read ahead by its word is in the block cache by then, and tells nothing.
pub(super) struct Paced<'a> {
    inner: &'a dyn StateReader,
    pace: &'a Pace,
    reads: AtomicU32,
}

impl<'a> Paced<'a> {
    pub(super) fn new(inner: &'a dyn StateReader, pace: &'a Pace) -> Paced<'a> {
        Paced { inner, pace, reads: AtomicU32::new(0) }
    }

    fn time<T>(&self, read: impl FnOnce() -> T) -> T {
        if !self.reads.fetch_add(1, Relaxed).is_multiple_of(EVERY) {
            return read();
        }
        let begin = Instant::now();
        let found = read();
        self.pace.took(begin.elapsed());
        found
    }
}

impl StateReader for Paced<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        self.time(|| self.inner.account(address))
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.time(|| self.inner.slot(address, slot))
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.inner.code(hash)
    }

    fn analysed(&self, hash: &Digest) -> Option<AnalysedCode> {
        self.inner.analysed(hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.inner.header_digest(number)
    }
}
