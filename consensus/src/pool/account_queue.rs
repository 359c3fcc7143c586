//! One sender's transactions: by nonce, with the boundary between those that can execute now and those that wait.

use std::{cmp::Reverse, collections::BTreeMap};

use alloy_primitives::{Address, B256, U256};

/// What ordering and limits need to know of a transaction. Fixed once it is decoded, because the base fee is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) hash: B256,
    pub(super) sender: Address,
    pub(super) nonce: u64,
    pub(super) gas_limit: u64,
    pub(super) bytes: usize,
    pub(super) cost_max: U256,
    pub(super) max_fee_wei: u128,
    pub(super) tip_cap_wei: u128,
    /// What the proposer earns per gas at the chain's base fee.
    pub(super) tip_wei: u128,
}

/// A transaction in the pool.
#[derive(Clone, Debug)]
pub(super) struct Entry<T> {
    pub(super) terms: Terms,
    /// Order of arrival; the earlier of two equal payers goes first.
    pub(super) sequence: u64,
    pub(super) payload: T,
}

/// Rank of a sender's next executable transaction: the highest is proposed first.
pub(super) type HeadKey = (u128, Reverse<u64>, Address);
/// Rank of a sender's last transaction: the lowest is evicted first, one that cannot execute before any that can.
pub(super) type TailKey = (bool, u128, Reverse<u64>, Address);

/// The part of an account's state that decides what of it can execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct AccountState {
    pub(super) nonce: u64,
    pub(super) balance: U256,
}

/// All transactions of one sender. The *ready* ones have the nonces `state.nonce..ready_end` without a gap, and the balance
/// covers the most that all of them together can cost; so a ready transaction fails only if something other than its
/// sender's own transactions takes the sender's money.
#[derive(Debug)]
pub(super) struct AccountQueue<T> {
    state: AccountState,
    entries: BTreeMap<u64, Entry<T>>,
    ready_end: u64,
    ready_cost: U256,
    /// The index's count of sweeps when the next executable transaction became that.
    head_since: u64,
}

impl<T> AccountQueue<T> {
    pub(super) fn new(state: AccountState) -> Self {
        Self {
            state,
            entries: BTreeMap::new(),
            ready_end: state.nonce,
            ready_cost: U256::ZERO,
            head_since: 0,
        }
    }

    pub(super) fn state(&self) -> AccountState {
        self.state
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn get(&self, nonce: u64) -> Option<&Entry<T>> {
        self.entries.get(&nonce)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry<T>> {
        self.entries.values()
    }

    /// The transaction, if it can execute once those with lower nonces have.
    pub(super) fn ready(&self, nonce: u64) -> Option<&Entry<T>> {
        self.entries.get(&nonce).filter(|_| nonce < self.ready_end)
    }

    pub(super) fn ready_len(&self) -> usize {
        (self.ready_end - self.state.nonce) as usize
    }

    /// The nonce that a new transaction must have to execute after all ready ones.
    pub(super) fn ready_end(&self) -> u64 {
        self.ready_end
    }

    /// Whether a transaction would be ready if it were inserted now.
    pub(super) fn accepts_as_ready(&self, terms: &Terms) -> bool {
        let cost = self.ready_cost.checked_add(terms.cost_max);
        terms.nonce == self.ready_end && cost.is_some_and(|cost| cost <= self.state.balance)
    }

    pub(super) fn head_key(&self) -> Option<HeadKey> {
        self.ready(self.state.nonce).map(Entry::head_key)
    }

    pub(super) fn head_since(&self) -> u64 {
        self.head_since
    }

    pub(super) fn set_head_since(&mut self, sweeps: u64) {
        self.head_since = sweeps;
    }

    pub(super) fn tail_key(&self) -> Option<TailKey> {
        let (nonce, entry) = self.entries.last_key_value()?;
        let (tip, sequence, sender) = entry.head_key();
        Some((*nonce < self.ready_end, tip, sequence, sender))
    }

    pub(super) fn tail_nonce(&self) -> Option<u64> {
        self.entries.last_key_value().map(|(nonce, _)| *nonce)
    }

    pub(super) fn insert(&mut self, entry: Entry<T>) {
        self.cut_ready(entry.terms.nonce);
        self.entries.insert(entry.terms.nonce, entry);
        self.extend_ready();
    }

    pub(super) fn remove(&mut self, nonce: u64) -> Option<Entry<T>> {
        self.cut_ready(nonce);
        self.entries.remove(&nonce)
    }

    /// Takes the account as a later batch left it; returns the transactions whose nonce is used up. A lower nonce than
    /// known is an older state and changes nothing.
    pub(super) fn advance(&mut self, state: AccountState) -> Vec<Entry<T>> {
        if state.nonce < self.state.nonce {
            return Vec::new();
        }
        let kept = self.entries.split_off(&state.nonce);
        let dropped: Vec<_> = std::mem::replace(&mut self.entries, kept).into_values().collect();
        for entry in dropped.iter().filter(|entry| entry.terms.nonce < self.ready_end) {
            self.ready_cost -= entry.terms.cost_max;
        }
        self.state = state;
        self.ready_end = self.ready_end.max(state.nonce);
        while self.ready_cost > state.balance {
            self.cut_ready(self.ready_end - 1);
        }
        self.extend_ready();
        dropped
    }

    /// Ends the ready run before `nonce`.
    fn cut_ready(&mut self, nonce: u64) {
        if nonce < self.ready_end {
            for entry in self.entries.range(nonce..self.ready_end).map(|(_, entry)| entry) {
                self.ready_cost -= entry.terms.cost_max;
            }
            self.ready_end = nonce;
        }
    }

    fn extend_ready(&mut self) {
        while let Some(entry) = self.entries.get(&self.ready_end) {
            if !self.accepts_as_ready(&entry.terms) {
                break;
            }
            self.ready_cost += entry.terms.cost_max;
            self.ready_end += 1;
        }
    }
}

impl<T> Entry<T> {
    pub(super) fn head_key(&self) -> HeadKey {
        (self.terms.tip_wei, Reverse(self.sequence), self.terms.sender)
    }
}
