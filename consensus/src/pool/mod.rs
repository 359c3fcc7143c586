//! The transaction pool: bounded, ordered by nonce within a sender and by effective tip across senders.
//!
//! `index` keeps the order and the limits, and knows no store; a proposer draws from it through `candidates`. `admit`
//! adds the store: it reads a sender's account from the head's state when a transaction arrives. From then on the
//! accounts follow the committed batches ([`Pool::catch_up`], [`maintain`]).

mod account_queue;
mod admit;
mod arrivals;
mod candidates;
mod content;
mod dropped;
mod error;
mod floor;
mod index;
mod maintain;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, sync::Arc};

use alloy_primitives::{Address, B256};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use slipstream_executor::{Senders, Transaction};
use slipstream_storage::{StorageError, Store};
use slipstream_types::{AccountValue, BatchHeader, BatchNumber, ChainConfig, Rules};
use tokio::{
    sync::{Notify, futures::Notified, watch},
    time::Instant,
};

use self::{
    account_queue::{AccountState, Circle},
    arrivals::Arrivals,
    dropped::Dropped,
    error::RefusedCounts,
    index::Index,
};
use crate::{config::PoolConfig, journal::Live};

#[cfg(test)]
pub(crate) use self::admit::Origin;
pub(crate) use self::candidates::Ahead;
pub use self::{
    candidates::Candidates,
    content::{ContentLimit, PoolContent, TooMuchContent},
    dropped::DropReason,
    error::{PoolError, Refused},
    maintain::maintain,
};

/// Number of [`Pool::expire`] calls that find a transaction executable before it is dropped.
const SWEEPS_MAX: u64 = 10;
/// The same for a transaction that was acknowledged to a user of this node, and for any that waits: three hours of
/// batches.
const LOCAL_SWEEPS_MAX: u64 = 180;

/// A handle to the pool; clones share it.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    chain: ChainConfig,
    /// The rules of the batch after the head, by the head's time. All transactions here were judged by them.
    rules: RwLock<Rules>,
    store: Store,
    senders: Arc<Senders>,
    state: Mutex<State>,
    /// Notified when the pool stops being empty, and now and then while it fills.
    arrived: Notify,
    /// The count of arrivals, for subscribers that pass them on.
    counted: watch::Sender<u64>,
    refused: RefusedCounts,
}

/// The accounts in `index` are as of batch `head` or later.
struct State {
    index: Index<Transaction>,
    arrivals: Arrivals<Transaction>,
    dropped: Dropped,
    head: BatchNumber,
    /// The head at the last [`Pool::expire`].
    swept: BatchNumber,
}

/// The size of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PoolStatus {
    /// Transactions that can execute now.
    pub pending: usize,
    /// Transactions that wait for a lower nonce or for funds.
    pub queued: usize,
    /// Bytes of all envelopes.
    pub bytes: usize,
    /// Least tip that a newcomer must offer, in wei per gas; 0 unless the pool was full a while ago.
    pub tip_min_wei: u64,
}

impl Pool {
    /// Makes an empty pool over the state of an initialised store.
    pub fn new(config: PoolConfig, chain: ChainConfig, store: Store) -> Result<Pool, StorageError> {
        let BatchHeader { number: head, timestamp_ms, .. } = store.head()?.header;
        let rules = RwLock::new(chain.rules_at(head.next(), timestamp_ms));
        let (index, dropped) = (Index::new(config, Instant::now()), Dropped::default());
        let state = Mutex::new(State { index, arrivals: Arrivals::default(), dropped, head, swept: head });
        let (arrived, refused) = (Notify::new(), RefusedCounts::default());
        let (senders, counted) = (Arc::default(), watch::Sender::new(0));
        Ok(Pool {
            shared: Arc::new(Shared { chain, rules, store, senders, state, arrived, counted, refused }),
        })
    }

    /// Senders of the transactions that the pool took, for others that meet the same transactions later.
    pub fn senders(&self) -> &Arc<Senders> {
        &self.shared.senders
    }

    /// Whether the pool holds the transaction.
    pub fn contains(&self, hash: &B256) -> bool {
        self.shared.state.lock().index.contains(hash)
    }

    /// A transaction by its hash.
    pub fn get(&self, hash: &B256) -> Option<Transaction> {
        self.shared.state.lock().index.get(hash).cloned()
    }

    /// The nonce after the sender's executable transactions in the pool, or `None` if it has no transaction here.
    pub fn pending_nonce(&self, sender: &Address) -> Option<u64> {
        self.shared.state.lock().index.pending_nonce(sender)
    }

    /// Drops transactions that a proposer found not executable in their sender's turn. The pool refuses them for a
    /// while: executing one again would cost as much and pay as little. Others among `hashes` stay, because they failed
    /// only after an earlier one of the same sender was left out.
    pub fn reject<'a>(&self, hashes: impl IntoIterator<Item = &'a B256>) {
        let mut state = self.shared.state.lock();
        for hash in hashes {
            let Some(transaction) = state.index.get(hash) else { continue };
            let (sender, nonce) = (transaction.sender, transaction.nonce());
            if state.index.account(&sender).is_some_and(|account| account.nonce == nonce) {
                self.drop_for(&mut state, hash, DropReason::NotExecutable);
            }
        }
    }

    /// Drops a transaction that the proposer could not execute. Returns whether it was here.
    pub(crate) fn refuse(&self, hash: &B256, reason: DropReason) -> bool {
        self.drop_for(&mut self.shared.state.lock(), hash, reason)
    }

    fn drop_for(&self, state: &mut State, hash: &B256, reason: DropReason) -> bool {
        let was_here = state.index.remove(hash).is_some();
        if was_here {
            state.dropped.insert(*hash, reason, Instant::now());
            self.count_refused(reason.refused(), 1);
        }
        was_here
    }

    /// Drops transactions that take longer than any batch may.
    pub(crate) fn drop_too_slow(&self, hashes: &[B256]) {
        let mut state = self.shared.state.lock();
        for hash in hashes {
            if self.drop_for(&mut state, hash, DropReason::TooSlow) {
                tracing::info!(%hash, "dropped a transaction that takes longer than the validators have for a batch");
            }
        }
    }

    /// Marks a transaction that came from a peer as a user's, too.
    pub(crate) fn adopt(&self, hash: &B256) {
        self.shared.state.lock().index.adopt(hash);
    }

    /// Marks transactions that are in the journal.
    pub(crate) fn mark_journaled<'a>(&self, hashes: impl IntoIterator<Item = &'a B256>) {
        let index = &mut self.shared.state.lock().index;
        hashes.into_iter().for_each(|hash| index.mark_journaled(hash));
    }

    /// Whether the transaction is here and in the journal.
    pub(crate) fn is_journaled(&self, hash: &B256) -> bool {
        self.shared.state.lock().index.is_journaled(hash)
    }

    /// Bytes of the sender's transactions that this node's users submitted, except the one that `transaction` would
    /// replace.
    pub(crate) fn local_bytes_beside(&self, transaction: &Transaction) -> u64 {
        let state = self.shared.state.lock();
        state.index.local_bytes_beside(&transaction.sender, transaction.nonce()) as u64
    }

    /// Drops transactions that were executable for [`SWEEPS_MAX`] calls and are in no batch: the proposer must have
    /// failed to execute them. Also does [`Pool::expire_waiting`]. Nodes that do not propose call it about once a
    /// minute. Time in which the chain stands does not count. Returns the number of transactions dropped.
    pub(crate) fn expire(&self) -> usize {
        self.expire_by(|index| index.sweep(SWEEPS_MAX, LOCAL_SWEEPS_MAX))
    }

    /// Drops transactions that waited for a nonce or for funds for [`LOCAL_SWEEPS_MAX`] calls. For the proposer, which
    /// itself sees what it cannot execute. Time in which the chain stands does not count.
    pub(crate) fn expire_waiting(&self) -> usize {
        self.expire_by(|index| index.sweep_waiting(LOCAL_SWEEPS_MAX))
    }

    fn expire_by(&self, sweep: impl FnOnce(&mut Index<Transaction>) -> Vec<B256>) -> usize {
        let mut state = self.shared.state.lock();
        if state.head == state.swept {
            return 0;
        }
        state.swept = state.head;
        let (expired, now) = (sweep(&mut state.index), Instant::now());
        for hash in &expired {
            state.dropped.insert(*hash, DropReason::Expired, now);
        }
        self.count_refused(Refused::Expired, expired.len() as u64);
        expired.len()
    }

    /// Makes the next [`Pool::expire`] see a chain that has moved on.
    #[cfg(test)]
    pub(crate) fn age(&self) {
        let mut state = self.shared.state.lock();
        state.swept = state.head.next();
    }

    /// Counts the refused transactions for each reason since the start; one may be refused several times.
    pub fn refused(&self) -> impl Iterator<Item = (Refused, u64)> + use<> {
        self.shared.refused.all().into_iter()
    }

    pub(crate) fn count_refused(&self, reason: Refused, count: u64) {
        self.shared.refused.add(reason, count);
    }

    /// The number of transactions that the pool has ever taken: a mark for [`Pool::arrived_since`].
    pub fn arrivals(&self) -> u64 {
        self.shared.state.lock().arrivals.count()
    }

    /// Returns the hashes of at most `max` transactions that were taken after a mark, in that order, and the mark after
    /// them. They may have left the pool since. If there are many thousands, the first are forgotten.
    pub fn arrived_since(&self, mark: u64, max: usize) -> (Vec<B256>, u64) {
        self.shared.state.lock().arrivals.since(mark, max)
    }

    /// Returns at most `max` transactions that were taken after a mark, in that order, even if they have left the pool
    /// since. `None` if one of them is forgotten: only the last few thousand are kept, fewer if they are long.
    pub fn arrived_whole_since(&self, mark: u64, max: usize) -> Option<Vec<Transaction>> {
        self.shared.state.lock().arrivals.whole_since(mark, max)
    }

    /// Follows the growing count of [`Pool::arrivals`].
    pub fn watch_arrivals(&self) -> watch::Receiver<u64> {
        self.shared.counted.subscribe()
    }

    /// Whether the transaction is here and waits for a lower nonce or for funds.
    pub fn is_waiting(&self, hash: &B256) -> bool {
        self.shared.state.lock().index.is_waiting(hash)
    }

    /// Copies the pool's transactions, of one sender or of all.
    ///
    /// # Errors
    /// If it exceeds the limit; nothing is copied then.
    pub fn content(&self, of: Option<&Address>, limit: ContentLimit) -> Result<PoolContent, TooMuchContent> {
        self.shared.state.lock().index.content(of, limit)
    }

    /// Returns the counts for status and metrics.
    pub fn status(&self) -> PoolStatus {
        self.shared.state.lock().index.status(Instant::now())
    }

    /// Tip that gets anybody's executable transaction into the pool now, in wei per gas; 0 unless it is full, or was a
    /// while ago.
    pub fn entry_tip_wei(&self) -> u128 {
        self.shared.state.lock().index.entry_tip_wei(Instant::now())
    }

    /// Resolves when the pool stops being empty, and now and then while it fills. Only the proposer waits for it.
    pub(crate) fn arrived(&self) -> Notified<'_> {
        self.shared.arrived.notified()
    }

    /// Marks a moment for [`Pool::lingering`].
    pub(crate) fn sequence(&self) -> u64 {
        self.shared.state.lock().index.sequence()
    }

    /// Returns at most `max` transactions that have been here since before the mark, including waiting ones. First come
    /// those of this node's users, up to half, then any. Each sender has its turn.
    pub(crate) fn lingering(&self, mark: u64, max: usize) -> Vec<Transaction> {
        let mut state = self.shared.state.lock();
        let mut offered = state.index.offer(Circle::Local, mark, max / 2);
        let mut known: HashSet<B256> = offered.iter().map(|transaction| transaction.hash).collect();
        let others = state.index.offer(Circle::All, mark, max - offered.len());
        offered.extend(others.into_iter().filter(|transaction| known.insert(transaction.hash)));
        offered
    }

    /// The transactions of this node's users.
    pub(crate) fn local(&self) -> Vec<Live> {
        let state = self.shared.state.lock();
        let live = |(transaction, waits): (&Transaction, bool)| Live {
            raw: transaction.raw.clone(),
            sender: transaction.sender,
            waits,
        };
        state.index.local().map(live).collect()
    }
}

impl From<AccountValue> for AccountState {
    fn from(account: AccountValue) -> Self {
        AccountState { nonce: account.nonce, balance: account.balance, has_code: account.code_hash.is_some() }
    }
}
