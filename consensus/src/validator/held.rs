//! [`Held`]: batches that were executed here and are not committed, each on the one before.

use std::collections::VecDeque;

use slipstream_types::{BatchNumber, LedgerInfo};

use super::ledger::Executed;

/// A bounded chain of outcomes in memory.
pub(super) struct Held {
    chain: VecDeque<Executed>,
    most: usize,
    /// The last batch that is known to be committed.
    committed: BatchNumber,
}

impl Held {
    /// Holds no more than so many.
    pub(super) fn new(most: usize) -> Held {
        Held { chain: VecDeque::new(), most, committed: BatchNumber(0) }
    }

    /// Takes an outcome, also one that was committed meanwhile. It displaces those of its number and above; one that continues none of the held displaces them all.
    ///
    /// # Errors
    /// The outcome, if there is no room for another one.
    pub(super) fn push(&mut self, executed: Executed) -> Result<(), Box<Executed>> {
        let header = &executed.sealed.header;
        let open = |held: &Executed| held.info.number > self.committed && held.info.number < header.number;
        self.chain.retain(open);
        if self.chain.back().is_some_and(|last| last.sealed.header.digest() != header.parent) {
            self.chain.clear();
        }
        if self.chain.len() == self.most {
            return Err(Box::new(executed));
        }
        self.chain.push_back(executed);
        Ok(())
    }

    /// The batch of that number.
    pub(super) fn get(&self, number: BatchNumber) -> Option<&Executed> {
        self.chain.iter().find(|held| held.info.number == number)
    }

    /// Takes out the batch to be committed, if it is the first.
    pub(super) fn take(&mut self, info: &LedgerInfo) -> Option<Executed> {
        self.chain.pop_front_if(|held| held.info == *info)
    }

    /// Brings back what could not be committed.
    pub(super) fn put_back(&mut self, executed: Executed) {
        self.chain.push_front(executed);
    }

    /// Drops the batches up to one that is committed.
    pub(super) fn settle(&mut self, committed: BatchNumber) {
        self.committed = committed;
        self.chain.retain(|held| held.info.number > committed);
    }

    /// Drops the batches above.
    pub(super) fn roll_back(&mut self, to: BatchNumber) {
        self.chain.retain(|held| held.info.number <= to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        testing::{NOW_MS, genesis, store},
        validator::tests::{batch, certificate, ledger},
    };

    /// Goal: a chain is held up to its bound; a batch displaces those that do not lead to it, and one is taken from the front only.
    #[test]
    fn a_chain_is_held() {
        let genesis = genesis(1);
        let store = store(&genesis);
        let first = || batch(&genesis, &store, 0..1, NOW_MS);
        let other = batch(&genesis, &store, 0..0, NOW_MS);
        let mut committed = first();
        let (one, held, late) = (first(), first(), first());
        ledger(&genesis, &store)
            .commit(&mut committed, &certificate(&genesis.validator_set(), &one))
            .unwrap();
        let second = || batch(&genesis, &store, 1..2, NOW_MS);
        let (info, next) = (one.info.clone(), second().info);
        let mut chain = Held::new(2);
        let numbers = |chain: &Held| chain.chain.iter().map(|held| held.info.number.0).collect::<Vec<_>>();
        chain.push(held).ok().unwrap();
        chain.push(second()).ok().unwrap();
        assert_eq!(numbers(&chain), [1, 2]);
        assert!(chain.take(&next).is_none(), "not before the one below");
        let taken = chain.take(&info).unwrap();
        chain.put_back(taken);
        assert_eq!(chain.get(BatchNumber(2)).unwrap().info, next);
        chain.roll_back(BatchNumber(1));
        assert_eq!(numbers(&chain), [1]);
        chain.push(second()).ok().unwrap();
        chain.settle(BatchNumber(1));
        assert_eq!(numbers(&chain), [2]);
        chain.push(other).ok().unwrap();
        assert_eq!(numbers(&chain), [1]);
        chain.push(second()).ok().unwrap();
        assert_eq!(numbers(&chain), [2], "it continues another batch 1");
        let mut short = Held::new(1);
        short.push(one).ok().unwrap();
        assert_eq!(short.push(second()).unwrap_err().info.number, BatchNumber(2));
        // One that sync committed while it was executed takes no room.
        short.settle(BatchNumber(1));
        short.push(late).ok().unwrap();
        short.push(second()).ok().unwrap();
        assert_eq!(numbers(&short), [2]);
    }
}
