//! [`UncommittedChain`]: batches that were executed here and are not known to be committed, each on the one before.

use std::{collections::VecDeque, sync::Arc};

use slipstream_types::{BatchNumber, Digest, StateKey, StateValue};

use super::{executed::Executed, tip::Tip};
use crate::pool::Ahead;

/// Maximum number of batches that are held: as many as validators vote on ahead of the head. So a slow disk does not fill the
/// memory.
pub(super) const HELD_MAX: usize = 8;

/// A chain of outcomes in memory. The first builds on the head, or did when it was executed.
pub(super) struct UncommittedChain {
    chain: VecDeque<Arc<Executed>>,
    /// The last batch that is known to be committed.
    committed: BatchNumber,
}

impl UncommittedChain {
    /// An empty chain on the head.
    pub(super) fn new(committed: BatchNumber) -> UncommittedChain {
        UncommittedChain { chain: VecDeque::new(), committed }
    }

    /// Takes an outcome, unless its number was committed meanwhile. It displaces outcomes of its number and above. If
    /// it continues none of the held ones, it displaces them all.
    pub(super) fn push(&mut self, executed: Arc<Executed>) {
        let number = executed.number();
        if number <= self.committed {
            return;
        }
        self.chain.retain(|held| held.number() < number);
        if self.chain.back().is_some_and(|last| last.tip.digest != executed.tip.header.parent) {
            self.chain.clear();
        }
        self.chain.push_back(executed);
    }

    /// Whether a batch must be committed before another may be executed.
    pub(super) fn is_full(&self) -> bool {
        self.chain.len() >= HELD_MAX
    }

    /// The held batches below `number`, on which that batch builds. Returns `None` if the batch before it is neither
    /// held nor committed.
    pub(super) fn before(&self, number: BatchNumber) -> Option<Vec<Arc<Executed>>> {
        let chain: Vec<_> = self.chain.iter().filter(|held| held.number() < number).cloned().collect();
        let last = chain.last().map_or(self.committed, |last| last.number());
        (last.next() == number).then_some(chain)
    }

    /// The outcome with that token.
    pub(super) fn get(&self, number: BatchNumber, token: &Digest) -> Option<&Arc<Executed>> {
        self.chain.iter().find(|held| held.number() == number && held.token() == *token)
    }

    /// Counts the transactions in the held batches.
    pub(super) fn transactions(&self) -> usize {
        self.chain.iter().map(|held| held.hashes.len()).sum()
    }

    /// The pool's transactions that these batches hold: the next nonce of every account that they changed. For most of
    /// these accounts the pool has no transaction.
    pub(super) fn ahead(&self) -> Ahead {
        let entries = self.chain.iter().flat_map(|held| held.delta.entries());
        let nonce = |(key, value): (StateKey, Option<StateValue>)| match (key, value) {
            (StateKey::Account(address), Some(StateValue::Account(account))) => {
                Some((address, account.nonce))
            }
            _ => None,
        };
        entries.filter_map(|entry| nonce((entry.key, entry.value))).collect()
    }

    /// Drops the batches up to `committed`.
    pub(super) fn settle(&mut self, committed: &Tip) {
        self.committed = committed.number();
        self.chain.retain(|held| held.number() > committed.number());
        // Sync may have brought a batch other than the one that the held batches build on.
        if self.chain.front().is_some_and(|first| first.tip.header.parent != committed.digest) {
            self.chain.clear();
        }
    }

    /// Drops the batches above `to`.
    pub(super) fn roll_back(&mut self, to: BatchNumber) {
        self.chain.retain(|held| held.number() <= to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        testing::{NOW_MS, genesis, store},
        validator::tests::{batch_after, ledger},
    };

    /// Goal: the chain holds each batch, and drops batches that do not lead to it. A new head drops batches that do not
    /// build on it.
    #[test]
    fn a_chain_is_held() {
        let genesis = genesis(1);
        let ledger = ledger(&genesis, &store(&genesis));
        let first = batch_after(&ledger, &[], 0..1, NOW_MS);
        let second = batch_after(&ledger, std::slice::from_ref(&first), 1..2, NOW_MS);
        let other = batch_after(&ledger, &[], 0..0, NOW_MS);
        let mut chain = UncommittedChain::new(BatchNumber::GENESIS);
        let numbers =
            |chain: &UncommittedChain| chain.chain.iter().map(|held| held.number().get()).collect::<Vec<_>>();
        assert!(
            chain.before(BatchNumber::new(1)).unwrap().is_empty()
                && chain.before(BatchNumber::new(2)).is_none()
        );
        chain.push(first.clone());
        chain.push(second.clone());
        assert_eq!(numbers(&chain), [1, 2]);
        assert_eq!((chain.transactions(), chain.before(BatchNumber::new(3)).unwrap().len()), (2, 2));
        assert_eq!(chain.ahead().get(&crate::testing::Account::new(0).address), Some(&2));
        assert!(chain.get(BatchNumber::new(2), &second.token()).is_some());
        assert!(chain.get(BatchNumber::new(2), &first.token()).is_none());
        chain.roll_back(BatchNumber::new(1));
        assert_eq!(numbers(&chain), [1]);
        chain.push(second.clone());
        chain.settle(&first.tip);
        assert_eq!(numbers(&chain), [2]);
        chain.push(first.clone());
        assert_eq!(numbers(&chain), [2], "what is committed takes no room");
        chain.settle(&other.tip);
        assert_eq!(numbers(&chain), [0; 0], "it stands on another batch 1");
    }
}
