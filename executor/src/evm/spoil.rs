//! Spoils a transaction's result as a concurrency bug would.

use super::machine::ExecutedTransaction;

/// Ways to spoil a transaction that ran at the same time as one that it conflicts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConcurrencyBug {
    /// The transaction's writes follow from the values before the conflicting transaction.
    LostUpdate,
    /// The transaction writes nothing.
    SkippedIncrement,
    /// Every second of its slots follows from the values before the conflicting transaction.
    TornRead,
}

impl ExecutedTransaction {
    /// Applies the bug. `stale` is the result of the same transaction on outdated values.
    pub(crate) fn spoil(&mut self, stale: &ExecutedTransaction, bug: ConcurrencyBug) {
        for (address, account) in self.state.iter_mut() {
            let before = stale.state.get(address);
            let changed = account.storage.iter_mut().filter(|(_, slot)| slot.is_changed());
            for (key, slot) in changed {
                let stale = before.and_then(|account| account.storage.get(key));
                match bug {
                    ConcurrencyBug::SkippedIncrement => slot.present_value = slot.original_value,
                    ConcurrencyBug::TornRead if !key.bit(0) => {}
                    ConcurrencyBug::TornRead | ConcurrencyBug::LostUpdate => {
                        slot.present_value = stale.map_or(slot.present_value, |stale| stale.present_value);
                    }
                }
            }
        }
    }
}
