//! [`Warm`]: a state with what was read ahead of it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use alloy_primitives::{Address, B256, Bytes, U256};
use slipstream_storage::{StorageError, View};
use slipstream_types::{AccountValue, BatchNumber, Digest, StateKey, StateValue};

use super::{
    Backend, Wanted,
    load::{Answer, Load, SORTED_KEYS},
    pool::Ticket,
};
use crate::reader::StateReader;

/// A reader over the read-ahead of one batch, from one state. Misses go to the reader that the data comes from, a view of one fixed
/// version; so warm data is always of that version. Dropping it ends the reading.
pub struct Warm<R = View> {
    load: Arc<Load<R>>,
    /// None if everything was read before.
    _ticket: Option<Ticket>,
    hits: AtomicU64,
    misses: AtomicU64,
    waited: AtomicU64,
    claimed: AtomicU64,
    shipped: AtomicU64,
}

/// Counts what was read ahead so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefetchStats {
    /// Distinct accounts and slots that are wanted.
    pub keys: usize,
    /// Of these, the ones known to have a row.
    pub found: usize,
    /// Contracts whose code was read.
    pub codes: usize,
    /// Wanted code that is missing, exceeded the limit, or is not read yet.
    pub codes_skipped: usize,
}

/// Counts what execution asked for. Accounts, slots and code count one each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WarmStats {
    /// Reads that a hint named, however far its reading was.
    pub hits: u64,
    /// Reads that no hint named.
    pub misses: u64,
    /// Of the hits, those that waited for a read under way.
    pub waited: u64,
    /// Of the hits, those that execution read itself, because nobody had begun to.
    pub claimed: u64,
    /// Of the hits, those that were answered by [`Wanted::values`].
    pub shipped: u64,
}

impl<R> fmt::Debug for Warm<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Warm, {:?}", self.stats())
    }
}

impl<R> Warm<R> {
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

    /// Counts what execution asked for so far.
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

impl<R: StateReader> Warm<R> {
    /// Reads everything that is wanted now, on this thread.
    ///
    /// # Errors
    /// Only if a read fails; no hint can make it fail.
    pub fn complete(reader: R, wanted: Wanted) -> Result<Self, StorageError> {
        let load = Arc::new(Load::new(reader, wanted));
        while load.read_some(Backend::MultiGet, SORTED_KEYS, None)?.is_some() {}
        Ok(Warm::new(load, None))
    }

    /// Reads nothing ahead. The wanted values answer, or a plain read does. [`Warm::confirm`] reads the rows that were answered by
    /// values.
    pub fn deferred(reader: R, wanted: Wanted) -> Self {
        Warm::new(Arc::new(Load::new(reader, wanted)), None)
    }

    /// Whether [`Warm::confirm`] would neither read nor wait.
    pub fn is_confirmable(&self) -> bool {
        self.load.is_confirmable()
    }

    /// Compares the answers of [`Wanted::values`] with the reader's rows, and returns the keys with wrong answers. If there are any,
    /// no result of reading here may be used. Callers call it after the last read here. It waits for reads under way, and reads the
    /// rest many rows at a time.
    ///
    /// # Errors
    /// If a read fails.
    pub fn confirm(&self) -> Result<Vec<StateKey>, StorageError> {
        self.load.confirm()
    }

    /// Stops answering by [`Wanted::values`]. Earlier answers of that kind are forgotten: there is nothing to confirm.
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

impl<R: StateReader> StateReader for Warm<R> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        match self.wanted(&StateKey::Account(*address))? {
            Some(None) => Ok(None),
            Some(Some(StateValue::Account(account))) => Ok(Some(account)),
            // Not wanted; or a row of the wrong table, which the reader reports.
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
