//! The senders of a batch's transactions. Recovering a sender takes longer than the rest of an answer, and clients
//! request the transactions and receipts of one batch again and again.

use std::sync::{Arc, OnceLock};

use alloy_primitives::Address;
use parking_lot::Mutex;
use quick_cache::{Weighter, unsync::Cache};
use slipstream_executor::Senders as MetSenders;
use slipstream_types::BatchNumber;

/// Memory limit of the cached senders: those of 500,000 transactions, fifty full batches.
const BYTES_MAX: u64 = 16 << 20;
/// The approximate number of batches with cached senders: sizes the table.
const BATCHES_EXPECTED: usize = 4_096;
/// Memory of a batch besides its senders.
const BATCH_BYTES: u64 = 128;

/// The senders of one batch, each recovered when first requested.
pub(crate) struct Senders(Box<[OnceLock<Address>]>);

impl Senders {
    pub(crate) fn new(transactions: usize) -> Senders {
        Senders((0..transactions).map(|_| OnceLock::new()).collect())
    }

    /// The sender of one transaction, if known.
    pub(crate) fn get(&self, index: usize) -> Option<Address> {
        self.0.get(index)?.get().copied()
    }

    /// Stores the sender of a transaction.
    pub(crate) fn keep(&self, index: usize, sender: Address) {
        if let Some(place) = self.0.get(index) {
            place.get_or_init(|| sender);
        }
    }
}

/// The senders of the most recently requested batches. This cache spans more batches than are kept open. Batches are
/// final, so a number always names the same transactions.
pub(crate) struct KnownSenders {
    asked: Mutex<Cache<BatchNumber, Arc<Senders>, Bytes>>,
    /// Senders recovered when transactions arrived or were executed. Clients' requests add nothing here: they would
    /// evict the senders of transactions that wait for execution.
    met: Arc<MetSenders>,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<BatchNumber, Arc<Senders>> for Bytes {
    fn weight(&self, _: &BatchNumber, senders: &Arc<Senders>) -> u64 {
        BATCH_BYTES + size_of_val(&*senders.0) as u64
    }
}

impl KnownSenders {
    pub(crate) fn new(met: Arc<MetSenders>) -> KnownSenders {
        KnownSenders { asked: Mutex::new(Cache::with_weighter(BATCHES_EXPECTED, BYTES_MAX, Bytes)), met }
    }

    /// The senders of a batch with `transactions` transactions.
    pub(crate) fn of(&self, number: BatchNumber, transactions: usize) -> Arc<Senders> {
        let senders = self.asked.lock().get(&number).cloned();
        senders.unwrap_or_else(|| {
            let fresh = Arc::new(Senders::new(transactions));
            self.asked.lock().insert(number, fresh.clone());
            fresh
        })
    }

    /// Senders recovered elsewhere.
    pub(crate) fn met(&self) -> &Arc<MetSenders> {
        &self.met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_are_shared_and_bounded() {
        let known = KnownSenders::new(Arc::default());
        known.of(BatchNumber::new(1), 2).keep(1, Address::repeat_byte(7));
        let again = known.of(BatchNumber::new(1), 2);
        assert_eq!((again.get(0), again.get(1), again.get(2)), (None, Some(Address::repeat_byte(7)), None));
        again.keep(2, Address::ZERO);
        for number in 2..200 {
            known.of(BatchNumber::new(number), 10_000);
        }
        let kept = known.asked.lock();
        assert!(kept.weight() <= BYTES_MAX && kept.len() > 40, "{} batches", kept.len());
    }
}
