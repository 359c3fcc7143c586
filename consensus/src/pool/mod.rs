//! The transaction pool: bounded, ordered by nonce within a sender and by effective tip across senders.
//!
//! The order and the limits are in `index` and know no store; a proposer draws from it by `candidates`. This module adds what
//! knows a store: the senders' accounts are read from the state at the head when a transaction arrives, and follow the committed
//! batches afterwards ([`Pool::catch_up`], [`maintain`]).

mod account_queue;
mod arrivals;
mod candidates;
mod index;
mod maintain;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use alloy_primitives::{Address, B256, U256};
use parking_lot::Mutex;
use serde::Serialize;
use slipstream_executor::{Rejection, Transaction, check_static};
use slipstream_storage::{StorageError, Store};
use slipstream_types::{AccountValue, BatchNumber, ChainConfig};
use tokio::sync::{Notify, futures::Notified};

use self::{
    account_queue::{AccountState, Terms},
    arrivals::Arrivals,
    index::Index,
};
use crate::config::PoolConfig;

pub use self::{candidates::Candidates, maintain::maintain};

/// How many times [`Pool::expire`] finds a transaction executable before it is dropped.
const SWEEPS_MAX: u64 = 10;

/// So often is a waiting proposer told of arrivals, so that it sees a full batch early and is not woken by every one.
const ARRIVALS_PER_NOTICE: u64 = 512;

/// A handle to the pool; clones share it.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    chain: ChainConfig,
    store: Store,
    state: Mutex<State>,
    /// Told when the pool stops being empty, and now and then while it fills.
    arrived: Notify,
}

/// The accounts in `index` are as of batch `head` or later.
struct State {
    index: Index<Transaction>,
    arrivals: Arrivals,
    head: BatchNumber,
    /// The head at the last [`Pool::expire`].
    swept: BatchNumber,
}

/// What the pool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoolStatus {
    /// Transactions that can execute now.
    pub pending: usize,
    /// Transactions that wait for a lower nonce or for funds.
    pub queued: usize,
    /// Bytes of all envelopes.
    pub bytes: usize,
}

/// Why a transaction was not taken. The texts begin as Ethereum's clients write them, because tools look for that.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The sender has already used this nonce.
    #[error("nonce too low: transaction has {nonce}, the account's next is {next}")]
    NonceTooLow {
        /// The transaction's.
        nonce: u64,
        /// The account's.
        next: u64,
    },
    /// Too far ahead of the account, or the sender has as many transactions here as it may.
    #[error(
        "nonce too high: transaction has {nonce}, the account's next is {next} and at most {max} may wait"
    )]
    NonceTooHigh {
        /// The transaction's.
        nonce: u64,
        /// The account's.
        next: u64,
        /// [`PoolConfig::per_sender_max`].
        max: u64,
    },
    /// The balance does not cover value and gas.
    #[error("insufficient funds for gas * price + value: balance {balance_wei} wei, needed {cost_wei} wei")]
    InsufficientFunds {
        /// The most that the transaction can cost.
        cost_wei: U256,
        /// What the account has.
        balance_wei: U256,
    },
    /// The pool is full of transactions that pay at least as much.
    #[error(
        "transaction underpriced: tip of {tip_wei} wei per gas, the pool is full and its lowest is {lowest_wei} wei"
    )]
    Underpriced {
        /// What it would pay to the proposer per gas.
        tip_wei: u128,
        /// What the next one to be evicted pays.
        lowest_wei: u128,
    },
    /// Another transaction with the same sender and nonce pays too much to be replaced by this one.
    #[error(
        "replacement transaction underpriced: to replace {replaced} the fee cap must be at least {max_fee_wei} wei and the \
         tip at least {tip_wei} wei per gas"
    )]
    ReplacementUnderpriced {
        /// The transaction in the pool.
        replaced: B256,
        /// Lowest fee cap that replaces it.
        max_fee_wei: u128,
        /// Lowest tip that replaces it.
        tip_wei: u128,
    },
    /// No room, and nothing in the pool is worth less.
    #[error("txpool is full: {transactions} transactions, {bytes} bytes; retry later")]
    Full {
        /// Transactions in it.
        transactions: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// It is in the pool.
    #[error("already known: {hash}")]
    AlreadyKnown {
        /// The transaction.
        hash: B256,
    },
    /// No batch can hold it.
    #[error("exceeds block gas limit: the transaction asks for {gas_limit}, a batch has {max}")]
    GasLimit {
        /// The transaction's.
        gas_limit: u64,
        /// The chain's limit for one batch.
        max: u64,
    },
    /// It breaks a rule whatever the state is, so that it could never be executed.
    #[error("{0}")]
    Invalid(#[from] Rejection),
    /// It cannot pay the chain's base fee.
    #[error(
        "max fee per gas less than block base fee: {max_fee_wei} wei offered, the base fee is {base_fee_wei} wei"
    )]
    FeeBelowBase {
        /// The transaction's fee cap.
        max_fee_wei: u128,
        /// The chain's base fee.
        base_fee_wei: u64,
    },
    /// The sender's account could not be read.
    #[error("the sender's account could not be read")]
    Storage(#[from] StorageError),
}

impl PoolError {
    /// Whether the same transaction can be taken later without being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, PoolError::Full { .. } | PoolError::Underpriced { .. } | PoolError::Storage(_))
    }
}

impl Pool {
    /// An empty pool over the state of an initialised store.
    pub fn new(config: PoolConfig, chain: ChainConfig, store: Store) -> Result<Pool, StorageError> {
        let head = store.head()?.header.number;
        let state =
            Mutex::new(State { index: Index::new(config), arrivals: Arrivals::default(), head, swept: head });
        Ok(Pool { shared: Arc::new(Shared { chain, store, state, arrived: Notify::new() }) })
    }

    /// Takes a transaction, or says why not.
    pub fn add(&self, transaction: Transaction) -> Result<(), PoolError> {
        let terms = self.terms(&transaction)?;
        let sender = terms.sender;
        let mut state = self.shared.state.lock();
        if let Some(account) = state.index.account(&sender) {
            return self.insert(&mut state, terms, transaction, account);
        }
        if state.index.contains(&terms.hash) {
            return Err(PoolError::AlreadyKnown { hash: terms.hash });
        }
        drop(state);
        let (number, account) = self.read(&sender)?;
        state = self.shared.state.lock();
        // A batch was committed in between: read again, now that the pool cannot move on.
        let account = if number < state.head { self.read(&sender)?.1 } else { account };
        self.insert(&mut state, terms, transaction, account)
    }

    fn insert(
        &self,
        state: &mut State,
        terms: Terms,
        transaction: Transaction,
        account: AccountState,
    ) -> Result<(), PoolError> {
        let (pending, hash) = (state.index.status().pending, terms.hash);
        state.index.insert(terms, transaction, account)?;
        state.arrivals.push(hash);
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

    /// The checks that need no account.
    fn terms(&self, transaction: &Transaction) -> Result<Terms, PoolError> {
        let chain = &self.shared.chain;
        check_static(transaction, chain)?;
        let (gas_limit, max) = (transaction.gas_limit(), chain.gas_limit);
        if gas_limit > max {
            return Err(PoolError::GasLimit { gas_limit, max });
        }
        let (base_fee_wei, max_fee_wei) = (chain.base_fee_wei, transaction.max_fee_wei());
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
        })
    }

    /// Whether the pool holds the transaction.
    pub fn contains(&self, hash: &B256) -> bool {
        self.shared.state.lock().index.contains(hash)
    }

    /// A transaction by its hash.
    pub fn get(&self, hash: &B256) -> Option<Transaction> {
        self.shared.state.lock().index.get(hash).cloned()
    }

    /// The nonce after the sender's executable transactions in the pool; none if it has no transaction here.
    pub fn pending_nonce(&self, sender: &Address) -> Option<u64> {
        self.shared.state.lock().index.pending_nonce(sender)
    }

    /// Drops what a proposer found not to be executable although it was its sender's turn. Others among `hashes` stay: they
    /// failed only because an earlier one of the same sender was left out.
    pub fn reject<'a>(&self, hashes: impl IntoIterator<Item = &'a B256>) {
        let mut state = self.shared.state.lock();
        for hash in hashes {
            let Some(transaction) = state.index.get(hash) else { continue };
            let (sender, nonce) = (transaction.sender, transaction.nonce());
            if state.index.account(&sender).is_some_and(|account| account.nonce == nonce) {
                state.index.remove(hash);
            }
        }
    }

    /// Called about once a minute by nodes that do not propose: drops what was executable for [`SWEEPS_MAX`] calls and is
    /// in no batch, because the proposer must have found it not to be. Time in which the chain stands does not count. Says
    /// how many went.
    pub(crate) fn expire(&self) -> usize {
        let mut state = self.shared.state.lock();
        if state.head == state.swept {
            return 0;
        }
        state.swept = state.head;
        state.index.sweep(SWEEPS_MAX)
    }

    /// How many transactions the pool has ever taken: a mark for [`Pool::arrived_since`].
    pub fn arrivals(&self) -> u64 {
        self.shared.state.lock().arrivals.count()
    }

    /// The hashes of at most `max` transactions that were taken after a mark, in that order, and the mark behind them. They may
    /// have left the pool since. Of many thousands the first are forgotten.
    pub fn arrived_since(&self, mark: u64, max: usize) -> (Vec<B256>, u64) {
        self.shared.state.lock().arrivals.since(mark, max)
    }

    /// Counts for status and metrics.
    pub fn status(&self) -> PoolStatus {
        self.shared.state.lock().index.status()
    }

    /// Resolves when the pool stops being empty, and now and then while it fills. One waits for it: the proposer.
    pub(crate) fn arrived(&self) -> Notified<'_> {
        self.shared.arrived.notified()
    }

    /// Marks a moment for [`Pool::lingering`].
    pub(crate) fn sequence(&self) -> u64 {
        self.shared.state.lock().index.sequence()
    }

    /// Executable transactions that are here since before the mark.
    pub(crate) fn lingering(&self, mark: u64, max: usize) -> Vec<Transaction> {
        self.shared.state.lock().index.lingering(mark, max)
    }
}

impl From<AccountValue> for AccountState {
    fn from(account: AccountValue) -> Self {
        AccountState { nonce: account.nonce, balance: account.balance }
    }
}
