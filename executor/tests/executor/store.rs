//! A short chain on real stores: a follower accepts a proposer's batches bit for bit.

use crate::support::*;
use alloy_primitives::U256;
use slipstream_executor::{
    BatchContext, BuildLimits, HintsMode, PrefetchRequest, SealedBatch, Transaction, WarmState, build,
    decode_body, execute, open_hints, seal,
};
use slipstream_storage::{MemoryState, StorageConfig, Store};
use slipstream_types::{
    BatchNumber, BlobKind, Body, Delta, Epoch, Genesis, SecretKey, StateKey, StateValue, Validator,
    bounded::BoundedVec, limits,
};

pub(crate) const LIMITS: BuildLimits = BuildLimits {
    gas: u64::MAX,
    body_bytes: limits::BODY_BYTES_MAX,
    transactions: limits::BATCH_TRANSACTIONS_MAX,
};

pub(crate) fn certified_genesis() -> Genesis {
    let public_key = SecretKey::from_seed([1; 32]).public();
    Genesis {
        validators: BoundedVec::new(vec![Validator { public_key, fee_recipient: PROPOSER }]).unwrap(),
        ..genesis()
    }
}

pub(crate) fn store(genesis: &Genesis) -> Store {
    let store = Store::memory(&StorageConfig::default());
    store.initialize(genesis).unwrap();
    store
}

pub(crate) fn commit(store: &Store, sealed: &SealedBatch, delta: &Delta, transactions: &[Transaction]) {
    let hashes: Vec<_> = transactions.iter().map(|transaction| transaction.hash).collect();
    store.commit(sealed.commit_batch(delta, &hashes), None).unwrap();
}

pub(crate) fn propose(
    store: &Store,
    genesis: &Genesis,
    candidates: Vec<Transaction>,
    timestamp_ms: u64,
) -> SealedBatch {
    let (head, view) = (store.head().unwrap(), store.view().unwrap());
    let basis = BatchContext { parent: &head.header, epoch: Epoch(0), timestamp_ms, proposer: PROPOSER };
    let env = basis.env(&genesis.chain);
    let count = candidates.len();
    let built = build(&view, &env, &mut candidates.into_iter(), &LIMITS).unwrap();
    assert_eq!(built.included.len(), count, "{:?}", built.rejected);
    let root = store.speculate(&built.outcome.delta).unwrap().root();
    let sealed = seal(HintsMode::Keys, &basis, &built.included, &built.outcome, root).unwrap();
    commit(store, &sealed, &built.outcome.delta, &built.included);
    sealed
}

fn follow(store: &Store, genesis: &Genesis, sealed: &SealedBatch) -> Delta {
    let (head, view) = (store.head().unwrap(), store.view().unwrap());
    let header = &sealed.header;
    let basis = BatchContext::of(&head.header, header);
    let env = basis.env(&genesis.chain);
    let body: Body = sealed.body.open(BlobKind::Body).unwrap();
    let transactions = decode_body(&body, &genesis.chain).unwrap();
    let hints = sealed.hints.as_ref().unwrap();
    let decoded = open_hints(hints, header.gas_used, header.proposer, &transactions).unwrap();
    let warm = WarmState::complete(view.clone(), PrefetchRequest::from(&decoded.hints)).unwrap();
    let outcome = execute(&warm, &env, &transactions).unwrap();
    assert_eq!(warm.stats().misses, 0);
    let root = store.speculate(&outcome.delta).unwrap().root();
    let again = seal(HintsMode::Keys, &basis, &transactions, &outcome, root).unwrap();
    assert_eq!(again, *sealed);
    commit(store, &again, &outcome.delta, &transactions);
    outcome.delta
}

#[test]
fn a_follower_reproduces_the_proposers_chain() {
    let genesis = certified_genesis();
    let (proposer, follower) = (store(&genesis), store(&genesis));
    let mut model = MemoryState::from_genesis(&genesis).unwrap();
    for round in 0..12u64 {
        let candidates = vec![
            transfer(1, round, account(9), 1_000),
            invoke(2, round, COUNTER, &[]),
            invoke(3, round, WRITER, &word(round % 3)),
            invoke(4, round, HASHES, &word(round / 2)),
            create(5, round, "64 5f355f5500 5f52 6005 601b f3"),
            invoke(6, round, REVERTER, b"no"),
        ];
        let sealed = propose(&proposer, &genesis, candidates, 2_000 + round * 700);
        model.apply(&follow(&follower, &genesis, &sealed));
        assert_eq!(follower.head().unwrap(), proposer.head().unwrap());
    }
    let view = follower.view().unwrap();
    for (key, value) in model.iter() {
        match (key, value) {
            (StateKey::Account(address), StateValue::Account(expected)) => {
                assert_eq!(view.account(address).unwrap(), Some(*expected));
            }
            (StateKey::Slot(address, slot), StateValue::Slot(expected)) => {
                assert_eq!(view.slot(address, slot).unwrap(), *expected);
            }
            other => panic!("{other:?}"),
        }
    }
    // BLOCKHASH of a batch older than the parent comes from the store.
    let old = follower.header(BatchNumber::new(5)).unwrap().unwrap().digest();
    assert_eq!(slot(&model, HASHES, 0), U256::from_be_bytes(old.0));
    assert_eq!(slot(&model, COUNTER, 0), U256::from(12));
}
