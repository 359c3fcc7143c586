//! Copies the pool's content for people and tools. The pool is locked during a copy, so the copy is bounded.

use alloy_primitives::Address;
use slipstream_executor::Transaction;

use super::index::Index;

/// The limit on what one call may copy: the pool is locked during the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContentLimit {
    /// Maximum number of transactions in one answer.
    pub transactions_max: usize,
    /// Maximum bytes of their envelopes.
    pub bytes_max: usize,
}

/// Transactions by sender, each sender's in nonce order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolContent {
    /// Transactions that can execute now.
    pub pending: Vec<(Address, Vec<Transaction>)>,
    /// Transactions that wait for a lower nonce or for funds.
    pub queued: Vec<(Address, Vec<Transaction>)>,
}

/// The pool, or one sender's part of it, holds more than one call may copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{transactions} transactions of {bytes} bytes")]
pub struct TooMuchContent {
    /// Transactions that the answer would have.
    pub transactions: usize,
    /// Bytes of their envelopes.
    pub bytes: usize,
}

impl Index<Transaction> {
    /// Copies the transactions of one sender or of all.
    ///
    /// # Errors
    /// If they exceed the limit; nothing is copied then.
    pub(super) fn content(
        &self,
        of: Option<&Address>,
        limit: ContentLimit,
    ) -> Result<PoolContent, TooMuchContent> {
        let (transactions, bytes) = self.size(of);
        if transactions > limit.transactions_max || bytes > limit.bytes_max {
            return Err(TooMuchContent { transactions, bytes });
        }
        let mut content = PoolContent::default();
        for (sender, queue) in self.queues(of) {
            let mut ready: Vec<_> = queue.entries().map(|entry| entry.payload.clone()).collect();
            let waiting = ready.split_off(queue.ready_len());
            for (part, transactions) in [(&mut content.pending, ready), (&mut content.queued, waiting)] {
                if !transactions.is_empty() {
                    part.push((*sender, transactions));
                }
            }
        }
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::ChainConfig;

    use super::*;
    use crate::{
        Pool, PoolConfig,
        testing::{Account, genesis, store},
    };

    /// Goal: the content separates executable from waiting transactions, by sender and in nonce order. Content beyond
    /// the limit is refused with its size.
    #[test]
    fn content_by_sender_and_within_its_limit() {
        let accounts = [Account::new(1), Account::new(2)];
        let pool = Pool::new(PoolConfig::default(), ChainConfig::default(), store(&genesis(1))).unwrap();
        let sent = |account: &Account, nonce| {
            let transaction = account.transfer(nonce, 1);
            pool.add(transaction.clone()).unwrap();
            transaction
        };
        let [first, second] = &accounts;
        let (later, next, gap) = (sent(first, 1), sent(first, 0), sent(second, 5));
        let much = ContentLimit { transactions_max: 3, bytes_max: 1 << 20 };
        let content = pool.content(None, much).unwrap();
        assert_eq!(content.pending, [(first.address, vec![next.clone(), later.clone()])]);
        assert_eq!(content.queued, [(second.address, vec![gap.clone()])]);
        let own = pool.content(Some(&second.address), ContentLimit { transactions_max: 1, ..much }).unwrap();
        assert_eq!((own.pending.len(), own.queued), (0, content.queued));
        assert_eq!(pool.content(Some(&Address::ZERO), much).unwrap(), PoolContent::default());

        let bytes = [&next, &later, &gap].iter().map(|one| one.raw.len()).sum();
        let refused = TooMuchContent { transactions: 3, bytes };
        assert_eq!(pool.content(None, ContentLimit { transactions_max: 2, ..much }), Err(refused));
        assert_eq!(pool.content(None, ContentLimit { bytes_max: bytes - 1, ..much }), Err(refused));
        assert!(
            pool.is_waiting(&gap.hash)
                && !pool.is_waiting(&later.hash)
                && !pool.is_waiting(&Default::default())
        );
    }
}
