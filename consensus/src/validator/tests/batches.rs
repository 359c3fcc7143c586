//! What the proposer puts into a batch, and that every way to execute it gives the same.

use slipstream_executor::{ExecutorConfig, HintsMode, decode_body, open_hints};
use slipstream_network::MemoryHub;
use slipstream_storage::CommitBatch;
use slipstream_types::{BatchNumber, BlobKind};

use super::{batch, certificate, ledger, ledger_with, proposal};
use crate::{
    Pool, PoolConfig,
    protocol::messages::Proposal,
    testing::{Account, NOW_MS, Node, clock, genesis, store},
};

// Goal: a proposer's hints carry values where that is configured, and only there.
#[test]
fn hints_carry_values_where_that_is_configured() {
    let genesis = genesis(1);
    let store = store(&genesis);
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    pool.add(Account::new(0).transfer(0, 7)).unwrap();
    for (hints, carry) in [(HintsMode::Conflicts, false), (HintsMode::Values, true)] {
        let config = ExecutorConfig { hints, prefetch_threads: 0, ..Default::default() };
        let built = ledger_with(config, &genesis, &store).build(&pool, 100, NOW_MS, true).unwrap().unwrap();
        let sealed = built.executed.unwrap().sealed;
        let transactions =
            decode_body(&sealed.body.open(BlobKind::Body).unwrap(), genesis.chain.chain_id).unwrap();
        let (header, hints) = (sealed.header, sealed.hints.unwrap());
        let decoded = open_hints(&hints, header.gas_used, header.proposer, &transactions).unwrap();
        assert_eq!(!decoded.values.is_empty(), carry);
    }
}

// What a validator keeps, reads ahead and executes beside each other changes nothing; its cache knows the last batch, and passes on
// what it cannot know.
#[test]
fn every_way_to_execute_gives_the_proposers_batch() {
    let genesis = genesis(1);
    let set = genesis.validator_set();
    for hints in [HintsMode::Off, HintsMode::Keys, HintsMode::Conflicts, HintsMode::Values] {
        let [proposing, voting] = [1, 2].map(|threads| {
            let config = ExecutorConfig { hints, threads, prefetch_threads: threads, ..Default::default() };
            ledger_with(config, &genesis, &store(&genesis))
        });
        let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), proposing.store.clone()).unwrap();
        for batch in 0..4 {
            for account in 0..2 {
                let nonces = 20 * batch..20 * (batch + 1);
                nonces.for_each(|nonce| pool.add(Account::new(account).transfer(nonce, 7)).unwrap());
            }
            let built = proposing.build(&pool, 100, NOW_MS, false).unwrap().unwrap();
            let mut proposed = built.executed.unwrap();
            let Proposal { header, body, hints, .. } = proposal(&proposed);
            assert_eq!(header.tx_count, 40);
            let mut executed = voting.execute(&header, &body, hints.as_ref()).unwrap();
            let certificate = certificate(&set, &proposed);
            proposing.commit(&mut proposed, &certificate).unwrap();
            if batch == 1 {
                // Sync was faster, and did not tell.
                voting.store.commit(executed.sealed.commit_batch(&executed.delta, &[]), None).unwrap();
            } else {
                voting.commit(&mut executed, &certificate).unwrap();
            }
        }
        let stats = [&proposing, &voting].map(|ledger| ledger.session.hot_stats());
        assert!(stats.iter().all(|stats| stats.hits > stats.misses), "{stats:?}");
    }
}

// One wrong reading of the proposer's clock costs minutes, not the year that it is wrong by.
#[test]
fn time_goes_on_in_bounded_steps() {
    const YEAR_MS: u64 = 365 * 24 * 3_600_000;
    let genesis = genesis(1);
    let store = store(&genesis);
    let late = batch(&genesis, &store, 0..0, NOW_MS + YEAR_MS);
    assert_eq!(late.sealed.header.timestamp_ms, NOW_MS + YEAR_MS, "a genesis may be old");
    let first = batch(&genesis, &store, 0..0, NOW_MS);
    store.commit(CommitBatch::new(&first.sealed.header, &first.delta), None).unwrap();
    for (now_ms, expected) in
        [(NOW_MS + YEAR_MS, NOW_MS + 600_000), (NOW_MS + 7, NOW_MS + 7), (NOW_MS - 7, NOW_MS)]
    {
        assert_eq!(batch(&genesis, &store, 0..0, now_ms).sealed.header.timestamp_ms, expected);
    }
}

// Without transactions the chain's time goes on in empty batches, if it is told to.
#[tokio::test(start_paused = true)]
async fn empty_batches_are_made_on_request_only() {
    let genesis = genesis(1);
    let quiet = Node::start(&MemoryHub::new(), &genesis, 0, store(&genesis), clock());
    let store = store(&genesis);
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    let built = ledger(&genesis, &store).build(&pool, 10, NOW_MS, false).unwrap().unwrap();
    assert!(built.executed.is_none());
    let built = ledger(&genesis, &store).build(&pool, 10, NOW_MS, true).unwrap().unwrap();
    assert_eq!(built.executed.unwrap().sealed.header.tx_count, 0);
    assert_eq!(quiet.store.head().unwrap().header.number, BatchNumber(0));
}

// A batch fills by the gas that is used. Four transactions that may use all of it and do not take no place from the others.
#[test]
fn large_gas_limits_do_not_empty_a_batch() {
    let mut genesis = genesis(1);
    genesis.chain.gas_limit = genesis.chain.transaction_gas_max;
    let store = store(&genesis);
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    for account in 0..4 {
        let large = Account::new(account).transfer_with_gas(0, 9, genesis.chain.gas_limit);
        pool.add(large).unwrap();
    }
    for account in 4..8 {
        let account = Account::new(account);
        (0..150).for_each(|nonce| pool.add(account.transfer(nonce, 7)).unwrap());
    }
    let built = ledger(&genesis, &store).build(&pool, 10_000, NOW_MS, false).unwrap().unwrap();
    assert_eq!(built.executed.unwrap().sealed.header.tx_count, 601, "the first of the four, and all others");
    assert!(built.rejected.is_empty());
}

// A dud costs one look, and nobody else's place; who has code may offer one at a time.
#[test]
fn a_dud_costs_one_look() {
    let genesis = genesis(1);
    let store = store(&genesis);
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    let duds: Vec<_> = (0..3).map(|nonce| Account::contract().transfer(nonce, 9)).collect();
    assert_eq!(duds.iter().filter(|dud| pool.add((*dud).clone()).is_ok()).count(), 1);
    pool.add(Account::new(0).transfer(0, 7)).unwrap();
    let built = ledger(&genesis, &store).build(&pool, 10, NOW_MS, false).unwrap().unwrap();
    assert_eq!(built.executed.unwrap().sealed.header.tx_count, 1);
    assert_eq!(built.rejected, [duds[0].hash]);
    pool.reject(&built.rejected);
    let again = pool.add(duds[0].clone()).unwrap_err().to_string();
    assert!(again.contains("could not be executed by the proposer"), "{again}");
}
