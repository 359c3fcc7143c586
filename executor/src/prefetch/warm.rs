//! [`WarmState`]: a state with the rows that were read ahead from it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use alloy_primitives::{Address, B256, Bytes, U256};
use slipstream_storage::{StateReader, StorageError, View};
use slipstream_types::{AccountValue, BatchNumber, Digest, StateKey, StateValue};

use super::{
    PrefetchBackend, PrefetchRequest,
    load::{Answer, Load, SORTED_KEYS},
    pool::Ticket,
};
use crate::evm::ExecutionState;

/// A reader over the read-ahead of one batch, from one state. Misses go to the underlying reader, a view of one fixed
/// version, so warm data always has that version. Dropping the reader ends the read-ahead.
pub struct WarmState<R = View> {
    load: Arc<Load<R>>,
    /// `None` if no thread reads ahead for this state.
    _ticket: Option<Ticket>,
    hits: AtomicU64,
    misses: AtomicU64,
    waited: AtomicU64,
    claimed: AtomicU64,
    shipped: AtomicU64,
}

/// Counts of what was read ahead so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefetchStats {
    /// Distinct accounts and slots that are wanted.
    pub keys: usize,
    /// Keys of the request that are known to have a row.
    pub found: usize,
    /// Contracts whose code was read.
    pub codes: usize,
    /// Code of the request that is missing, exceeded the limit, or is not read yet.
    pub codes_skipped: usize,
}

/// Counts of execution's reads. An account, a slot or a code counts as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WarmStats {
    /// Reads of hinted keys, at any stage of their loading.
    pub hits: u64,
    /// Reads of keys without a hint.
    pub misses: u64,
    /// Hits that waited for a read in flight.
    pub waited: u64,
    /// Hits that execution read itself, because no thread had begun to read them.
    pub claimed: u64,
    /// Hits that [`PrefetchRequest::values`] answered.
    pub shipped: u64,
}

impl<R> fmt::Debug for WarmState<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Warm, {:?}", self.stats())
    }
}

impl<R> WarmState<R> {
    pub(super) fn new(load: Arc<Load<R>>, ticket: Option<Ticket>) -> Self {
        Self {
            load,
            _ticket: ticket,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            shipped: AtomicU64::new(0),
        }
    }

    /// Counts execution's reads so far.
    pub fn stats(&self) -> WarmStats {
        WarmStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            waited: self.waited.load(Relaxed),
            claimed: self.claimed.load(Relaxed),
            shipped: self.shipped.load(Relaxed),
        }
    }
}

impl<R: StateReader> WarmState<R> {
    /// Reads all wanted keys now, on this thread.
    ///
    /// # Errors
    /// Only if a read fails; no hint can cause an error.
    pub fn complete(reader: R, wanted: PrefetchRequest) -> Result<Self, StorageError> {
        let load = Arc::new(Load::new(reader, wanted));
        while load.read_some(PrefetchBackend::MultiGet, SORTED_KEYS, None)?.is_some() {}
        Ok(WarmState::new(load, None))
    }

    /// Reads nothing ahead. A shipped value or a plain read answers each read. [`WarmState::confirm`] later reads the
    /// rows for which shipped values answered.
    pub fn deferred(reader: R, wanted: PrefetchRequest) -> Self {
        WarmState::new(Arc::new(Load::new(reader, wanted)), None)
    }

    /// Whether [`WarmState::confirm`] would neither read nor wait.
    pub fn is_confirmable(&self) -> bool {
        self.load.is_confirmable()
    }

    /// Compares the answers of [`PrefetchRequest::values`] with the reader's rows, and returns the keys with wrong
    /// answers. If any answer is wrong, all results of reading from this state must be discarded. Call this after the
    /// last read. Waits for reads in flight, and reads the remaining rows many at a time.
    ///
    /// # Errors
    /// If a read fails.
    pub fn confirm(&self) -> Result<Vec<StateKey>, StorageError> {
        self.load.confirm()
    }

    /// Stops answering with [`PrefetchRequest::values`]. Earlier answers of that kind need no confirmation any more.
    pub fn distrust(&self) {
        self.load.distrust();
    }

    /// Counts what was read ahead so far.
    pub fn prefetched(&self) -> PrefetchStats {
        let (found, codes, codes_skipped) = self.load.tally();
        PrefetchStats { keys: self.load.keys(), found, codes, codes_skipped }
    }

    fn count(&self, answer: Answer) {
        match answer {
            Answer::Ready => &self.hits,
            Answer::Waited => {
                self.hits.fetch_add(1, Relaxed);
                &self.waited
            }
            Answer::Claimed => {
                self.hits.fetch_add(1, Relaxed);
                &self.claimed
            }
            Answer::Shipped => {
                self.hits.fetch_add(1, Relaxed);
                &self.shipped
            }
            Answer::Unwanted => &self.misses,
        }
        .fetch_add(1, Relaxed);
    }

    /// The row of a wanted key, or `None` if it is not wanted.
    fn wanted(&self, key: &StateKey) -> Result<Option<Option<StateValue>>, StorageError> {
        let Some(place) = self.load.place(key) else {
            self.count(Answer::Unwanted);
            return Ok(None);
        };
        let (row, answer) = self.load.row(place)?;
        self.count(answer);
        Ok(Some(row))
    }
}

impl<R: StateReader> StateReader for WarmState<R> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        match self.wanted(&StateKey::Account(*address))? {
            Some(None) => Ok(None),
            Some(Some(StateValue::Account(account))) => Ok(Some(account)),
            // The key is not wanted, or its row has the wrong kind, which the reader reports.
            _ => self.load.reader.account(address),
        }
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        match self.wanted(&StateKey::Slot(*address, *slot))? {
            Some(None) => Ok(U256::ZERO),
            Some(Some(StateValue::Slot(value))) => Ok(value),
            _ => self.load.reader.slot(address, slot),
        }
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        let (code, answer) = self.load.code(hash)?;
        self.count(answer);
        Ok(code)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.load.reader.header_digest(number)
    }
}

impl<R: StateReader> ExecutionState for WarmState<R> {}
