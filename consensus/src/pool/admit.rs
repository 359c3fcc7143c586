//! Admits transactions to the pool: first the checks that need no account, then those against the sender's account.

use alloy_primitives::{Address, B256};
use slipstream_executor::{Transaction, check_static};
use slipstream_storage::StorageError;
use slipstream_types::{BatchNumber, ChainConfig};
use tokio::time::Instant;

use super::{
    DropReason, Pool, PoolError, State,
    account_queue::{AccountState, Terms},
    index::Arrival,
};

/// Arrivals between two notices to a waiting proposer, so that it sees a full batch early and is not woken by each one.
const ARRIVALS_PER_NOTICE: u64 = 512;

/// The source of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A user of this node.
    Wallet,
    /// Another node, which may not know the outcome yet.
    Peer,
}

/// A transaction that passed the checks that need neither sender nor account.
pub(crate) struct Checked(Terms);

impl Pool {
    /// Takes a transaction of a user of this node, or returns why not.
    pub fn add(&self, transaction: Transaction) -> Result<(), PoolError> {
        self.add_from(transaction, Origin::Wallet)
    }

    pub(crate) fn add_from(&self, transaction: Transaction, origin: Origin) -> Result<(), PoolError> {
        let checked = self.check_dropped(&transaction.hash, origin).and_then(|()| self.terms(&transaction));
        self.counted(checked.and_then(|terms| self.try_add(transaction, terms, origin)))
    }

    /// Takes a peer's transaction that was checked before its sender was recovered.
    pub(crate) fn add_checked(&self, transaction: Transaction, checked: Checked) -> Result<(), PoolError> {
        self.counted(self.try_add(transaction, checked.0, Origin::Peer))
    }

    fn counted<T>(&self, result: Result<T, PoolError>) -> Result<T, PoolError> {
        result.inspect_err(|error| self.count_refused(error.reason(), 1))
    }

    fn try_add(&self, transaction: Transaction, terms: Terms, origin: Origin) -> Result<(), PoolError> {
        let sender = transaction.sender;
        let terms = Terms { sender, authorities: authorities(&transaction, &self.shared.chain), ..terms };
        let mut state = self.shared.state.lock();
        if let Some(account) = state.index.account(&sender) {
            return self.insert(&mut state, terms, transaction, account, origin);
        }
        drop(state);
        let (number, account) = self.read(&sender)?;
        state = self.shared.state.lock();
        // A batch was committed in between: read again, now that the lock keeps the pool from moving on.
        let account = if number < state.head { self.read(&sender)?.1 } else { account };
        self.insert(&mut state, terms, transaction, account, origin)
    }

    /// Refuses a dropped transaction for a while, so that two nodes do not pass it back and forth for ever. One that
    /// merely expired may come again from its owner.
    fn check_dropped(&self, hash: &B256, origin: Origin) -> Result<(), PoolError> {
        match self.shared.state.lock().dropped.get(hash, Instant::now()) {
            Some(DropReason::Expired) if origin == Origin::Wallet => Ok(()),
            Some(reason) => Err(PoolError::Dropped { hash: *hash, reason }),
            None => Ok(()),
        }
    }

    /// Checks a peer's transaction before its sender is recovered, by the rules that need neither sender nor account.
    /// Ignores the sender that the transaction names.
    pub(crate) fn check_unrecovered(&self, transaction: &Transaction) -> Result<Checked, PoolError> {
        let checked =
            self.check_dropped(&transaction.hash, Origin::Peer).and_then(|()| self.terms(transaction));
        self.counted(checked.and_then(|terms| {
            let lowest_wei = self.shared.state.lock().index.tip_min_wei(Instant::now());
            match terms.tip_wei {
                tip_wei if tip_wei < lowest_wei => Err(PoolError::Underpriced { tip_wei, lowest_wei }),
                _ => Ok(Checked(terms)),
            }
        }))
    }

    fn insert(
        &self,
        state: &mut State,
        terms: Terms,
        transaction: Transaction,
        account: AccountState,
        origin: Origin,
    ) -> Result<(), PoolError> {
        let (pending, hash, at) = (state.index.ready(), terms.hash, Instant::now());
        let arrival = Arrival { at, is_local: origin == Origin::Wallet };
        self.shared.senders.keep(&transaction);
        let arrived = transaction.clone();
        state.index.insert(terms, transaction, account, arrival)?;
        state.dropped.forget(&hash);
        state.arrivals.push(hash, arrived.raw.len(), arrived);
        self.shared.counted.send_replace(state.arrivals.count());
        if pending == 0 || state.index.sequence().is_multiple_of(ARRIVALS_PER_NOTICE) {
            self.shared.arrived.notify_one();
        }
        Ok(())
    }

    fn read(&self, sender: &Address) -> Result<(BatchNumber, AccountState), StorageError> {
        let view = self.shared.store.view()?;
        let account = view.account(sender)?.unwrap_or_default();
        Ok((view.head().number, account.into()))
    }

    /// Runs the checks that need no account. Leaves out the authorities, each of which costs a signature recovery.
    pub(super) fn terms(&self, transaction: &Transaction) -> Result<Terms, PoolError> {
        let rules = *self.shared.rules.read();
        check_static(transaction, &rules)?;
        let (gas_limit, max) = (transaction.gas_limit(), rules.gas_limit);
        if gas_limit > max {
            return Err(PoolError::GasLimit { gas_limit, max });
        }
        let (base_fee_wei, max_fee_wei) = (rules.base_fee_wei, transaction.max_fee_wei());
        let Some(tip_wei) = transaction.tip_wei(base_fee_wei) else {
            return Err(PoolError::FeeBelowBase { max_fee_wei, base_fee_wei });
        };
        Ok(Terms {
            hash: transaction.hash,
            sender: transaction.sender,
            nonce: transaction.nonce(),
            gas_limit,
            bytes: transaction.raw.len(),
            cost_max: transaction.cost_max(),
            max_fee_wei,
            // Without a base fee the effective tip is the tip's own cap.
            tip_cap_wei: transaction.tip_wei(0).unwrap_or(tip_wei),
            tip_wei,
            authorities: Vec::new(),
        })
    }
}

/// The accounts that the transaction would delegate, with their nonces, without duplicates.
fn authorities(transaction: &Transaction, chain: &ChainConfig) -> Vec<(Address, u64)> {
    let mut authorities: Vec<(Address, u64)> = transaction.authorities(chain.chain_id).collect();
    authorities.sort_unstable();
    authorities.dedup();
    authorities
}
