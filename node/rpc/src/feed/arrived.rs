//! [`RecentArrivals`]: the transactions that reached the pool, in the form that sockets send.
//!
//! ```text
//!  pool ─▶ copied, on a thread of the node's own ─▶ shown, on a low-priority one ─▶ ring ─▶ every subscription, at its own place
//! ```
//!
//! Sockets read this ring and never the pool. A low-priority thread serves them, and a thread that adds to the pool
//! would have to wait for that thread. Each transaction is formatted once for all listeners, as a hash and in full. A
//! subscription is a position in the ring. A subscription whose position has left the ring is notified.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use alloy_primitives::B256;
use parking_lot::Mutex;
use slipstream_executor::Transaction;

use crate::{errors::RpcError, transactions};

/// Maximum number of hashes that are kept as text, some 6 MiB: some seconds of the heaviest load, minutes of an
/// ordinary one.
const HASHES_MAX: usize = 65_536;
/// Approximate memory limit for the transactions that are kept in full.
const WHOLE_BYTES_MAX: usize = 16 << 20;
/// The memory of one transaction besides its envelope. The envelope is held raw, decoded, and as text of twice its
/// length.
const WHOLE_BYTES_BESIDE: usize = 1_280;
const ENVELOPE_COPIES: usize = 4;

/// A transaction that reached the pool, and its text forms.
pub(crate) struct Arrival {
    transaction: Transaction,
    hash: Arc<str>,
    whole: OnceLock<Arc<str>>,
}

impl Arrival {
    pub(super) fn new(transaction: Transaction) -> Arc<Arrival> {
        let hash = hash_text(&transaction.hash);
        Arc::new(Arrival { transaction, hash, whole: OnceLock::new() })
    }

    /// Returns the full transaction as JSON; the first caller formats it.
    pub(crate) fn whole(&self) -> Result<Arc<str>, RpcError> {
        if let Some(text) = self.whole.get() {
            return Ok(text.clone());
        }
        let text = serde_json::to_string(&transactions::pending(&self.transaction))
            .map_err(|error| RpcError::internal("eth_subscribe", &error))?;
        Ok(self.whole.get_or_init(|| text.into()).clone())
    }

    fn weight(&self) -> usize {
        WHOLE_BYTES_BESIDE + ENVELOPE_COPIES * self.transaction.raw.len()
    }
}

/// Formats a hash as JSON.
fn hash_text(hash: &B256) -> Arc<str> {
    format!("\"{hash}\"").into()
}

/// The latest arrivals, by their numbers in the pool.
pub(crate) struct RecentArrivals {
    hashes_max: usize,
    whole_bytes_max: usize,
    /// Locked only by low-priority threads, except in tests, and held only while pointers are copied.
    ring: Mutex<Ring>,
    /// The ring's `end`, for new listeners.
    end: AtomicU64,
}

#[derive(Default)]
struct Ring {
    hashes: VecDeque<Arc<str>>,
    whole: VecDeque<Arc<Arrival>>,
    whole_bytes: usize,
    /// The number after the last arrival.
    end: u64,
    /// The number after the arrivals that came while nobody listened.
    skipped: u64,
}

impl RecentArrivals {
    /// An empty ring that starts at the number `end`.
    pub(super) fn new(end: u64) -> RecentArrivals {
        RecentArrivals::bounded(end, HASHES_MAX, WHOLE_BYTES_MAX)
    }

    fn bounded(end: u64, hashes_max: usize, whole_bytes_max: usize) -> RecentArrivals {
        let ring = Mutex::new(Ring { end, skipped: end, ..Ring::default() });
        RecentArrivals { hashes_max, whole_bytes_max, ring, end: AtomicU64::new(end) }
    }

    /// The number after the last arrival.
    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::SeqCst)
    }

    /// Adds the next arrivals, and evicts the oldest beyond the limits.
    pub(super) fn push(&self, arrivals: Vec<Arc<Arrival>>) {
        // Freed after the lock is released.
        let mut gone = Vec::new();
        let mut ring = self.ring.lock();
        for arrival in arrivals {
            ring.hashes.push_back(arrival.hash.clone());
            ring.whole_bytes += arrival.weight();
            ring.whole.push_back(arrival);
            ring.end += 1;
        }
        let hashes = ring.spare_hashes(self.hashes_max);
        while ring.whole_bytes > self.whole_bytes_max
            && let Some(oldest) = ring.whole.pop_front()
        {
            ring.whole_bytes -= oldest.weight();
            gone.push(oldest);
        }
        self.end.store(ring.end, Ordering::SeqCst);
        drop(ring);
        drop((hashes, gone));
    }

    /// Adds the next arrivals when the pool remembers only their hashes. Listeners for full transactions have missed
    /// them.
    pub(super) fn push_hashes(&self, hashes: &[B256]) {
        let texts: Vec<_> = hashes.iter().map(hash_text).collect();
        let mut ring = self.ring.lock();
        ring.end += texts.len() as u64;
        ring.hashes.extend(texts);
        ring.whole_bytes = 0;
        let gone = (std::mem::take(&mut ring.whole), ring.spare_hashes(self.hashes_max));
        self.end.store(ring.end, Ordering::SeqCst);
        drop(ring);
        drop(gone);
    }

    /// Skips the arrivals below `end`, because nobody listened. A listener that starts meanwhile starts at `end`.
    pub(super) fn skip(&self, end: u64) {
        self.replace(Ring { end, skipped: end, ..Ring::default() });
    }

    /// Drops the arrivals below `end`; all listeners lose them.
    pub(crate) fn lose(&self, end: u64) {
        let skipped = self.ring.lock().skipped;
        self.replace(Ring { end, skipped, ..Ring::default() });
    }

    fn replace(&self, ring: Ring) {
        let end = ring.end;
        let old = std::mem::replace(&mut *self.ring.lock(), ring);
        self.end.store(end, Ordering::SeqCst);
        drop(old);
    }

    /// Returns the first hash's number, and at most `max` hashes as JSON, starting at number `from`. Returns `None` if
    /// `from` has left the ring.
    pub(crate) fn hashes(&self, from: u64, max: usize) -> Option<(u64, Vec<Arc<str>>)> {
        let ring = self.ring.lock();
        ring.part(&ring.hashes, from, max)
    }

    /// Like [`RecentArrivals::hashes`], for full transactions.
    pub(crate) fn whole(&self, from: u64, max: usize) -> Option<(u64, Vec<Arc<Arrival>>)> {
        let ring = self.ring.lock();
        ring.part(&ring.whole, from, max)
    }
}

impl Ring {
    /// Removes and returns the oldest hashes beyond `hashes_max`.
    fn spare_hashes(&mut self, hashes_max: usize) -> Vec<Arc<str>> {
        let spare = self.hashes.len().saturating_sub(hashes_max);
        self.hashes.drain(..spare).collect()
    }

    fn part<T: Clone>(&self, kept: &VecDeque<T>, from: u64, max: usize) -> Option<(u64, Vec<T>)> {
        let from = from.max(self.skipped).min(self.end);
        let index = from.checked_sub(self.end - kept.len() as u64)?;
        Some((from, kept.range(index as usize..).take(max).cloned().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, raw_at};

    fn arrivals(nonces: std::ops::Range<u64>) -> Vec<Arc<Arrival>> {
        let chain = context().chain;
        nonces.map(|nonce| Arrival::new(Transaction::decode(&raw_at(nonce), &chain).unwrap())).collect()
    }

    fn hashes(arrivals: &[Arc<Arrival>]) -> Vec<Arc<str>> {
        arrivals.iter().map(|arrival| arrival.hash.clone()).collect()
    }

    /// Goal: a reader gets everything once and in order, in parts. A reader whose position has left the ring is
    /// notified. The ring keeps its limits in number and bytes.
    #[test]
    fn who_lags_falls_out_of_a_bounded_ring() {
        let all = arrivals(1..11);
        let weight = all[0].weight();
        let arrived = RecentArrivals::bounded(100, 6, 3 * weight + weight / 2);
        assert_eq!(arrived.hashes(100, 9), Some((100, vec![])));
        arrived.push(all[..2].to_vec());
        assert_eq!((arrived.end(), arrived.hashes(100, 9)), (102, Some((100, hashes(&all[..2])))));
        assert_eq!(arrived.hashes(101, 1), Some((101, hashes(&all[1..2]))));
        arrived.push(all[2..].to_vec());
        assert_eq!(arrived.end(), 110);
        assert_eq!(arrived.hashes(103, 9), None, "six are kept");
        assert_eq!(arrived.hashes(104, 9), Some((104, hashes(&all[4..]))));
        assert_eq!(arrived.hashes(110, 9), Some((110, vec![])));
        assert!(arrived.whole(106, 9).is_none(), "three fit");
        let (first, whole) = arrived.whole(107, 9).unwrap();
        assert_eq!((first, hashes(&whole)), (107, hashes(&all[7..])));
        let ring = arrived.ring.lock();
        assert!(ring.hashes.len() == 6 && ring.whole_bytes <= arrived.whole_bytes_max);
    }

    /// Goal: arrivals from before a listener starts are no loss for it; lost arrivals are a loss for all listeners.
    #[test]
    fn what_is_skipped_is_not_lost() {
        let (all, arrived) = (arrivals(1..4), RecentArrivals::new(7));
        arrived.push(all[..1].to_vec());
        arrived.skip(20);
        assert_eq!(arrived.hashes(8, 9), Some((20, vec![])));
        arrived.push(all[1..].to_vec());
        assert_eq!(arrived.hashes(8, 9), Some((20, hashes(&all[1..]))));
        arrived.lose(30);
        assert!(arrived.hashes(20, 9).is_none() && arrived.whole(20, 9).is_none());
        assert_eq!((arrived.end(), arrived.hashes(30, 9)), (30, Some((30, vec![]))));
    }

    /// Goal: listeners for hashes receive transactions that are known only by hash. Only listeners for full
    /// transactions have missed them, and later ones arrive in full again.
    #[test]
    fn hashes_go_on_without_the_whole() {
        let all = arrivals(1..7);
        let arrived = RecentArrivals::bounded(0, 5, 1 << 20);
        arrived.push(all[..2].to_vec());
        let known: Vec<_> = all[2..4].iter().map(|arrival| arrival.transaction.hash).collect();
        arrived.push_hashes(&known);
        assert_eq!((arrived.end(), arrived.hashes(0, 9)), (4, Some((0, hashes(&all[..4])))));
        assert!(arrived.whole(1, 9).is_none() && arrived.whole(3, 9).is_none());
        arrived.push(all[4..].to_vec());
        assert_eq!(arrived.hashes(0, 9), None, "five are kept");
        assert_eq!(arrived.hashes(1, 9), Some((1, hashes(&all[1..]))));
        let (first, whole) = arrived.whole(4, 9).unwrap();
        assert_eq!((first, hashes(&whole)), (4, hashes(&all[4..])));
        let ring = arrived.ring.lock();
        assert_eq!(ring.whole_bytes, all[4].weight() + all[5].weight());
    }

    /// Goal: a transaction is formatted only once, for all readers.
    #[test]
    fn a_transaction_is_written_once() {
        let arrival = &arrivals(1..2)[0];
        let text = arrival.whole().unwrap();
        assert!(Arc::ptr_eq(&text, &arrival.whole().unwrap()));
        assert!(text.contains(arrival.hash.trim_matches('"')), "{text}");
    }
}
