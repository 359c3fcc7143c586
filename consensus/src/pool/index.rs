//! The pool's order and limits, without a store: a plain structure over any payload.

use std::collections::{BTreeSet, HashMap};

use alloy_primitives::{Address, B256};
use slipstream_executor::Room;

use super::{
    PoolError, PoolStatus,
    account_queue::{AccountQueue, AccountState, Entry, HeadKey, TailKey, Terms},
    candidates::Cursor,
};
use crate::config::PoolConfig;

/// Every transaction under its sender, with the senders ranked by what they would have executed next and by what they would
/// lose first. The two rankings hold one entry per sender, so that both a batch's candidates and a victim are found
/// without looking at the rest.
#[derive(Debug)]
pub(super) struct Index<T> {
    config: PoolConfig,
    accounts: HashMap<Address, AccountQueue<T>>,
    by_hash: HashMap<B256, (Address, u64)>,
    heads: BTreeSet<HeadKey>,
    tails: BTreeSet<TailKey>,
    bytes: usize,
    ready: usize,
    sequence: u64,
    sweeps: u64,
}

impl<T: Clone> Index<T> {
    pub(super) fn new(config: PoolConfig) -> Self {
        Self {
            config,
            accounts: HashMap::new(),
            by_hash: HashMap::new(),
            heads: BTreeSet::new(),
            tails: BTreeSet::new(),
            bytes: 0,
            ready: 0,
            sequence: 0,
            sweeps: 0,
        }
    }

    pub(super) fn status(&self) -> PoolStatus {
        PoolStatus { pending: self.ready, queued: self.by_hash.len() - self.ready, bytes: self.bytes }
    }

    /// How many transactions were ever taken; a transaction's own number is below every later value of this.
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

    /// Takes a transaction. `account` is its sender's state, used unless the sender is known here.
    pub(super) fn insert(
        &mut self,
        terms: Terms,
        payload: T,
        account: AccountState,
    ) -> Result<(), PoolError> {
        if self.contains(&terms.hash) {
            return Err(PoolError::AlreadyKnown { hash: terms.hash });
        }
        let account = self.account(&terms.sender).unwrap_or(account);
        self.check_account(&terms, account)?;
        let old = self.accounts.get(&terms.sender).and_then(|queue| queue.get(terms.nonce));
        let replaced = match old {
            Some(old) => {
                check_replacement(&old.terms, &terms, self.config.price_bump_percent)?;
                true
            }
            None => false,
        };
        self.make_room(&terms, account, replaced)?;
        let sequence = self.sequence;
        self.sequence += 1;
        self.place(Entry { terms, sequence, payload }, account);
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

    /// Evicts until the newcomer fits, or leaves everything as it was.
    fn make_room(&mut self, terms: &Terms, account: AccountState, replaced: bool) -> Result<(), PoolError> {
        let mut removed = Vec::new();
        if replaced {
            removed.extend(self.take(&terms.sender, terms.nonce));
        }
        let ready = match self.accounts.get(&terms.sender) {
            Some(queue) => queue.accepts_as_ready(terms),
            None => terms.nonce == account.nonce,
        };
        while self.by_hash.len() >= self.config.transactions_max
            || self.bytes.saturating_add(terms.bytes) > self.config.bytes_max
        {
            match self.victim(terms, ready) {
                Ok((sender, nonce)) => removed.extend(self.take(&sender, nonce)),
                Err(error) => {
                    // The lowest nonce of a sender was removed last and may be the only one that knows the account.
                    for (entry, state) in removed.into_iter().rev() {
                        self.place(entry, state);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The last transaction of the sender whose last one pays least, if it is worth less than the newcomer.
    fn victim(&self, terms: &Terms, ready: bool) -> Result<(Address, u64), PoolError> {
        let full = PoolError::Full { transactions: self.by_hash.len(), bytes: self.bytes };
        let Some((victim_ready, tip_wei, _, sender)) = self.tails.first() else {
            return Err(full);
        };
        let nonce = self.accounts.get(sender).and_then(AccountQueue::tail_nonce).unwrap_or_default();
        // A sender's earlier transaction is what makes the newcomer executable.
        if *sender == terms.sender && nonce < terms.nonce {
            return Err(full);
        }
        if (*victim_ready, *tip_wei) >= (ready, terms.tip_wei) {
            return Err(if ready {
                PoolError::Underpriced { tip_wei: terms.tip_wei, lowest_wei: *tip_wei }
            } else {
                full
            });
        }
        Ok((*sender, nonce))
    }

    /// Drops a transaction that turned out not to be executable.
    pub(super) fn remove(&mut self, hash: &B256) -> Option<T> {
        let (sender, nonce) = *self.by_hash.get(hash)?;
        self.take(&sender, nonce).map(|(entry, _)| entry.payload)
    }

    /// Drops the executable transactions of every sender whose next one has been executable, and the same, for `max` sweeps.
    /// Says how many.
    pub(super) fn sweep(&mut self, max: u64) -> usize {
        let limit = self.sweeps.checked_sub(max);
        self.sweeps += 1;
        let is_stuck = |queue: &AccountQueue<T>| limit.is_some_and(|limit| queue.head_since() <= limit);
        let queues = self.heads.iter().filter_map(|(_, _, sender)| self.accounts.get(sender));
        let stuck = queues.filter(|queue| is_stuck(queue));
        let ready = stuck.flat_map(|queue| queue.entries().take(queue.ready_len()));
        let hashes: Vec<B256> = ready.map(|entry| entry.terms.hash).collect();
        // The last nonce first, so that no rest of them becomes another head in between.
        hashes.iter().rev().filter(|hash| self.remove(hash).is_some()).count()
    }

    /// Takes a sender's account as a later batch left it, and drops what that batch used up.
    pub(super) fn advance(&mut self, sender: &Address, state: AccountState) {
        if !self.accounts.contains_key(sender) {
            return;
        }
        for entry in self.edit(sender, state, |queue| queue.advance(state)) {
            self.forget(&entry);
        }
    }

    /// The best executable transaction that the cursor has not seen and that fits. What the draw before gave counts as taken,
    /// unless it was left out.
    pub(super) fn draw(&self, cursor: &mut Cursor, room: Room) -> Option<T> {
        if let Some((sender, nonce)) = cursor.drawn.take()
            && let Some(entry) = self.ready(&sender, nonce + 1)
        {
            cursor.opened.push((entry.head_key(), nonce + 1));
        }
        for _ in 0..cursor.patience(room) {
            let (sender, nonce) = self.next_ranked(cursor)?;
            // None if the pool dropped it since it was opened.
            if let Some(entry) = self.ready(&sender, nonce)
                && room.fits(entry.terms.gas_limit, entry.terms.bytes)
            {
                cursor.drawn = Some((sender, nonce));
                return Some(entry.payload.clone());
            }
            cursor.misfits += 1;
        }
        None
    }

    /// Moves the cursor on by one, in the order of the tips.
    fn next_ranked(&self, cursor: &mut Cursor) -> Option<(Address, u64)> {
        let head = match &cursor.below {
            None => self.heads.last(),
            Some(below) => self.heads.range(..below).next_back(),
        };
        if cursor.opened.peek().is_some_and(|(key, _)| head.is_none_or(|head| key > head)) {
            return cursor.opened.pop().map(|((_, _, sender), nonce)| (sender, nonce));
        }
        let head = *head?;
        cursor.below = Some(head);
        let (_, _, sender) = head;
        self.account(&sender).map(|account| (sender, account.nonce))
    }

    fn ready(&self, sender: &Address, nonce: u64) -> Option<&Entry<T>> {
        self.accounts.get(sender)?.ready(nonce)
    }

    /// Executable transactions that arrived before `sequence` was read, at most `max`.
    pub(super) fn lingering(&self, sequence: u64, max: usize) -> Vec<T> {
        let heads = self.heads.iter().rev().filter_map(|(_, _, sender)| self.accounts.get(sender));
        let entries = heads.flat_map(|queue| queue.entries().take(queue.ready_len()));
        entries
            .filter(|entry| entry.sequence < sequence)
            .take(max)
            .map(|entry| entry.payload.clone())
            .collect()
    }

    fn place(&mut self, entry: Entry<T>, state: AccountState) {
        let (sender, nonce) = (entry.terms.sender, entry.terms.nonce);
        self.by_hash.insert(entry.terms.hash, (sender, nonce));
        self.bytes += entry.terms.bytes;
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
    }

    /// The one place where a sender's queue changes, so that rankings and counts follow it.
    fn edit<R>(
        &mut self,
        sender: &Address,
        state: AccountState,
        change: impl FnOnce(&mut AccountQueue<T>) -> R,
    ) -> R {
        let queue = self.accounts.entry(*sender).or_insert_with(|| AccountQueue::new(state));
        let before = (queue.head_key(), queue.tail_key(), queue.ready_len());
        let result = change(queue);
        let after = (queue.head_key(), queue.tail_key(), queue.ready_len());
        if before.0 != after.0 {
            queue.set_head_since(self.sweeps);
        }
        if queue.is_empty() {
            self.accounts.remove(sender);
        }
        replace(&mut self.heads, before.0, after.0);
        replace(&mut self.tails, before.1, after.1);
        self.ready = self.ready - before.2 + after.2;
        result
    }
}

fn replace<K: Ord>(ranking: &mut BTreeSet<K>, before: Option<K>, after: Option<K>) {
    if before != after {
        if let Some(key) = before {
            ranking.remove(&key);
        }
        ranking.extend(after);
    }
}

/// A replacement must raise both fees by the percentage, and by at least 1 wei, so that replacing in circles costs money.
fn check_replacement(old: &Terms, new: &Terms, percent: u64) -> Result<(), PoolError> {
    let bumped = |fee: u128| {
        let bump = fee.saturating_mul(percent.into()).div_ceil(100);
        fee.saturating_add(bump.max(1))
    };
    let (max_fee_wei, tip_wei) = (bumped(old.max_fee_wei), bumped(old.tip_cap_wei));
    if new.max_fee_wei < max_fee_wei || new.tip_cap_wei < tip_wei {
        return Err(PoolError::ReplacementUnderpriced { replaced: old.hash, max_fee_wei, tip_wei });
    }
    Ok(())
}
