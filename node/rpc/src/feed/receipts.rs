//! The callers that await the receipt of a transaction.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use alloy_primitives::B256;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Feed;

/// Transactions that nobody awaits any more are forgotten once they outnumber the others by this many.
const FORGOTTEN_MAX: usize = 64;

/// The waiting callers, and the signals that wake them. The limits on waiting callers bound their number: see
/// `JsonRpc`.
#[derive(Default)]
pub(super) struct Waiting {
    count: AtomicUsize,
    /// Locked only by threads of the node's own rank. A caller that stops waiting may run at low priority, and the feed
    /// would wait for it.
    awaited: Mutex<ByHash>,
}

#[derive(Default)]
struct ByHash {
    included: HashMap<B256, Weak<CancellationToken>>,
    /// The number of entries at which the entries that nobody awaits are removed.
    max: usize,
}

impl ByHash {
    fn of(&mut self, hash: B256) -> Arc<CancellationToken> {
        if self.included.len() >= self.max {
            self.included.retain(|_, included| included.strong_count() > 0);
            self.max = 2 * self.included.len() + FORGOTTEN_MAX;
        }
        if let Some(included) = self.included.get(&hash).and_then(Weak::upgrade) {
            return included;
        }
        let included = Arc::new(CancellationToken::new());
        self.included.insert(hash, Arc::downgrade(&included));
        included
    }
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Wakes the callers that await these transactions, now in a batch.
    pub(super) fn tell(&self, hashes: impl Iterator<Item = B256>) {
        if self.is_empty() {
            return;
        }
        let awaited = self.awaited.lock();
        let included = hashes.filter_map(|hash| awaited.included.get(&hash)?.upgrade());
        included.for_each(|included| included.cancel());
    }
}

/// A caller's wait for the receipt of a transaction, until this is dropped.
pub struct ReceiptWait {
    feed: Arc<Feed>,
    pub(crate) hash: B256,
    /// The longest time to wait.
    pub(crate) time: Duration,
    included: Arc<CancellationToken>,
}

impl Feed {
    /// Starts to wait. Call before the transaction is sent, or its batch might be missed.
    pub(crate) fn await_receipt(self: &Arc<Self>, hash: B256, time: Duration) -> ReceiptWait {
        // Counted first: the feed checks only the count.
        self.waiting.count.fetch_add(1, Ordering::SeqCst);
        let included = self.waiting.awaited.lock().of(hash);
        ReceiptWait { feed: self.clone(), hash, time, included }
    }
}

impl ReceiptWait {
    /// Returns when a batch has the transaction, when the time is over, or when the node stops.
    pub async fn over(&self) {
        tokio::select! {
            () = self.included.cancelled() => {}
            () = tokio::time::sleep(self.time) => {}
            () = self.feed.stopping.cancelled() => {}
        }
    }
}

impl Drop for ReceiptWait {
    fn drop(&mut self) {
        self.feed.waiting.count.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use alloy_primitives::U256;

    use super::*;
    use crate::fixture::context;

    fn hash(number: u64) -> B256 {
        B256::from(U256::from(number))
    }

    /// Goal: a caller that stops waiting takes no lock, all callers that await a transaction are woken, and
    /// transactions nobody awaits are forgotten.
    #[test]
    fn who_stops_waiting_takes_no_lock() {
        let feed = context().feed.clone();
        let awaited: Vec<_> = (0..200).map(|n| feed.await_receipt(hash(n), Duration::ZERO)).collect();
        let held = feed.waiting.awaited.lock();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            drop(awaited);
            tell.send(()).unwrap();
        });
        told.recv_timeout(Duration::from_secs(30)).expect("it waits for the lock");
        drop(held);
        assert!(feed.waiting.is_empty());
        let both = [(); 2].map(|()| feed.await_receipt(hash(1), Duration::ZERO));
        (0..1_000).for_each(|n| drop(feed.await_receipt(hash(1_000 + n), Duration::ZERO)));
        assert!(feed.waiting.awaited.lock().included.len() < 512);
        feed.waiting.tell([hash(7), hash(1)].into_iter());
        assert!(both.iter().all(|awaited| awaited.included.is_cancelled()));
    }
}
