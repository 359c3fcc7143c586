//! Tests the contents of the primary's batches, and that every way to execute one gives the same outcome.

use std::sync::Arc;

use slipstream_executor::{ExecutorConfig, HintsMode, decode_body, open_hints};
use slipstream_network::MemoryHub;
use slipstream_storage::CommitBatch;
use slipstream_types::{BatchNumber, BlobKind, Epoch};

use super::{
    super::{building::BuildOutcome, execution::Failure, message::OutcomeParts, stop::Stop},
    batch, batch_after, build, certificate, ledger, ledger_with, made, ordered, pool,
};
use crate::testing::{Account, NOW_MS, Node, clock, genesis, store};

// Goal: a proposer's hints carry values where that is configured, and only there.
#[test]
fn hints_carry_values_where_that_is_configured() {
    let genesis = genesis(1);
    let store = store(&genesis);
    let pool = pool(&genesis, &store);
    pool.add(Account::new(0).transfer(0, 7)).unwrap();
    for (hints, carry) in [(HintsMode::Conflicts, false), (HintsMode::Values, true)] {
        let config = ExecutorConfig { hints, prefetch_threads: 0, ..Default::default() };
        let built = build(&ledger_with(config, &genesis, &store), &[], &pool, NOW_MS, true);
        let sealed = made(built).parts.sealed.clone();
        let transactions = decode_body(&sealed.body.open(BlobKind::Body).unwrap(), &genesis.chain).unwrap();
        let (header, hints) = (sealed.header, sealed.hints.unwrap());
        let decoded = open_hints(&hints, header.gas_used, header.proposer, &transactions).unwrap();
        assert_eq!(!decoded.values.is_empty(), carry);
    }
}

// A validator's parallel executions, read-ahead and kept rows leave the outcome unchanged. Its cache has the last
// batch's rows, and passes on reads of others.
#[test]
fn every_way_to_execute_gives_the_proposers_batch() {
    let genesis = genesis(1);
    let set = genesis.validator_set();
    for hints in [HintsMode::Off, HintsMode::Keys, HintsMode::Conflicts, HintsMode::Values] {
        let [proposing, voting] = [1, 2].map(|threads| {
            let config = ExecutorConfig { hints, threads, prefetch_threads: threads, ..Default::default() };
            ledger_with(config, &genesis, &store(&genesis))
        });
        let pool = pool(&genesis, &proposing.store);
        let other = super::pool(&genesis, &voting.store);
        for batch in 0..4 {
            for account in 0..2 {
                let nonces = 20 * batch..20 * (batch + 1);
                nonces.for_each(|nonce| pool.add(Account::new(account).transfer(nonce, 7)).unwrap());
            }
            let proposed = made(build(&proposing, &[], &pool, NOW_MS, false));
            assert_eq!(proposed.tip.header.tx_count, 40);
            let executed =
                voting.execute(&[], &ordered(&proposed), batch == 2, NOW_MS, &Stop::default()).unwrap();
            assert_eq!(executed.parts.info, proposed.parts.info);
            let certificate = certificate(&set, &proposed);
            proposing.commit(&proposed, &certificate, &pool).unwrap();
            if batch == 1 {
                // Sync was faster, and did not report it.
                let sealed = &executed.parts.sealed;
                voting.store.commit(sealed.commit_batch(&executed.delta, &[]), None).unwrap();
            } else {
                voting.commit(&executed, &certificate, &other).unwrap();
            }
        }
        let stats = [&proposing, &voting].map(|ledger| ledger.session.hot_stats());
        assert!(stats.iter().all(|stats| stats.hits > stats.misses), "{stats:?}");
    }
}

// One wrong reading of the primary's clock costs minutes, not the year that it is wrong by.
#[test]
fn time_goes_on_in_bounded_steps() {
    const YEAR_MS: u64 = 365 * 24 * 3_600_000;
    let genesis = genesis(1);
    let store = store(&genesis);
    let late = batch(&genesis, &store, 0..0, NOW_MS + YEAR_MS);
    assert_eq!(late.tip.header.timestamp_ms, NOW_MS + YEAR_MS, "a genesis may be old");
    let first = batch(&genesis, &store, 0..0, NOW_MS);
    store.commit(CommitBatch::new(&first.tip.header, &first.delta), None).unwrap();
    for (now_ms, expected) in
        [(NOW_MS + YEAR_MS, NOW_MS + 600_000), (NOW_MS + 7, NOW_MS + 7), (NOW_MS - 7, NOW_MS)]
    {
        assert_eq!(batch(&genesis, &store, 0..0, now_ms).tip.header.timestamp_ms, expected);
    }
}

// Without transactions the chain's time advances in empty batches, if that is configured.
#[tokio::test(start_paused = true)]
async fn empty_batches_are_made_on_request_only() {
    let genesis = genesis(1);
    let quiet = Node::start(&MemoryHub::new(), &genesis, 0, store(&genesis), clock());
    let store = store(&genesis);
    let pool = pool(&genesis, &store);
    let built = build(&ledger(&genesis, &store), &[], &pool, NOW_MS, false);
    assert!(matches!(built, BuildOutcome::Nothing(rejected) if rejected.is_empty()));
    let built = build(&ledger(&genesis, &store), &[], &pool, NOW_MS, true);
    assert_eq!(made(built).tip.header.tx_count, 0);
    assert_eq!(quiet.store.head().unwrap().header.number, BatchNumber::GENESIS);
}

// A batch fills by the gas that is used. Four transactions may use all of it but do not; they take no place from the others.
#[test]
fn large_gas_limits_do_not_empty_a_batch() {
    let mut genesis = genesis(1);
    genesis.chain.gas_limit = genesis.chain.transaction_gas_max;
    let store = store(&genesis);
    let pool = pool(&genesis, &store);
    for account in 0..4 {
        let large = Account::new(account).transfer_with_gas(0, 9, genesis.chain.gas_limit);
        pool.add(large).unwrap();
    }
    for account in 4..8 {
        let account = Account::new(account);
        (0..150).for_each(|nonce| pool.add(account.transfer(nonce, 7)).unwrap());
    }
    let built = made(build(&ledger(&genesis, &store), &[], &pool, NOW_MS, false));
    assert_eq!(built.tip.header.tx_count, 601, "the first of the four, and all others");
    assert!(built.rejected.is_empty());
}

// A dud costs one look, and takes nobody else's place. An account with code may offer one transaction at a time.
#[test]
fn a_dud_costs_one_look() {
    let genesis = genesis(1);
    let store = store(&genesis);
    let pool = pool(&genesis, &store);
    let duds: Vec<_> = (0..3).map(|nonce| Account::contract().transfer(nonce, 9)).collect();
    assert_eq!(duds.iter().filter(|dud| pool.add((*dud).clone()).is_ok()).count(), 1);
    pool.add(Account::new(0).transfer(0, 7)).unwrap();
    let built = made(build(&ledger(&genesis, &store), &[], &pool, NOW_MS, false));
    assert_eq!(built.tip.header.tx_count, 1);
    assert_eq!(built.rejected, [duds[0].hash]);
    pool.reject(&built.rejected);
    let again = pool.add(duds[0].clone()).unwrap_err().to_string();
    assert!(again.contains("failed to execute at the proposer"), "{again}");
}

/// Goal: batches are built and executed ahead of their commits, each on the one before and without its transactions.
/// Committed in order they give the predicted state, even while the head moves on.
#[test]
fn batches_are_executed_ahead() {
    let genesis = genesis(1);
    let set = genesis.validator_set();
    let [request, voting] = [(), ()].map(|()| ledger(&genesis, &store(&genesis)));
    let (pool, other) = (pool(&genesis, &request.store), pool(&genesis, &voting.store));
    let (mut made_here, mut executed) = (Vec::new(), Vec::new());
    for batch in 0..4 {
        for nonce in 3 * batch..3 * (batch + 1) {
            pool.add(Account::new(0).transfer(nonce, 7)).unwrap();
        }
        made_here.push(made(build(&request, &made_here, &pool, NOW_MS, false)));
        let ordered = ordered(made_here.last().unwrap());
        assert_eq!(made_here.last().unwrap().tip.header.tx_count, 3);
        executed
            .push(Arc::new(voting.execute(&executed, &ordered, false, NOW_MS, &Stop::default()).unwrap()));
        if batch == 2 {
            voting.commit(&executed[0], &certificate(&set, &executed[0]), &other).unwrap();
        }
    }
    assert!(matches!(
        voting.execute(&executed[..2], &ordered(&made_here[3]), false, NOW_MS, &Stop::default()),
        Err(Failure::Overtaken)
    ));
    for (made, executed) in made_here.iter().zip(&executed) {
        let certificate = certificate(&set, made);
        request.commit(made, &certificate, &pool).unwrap();
        voting.commit(executed, &certificate, &other).unwrap();
    }
    for ledger in [&request, &voting] {
        assert_eq!(ledger.tip().unwrap(), made_here[3].tip);
        let nonce = ledger.store.view().unwrap().account(&Account::new(0).address).unwrap().unwrap().nonce;
        assert_eq!(nonce, 12);
    }
    assert_eq!(pool.status().pending, 0);
}

type Change = fn(&mut OutcomeParts, OutcomeParts);

/// Goal: an outcome shown by others is adopted if it is genuine and gives the same ledger info. A changed outcome is
/// refused.
#[test]
fn outcomes_are_adopted() {
    let genesis = genesis(1);
    let [request, taking] = [(), ()].map(|()| ledger(&genesis, &store(&genesis)));
    let first = batch_after(&request, &[], 0..1, NOW_MS);
    let second = batch_after(&request, std::slice::from_ref(&first), 1..3, NOW_MS);
    let adopted = Arc::new(taking.adopt(&[], None, first.parts.outcome()).unwrap());
    assert_eq!((&adopted.parts.info, &adopted.hashes), (&first.parts.info, &first.hashes));
    let chain = [adopted];
    assert_eq!(taking.adopt(&chain, None, second.parts.outcome()).unwrap().parts.info, second.parts.info);
    assert!(matches!(taking.adopt(&[], None, second.parts.outcome()), Err(Failure::Overtaken)));
    let other = first.parts.outcome();
    let changes: [(&str, Change); 6] = [
        ("transactions_root", |it, other| it.body = other.body),
        ("receipts_root", |it, other| it.receipts = other.receipts),
        ("delta_digest", |it, other| it.delta = other.delta),
        ("state_root", |it, other| it.header.state_root = other.header.state_root),
        ("parent", |it, _| it.header.parent = it.header.state_root),
        ("epoch", |it, _| it.header.epoch = Epoch(1)),
    ];
    for (field, change) in changes {
        let mut parts = second.parts.outcome();
        change(&mut parts, other.clone());
        let Err(Failure::Refused(error)) = taking.adopt(&chain, None, parts) else { panic!("{field}") };
        assert!(error.to_string().contains(field), "{field}: {error}");
    }
    // Once it is committed, it is shown from the store.
    let certificate = certificate(&genesis.validator_set(), &first);
    request.commit_parts(&first.parts, &certificate).unwrap();
    assert_eq!(request.committed(first.number(), first.token()).unwrap(), Some(first.parts.outcome()));
    assert_eq!(request.committed(first.number(), second.token()).unwrap(), None);
}
