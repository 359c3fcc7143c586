//! [`Shelf`]: a cache of the open parts of batches, for one kind of part. One caller opens a part, into memory that it
//! reserves first; the others wait for it. Recent parts stay cached.
//!
//! ```text
//!  get ─┬─ open ─────────────────────────────────────────────────▶ shared by all its holders
//!       ├─ closed, and large: not on a thread for short work
//!       ├─ another caller opens it: waits
//!       └─ closed ─▶ memory by the header ─▶ blob ─▶ unpacked ─▶ shared; cached, unless it exceeds the whole cache
//! ```

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    ops::Deref,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use slipstream_storage::Store;
use slipstream_types::{BatchHeader, BatchNumber};

use super::{
    Reader,
    memory::{LOOK_INTERVAL, Memory, MemoryShare},
    part::Part,
};
use crate::errors::RpcError;

/// Maximum bytes of content of a part that a thread for short work opens; opening it takes about ten milliseconds.
pub(super) const SMALL_BYTES_MAX: usize = 4 << 20;
/// Maximum number of small parts in the cache; a client that polls receipts is seldom further behind.
const KEPT_MAX: usize = 32;
/// How long short work waits for the shelf's lock. A low-priority thread may be suspended while it holds the lock.
/// Opening a small part again is then faster.
const LOCK_MAX: Duration = Duration::from_millis(1);
/// How long short work waits for another caller, possibly of low priority, that is opening the part it needs.
const PATIENCE: Duration = Duration::from_millis(20);
/// The number of tracked open parts above which those without holders are forgotten.
const SHARED_MAX: usize = 256;

/// Memory limits for the small, or the large, parts of a kind.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    /// Maximum bytes of parts that are open, or being opened, at once.
    pub(super) open_bytes_max: usize,
    /// Maximum bytes of parts that stay cached without a holder.
    pub(super) kept_bytes_max: usize,
}

/// The cache that the module describes.
pub(super) struct Shelf<T> {
    /// One budget for small parts and one for large parts, so that large ones never displace small ones.
    budgets: [Budget; 2],
    memories: [Arc<Memory>; 2],
    state: Mutex<State<T>>,
    /// Signalled when a caller has opened a part, or given up.
    changed: Condvar,
    /// How many parts were unpacked.
    #[cfg(test)]
    pub(super) opens: std::sync::atomic::AtomicUsize,
}

struct State<T> {
    opening: BTreeSet<BatchNumber>,
    shared: HashMap<BatchNumber, Weak<OpenPart<T>>>,
    kept: [VecDeque<Arc<OpenPart<T>>>; 2],
}

/// An open part, until its last holder drops it.
pub(crate) struct OpenPart<T> {
    number: BatchNumber,
    part: T,
    pub(super) content_bytes: usize,
    bytes: usize,
    _share: Option<MemoryShare>,
}

impl<T: Part> OpenPart<T> {
    /// A part outside any shelf.
    pub(super) fn alone(number: BatchNumber, content: T::Content) -> OpenPart<T> {
        let part = T::of(content);
        OpenPart { number, bytes: part.bytes(), part, content_bytes: 0, _share: None }
    }

    fn is_large(&self) -> bool {
        self.content_bytes > SMALL_BYTES_MAX
    }
}

impl<T> Deref for OpenPart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.part
    }
}

impl<T: Part> Shelf<T> {
    /// A shelf with a budget for small parts and one for large ones.
    pub(super) fn new(budgets: [Budget; 2]) -> Shelf<T> {
        let state = State { opening: BTreeSet::new(), shared: HashMap::new(), kept: Default::default() };
        Shelf {
            budgets,
            memories: budgets.map(|budget| Memory::new(budget.open_bytes_max)),
            state: Mutex::new(state),
            changed: Condvar::new(),
            #[cfg(test)]
            opens: Default::default(),
        }
    }

    /// Returns a part, if it is stored.
    ///
    /// # Errors
    /// [`RpcError::LargeBatch`] if the part is too large for this reader.
    pub(super) fn get(
        &self,
        store: &Store,
        header: &BatchHeader,
        reader: Reader<'_>,
    ) -> Result<Option<Arc<OpenPart<T>>>, RpcError> {
        let number = header.number;
        let content_bytes_max = T::content_bytes_max(header);
        let is_large = content_bytes_max > SMALL_BYTES_MAX;
        let turn = match self.find(number, reader.is_long || !is_large, reader)? {
            Lookup::Open(open) if open.is_large() && !reader.is_long => return Err(RpcError::LargeBatch),
            Lookup::Open(open) => return Ok(Some(open)),
            Lookup::Closed(turn) => turn,
        };
        let mut share = self.take(T::UNPACKED_FACTOR * content_bytes_max, is_large, reader)?;
        let Some(blob) = store.blob(T::KIND, number)? else { return Ok(None) };
        let content_bytes = blob.content_len(T::KIND)?;
        share.shrink_to(T::UNPACKED_FACTOR * content_bytes);
        if is_large && content_bytes <= SMALL_BYTES_MAX {
            drop(share);
            share = self.take(T::UNPACKED_FACTOR * content_bytes, false, reader)?;
        }
        let part = T::of(blob.open(T::KIND)?);
        #[cfg(test)]
        self.opens.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        drop(blob);
        let bytes = part.bytes();
        share.shrink_to(bytes);
        Ok(Some(turn.share(OpenPart { number, part, content_bytes, bytes, _share: Some(share) }, reader)))
    }

    /// Returns a part if it is already open.
    pub(super) fn open_one(&self, number: BatchNumber) -> Option<Arc<OpenPart<T>>> {
        self.state.try_lock_for(LOCK_MAX)?.find(number)
    }

    fn find(
        &self,
        number: BatchNumber,
        may_open: bool,
        reader: Reader<'_>,
    ) -> Result<Lookup<'_, T>, RpcError> {
        let begun = Instant::now();
        let turn = |is_first| OpenerTurn { shelf: self, number, is_first };
        loop {
            let mut state = self.lock(reader);
            if let Some(open) = state.as_mut().and_then(|state| state.find(number)) {
                return Ok(Lookup::Open(open));
            }
            if !may_open {
                return Err(RpcError::LargeBatch);
            }
            let Some(mut state) = state else { return Ok(Lookup::Closed(turn(false))) };
            if state.opening.insert(number) {
                return Ok(Lookup::Closed(turn(true)));
            }
            if !reader.is_long && begun.elapsed() >= PATIENCE {
                return Ok(Lookup::Closed(turn(false)));
            }
            self.changed.wait_for(&mut state, LOOK_INTERVAL);
            drop(state);
            reader.still_waits()?;
        }
    }

    /// Takes the lock; `None` if this reader's patience ends first.
    fn lock(&self, reader: Reader<'_>) -> Option<MutexGuard<'_, State<T>>> {
        if reader.is_long { Some(self.state.lock()) } else { self.state.try_lock_for(LOCK_MAX) }
    }

    /// Reserves memory, waiting until some is free. Cached parts of that size class are evicted first.
    fn take(&self, bytes: usize, is_large: bool, reader: Reader<'_>) -> Result<MemoryShare, RpcError> {
        loop {
            if let Some(share) = self.memories[usize::from(is_large)].try_take(bytes) {
                return Ok(share);
            }
            let oldest = self.state.lock().kept[usize::from(is_large)].pop_front();
            if oldest.is_none() {
                reader.still_waits()?;
                self.memories[usize::from(is_large)].wait();
            }
        }
    }

    /// Replaces an open part.
    #[cfg(test)]
    pub(super) fn replace(&self, open: Arc<OpenPart<T>>) {
        let mut state = self.state.lock();
        state.kept.iter_mut().for_each(|kept| kept.retain(|one| one.number != open.number));
        state.shared.insert(open.number, Arc::downgrade(&open));
        state.kept[0].push_back(open);
    }

    /// Memory in use, for small and for large parts.
    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> [usize; 2] {
        self.memories.each_ref().map(|memory| memory.used())
    }

    /// Bytes of all cached parts, small and large.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> [usize; 2] {
        let state = self.state.lock();
        state.kept.each_ref().map(|kept| kept.iter().map(|open| open.bytes).sum())
    }
}

impl<T> State<T> {
    fn find(&mut self, number: BatchNumber) -> Option<Arc<OpenPart<T>>> {
        let open = self.shared.get(&number)?.upgrade()?;
        for kept in &mut self.kept {
            if let Some(index) = kept.iter().position(|one| one.number == number) {
                let one = kept.remove(index);
                kept.extend(one);
            }
        }
        Some(open)
    }
}

enum Lookup<'a, T> {
    Open(Arc<OpenPart<T>>),
    /// The caller must open the part.
    Closed(OpenerTurn<'a, T>),
}

/// The turn of a caller that opens a part. Other callers wait until the first opener's turn is dropped.
struct OpenerTurn<'a, T> {
    shelf: &'a Shelf<T>,
    number: BatchNumber,
    is_first: bool,
}

impl<T: Part> OpenerTurn<'_, T> {
    /// Publishes the open part to all waiting callers, and caches it if this reader's parts are cached.
    fn share(self, open: OpenPart<T>, reader: Reader<'_>) -> Arc<OpenPart<T>> {
        let open = Arc::new(open);
        // Freed after the lock is released: a part may have megabytes, and all callers need the lock.
        let mut oldest = Vec::new();
        let Some(mut state) = self.shelf.lock(reader) else { return open };
        if let Some(other) = state.find(self.number) {
            return other;
        }
        if state.shared.len() >= SHARED_MAX {
            state.shared.retain(|_, open| open.strong_count() > 0);
        }
        state.shared.insert(self.number, Arc::downgrade(&open));
        let class = usize::from(open.is_large());
        let bytes_max = self.shelf.budgets[class].kept_bytes_max;
        if reader.keeps && open.bytes <= bytes_max {
            let kept = &mut state.kept[class];
            kept.push_back(open.clone());
            let mut bytes: usize = kept.iter().map(|open| open.bytes).sum();
            while kept.len() > KEPT_MAX || bytes > bytes_max {
                let Some(open) = kept.pop_front() else { break };
                bytes -= open.bytes;
                oldest.push(open);
            }
        }
        drop(state);
        open
    }
}

impl<T> Drop for OpenerTurn<'_, T> {
    fn drop(&mut self) {
        if self.is_first {
            self.shelf.state.lock().opening.remove(&self.number);
            self.shelf.changed.notify_all();
        }
    }
}
