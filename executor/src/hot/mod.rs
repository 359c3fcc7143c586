//! [`HotCache`]: the rows that the last batches read and wrote, with their current values, so that the next batch need
//! not read them from disk.
//!
//! In mainnet, 57 to 63 % of a block's keys were touched in the 32 blocks before it. The cache depends only on its size
//! and the sequence of batches applied to it: it uses neither clock nor sampling.
//!
//! ```text
//!  Outcome of batch n ── apply ──▶ HotCache at n ── rows ──▶ execution of n + 1 ── misses ──▶ layers, warm data, store
//! ```
//! The cache belongs to the state after exactly one batch, named by its header's digest. [`HotCache::apply`] moves it
//! to the next batch. A batch with another parent (another branch, a restore, a gap) empties the cache. A reader for
//! another batch forwards every read. So no reader gets a stale value, even if the cache missed an event.

use std::{
    collections::VecDeque,
    iter::Sum,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    vec,
};

use alloy_primitives::{
    B256,
    map::{B256Map, HashMap},
};
use serde::{Deserialize, Serialize};
use slipstream_types::{AccountValue, Delta, Digest, Hints, StateKey, StateValue};

use crate::evm::{AnalysedCode, ReadSet};

/// Memory of a row in bytes: key and value in a table that is at least half full, and the key once more in `ages`.
const ROW_BYTES: usize = 320;
/// Memory of an entry for code in bytes, without the code.
const CODE_BYTES: usize = 200;
/// Memory in bytes of a key's older entry in `ages`, left when a later batch touched the key.
const AGE_BYTES: usize = 64;

/// Rows and code of the last batches, bounded in bytes; see the module.
#[derive(Debug)]
pub struct HotCache {
    bytes_max: usize,
    bytes: usize,
    /// Digest of the header of the batch whose resulting state the cache holds.
    at: Option<Digest>,
    /// Number of batches applied.
    age: u64,
    rows: HashMap<StateKey, (Option<StateValue>, u64)>,
    codes: B256Map<(AnalysedCode, u64)>,
    /// The keys that each batch touched, the oldest batch first. A key that a later batch touched too is listed for
    /// both.
    ages: VecDeque<(u64, vec::IntoIter<Key>)>,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
enum Key {
    Row(StateKey),
    Code(B256),
}

/// Statistics of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HotStats {
    /// Rows in the cache.
    pub rows: usize,
    /// Contracts whose code is in the cache.
    pub codes: usize,
    /// Approximate memory in bytes.
    pub bytes: usize,
    /// Reads that the cache answered since it was created.
    pub hits: u64,
    /// Reads that the cache forwarded since it was created.
    pub misses: u64,
}

impl Sum for HotStats {
    fn sum<I: Iterator<Item = HotStats>>(all: I) -> HotStats {
        all.fold(HotStats::default(), |a, b| HotStats {
            rows: a.rows + b.rows,
            codes: a.codes + b.codes,
            bytes: a.bytes + b.bytes,
            hits: a.hits + b.hits,
            misses: a.misses + b.misses,
        })
    }
}

impl HotCache {
    /// Makes an empty cache of about `bytes_max` bytes of memory; 0 caches nothing.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            at: None,
            age: 0,
            rows: HashMap::default(),
            codes: B256Map::default(),
            ages: VecDeque::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Advances the cache by the batch whose header has the digest `batch`. A caller that executed the batch passes its
    /// reads. A caller that applied a delta has no reads, so only the changed keys count as touched.
    pub fn apply(&mut self, parent: Digest, batch: Digest, touched: Option<&ReadSet>, delta: &Delta) {
        self.move_on(self.at == Some(parent), batch);
        let mut keys = Vec::new();
        if let Some(touched) = touched {
            for (key, value) in &touched.rows {
                self.put_row(*key, *value, &mut keys);
            }
            for (hash, code) in &touched.codes {
                self.put_code(*hash, code, &mut keys);
            }
        }
        for entry in delta.entries() {
            self.put_row(entry.key, entry.value, &mut keys);
        }
        self.age_and_shrink(keys);
    }

    /// Advances the cache to the state after `batch`, by the rows and the code that were changed or read since the
    /// cache's own batch. `is_next` says whether these rows and code reach back to that batch.
    pub(crate) fn advance<'a>(
        &mut self,
        is_next: bool,
        batch: Digest,
        rows: impl Iterator<Item = (StateKey, Option<StateValue>)>,
        codes: impl Iterator<Item = (&'a B256, &'a AnalysedCode)>,
    ) {
        self.move_on(is_next, batch);
        let mut keys = Vec::new();
        for (key, value) in rows {
            self.put_row(key, value, &mut keys);
        }
        for (hash, code) in codes {
            self.put_code(*hash, code, &mut keys);
        }
        self.age_and_shrink(keys);
    }

    /// Starts the next batch. Empties the cache if the batch does not follow the cache's.
    fn move_on(&mut self, is_next: bool, batch: Digest) {
        if !is_next {
            self.clear();
        }
        self.at = Some(batch);
        self.age += 1;
    }

    fn age_and_shrink(&mut self, keys: Vec<Key>) {
        self.ages.push_back((self.age, keys.into_iter()));
        self.shrink();
    }

    fn put_row(&mut self, key: StateKey, value: Option<StateValue>, keys: &mut Vec<Key>) {
        match self.rows.insert(key, (value, self.age)) {
            Some((_, age)) if age == self.age => return,
            Some(_) => self.bytes += AGE_BYTES,
            None => self.bytes += ROW_BYTES,
        }
        keys.push(Key::Row(key));
    }

    fn put_code(&mut self, hash: B256, code: &AnalysedCode, keys: &mut Vec<Key>) {
        match self.codes.insert(hash, (code.clone(), self.age)) {
            Some(_) => self.bytes += AGE_BYTES,
            None => self.bytes += CODE_BYTES + code.memory_bytes(),
        }
        keys.push(Key::Code(hash));
    }

    /// Evicts the least recently used entries, batch by batch and key by key, until the rest fits.
    fn shrink(&mut self) {
        while self.bytes > self.bytes_max {
            let Some((age, keys)) = self.ages.front_mut() else { return };
            let (age, Some(key)) = (*age, keys.next()) else {
                self.ages.pop_front();
                continue;
            };
            self.bytes -= match key {
                Key::Row(key) if self.rows.get(&key).is_some_and(|(_, last)| *last == age) => {
                    self.rows.remove(&key);
                    ROW_BYTES
                }
                Key::Code(hash) if self.codes.get(&hash).is_some_and(|(_, last)| *last == age) => {
                    self.codes.remove(&hash).map_or(0, |(code, _)| CODE_BYTES + code.memory_bytes())
                }
                Key::Row(_) | Key::Code(_) => AGE_BYTES,
            };
        }
    }

    /// Empties the cache.
    pub fn clear(&mut self) {
        self.bytes = 0;
        self.at = None;
        self.rows.clear();
        self.codes.clear();
        self.ages.clear();
    }

    /// Whether the cache holds the state after the batch whose header has this digest.
    pub fn is_at(&self, batch: Digest) -> bool {
        self.at == Some(batch)
    }

    /// Whether the cache has a row's value.
    pub fn contains(&self, key: &StateKey) -> bool {
        self.rows.contains_key(key)
    }

    /// Removes cached keys from hints, because they need not be read ahead. If such a key is evicted before execution
    /// needs it, a plain read follows.
    pub fn leave_out(&self, hints: &mut Hints) {
        leave_out(hints, |key| self.peek(key), |hash| self.has_code(hash));
    }

    /// Returns the cache's size, hits and misses.
    pub fn stats(&self) -> HotStats {
        HotStats {
            rows: self.rows.len(),
            codes: self.codes.len(),
            bytes: self.bytes,
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
        }
    }

    /// The batch whose resulting state the cache holds; `None` if the cache is empty.
    pub(crate) fn at(&self) -> Option<Digest> {
        self.at
    }

    /// As [`HotCache::row`], without counting.
    pub(crate) fn peek(&self, key: &StateKey) -> Option<Option<StateValue>> {
        self.rows.get(key).map(|(value, _)| *value)
    }

    pub(crate) fn has_code(&self, hash: &Digest) -> bool {
        self.codes.contains_key(&B256::from(*hash))
    }

    /// Counts a read that a layer answered as a hit.
    pub(crate) fn count_hit(&self) {
        self.hits.fetch_add(1, Relaxed);
    }

    pub(crate) fn row(&self, key: &StateKey) -> Option<Option<StateValue>> {
        self.count(self.peek(key))
    }

    pub(crate) fn code(&self, hash: &B256) -> Option<AnalysedCode> {
        self.count(self.peek_code(hash))
    }

    /// As [`HotCache::code`], without counting.
    pub(crate) fn peek_code(&self, hash: &B256) -> Option<AnalysedCode> {
        self.codes.get(hash).map(|(code, _)| code.clone())
    }

    fn count<T>(&self, found: Option<T>) -> Option<T> {
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Relaxed);
        found
    }
}

/// Removes from hints the rows that `row` knows, and the code of their accounts if `has_code` knows it.
pub(crate) fn leave_out(
    hints: &mut Hints,
    row: impl Fn(&StateKey) -> Option<Option<StateValue>>,
    has_code: impl Fn(&Digest) -> bool,
) {
    hints.accounts.retain_mut(|account| {
        let address = account.address;
        account.slots.retain(|slot| row(&StateKey::Slot(address, *slot)).is_none());
        let known = row(&StateKey::Account(address));
        account.code &= match known {
            Some(Some(StateValue::Account(AccountValue { code_hash: Some(hash), .. }))) => !has_code(&hash),
            Some(_) => false,
            None => true,
        };
        known.is_none() || account.code || !account.slots.is_empty()
    });
}
