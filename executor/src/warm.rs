//! [`prefetch`]: reads what hints name, so that execution does not wait for the disk; [`Warm`]: what came of it.
//!
//! Hints are advice from strangers. A missing or wrong one costs a plain read, a surplus one costs a read that nobody needed,
//! and none changes a result: every value here was read from the same reader that a miss falls back to.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::{
    Address, B256, Bytes, U256,
    map::{AddressMap, B256Map, HashMap},
};
use slipstream_storage::{StorageError, View};
use slipstream_types::{AccountValue, BatchNumber, Digest, Hints, StateKey, StateValue};

use crate::reader::StateReader;

/// Keys in one multi-get: enough for the disk to sort and merge, few enough that all threads get some.
const CHUNK_KEYS: usize = 256;
/// Below this a single thread has read everything before a second one has started.
const PARALLEL_KEYS_MIN: usize = 64;
/// Keys that are read first, to see whether the disk is waited for at all.
const PROBE_KEYS: usize = 32;
/// A key that is read faster than this comes from memory: more threads would only cost more.
const CACHED_KEY: Duration = Duration::from_micros(12);
/// Bytes of code that one batch's hints may load. A hint of a few bytes names up to 64 KiB of code, so without a limit
/// hostile hints could fill the memory. Mainnet blocks execute 1-3 MB.
const CODE_BYTES_MAX: usize = 32 << 20;

/// A reader over data that was read ahead, of one state: it falls back to the reader that the data came from, which is a view
/// of one fixed version, so that warm data can never be of another version. Sealed when [`prefetch`] returns: nobody
/// writes to it any more.
#[derive(Debug)]
pub struct Warm<R = View> {
    reader: R,
    accounts: AddressMap<Option<AccountValue>>,
    slots: HashMap<(Address, B256), U256>,
    codes: B256Map<Bytes>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What prefetching read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefetchStats {
    /// Accounts and slots read, whether they have a row or not.
    pub keys: usize,
    /// Of these, the ones that have a row.
    pub found: usize,
    /// Contracts whose code was read.
    pub codes: usize,
    /// Hinted code that does not exist or did not fit the limit.
    pub codes_skipped: usize,
}

/// What execution then asked for. Accounts, slots and code count one each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WarmStats {
    /// Reads answered from memory.
    pub hits: u64,
    /// Reads that no hint named.
    pub misses: u64,
}

/// Reads the hinted keys with up to `threads` threads (0 counts as 1).
///
/// # Errors
/// Only if a read fails; no hint can make it fail.
pub fn prefetch<R: StateReader + Clone>(
    reader: &R,
    hints: &Hints,
    threads: usize,
) -> Result<(Warm<R>, PrefetchStats), StorageError> {
    let mut keys: Vec<_> = hints.keys().map(|key| (key.path(), key)).collect();
    // In the order of the table, so that neighbours on disk are read together; strangers may name a key twice.
    keys.sort_unstable_by_key(|(path, _)| *path);
    keys.dedup();
    let keys: Vec<StateKey> = keys.into_iter().map(|(_, key)| key).collect();
    let mut warm = Warm::new(reader.clone());
    let mut stats = PrefetchStats { keys: keys.len(), ..PrefetchStats::default() };
    for (keys, values) in read_rows(reader, &keys, threads)? {
        for (key, value) in keys.iter().zip(values) {
            stats.found += usize::from(value.is_some());
            warm.insert(key, value);
        }
    }
    warm.read_codes(hints, &mut stats)?;
    Ok((warm, stats))
}

type Rows<'a> = Vec<(&'a [StateKey], Vec<Option<StateValue>>)>;

fn read_rows<'a, R: StateReader>(
    reader: &R,
    keys: &'a [StateKey],
    threads: usize,
) -> Result<Rows<'a>, StorageError> {
    let read = |chunk: &'a [StateKey]| Ok((chunk, reader.rows(chunk)?));
    let (probe, keys) = keys.split_at(keys.len().min(PROBE_KEYS));
    let began = Instant::now();
    let first = read(probe)?;
    let is_cached = began.elapsed() < CACHED_KEY * probe.len() as u32;
    if threads <= 1 || keys.len() < PARALLEL_KEYS_MIN || is_cached {
        return std::iter::once(Ok(first)).chain(keys.chunks(CHUNK_KEYS).map(read)).collect();
    }
    let share = keys.len().div_ceil(threads);
    thread::scope(|scope| {
        let spawn = |share: &'a [StateKey]| {
            scope.spawn(move || share.chunks(CHUNK_KEYS).map(read).collect::<Result<Rows<'a>, _>>())
        };
        let workers: Vec<_> = keys.chunks(share).map(spawn).collect();
        let mut rows = vec![first];
        for worker in workers {
            match worker.join() {
                Ok(read) => rows.extend(read?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(rows)
    })
}

impl<R: StateReader> Warm<R> {
    fn new(reader: R) -> Self {
        Self {
            reader,
            accounts: AddressMap::default(),
            slots: HashMap::default(),
            codes: B256Map::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    fn insert(&mut self, key: &StateKey, value: Option<StateValue>) {
        match (key, value) {
            (StateKey::Account(address), Some(StateValue::Account(account))) => {
                self.accounts.insert(*address, Some(account));
            }
            (StateKey::Account(address), None) => {
                self.accounts.insert(*address, None);
            }
            (StateKey::Slot(address, slot), Some(StateValue::Slot(value))) => {
                self.slots.insert((*address, *slot), value);
            }
            (StateKey::Slot(address, slot), None) => {
                self.slots.insert((*address, *slot), U256::ZERO);
            }
            // A row of the wrong table is the reader's fault; execution reads it again and reports it.
            _ => {}
        }
    }

    fn read_codes(&mut self, hints: &Hints, stats: &mut PrefetchStats) -> Result<(), StorageError> {
        let mut bytes = 0;
        for address in hints.codes() {
            let hash = self.accounts.get(&address).copied().flatten().and_then(|account| account.code_hash);
            if hash.is_some_and(|hash| self.codes.contains_key(&B256::from(hash))) {
                continue;
            }
            let code = match hash.filter(|_| bytes < CODE_BYTES_MAX) {
                Some(hash) => self.reader.code(&hash)?.map(|code| (hash, code)),
                None => None,
            };
            match code {
                Some((hash, code)) => {
                    bytes += code.len();
                    stats.codes += 1;
                    self.codes.insert(hash.into(), code);
                }
                None => stats.codes_skipped += 1,
            }
        }
        Ok(())
    }

    /// What was asked for so far.
    pub fn stats(&self) -> WarmStats {
        WarmStats { hits: self.hits.load(Relaxed), misses: self.misses.load(Relaxed) }
    }

    fn count<T>(&self, warm: Option<T>) -> Option<T> {
        let counter = if warm.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Relaxed);
        warm
    }
}

impl<R: StateReader> StateReader for Warm<R> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        match self.count(self.accounts.get(address)) {
            Some(account) => Ok(*account),
            None => self.reader.account(address),
        }
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        match self.count(self.slots.get(&(*address, *slot))) {
            Some(value) => Ok(*value),
            None => self.reader.slot(address, slot),
        }
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        match self.count(self.codes.get(&B256::from(*hash))) {
            Some(code) => Ok(Some(code.clone())),
            None => self.reader.code(hash),
        }
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.reader.header_digest(number)
    }
}
