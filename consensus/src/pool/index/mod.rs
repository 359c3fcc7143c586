//! The pool's order and limits, without a store: a plain structure over any payload.

mod draw;
mod room;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

use alloy_primitives::{Address, B256};
use tokio::time::Instant;

use self::room::{Replaced, check_replacement};
use super::{
    PoolStatus,
    account_queue::{AccountQueue, AccountState, Entry, HeadKey, TailKey, Terms},
    error::PoolError,
    floor::TipFloor,
};
use crate::config::PoolConfig;

/// Every transaction under its sender. One ranking orders the senders by what they would have executed next, the other
/// by what they would lose first. Each has one entry per sender, so that a batch's candidates and a victim are found
/// without looking at the rest.
#[derive(Debug)]
pub(super) struct Index<T> {
    config: PoolConfig,
    accounts: BTreeMap<Address, AccountQueue<T>>,
    by_hash: HashMap<B256, (Address, u64)>,
    /// For each account and nonce, the number of transactions here that would delegate the account at that nonce.
    authorities: HashMap<Address, BTreeMap<u64, usize>>,
    heads: BTreeSet<HeadKey>,
    tails: BTreeSet<TailKey>,
    bytes: usize,
    ready: usize,
    ready_bytes: usize,
    floor: TipFloor,
    /// The sender that was last offered, in each circle.
    offered: [Address; 2],
    sequence: u64,
    sweeps: u64,
}

/// How a transaction arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) at: Instant,
    /// Whether a user of this node submitted it.
    pub(super) is_local: bool,
}

impl<T: Clone> Index<T> {
    pub(super) fn new(config: PoolConfig, now: Instant) -> Self {
        Self {
            config,
            accounts: BTreeMap::new(),
            by_hash: HashMap::new(),
            authorities: HashMap::new(),
            heads: BTreeSet::new(),
            tails: BTreeSet::new(),
            bytes: 0,
            ready: 0,
            ready_bytes: 0,
            floor: TipFloor::new(now),
            offered: [Address::ZERO; 2],
            sequence: 0,
            sweeps: 0,
        }
    }

    pub(super) fn status(&self, now: Instant) -> PoolStatus {
        PoolStatus {
            pending: self.ready,
            queued: self.waiting(),
            bytes: self.bytes,
            tip_min_wei: u64::try_from(self.tip_min_wei(now)).unwrap_or(u64::MAX),
        }
    }

    /// Number of executable transactions.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    /// The number of transactions ever taken; a transaction's own number is below every later value of this.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(super) fn contains(&self, hash: &B256) -> bool {
        self.by_hash.contains_key(hash)
    }

    pub(super) fn get(&self, hash: &B256) -> Option<&T> {
        let (sender, nonce) = self.by_hash.get(hash)?;
        Some(&self.accounts.get(sender)?.get(*nonce)?.payload)
    }

    pub(super) fn account(&self, sender: &Address) -> Option<AccountState> {
        self.accounts.get(sender).map(AccountQueue::state)
    }

    pub(super) fn senders(&self) -> Vec<Address> {
        self.accounts.keys().copied().collect()
    }

    pub(super) fn pending_nonce(&self, sender: &Address) -> Option<u64> {
        self.accounts.get(sender).map(AccountQueue::ready_end)
    }

    /// Takes a transaction. `account` is its sender's state, used only if the sender is not known here.
    pub(super) fn insert(
        &mut self,
        terms: Terms,
        payload: T,
        account: AccountState,
        arrival: Arrival,
    ) -> Result<(), PoolError> {
        if self.contains(&terms.hash) {
            return Err(PoolError::AlreadyKnown { hash: terms.hash });
        }
        let account = self.account(&terms.sender).unwrap_or(account);
        self.check_account(&terms, account)?;
        let old = self.accounts.get(&terms.sender).and_then(|queue| queue.get(terms.nonce));
        if let Some(old) = old {
            check_replacement(&old.terms, &terms, self.config.price_bump_percent)?;
        }
        let replaced = Replaced::of(old, self.accounts.get(&terms.sender));
        self.check_delegation(&terms, account, replaced.count)?;
        self.make_room(&terms, account, replaced, arrival.at)?;
        self.take(&terms.sender, terms.nonce);
        let sequence = self.sequence;
        self.sequence += 1;
        let (is_local, since) = (arrival.is_local, self.sweeps);
        let entry = Entry { terms, sequence, floor_wei: 0, is_local, is_journaled: false, since, payload };
        self.place(entry, account);
        self.trim_waiting();
        Ok(())
    }

    fn check_account(&self, terms: &Terms, account: AccountState) -> Result<(), PoolError> {
        let (nonce, next) = (terms.nonce, account.nonce);
        if nonce < next {
            return Err(PoolError::NonceTooLow { nonce, next });
        }
        if nonce - next >= self.config.per_sender_max {
            return Err(PoolError::NonceTooHigh { nonce, next, max: self.config.per_sender_max });
        }
        if terms.cost_max > account.balance {
            return Err(PoolError::InsufficientFunds {
                cost_wei: terms.cost_max,
                balance_wei: account.balance,
            });
        }
        Ok(())
    }

    /// Marks a transaction as one of this node's users.
    pub(super) fn adopt(&mut self, hash: &B256) {
        self.mark(hash, AccountQueue::adopt);
    }

    /// Marks a transaction as one that is in the journal.
    pub(super) fn mark_journaled(&mut self, hash: &B256) {
        self.mark(hash, AccountQueue::mark_journaled);
    }

    fn mark(&mut self, hash: &B256, mark: impl FnOnce(&mut AccountQueue<T>, u64)) {
        if let Some((sender, nonce)) = self.by_hash.get(hash)
            && let Some(queue) = self.accounts.get_mut(sender)
        {
            mark(queue, *nonce);
        }
    }

    /// Whether the transaction is here and in the journal.
    pub(super) fn is_journaled(&self, hash: &B256) -> bool {
        let entry = |(sender, nonce): &(Address, u64)| self.accounts.get(sender)?.get(*nonce);
        self.by_hash.get(hash).and_then(entry).is_some_and(|entry| entry.is_journaled)
    }

    /// Whether the transaction is here and cannot execute now.
    pub(super) fn is_waiting(&self, hash: &B256) -> bool {
        let place = self.by_hash.get(hash);
        place.is_some_and(|(sender, nonce)| self.ready_at(sender, *nonce).is_none())
    }

    /// The queues of one sender or of all.
    pub(super) fn queues(&self, of: Option<&Address>) -> impl Iterator<Item = (&Address, &AccountQueue<T>)> {
        let (from, to) = match of {
            Some(sender) => (Bound::Included(*sender), Bound::Included(*sender)),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        self.accounts.range((from, to))
    }

    /// Counts the transactions of one sender or of all, and the bytes of their envelopes.
    pub(super) fn size(&self, of: Option<&Address>) -> (usize, usize) {
        match of {
            None => (self.by_hash.len(), self.bytes),
            Some(_) => self
                .queues(of)
                .flat_map(|(_, queue)| queue.entries())
                .fold((0, 0), |size, entry| (size.0 + 1, size.1 + entry.terms.bytes)),
        }
    }

    /// Bytes of a sender's transactions that this node's users submitted, except the one with this nonce.
    pub(super) fn local_bytes_beside(&self, sender: &Address, nonce: u64) -> usize {
        self.accounts.get(sender).map_or(0, |queue| queue.local_bytes_beside(nonce))
    }

    /// The transactions of this node's users, each sender's in nonce order, and whether they wait.
    pub(super) fn local(&self) -> impl Iterator<Item = (&T, bool)> {
        let entries = self.accounts.values().flat_map(|queue| {
            let ready_len = queue.ready_len();
            queue.entries().enumerate().map(move |(index, entry)| (entry, index >= ready_len))
        });
        entries.filter(|(entry, _)| entry.is_local).map(|(entry, waits)| (&entry.payload, waits))
    }

    /// Takes all transactions out in the order of their arrival, each with its sender's account.
    pub(super) fn drain(&mut self) -> Vec<(Entry<T>, AccountState)> {
        let accounts = |queue: &AccountQueue<T>| {
            let account = queue.state();
            queue
                .entries()
                .map(move |entry| (entry.sequence, entry.terms.sender, entry.terms.nonce, account))
                .collect::<Vec<_>>()
        };
        let mut places: Vec<_> = self.accounts.values().flat_map(accounts).collect();
        places.sort_unstable_by_key(|(sequence, ..)| *sequence);
        let taken = places.into_iter().filter_map(|(_, sender, nonce, account)| {
            self.take(&sender, nonce).map(|(entry, _)| (entry, account))
        });
        taken.collect()
    }

    /// Drops a transaction that turned out not to be executable.
    pub(super) fn remove(&mut self, hash: &B256) -> Option<T> {
        let (sender, nonce) = *self.by_hash.get(hash)?;
        let taken = self.take(&sender, nonce).map(|(entry, _)| entry.payload);
        self.trim_waiting();
        taken
    }

    /// Drops the executable transactions of each sender whose next transaction has stayed the same and executable for
    /// `max` sweeps. Those of this node's users stay for `local_max` sweeps. Also does [`Index::sweep_waiting`].
    /// Returns the dropped hashes.
    pub(super) fn sweep(&mut self, max: u64, local_max: u64) -> Vec<B256> {
        let sweeps = self.sweeps;
        let is_stuck = |since: u64, max: u64| is_older(sweeps, since, max);
        let queues = self.heads.iter().filter_map(|(_, _, sender)| self.accounts.get(sender));
        let ready = queues.flat_map(|queue| {
            let since = queue.head_since();
            let entries = queue.entries().take(queue.ready_len());
            // A transaction after one that stays may still be executed.
            entries.skip_while(move |entry| !is_stuck(since, if entry.is_local { local_max } else { max }))
        });
        let hashes: Vec<B256> = ready.map(|entry| entry.terms.hash).collect();
        // The last nonce first, so that no remaining one becomes a head in between.
        let mut swept: Vec<B256> =
            hashes.into_iter().rev().filter(|hash| self.remove(hash).is_some()).collect();
        swept.extend(self.sweep_waiting(local_max));
        swept
    }

    /// Drops transactions that have been here for `max` sweeps and wait for a nonce or for funds. Returns their hashes.
    pub(super) fn sweep_waiting(&mut self, max: u64) -> Vec<B256> {
        let sweeps = self.sweeps;
        self.sweeps += 1;
        let waiting = self.accounts.values().flat_map(|queue| queue.entries().skip(queue.ready_len()));
        let old = waiting.filter(|entry| is_older(sweeps, entry.since, max));
        let hashes: Vec<B256> = old.map(|entry| entry.terms.hash).collect();
        hashes.into_iter().filter(|hash| self.remove(hash).is_some()).collect()
    }

    /// Takes a sender's account as a later batch left it, and drops the transactions that the batch used up.
    pub(super) fn advance(&mut self, sender: &Address, state: AccountState) {
        if !self.accounts.contains_key(sender) {
            return;
        }
        for entry in self.edit(sender, state, |queue| queue.advance(state)) {
            self.forget(&entry);
        }
        if state.has_code {
            // The account was delegated: see `check_delegation`.
            while let Some(queue) = self.accounts.get(sender)
                && queue.len() > 1
                && let Some(nonce) = queue.tail_nonce()
            {
                self.take(sender, nonce);
            }
        }
        self.trim_waiting();
    }

    fn place(&mut self, entry: Entry<T>, state: AccountState) {
        let (sender, nonce) = (entry.terms.sender, entry.terms.nonce);
        self.by_hash.insert(entry.terms.hash, (sender, nonce));
        self.bytes += entry.terms.bytes;
        for (authority, nonce) in &entry.terms.authorities {
            *self.authorities.entry(*authority).or_default().entry(*nonce).or_default() += 1;
        }
        self.edit(&sender, state, |queue| queue.insert(entry));
    }

    fn take(&mut self, sender: &Address, nonce: u64) -> Option<(Entry<T>, AccountState)> {
        let state = self.account(sender)?;
        let entry = self.edit(sender, state, |queue| queue.remove(nonce))?;
        self.forget(&entry);
        Some((entry, state))
    }

    fn forget(&mut self, entry: &Entry<T>) {
        self.by_hash.remove(&entry.terms.hash);
        self.bytes -= entry.terms.bytes;
        for (authority, nonce) in &entry.terms.authorities {
            let Some(nonces) = self.authorities.get_mut(authority) else { continue };
            if let Some(count) = nonces.get_mut(nonce) {
                *count -= 1;
            }
            nonces.retain(|_, count| *count > 0);
            if nonces.is_empty() {
                self.authorities.remove(authority);
            }
        }
    }

    /// Changes a sender's queue. Every change goes through here, so that rankings and counts follow it.
    fn edit<R>(
        &mut self,
        sender: &Address,
        state: AccountState,
        change: impl FnOnce(&mut AccountQueue<T>) -> R,
    ) -> R {
        let queue = self.accounts.entry(*sender).or_insert_with(|| AccountQueue::new(state));
        let keys = |queue: &AccountQueue<T>| {
            (queue.head_key(), queue.tail_key(), queue.ready_len(), queue.ready_bytes())
        };
        let before = keys(queue);
        let result = change(queue);
        let after = keys(queue);
        if before.0 != after.0 {
            queue.set_head_since(self.sweeps);
        }
        if queue.is_empty() {
            self.accounts.remove(sender);
        }
        replace(&mut self.heads, before.0, after.0);
        replace(&mut self.tails, before.1, after.1);
        self.ready = self.ready - before.2 + after.2;
        self.ready_bytes = self.ready_bytes - before.3 + after.3;
        result
    }
}

/// Whether `max` sweeps have passed since `since`, if the count is `sweeps` now.
fn is_older(sweeps: u64, since: u64, max: u64) -> bool {
    sweeps.checked_sub(max).is_some_and(|limit| since <= limit)
}

fn replace<K: Ord>(ranking: &mut BTreeSet<K>, before: Option<K>, after: Option<K>) {
    if before != after {
        if let Some(key) = before {
            ranking.remove(&key);
        }
        ranking.extend(after);
    }
}
