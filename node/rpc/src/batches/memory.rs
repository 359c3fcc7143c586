//! [`Memory`]: a budget for the bytes that open batches, or answers made from them, use at once. Work that needs memory
//! takes it before it unpacks or builds anything, and waits until others release theirs.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire},
        },
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use serde::{Serialize, Serializer};

/// How often waiting threads check whether they still have to wait.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A budget of bytes. Takers hold no lock on it: a low-priority thread may be suspended at any point.
pub(crate) struct Memory {
    bytes_max: usize,
    used: AtomicUsize,
    waiting: Mutex<()>,
    freed: Condvar,
}

impl Memory {
    pub(super) fn new(bytes_max: usize) -> Arc<Memory> {
        let used = AtomicUsize::new(0);
        Arc::new(Memory { bytes_max, used, waiting: Mutex::default(), freed: Condvar::new() })
    }

    /// Takes a share of `bytes` if they are free. A request for more than the whole budget takes the whole.
    pub(super) fn try_take(self: &Arc<Self>, bytes: usize) -> Option<MemoryShare> {
        let bytes = bytes.min(self.bytes_max);
        let more = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.bytes_max);
        self.used.fetch_update(AcqRel, Acquire, more).ok()?;
        Some(MemoryShare { memory: self.clone(), bytes })
    }

    /// Blocks until something is released, or for [`LOOK_INTERVAL`].
    pub(super) fn wait(&self) {
        self.freed.wait_for(&mut self.waiting.lock(), LOOK_INTERVAL);
    }

    /// The bytes in use.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.load(Acquire)
    }
}

/// Bytes taken from a [`Memory`], released on drop.
pub(crate) struct MemoryShare {
    memory: Arc<Memory>,
    bytes: usize,
}

impl MemoryShare {
    /// Releases all but `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        self.memory.used.fetch_sub(surplus, AcqRel);
        self.memory.freed.notify_all();
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// An answer together with the memory that it uses until it is written.
pub(crate) struct WeighedAnswer<T> {
    answer: T,
    share: MemoryShare,
}

impl<T> WeighedAnswer<T> {
    pub(super) fn new(answer: T, share: MemoryShare) -> WeighedAnswer<T> {
        WeighedAnswer { answer, share }
    }
}

impl<T> WeighedAnswer<Option<T>> {
    /// The answer with its memory, if the answer is `Some`.
    pub(crate) fn transpose(self) -> Option<WeighedAnswer<T>> {
        Some(WeighedAnswer { answer: self.answer?, share: self.share })
    }
}

impl<T: Serialize> Serialize for WeighedAnswer<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.answer.serialize(serializer)
    }
}
