//! Decides which transaction gets a place in the pool, and which is evicted for it.

use std::collections::BTreeMap;

use alloy_primitives::Address;
use tokio::time::Instant;

use super::{
    super::{
        account_queue::{AccountQueue, AccountState, Entry, Terms, Worth},
        error::PoolError,
    },
    Index,
};
use crate::config::PoolConfig;

/// Divisor: the share of the pool for transactions that wait for a nonce or for funds. They cost nothing until somebody
/// executes them.
const WAITING_SHARE: usize = 4;
/// Surcharge over a full pool's floor, in percent, for newcomers whose sender has more than a few transactions here.
const FLOOR_BUMP_PERCENT: u64 = 10;

/// The entry price is right for transactions up to this size. A longer one may have to evict several, the last of which
/// pays more.
const ORDINARY_BYTES: usize = 4 << 10;

/// The transaction that a newcomer with the same sender and nonce replaces, if there is one.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Replaced {
    pub(super) count: usize,
    bytes: usize,
    waits: bool,
}

impl Replaced {
    pub(super) fn of<T>(old: Option<&Entry<T>>, queue: Option<&AccountQueue<T>>) -> Replaced {
        let Some(old) = old else { return Replaced::default() };
        let waits = queue.is_none_or(|queue| queue.ready(old.terms.nonce).is_none());
        Replaced { count: 1, bytes: old.terms.bytes, waits }
    }
}

impl<T: Clone> Index<T> {
    /// Least tip that a newcomer must offer, in wei per gas. A pool that is less than half full asks for none.
    pub(in crate::pool) fn tip_min_wei(&self, now: Instant) -> u128 {
        let is_roomy =
            self.by_hash.len() < self.config.transactions_max / 2 && self.bytes < self.config.bytes_max / 2;
        if is_roomy { 0 } else { self.floor.wei(now) }
    }

    /// Tip in wei per gas that admits any new executable transaction now, unless it is one of the longest. This tip is
    /// above the floor of a pool that was full, and above what a full pool would evict.
    pub(in crate::pool) fn entry_tip_wei(&self, now: Instant) -> u128 {
        let floor_wei = self.tip_min_wei(now);
        let PoolConfig { transactions_max, bytes_max, .. } = self.config;
        let is_full = self.by_hash.len() >= transactions_max || self.bytes + ORDINARY_BYTES > bytes_max;
        let victim = self.tails.first().filter(|_| is_full).map(|(worth, ..)| *worth);
        let above_wei = match victim {
            Some(Worth::Ready { floor_wei: victim_wei, .. }) => Some(floor_wei.max(victim_wei)),
            Some(Worth::Waiting(_)) | None => Some(floor_wei).filter(|floor_wei| *floor_wei > 0),
        };
        above_wei.map_or(0, |wei| bumped(wei, FLOOR_BUMP_PERCENT))
    }

    /// Allows an account only one transaction here if others may use its nonces and money, as in geth. Otherwise one
    /// transaction of those others could invalidate many that this node has accepted and passed on.
    pub(super) fn check_delegation(
        &self,
        terms: &Terms,
        account: AccountState,
        replaced: usize,
    ) -> Result<(), PoolError> {
        let sender = terms.sender;
        let len = |address: &Address| self.accounts.get(address).map_or(0, AccountQueue::len);
        let others = len(&sender) - replaced;
        // An authorization of a used nonce has no effect any more.
        let is_live = |nonces: &BTreeMap<u64, usize>| nonces.range(account.nonce..).next().is_some();
        let is_limited = account.has_code || self.authorities.get(&sender).is_some_and(is_live);
        if is_limited && (others > 0 || terms.nonce != account.nonce) {
            return Err(PoolError::InFlightLimit { sender });
        }
        let is_reserved = |(authority, nonce): &&(Address, u64)| {
            len(authority) > 1 && self.account(authority).is_some_and(|account| account.nonce <= *nonce)
        };
        match terms.authorities.iter().find(is_reserved) {
            Some((authority, _)) => Err(PoolError::AuthorityReserved { authority: *authority }),
            None => Ok(()),
        }
    }

    /// Evicts until the newcomer fits, or restores everything. The transaction that it replaces stays meanwhile, so
    /// that those after it keep their worth.
    pub(super) fn make_room(
        &mut self,
        terms: &Terms,
        account: AccountState,
        replaced: Replaced,
        now: Instant,
    ) -> Result<(), PoolError> {
        let mut removed = Vec::new();
        let worth = match self.accounts.get(&terms.sender) {
            Some(queue) => queue.worth_of(terms),
            None => AccountQueue::<T>::new(account).worth_of(terms),
        };
        let mut dearest_wei = None;
        let is_replacement = replaced.count > 0;
        let mut made = if is_replacement { Ok(()) } else { self.check_floor(terms, worth, now) };
        while made.is_ok() && self.is_full_for(terms, worth, replaced) {
            made = self.victim(terms, worth, is_replacement).map(|(sender, nonce, worth)| {
                removed.extend(self.take(&sender, nonce));
                if let Worth::Ready { floor_wei, .. } = worth {
                    dearest_wei = dearest_wei.max(Some(floor_wei));
                }
            });
        }
        if made.is_err() {
            // The lowest nonce of a sender was removed last, and only its entry may have the account's state.
            for (entry, state) in removed.into_iter().rev() {
                self.place(entry, state);
            }
        } else if let Some(wei) = dearest_wei {
            self.floor.raise(wei, now);
        }
        made
    }

    fn is_full_for(&self, terms: &Terms, worth: Worth, replaced: Replaced) -> bool {
        let PoolConfig { transactions_max, bytes_max, .. } = self.config;
        let is_over = |count: usize, count_max: usize, bytes: usize, bytes_max: usize| {
            count >= count_max || bytes.saturating_add(terms.bytes) > bytes_max
        };
        let waited = if replaced.waits { replaced } else { Replaced::default() };
        let (waiting, waiting_bytes) = (self.waiting() - waited.count, self.waiting_bytes() - waited.bytes);
        let (count, bytes) = (self.by_hash.len() - replaced.count, self.bytes - replaced.bytes);
        let waits = matches!(worth, Worth::Waiting(_));
        is_over(count, transactions_max, bytes, bytes_max)
            || waits && is_over(waiting, self.waiting_max(), waiting_bytes, self.waiting_bytes_max())
    }

    pub(super) fn waiting(&self) -> usize {
        self.by_hash.len() - self.ready
    }

    fn waiting_max(&self) -> usize {
        (self.config.transactions_max / WAITING_SHARE).max(1)
    }

    fn waiting_bytes(&self) -> usize {
        self.bytes - self.ready_bytes
    }

    fn waiting_bytes_max(&self) -> usize {
        self.config.bytes_max / WAITING_SHARE
    }

    fn check_floor(&self, terms: &Terms, worth: Worth, now: Instant) -> Result<(), PoolError> {
        let floor_wei = self.tip_min_wei(now);
        let (tip_wei, pays_more) = match worth {
            Worth::Ready { floor_wei, is_within_slots } => (floor_wei, !is_within_slots),
            Worth::Waiting(_) => (terms.tip_wei, true),
        };
        let lowest_wei =
            if pays_more && floor_wei > 0 { bumped(floor_wei, FLOOR_BUMP_PERCENT) } else { floor_wei };
        if tip_wei < lowest_wei {
            return Err(PoolError::Underpriced { tip_wei, lowest_wei });
        }
        Ok(())
    }

    /// Returns the least worthy of the senders' last transactions, if it is worth less than the newcomer. A replacement
    /// evicts no other transaction of its own sender.
    fn victim(
        &self,
        terms: &Terms,
        worth: Worth,
        is_replacement: bool,
    ) -> Result<(Address, u64, Worth), PoolError> {
        let full = PoolError::Full { transactions: self.by_hash.len(), bytes: self.bytes };
        let is_spared = |sender: &Address| is_replacement && *sender == terms.sender;
        let Some((victim_worth, _, sender)) = self.tails.iter().find(|(_, _, sender)| !is_spared(sender))
        else {
            return Err(full);
        };
        let nonce = self.accounts.get(sender).and_then(AccountQueue::tail_nonce).unwrap_or_default();
        // The newcomer must not evict its sender's earlier transactions, because it is executable only after them.
        if *sender == terms.sender && nonce < terms.nonce {
            return Err(full);
        }
        if *victim_worth >= worth {
            return Err(match (worth, *victim_worth) {
                (Worth::Ready { floor_wei: tip_wei, .. }, Worth::Ready { floor_wei: lowest_wei, .. }) => {
                    PoolError::Underpriced { tip_wei, lowest_wei }
                }
                _ => full,
            });
        }
        Ok((*sender, nonce, *victim_worth))
    }

    /// Evicts waiting transactions beyond their share: transactions that are no longer executable may overfill it. Each
    /// is taken from the sender with the most.
    pub(super) fn trim_waiting(&mut self) {
        while self.waiting() > self.waiting_max() || self.waiting_bytes() > self.waiting_bytes_max() {
            let Some((Worth::Waiting(_), _, sender)) = self.tails.first().copied() else { return };
            let Some(nonce) = self.accounts.get(&sender).and_then(AccountQueue::tail_nonce) else { return };
            self.take(&sender, nonce);
        }
    }
}

/// Raises a fee by the percentage, and by at least 1 wei.
fn bumped(fee_wei: u128, percent: u64) -> u128 {
    let bump = fee_wei.saturating_mul(percent.into()).div_ceil(100);
    fee_wei.saturating_add(bump.max(1))
}

/// Checks that a replacement raises both fees by the percentage, and by at least 1 wei, so that replacing in circles
/// costs money.
pub(super) fn check_replacement(old: &Terms, new: &Terms, percent: u64) -> Result<(), PoolError> {
    let (max_fee_wei, tip_wei) = (bumped(old.max_fee_wei, percent), bumped(old.tip_cap_wei, percent));
    if new.max_fee_wei < max_fee_wei || new.tip_cap_wei < tip_wei {
        return Err(PoolError::ReplacementUnderpriced { replaced: old.hash, max_fee_wei, tip_wei });
    }
    Ok(())
}
