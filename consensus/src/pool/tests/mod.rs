//! The pool's rules one by one.

mod draws;
mod full;
mod model;

use std::sync::Arc;

use alloy_primitives::{Address, B256, U256};
use slipstream_executor::RemainingCapacity;
use slipstream_types::{
    BatchNumber, ChainConfig, Schedule, ScheduledFork,
    chain::Fork,
    schedule::{Activation, Forks},
};
use tokio::time::Instant;

use super::{
    Pool, PoolError, PoolStatus,
    account_queue::{AccountState, Circle, Terms},
    candidates::Cursor,
    index::{Arrival, Index},
};
use crate::{
    config::PoolConfig,
    testing::{Account, genesis, store},
};

const UNLIMITED: RemainingCapacity = RemainingCapacity { gas: u64::MAX, bytes: usize::MAX };

fn sender(index: u8) -> Address {
    Address::repeat_byte(index + 1)
}

fn terms(id: u64, from: u8, nonce: u64, fee: u128) -> Terms {
    Terms {
        hash: B256::from(U256::from(id)),
        sender: sender(from),
        nonce,
        gas_limit: 21_000,
        bytes: 100,
        cost_max: U256::from(10),
        // Both caps are above what the proposer gets.
        max_fee_wei: 3 * fee,
        tip_cap_wei: 2 * fee,
        tip_wei: fee,
        authorities: Vec::new(),
    }
}

fn state(nonce: u64, balance: u64) -> AccountState {
    AccountState { nonce, balance: U256::from(balance), has_code: false }
}

fn index(transactions_max: usize) -> Index<u64> {
    let config =
        PoolConfig { transactions_max, bytes_max: 10_000, per_sender_max: 8, ..PoolConfig::default() };
    Index::new(config, Instant::now())
}

impl<T: Clone> Index<T> {
    /// A peer's transaction.
    fn put(&mut self, terms: Terms, payload: T, account: AccountState) -> Result<(), PoolError> {
        self.insert(terms, payload, account, Arrival { at: Instant::now(), is_local: false })
    }

    fn counts(&self) -> (usize, usize, usize) {
        let PoolStatus { pending, queued, bytes, .. } = self.status(Instant::now());
        (pending, queued, bytes)
    }
}

/// Everything that can execute, in the order in which it is proposed.
fn all<T: Clone>(pool: &Index<T>) -> Vec<T> {
    let mut cursor = Cursor::default();
    std::iter::from_fn(|| pool.draw(&mut cursor, UNLIMITED)).collect()
}

// A replacement pays ten percent more on both fees; a refusal names the fees that it takes.
#[test]
fn replacement_needs_both_fees() {
    let mut pool = index(10);
    let capped = |id, max_fee_wei, tip_cap_wei| Terms { max_fee_wei, tip_cap_wei, ..terms(id, 0, 0, 7) };
    pool.put(capped(1, 305, 105), 1, state(0, 100)).unwrap();
    // Only one of the two is raised enough; the proposer's income decides nothing.
    for cheap in [capped(2, 1_000, 115), capped(2, 335, 1_000)] {
        assert!(matches!(
            pool.put(cheap, 2, state(0, 100)),
            Err(PoolError::ReplacementUnderpriced { max_fee_wei: 336, tip_wei: 116, .. })
        ));
    }
    pool.put(capped(3, 336, 116), 3, state(0, 100)).unwrap();
    assert_eq!(all(&pool), [3]);
    assert_eq!(pool.counts(), (1, 0, 100));
    assert!(matches!(pool.put(capped(3, 336, 116), 3, state(0, 100)), Err(PoolError::AlreadyKnown { .. })));
}

// A gap waits and is closed. Nonces too far ahead or behind, and unpayable costs, are refused by name.
#[test]
fn nonces_and_funds() {
    let mut pool = index(10);
    let account = state(5, 100);
    pool.put(terms(1, 0, 6, 1), 1, account).unwrap();
    assert_eq!(pool.counts(), (0, 1, 100));
    assert_eq!(pool.pending_nonce(&sender(0)), Some(5));
    pool.put(terms(2, 0, 5, 1), 2, account).unwrap();
    assert_eq!(all(&pool), [2, 1]);
    assert_eq!(pool.pending_nonce(&sender(0)), Some(7));
    assert!(matches!(
        pool.put(terms(3, 0, 4, 1), 3, account),
        Err(PoolError::NonceTooLow { nonce: 4, next: 5 })
    ));
    let distant = pool.put(terms(3, 0, 13, 1), 3, account);
    assert!(matches!(distant, Err(PoolError::NonceTooHigh { nonce: 13, next: 5, max: 8 })));
    let dear = Terms { cost_max: U256::from(101), ..terms(3, 0, 7, 1) };
    assert!(matches!(pool.put(dear, 3, account), Err(PoolError::InsufficientFunds { .. })));
}

/// Goal: a late state of an earlier batch neither brings back what was used up nor drops what waits after it.
#[test]
fn an_earlier_state_changes_nothing() {
    let mut pool = index(10);
    pool.put(terms(1, 0, 3, 5), 1, state(3, 100)).unwrap();
    pool.advance(&sender(0), state(2, 0));
    assert_eq!((pool.pending_nonce(&sender(0)), all(&pool)), (Some(4), vec![1]));
    pool.advance(&sender(0), state(4, 100));
    assert_eq!(pool.pending_nonce(&sender(0)), None);
}

// A transaction that stayed executable for the given number of sweeps goes, with those after it. Those that became
// executable later, or wait, stay.
#[test]
fn what_is_never_executed_expires() {
    let mut pool = index(10);
    pool.put(terms(1, 0, 0, 9), 1, state(0, 100)).unwrap();
    pool.put(terms(2, 1, 1, 9), 2, state(0, 100)).unwrap();
    assert_eq!((pool.sweep(3, 9).len(), pool.sweep(3, 9).len()), (0, 0));
    pool.put(terms(3, 0, 1, 9), 3, state(0, 100)).unwrap();
    pool.put(terms(4, 0, 3, 9), 4, state(0, 100)).unwrap();
    pool.put(terms(5, 1, 0, 9), 5, state(0, 100)).unwrap();
    pool.put(terms(6, 2, 0, 9), 6, state(0, 100)).unwrap();
    assert_eq!((pool.sweep(3, 9).len(), pool.sweep(3, 9).len()), (0, 2));
    assert_eq!(pool.pending_nonce(&sender(0)), Some(0));
    assert_eq!(pool.counts(), (3, 1, 400));
    // A batch that moves the sender on begins its time anew.
    pool.advance(&sender(1), state(1, 100));
    assert_eq!((pool.sweep(3, 9).len(), pool.sweep(3, 9).len()), (0, 1), "the third sender's");
    assert_eq!(all(&pool), [2]);
    assert_eq!((pool.sweep(3, 9).len(), pool.sweep(3, 9).len()), (0, 1));
}

// Transactions that waited for long go, those of peers and of users, even if nothing else is swept. Later ones stay.
#[test]
fn what_waits_expires() {
    let mut pool = index(20);
    let local = Arrival { at: Instant::now(), is_local: true };
    pool.insert(terms(1, 0, 1, 9), 1, state(0, 100), local).unwrap();
    pool.put(terms(2, 1, 2, 9), 2, state(0, 100)).unwrap();
    assert_eq!((pool.sweep(1, 2).len(), pool.sweep_waiting(2).len()), (0, 0));
    pool.put(terms(3, 1, 3, 9), 3, state(0, 100)).unwrap();
    pool.insert(terms(4, 2, 0, 9), 4, state(0, 100), local).unwrap();
    assert_eq!(pool.local_bytes_beside(&sender(0), 0), 100);
    assert_eq!(pool.sweep_waiting(2).len(), 2);
    assert_eq!(pool.local_bytes_beside(&sender(0), 0), 0);
    assert_eq!(pool.counts(), (1, 1, 200));
    assert_eq!((pool.sweep(3, 9).len(), pool.sweep_waiting(2).len()), (0, 1));
    assert_eq!(all(&pool), [4]);
}

/// Goal: a place in the pool is priced by the proposer's income: the tip cap, or what the fee cap leaves above the base
/// fee.
#[test]
fn a_place_is_priced_by_what_the_proposer_gets() {
    let genesis = genesis(1);
    let base_wei = u128::from(genesis.chain.base_fee_wei);
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store(&genesis)).unwrap();
    // Caps of fee and tip, and what the proposer gets.
    let offers = [
        (base_wei + 50, 7, 7),
        (base_wei + 9, 40, 9),
        (base_wei + 1_000, 1, 1),
        (base_wei, 5, 0),
        (2 * base_wei + 99, 8, 8),
    ];
    let mut sent = Vec::new();
    for (index, (max_fee_wei, tip_cap_wei, tip_wei)) in (0..).zip(offers) {
        let transaction = Account::new(index).transfer_capped(0, max_fee_wei, tip_cap_wei);
        let terms = pool.terms(&transaction).unwrap();
        assert_eq!(
            (terms.max_fee_wei, terms.tip_cap_wei, terms.tip_wei),
            (max_fee_wei, tip_cap_wei, tip_wei)
        );
        pool.add(transaction.clone()).unwrap();
        sent.push((tip_wei, transaction.hash));
    }
    sent.sort_by_key(|(tip_wei, _)| std::cmp::Reverse(*tip_wei));
    let drawn: Vec<_> = all(&pool.shared.state.lock().index).into_iter().map(|it| it.hash).collect();
    assert_eq!(drawn, sent.iter().map(|(_, hash)| *hash).collect::<Vec<_>>());
    let below = pool.add(Account::new(6).transfer_capped(0, base_wei - 1, 0)).unwrap_err();
    assert!(matches!(below, PoolError::FeeBelowBase { .. }), "{below}");
}

/// Goal: a transaction that asks for more gas than the chain gives one transaction is refused with the text that
/// clients know.
#[test]
fn a_gas_limit_above_the_cap_is_refused() {
    let genesis = genesis(1);
    let chain = ChainConfig { transaction_gas_max: 20_999, ..genesis.chain.clone() };
    let pool = Pool::new(PoolConfig::default(), chain, store(&genesis)).unwrap();
    let refused = pool.add(Account::new(0).transfer(0, 7)).unwrap_err();
    assert_eq!(refused.to_string(), "transaction gas limit too high (cap: 20999, tx: 21000)");
    assert!(!refused.is_retryable());
}

/// Goal: where a fork begins, the pool judges all its transactions anew, and newcomers by the new rules. It offers only
/// what the next batch can take, and ranks by tips under its base fee.
#[test]
fn a_fork_judges_the_pool_anew() {
    let genesis = genesis(1);
    let fork = ScheduledFork {
        fork: None,
        base_fee_wei: Some(genesis.chain.base_fee_wei + 5),
        transaction_gas_max: Some(30_000),
        ..ScheduledFork::evm("dear", Activation::Batch(BatchNumber::new(1)), Fork::Osaka)
    };
    let schedule = Schedule::new(Forks::new(vec![fork]).unwrap());
    let (store, before) = (store(&genesis), genesis.chain.clone());
    let mut pool = Pool::new(PoolConfig::default(), before.clone(), store).unwrap();
    let cheap = Account::new(0).transfer_with_gas(0, 1, 30_001);
    let [first, second] = [0, 1].map(|nonce| Account::new(1).transfer(nonce, 7));
    for transaction in [&cheap, &first, &second] {
        pool.add(transaction.clone()).unwrap();
    }
    pool.mark_journaled([&second.hash]);
    // The head is the genesis: as if its batch had just been committed, the next one is under the fork.
    let shared = Arc::get_mut(&mut pool.shared).unwrap();
    shared.chain = ChainConfig { schedule, ..before };
    pool.catch_up().unwrap();
    assert!(!pool.contains(&cheap.hash) && pool.contains(&first.hash) && pool.contains(&second.hash));
    assert!(pool.is_journaled(&second.hash) && !pool.is_journaled(&first.hash));
    assert_eq!(pool.pending_nonce(&first.sender), Some(2));
    let refused = pool.add(Account::new(2).transfer_with_gas(0, 1, 30_001)).unwrap_err();
    assert!(refused.to_string().contains("cap: 30000"), "{refused}");
    assert!(pool.add(cheap).is_err());
}

/// Goal: a delegated account has one transaction here, from the moment when a transaction would delegate it.
#[test]
fn delegated_accounts_have_one_transaction() {
    let mut pool = index(10);
    let delegated = AccountState { has_code: true, ..state(0, 100) };
    let gapped = pool.put(terms(1, 0, 1, 1), 1, delegated).unwrap_err();
    assert!(matches!(gapped, PoolError::InFlightLimit { .. }) && gapped.is_retryable(), "{gapped}");
    pool.put(terms(2, 0, 0, 10), 2, delegated).unwrap();
    assert!(pool.put(terms(3, 0, 1, 10), 3, delegated).is_err());
    pool.put(terms(4, 0, 0, 20), 4, delegated).unwrap();
    // An account that becomes delegated keeps its next transaction.
    for nonce in 0..3 {
        pool.put(terms(10 + nonce, 1, nonce, 10), nonce, state(0, 100)).unwrap();
    }
    pool.advance(&sender(1), AccountState { has_code: true, ..state(1, 100) });
    assert_eq!(pool.counts().0, 2);
    // An account named by a waiting authorization counts as delegated, and may have one transaction.
    let naming =
        |id, from, authority| Terms { authorities: vec![(sender(authority), 0)], ..terms(id, from, 0, 5) };
    pool.put(naming(20, 2, 3), 20, state(0, 100)).unwrap();
    pool.put(terms(21, 3, 0, 5), 21, state(0, 100)).unwrap();
    assert!(matches!(pool.put(terms(22, 3, 1, 5), 22, state(0, 100)), Err(PoolError::InFlightLimit { .. })));
    pool.remove(&B256::from(U256::from(20)));
    pool.put(terms(22, 3, 1, 5), 22, state(0, 100)).unwrap();
    let reserved = pool.put(naming(23, 2, 3), 23, state(0, 100)).unwrap_err();
    assert!(matches!(reserved, PoolError::AuthorityReserved { .. }), "{reserved}");
}

/// Goal: an authorization that anybody can copy from an old batch limits nobody: its nonce is used.
#[test]
fn used_authorizations_limit_nobody() {
    let mut pool = index(10);
    let naming = |id, nonce, at| Terms { authorities: vec![(sender(1), at)], ..terms(id, 0, nonce, 5) };
    pool.put(naming(1, 0, 6), 1, state(0, 100)).unwrap();
    for nonce in 7..9 {
        pool.put(terms(nonce, 1, nonce, 5), nonce, state(7, 100)).unwrap();
    }
    pool.put(naming(2, 1, 6), 2, state(0, 100)).unwrap();
    let reserved = pool.put(naming(3, 2, 7), 3, state(0, 100)).unwrap_err();
    assert!(matches!(reserved, PoolError::AuthorityReserved { .. }), "{reserved}");
    // An authorization that was good on arrival is used up when its account sends.
    pool.remove(&B256::from(U256::from(8)));
    pool.put(naming(4, 2, 7), 4, state(0, 100)).unwrap();
    assert!(pool.put(terms(8, 1, 8, 5), 8, state(7, 100)).is_err());
    pool.advance(&sender(1), state(8, 100));
    for nonce in 8..10 {
        pool.put(terms(nonce, 1, nonce, 5), nonce, state(8, 100)).unwrap();
    }
}

/// Goal: every sender has its turn in repeated offers, including those that wait and those that pay nothing.
#[test]
fn offers_are_fair_over_senders() {
    let config = PoolConfig { transactions_max: 400, ..PoolConfig::default() };
    let mut pool = Index::new(config, Instant::now());
    for nonce in 0..100 {
        pool.put(terms(nonce, 0, nonce, 1_000), nonce, state(0, 10_000)).unwrap();
    }
    for from in 1..31 {
        let id = 1_000 + u64::from(from);
        pool.put(terms(id, from, u64::from(from % 2), 0), id, state(0, 100)).unwrap();
    }
    let mark = pool.sequence();
    let late = Arrival { at: Instant::now(), is_local: true };
    pool.insert(terms(2_000, 40, 0, 5), 2_000, state(0, 100), late).unwrap();
    let offered = pool.offer(Circle::All, mark, 46);
    assert_eq!(offered.iter().filter(|id| **id >= 1_000).count(), 30, "{offered:?}");
    assert_eq!(offered.iter().filter(|id| **id < 1_000).count(), 16);
    // The next calls continue with the sender's others, until the circle begins anew.
    let mut seen: Vec<u64> = offered;
    for _ in 0..6 {
        seen.extend(pool.offer(Circle::All, mark, 46));
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 130);
    assert_eq!(pool.offer(Circle::Local, mark, 46), [0u64; 0]);
    assert_eq!(pool.offer(Circle::Local, pool.sequence(), 46), [2_000]);
}
