//! One sender's transactions: by nonce, with the boundary between those that can execute now and those that wait.

use std::{cmp::Reverse, collections::BTreeMap};

use alloy_primitives::{Address, B256, U256};

/// The fields of a transaction that ordering and limits use. Decoding fixes them, because the base fee is fixed.
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
    /// The proposer's income per gas at the chain's base fee.
    pub(super) tip_wei: u128,
    /// Accounts that the transaction would delegate (EIP-7702), each with the nonce that it must have for that.
    pub(super) authorities: Vec<(Address, u64)>,
}

/// A transaction in the pool.
#[derive(Clone, Debug)]
pub(super) struct Entry<T> {
    pub(super) terms: Terms,
    /// Order of arrival; the earlier of two equal payers goes first.
    pub(super) sequence: u64,
    /// The least tip among its sender's executable transactions up to this one. The queue maintains it; it means
    /// nothing while this transaction waits.
    pub(super) floor_wei: u128,
    /// Whether a user of this node submitted it, and it was acknowledged.
    pub(super) is_local: bool,
    /// Whether it is in the journal.
    pub(super) is_journaled: bool,
    /// The index's count of sweeps when it arrived.
    pub(super) since: u64,
    pub(super) payload: T,
}

/// The worth of a place in the pool: the least worthy is evicted first when room is short.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Worth {
    /// The transaction waits for a lower nonce or for funds. It may never pay, whatever it offers, so it is worth less
    /// the more of these its sender has.
    Waiting(Reverse<usize>),
    /// The transaction can execute.
    Ready {
        /// The least tip of its sender's transactions up to this one: a high tip behind low ones earns only when those are paid.
        floor_wei: u128,
        /// Whether it is among its sender's first [`SENDER_SLOTS`]: at equal pay, one sender's many do not displace
        /// another's few.
        is_within_slots: bool,
    },
}

/// Number of a sender's first executable transactions that rank before other senders' further ones of equal pay.
const SENDER_SLOTS: u64 = 16;

/// Rank of a sender's next executable transaction: the highest is proposed first.
pub(super) type HeadKey = (u128, Reverse<u64>, Address);
/// Rank of a sender's last transaction: the lowest is evicted first.
pub(super) type TailKey = (Worth, Reverse<u64>, Address);

/// A set of transactions that is offered again in a rotation of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Circle {
    /// The transactions of this node's users.
    Local = 0,
    /// All transactions of the pool.
    All = 1,
}

/// The part of an account's state that decides which of its transactions can execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct AccountState {
    pub(super) nonce: u64,
    pub(super) balance: U256,
    /// Whether it has code: a delegation (EIP-7702), by which others may use up its nonces and money, or a contract's,
    /// which cannot send.
    pub(super) has_code: bool,
}

/// All transactions of one sender. The *ready* ones have the nonces `state.nonce..ready_end` without a gap, and the
/// balance covers their largest total cost. So a ready transaction fails only if something other than its sender's own
/// transactions takes the sender's money.
#[derive(Debug)]
pub(super) struct AccountQueue<T> {
    state: AccountState,
    entries: BTreeMap<u64, Entry<T>>,
    ready_end: u64,
    ready_cost: U256,
    ready_bytes: usize,
    /// Bytes of the transactions of this node's users.
    local_bytes: usize,
    /// The nonce where the next offer to other nodes begins, in each circle.
    offer_from: [u64; 2],
    /// The index's count of sweeps when the sender's first executable transaction became the first.
    head_since: u64,
}

impl<T> AccountQueue<T> {
    pub(super) fn new(state: AccountState) -> Self {
        Self {
            state,
            entries: BTreeMap::new(),
            ready_end: state.nonce,
            ready_cost: U256::ZERO,
            ready_bytes: 0,
            local_bytes: 0,
            offer_from: [0; 2],
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

    /// The transaction with that nonce, if it can execute once those with lower nonces have.
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

    /// Whether a transaction would be ready if it were inserted after the ready ones.
    fn accepts_as_ready(&self, terms: &Terms) -> bool {
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
        let worth = match *nonce < self.ready_end {
            true => self.ready_worth(*nonce, entry.floor_wei),
            false => Worth::Waiting(Reverse(self.waiting_len())),
        };
        Some((worth, Reverse(entry.sequence), entry.terms.sender))
    }

    /// The worth of the transaction if it were inserted now, replacing the one with its nonce, if any.
    pub(super) fn worth_of(&self, terms: &Terms) -> Worth {
        let behind = self.entries.range(terms.nonce.min(self.ready_end)..self.ready_end);
        let before_cost = behind.fold(self.ready_cost, |cost, (_, entry)| cost - entry.terms.cost_max);
        let cost = before_cost.checked_add(terms.cost_max);
        if terms.nonce > self.ready_end || cost.is_none_or(|cost| cost > self.state.balance) {
            let others = self.entries.len() - usize::from(self.entries.contains_key(&terms.nonce));
            let ready_before = terms.nonce.min(self.ready_end) - self.state.nonce;
            return Worth::Waiting(Reverse(others + 1 - ready_before as usize));
        }
        let before = terms.nonce.checked_sub(1).and_then(|nonce| self.ready(nonce));
        let floor_wei = before.map_or(terms.tip_wei, |entry| entry.floor_wei.min(terms.tip_wei));
        self.ready_worth(terms.nonce, floor_wei)
    }

    fn ready_worth(&self, nonce: u64, floor_wei: u128) -> Worth {
        Worth::Ready { floor_wei, is_within_slots: nonce - self.state.nonce < SENDER_SLOTS }
    }

    pub(super) fn waiting_len(&self) -> usize {
        self.entries.len() - self.ready_len()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn ready_bytes(&self) -> usize {
        self.ready_bytes
    }

    /// Returns at most `max` transactions that arrived before `sequence`, the lowest nonces first. Continues where the
    /// circle's last call ended, and restarts after the last one.
    pub(super) fn offer(&mut self, circle: Circle, sequence: u64, max: usize) -> Vec<T>
    where
        T: Clone,
    {
        let from = self.offer_from[circle as usize];
        let behind = self.entries.range(from..).chain(self.entries.range(..from));
        let due = behind
            .filter(|(_, entry)| entry.sequence < sequence && (circle == Circle::All || entry.is_local));
        let (mut next, mut offered) = (0, Vec::new());
        for (nonce, entry) in due.take(max) {
            next = nonce.saturating_add(1);
            offered.push(entry.payload.clone());
        }
        self.offer_from[circle as usize] = next;
        offered
    }

    /// Marks a transaction as one of this node's users.
    pub(super) fn adopt(&mut self, nonce: u64) {
        if let Some(entry) = self.entries.get_mut(&nonce).filter(|entry| !entry.is_local) {
            entry.is_local = true;
            self.local_bytes += entry.terms.bytes;
        }
    }

    /// Marks a transaction as one that is in the journal.
    pub(super) fn mark_journaled(&mut self, nonce: u64) {
        if let Some(entry) = self.entries.get_mut(&nonce) {
            entry.is_journaled = true;
        }
    }

    /// Bytes of the transactions of this node's users, except the one with this nonce.
    pub(super) fn local_bytes_beside(&self, nonce: u64) -> usize {
        self.local_bytes - self.entries.get(&nonce).map_or(0, Entry::local_bytes)
    }

    pub(super) fn tail_nonce(&self) -> Option<u64> {
        self.entries.last_key_value().map(|(nonce, _)| *nonce)
    }

    pub(super) fn insert(&mut self, entry: Entry<T>) {
        self.cut_ready(entry.terms.nonce);
        self.local_bytes += entry.local_bytes();
        self.entries.insert(entry.terms.nonce, entry);
        self.extend_ready();
    }

    pub(super) fn remove(&mut self, nonce: u64) -> Option<Entry<T>> {
        self.cut_ready(nonce);
        let entry = self.entries.remove(&nonce)?;
        self.local_bytes -= entry.local_bytes();
        Some(entry)
    }

    /// Takes the account as a later batch left it. Returns the transactions whose nonce is used up. A state with a
    /// lower nonce than known is older and changes nothing.
    pub(super) fn advance(&mut self, state: AccountState) -> Vec<Entry<T>> {
        if state.nonce < self.state.nonce {
            return Vec::new();
        }
        let kept = self.entries.split_off(&state.nonce);
        let dropped: Vec<_> = std::mem::replace(&mut self.entries, kept).into_values().collect();
        self.local_bytes -= dropped.iter().map(Entry::local_bytes).sum::<usize>();
        for entry in dropped.iter().filter(|entry| entry.terms.nonce < self.ready_end) {
            self.ready_cost -= entry.terms.cost_max;
            self.ready_bytes -= entry.terms.bytes;
        }
        self.state = state;
        self.ready_end = self.ready_end.max(state.nonce);
        self.raise_floors();
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
                self.ready_bytes -= entry.terms.bytes;
            }
            self.ready_end = nonce;
        }
    }

    fn extend_ready(&mut self) {
        let before = self.ready_end.checked_sub(1).and_then(|nonce| self.ready(nonce));
        let mut floor_wei = before.map_or(u128::MAX, |entry| entry.floor_wei);
        while let Some(entry) = self.entries.get(&self.ready_end) {
            if !self.accepts_as_ready(&entry.terms) {
                break;
            }
            let (cost, bytes) = (entry.terms.cost_max, entry.terms.bytes);
            floor_wei = floor_wei.min(entry.terms.tip_wei);
            if let Some(entry) = self.entries.get_mut(&self.ready_end) {
                entry.floor_wei = floor_wei;
            }
            self.ready_cost += cost;
            self.ready_bytes += bytes;
            self.ready_end += 1;
        }
    }

    /// Raises the floors once the first transactions are gone: they may have paid less than the later ones.
    fn raise_floors(&mut self) {
        let mut floor_wei = u128::MAX;
        for (nonce, entry) in self.entries.range_mut(self.state.nonce..self.ready_end) {
            floor_wei = floor_wei.min(entry.terms.tip_wei);
            // None of the removed transactions paid less, so the later floors stay.
            if *nonce == self.state.nonce && entry.floor_wei == floor_wei {
                return;
            }
            entry.floor_wei = floor_wei;
        }
    }
}

impl<T> Entry<T> {
    fn local_bytes(&self) -> usize {
        if self.is_local { self.terms.bytes } else { 0 }
    }

    pub(super) fn head_key(&self) -> HeadKey {
        (self.terms.tip_wei, Reverse(self.sequence), self.terms.sender)
    }
}
