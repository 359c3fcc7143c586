//! [`Shelf`]: the open parts of batches of one kind. Each is opened by one caller, into memory that it has before; the others wait for it.
//! The recent ones are kept.
//!
//! ```text
//!  get ─┬─ open ─────────────────────────────────────────────────▶ shared by all who hold it
//!       ├─ closed, and large: not on a thread for short work
//!       ├─ somebody opens it: waits
//!       └─ closed ─▶ memory by the header ─▶ blob ─▶ unpacked ─▶ shared; kept, unless it would take more than is kept at all
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
    memory::{LOOK_INTERVAL, Memory, Share},
    part::Part,
};
use crate::rpc::errors::RpcError;

/// Bytes of a part's content that is opened on a thread for short work: it takes some ten milliseconds.
pub(super) const SMALL_BYTES_MAX: usize = 4 << 20;
/// Most small parts that are kept open; a client that polls receipts is seldom further behind.
const KEPT_MAX: usize = 32;
/// How long short work waits for the lock of the shelf. One who stands back may be stopped while it has it; then opening a small part once
/// more takes less time.
const LOCK_MAX: Duration = Duration::from_millis(1);
/// How long short work waits for another who opens what it needs, and may stand back.
const PATIENCE: Duration = Duration::from_millis(20);
/// Parts that are known to be open somewhere: when there are more, those are forgotten that nobody holds any more.
const SHARED_MAX: usize = 256;

/// Bytes of the small parts of a kind, or of the large ones.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    /// That are open, or being opened, at a time.
    pub(super) open_bytes_max: usize,
    /// That are kept open when nobody asks.
    pub(super) kept_bytes_max: usize,
}

/// See the module.
pub(super) struct Shelf<T> {
    /// Of small parts and of large ones, which never take the place of small ones.
    budgets: [Budget; 2],
    memories: [Arc<Memory>; 2],
    state: Mutex<State<T>>,
    /// Somebody has opened something, or given up.
    changed: Condvar,
    /// How often something was unpacked.
    #[cfg(test)]
    pub(super) opens: std::sync::atomic::AtomicUsize,
}

struct State<T> {
    opening: BTreeSet<BatchNumber>,
    shared: HashMap<BatchNumber, Weak<Open<T>>>,
    kept: [VecDeque<Arc<Open<T>>>; 2],
}

/// A part that is open, until nobody holds it any more.
pub(crate) struct Open<T> {
    number: BatchNumber,
    part: T,
    pub(super) content_bytes: usize,
    bytes: usize,
    _share: Option<Share>,
}

impl<T: Part> Open<T> {
    /// A part that is on no shelf.
    pub(super) fn alone(number: BatchNumber, content: T::Content) -> Open<T> {
        let part = T::of(content);
        Open { number, bytes: part.bytes(), part, content_bytes: 0, _share: None }
    }

    fn is_large(&self) -> bool {
        self.content_bytes > SMALL_BYTES_MAX
    }
}

impl<T> Deref for Open<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.part
    }
}

impl<T: Part> Shelf<T> {
    /// A shelf with memory for small parts and for large ones.
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

    /// A part, if it is stored.
    ///
    /// # Errors
    /// [`RpcError::LargeBatch`] if it is not for this reader.
    pub(super) fn get(
        &self,
        store: &Store,
        header: &BatchHeader,
        reader: Reader<'_>,
    ) -> Result<Option<Arc<Open<T>>>, RpcError> {
        let number = header.number;
        let content_bytes_max = T::content_bytes_max(header);
        let is_large = content_bytes_max > SMALL_BYTES_MAX;
        let turn = match self.find(number, reader.is_long || !is_large, reader)? {
            Found::Open(open) if open.is_large() && !reader.is_long => return Err(RpcError::LargeBatch),
            Found::Open(open) => return Ok(Some(open)),
            Found::Closed(turn) => turn,
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
        Ok(Some(turn.share(Open { number, part, content_bytes, bytes, _share: Some(share) }, reader)))
    }

    /// A part that is open anyway.
    pub(super) fn open_one(&self, number: BatchNumber) -> Option<Arc<Open<T>>> {
        self.state.try_lock_for(LOCK_MAX)?.find(number)
    }

    fn find(
        &self,
        number: BatchNumber,
        may_open: bool,
        reader: Reader<'_>,
    ) -> Result<Found<'_, T>, RpcError> {
        let begun = Instant::now();
        let turn = |is_first| Turn { shelf: self, number, is_first };
        loop {
            let mut state = self.lock(reader);
            if let Some(open) = state.as_mut().and_then(|state| state.find(number)) {
                return Ok(Found::Open(open));
            }
            if !may_open {
                return Err(RpcError::LargeBatch);
            }
            let Some(mut state) = state else { return Ok(Found::Closed(turn(false))) };
            if state.opening.insert(number) {
                return Ok(Found::Closed(turn(true)));
            }
            if !reader.is_long && begun.elapsed() >= PATIENCE {
                return Ok(Found::Closed(turn(false)));
            }
            self.changed.wait_for(&mut state, LOOK_INTERVAL);
            drop(state);
            reader.still_waits()?;
        }
    }

    /// The lock, as far as this reader waits for it.
    fn lock(&self, reader: Reader<'_>) -> Option<MutexGuard<'_, State<T>>> {
        if reader.is_long { Some(self.state.lock()) } else { self.state.try_lock_for(LOCK_MAX) }
    }

    /// Memory, once there is some. What is kept of that kind gives way.
    fn take(&self, bytes: usize, is_large: bool, reader: Reader<'_>) -> Result<Share, RpcError> {
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

    /// Another part in the place of one that is open.
    #[cfg(test)]
    pub(super) fn replace(&self, open: Arc<Open<T>>) {
        let mut state = self.state.lock();
        state.kept.iter_mut().for_each(|kept| kept.retain(|one| one.number != open.number));
        state.shared.insert(open.number, Arc::downgrade(&open));
        state.kept[0].push_back(open);
    }

    /// Memory that somebody has, of small and of large parts.
    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> [usize; 2] {
        self.memories.each_ref().map(|memory| memory.used())
    }

    /// Bytes of all that is kept, small and large.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> [usize; 2] {
        let state = self.state.lock();
        state.kept.each_ref().map(|kept| kept.iter().map(|open| open.bytes).sum())
    }
}

impl<T> State<T> {
    fn find(&mut self, number: BatchNumber) -> Option<Arc<Open<T>>> {
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

enum Found<'a, T> {
    Open(Arc<Open<T>>),
    /// To be opened by whoever asked.
    Closed(Turn<'a, T>),
}

/// The turn of one who opens a part. Others wait for the first one, until this is dropped.
struct Turn<'a, T> {
    shelf: &'a Shelf<T>,
    number: BatchNumber,
    is_first: bool,
}

impl<T: Part> Turn<'_, T> {
    /// It is open: for all who want it, and for a while if it is to be kept.
    fn share(self, open: Open<T>, reader: Reader<'_>) -> Arc<Open<T>> {
        let open = Arc::new(open);
        // Freed without the lock: a part may have megabytes, and all callers look here.
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

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        if self.is_first {
            self.shelf.state.lock().opening.remove(&self.number);
            self.shelf.changed.notify_all();
        }
    }
}
