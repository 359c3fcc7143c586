//! The pool over a store: what it refuses, and how it follows the head.

use slipstream_executor::{BuildLimits, ExecutorConfig};
use slipstream_predict::PredictMode;
use slipstream_storage::CommitBatch;

use super::{batch, ledger_with, request};
use crate::{
    Pool, PoolConfig,
    testing::{Account, NOW_MS, genesis, store, until},
};

// The pool refuses a transaction that no state can make valid.
#[test]
fn the_pool_refuses_what_can_never_execute() {
    let genesis = genesis(1);
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store(&genesis)).unwrap();
    let error = pool.add(Account::new(0).hopeless(0)).unwrap_err();
    assert!(error.to_string().starts_with("intrinsic gas too low"), "{error}");
    assert!(!error.is_retryable());
    assert_eq!(pool.status().bytes, 0);
}

// A pool follows batches that are committed elsewhere, by their deltas or, where those are not stored, by reading
// accounts.
#[tokio::test(start_paused = true)]
async fn the_pool_follows_the_head() {
    let genesis = genesis(1);
    for with_delta in [true, false] {
        let store = store(&genesis);
        let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
        let shutdown = tokio_util::sync::CancellationToken::new();
        let maintained = tokio::spawn(crate::maintain(pool.clone(), shutdown.clone()));
        for nonce in 0..4 {
            pool.add(Account::new(0).transfer(nonce, 1)).unwrap();
        }
        pool.add(Account::new(1).transfer(0, 1)).unwrap();
        let executed = batch(&genesis, &store, 0..3, NOW_MS);
        let sealed = &executed.parts.sealed;
        let delta_blob = with_delta.then_some(&sealed.delta);
        let commit = CommitBatch { delta_blob, ..CommitBatch::new(&sealed.header, &executed.delta) };
        store.commit(commit, None).unwrap();
        until("three are gone", || pool.status().pending == 2).await;
        assert_eq!(pool.pending_nonce(&Account::new(0).address), Some(4));
        assert!(pool.add(Account::new(0).transfer(2, 50)).is_err());
        shutdown.cancel();
        maintained.await.unwrap();
    }
}

/// Goal: a proposer that reads ahead draws transactions for it. A proposer without threads or predictions for reading
/// ahead draws none.
#[test]
fn nothing_is_drawn_where_nothing_is_read_ahead() {
    let genesis = genesis(1);
    let store = store(&genesis);
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    for nonce in 0..4 {
        pool.add(Account::new(0).transfer(nonce, 1)).unwrap();
    }
    let limits = BuildLimits { gas: 63_000, body_bytes: 1 << 20, transactions: 100 };
    for (prefetch_threads, predict, drawn) in
        [(1, PredictMode::Accounts, Some(3)), (0, PredictMode::Accounts, None), (1, PredictMode::Off, None)]
    {
        let executor = ExecutorConfig { prefetch_threads, predict, ..ExecutorConfig::default() };
        let ledger = ledger_with(executor, &genesis, &store);
        let likely = ledger.likely(&pool, &request(&ledger, &[], NOW_MS, true), &limits);
        assert_eq!(likely.map(|likely| likely.len()), drawn, "{prefetch_threads} {predict:?}");
    }
}
