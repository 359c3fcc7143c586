//! Goal: a follower that executes on the values of a peer's hints ends with the same state as without them. A peer whose values are
//! wrong is charged for it.

use std::sync::Arc;

use slipstream_executor::{ExecutorConfig, HintsMode, ReadSet};
use slipstream_network::MemoryHub;
use slipstream_storage::{StorageConfig, Store};
use slipstream_sync::{SyncServer, SyncStatus, announcement};
use slipstream_types::{AccountValue, BatchNumber, BlobKind, Digest, StateKey, StateValue, U256};

use crate::{
    chain::{Chain, Tell},
    following::{Following, Honest, peer, tell_all},
};

/// Without a hot cache every range needs its rows anew.
fn config(prefetch_threads: usize, hot_cache_mib: usize) -> ExecutorConfig {
    let (hints, threads) = (HintsMode::Values, 2);
    ExecutorConfig { hints, threads, hot_cache_mib, prefetch_threads, ..ExecutorConfig::default() }
}

/// Follows a chain whose hints have these values, and compares everything stored with a chain whose hints are right.
async fn follow(tell: Tell, prefetch_threads: usize, hot_cache_mib: usize) -> SyncStatus {
    let [told, honest] = [tell, |_: &mut ReadSet| {}].map(|tell| Chain::telling(25, tell));
    assert_eq!(told.store.head().unwrap(), honest.store.head().unwrap(), "hints are part of no header");
    let hub = MemoryHub::new();
    let _server = hub.join(peer(1), Arc::new(Honest(Arc::new(SyncServer::new(told.store.clone())))));
    // The rows of the first batches come from the store, not from a fresh execution.
    let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
    store.initialize(&honest.genesis).unwrap();
    (1..=5).for_each(|number| honest.commit_to(&store, BatchNumber::new(number)));
    let config = config(prefetch_threads, hot_cache_mib);
    let node = Following::go_on_replaying(&hub, peer(9), store, config, &[peer(1)]).await;
    node.reach(told.head()).await;
    assert_eq!(node.store.head().unwrap().digest, honest.store.head().unwrap().digest);
    for number in BatchNumber::new(1).through(honest.head()) {
        for kind in [BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints] {
            let blob = |store: &Store| store.blob(kind, number).unwrap();
            assert!(blob(&honest.store).is_some());
            assert_eq!(blob(&node.store), blob(&honest.store), "{kind:?} of batch {number}");
        }
    }
    node.stop().await.unwrap()
}

fn change_accounts(touched: &mut ReadSet, change: impl Fn(&mut AccountValue)) {
    for (_, row) in &mut touched.rows {
        if let Some(StateValue::Account(account)) = row {
            change(account);
        }
    }
}

/// With these nonces the transactions could not be where they are.
fn wrong_nonces(touched: &mut ReadSet) {
    change_accounts(touched, |account| account.nonce += 1);
}

/// Execution succeeds, but leads to another state.
pub(crate) fn wrong_balances(touched: &mut ReadSet) {
    change_accounts(touched, |account| account.balance += U256::from(1));
}

/// These code hashes have no code.
fn wrong_codes(touched: &mut ReadSet) {
    change_accounts(touched, |account| account.code_hash = Some(Digest([7; 32])));
}

/// The contract's slot is overwritten without being read, so only the gas differs.
fn empty_slots(touched: &mut ReadSet) {
    for (key, row) in &mut touched.rows {
        if matches!(key, StateKey::Slot(..)) {
            *row = None;
        }
    }
}

/// The first batches of a range have true values. Later ones give an account to an address that has none.
fn lies_later(touched: &mut ReadSet) {
    let is_late = |row: &Option<StateValue>| matches!(row, Some(StateValue::Account(it)) if it.nonce > 50);
    if touched.rows.iter().any(|(_, row)| is_late(row)) {
        for (key, row) in &mut touched.rows {
            if matches!(key, StateKey::Account(_)) {
                row.get_or_insert(StateValue::Account(AccountValue { nonce: 1, ..AccountValue::default() }));
            }
        }
    }
}

const LIES: [(&str, Tell); 5] = [
    ("nonces", wrong_nonces),
    ("balances", wrong_balances),
    ("codes", wrong_codes),
    ("slots", empty_slots),
    ("later", lies_later),
];

#[tokio::test(flavor = "multi_thread")]
async fn right_values_cost_nobody_anything() {
    for prefetch_threads in [0, 3] {
        let status = follow(|_| {}, prefetch_threads, 0).await;
        assert_eq!(status.peers[0].failures, 0, "{:?}", status.peers[0].last_reason);
        assert!(status.hint_recall.is_some_and(|recall| recall > 0.9), "{status:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_values_are_charged_and_change_nothing() {
    for (name, lie) in LIES {
        // Read-ahead is off, so execution has only the lies.
        let status = follow(lie, 0, 0).await;
        let liar = &status.peers[0];
        let reason = liar.last_reason.clone().unwrap_or_default();
        assert!(reason.contains("wrong values: their batches were executed twice"), "{name}: {reason:?}");
        assert!(liar.failures > 0 && !liar.banned, "{liar:#?}");
        assert!(liar.reasons.iter().any(|it| it.what == reason), "{liar:#?}");
    }
}

/// Goal: lies change nothing even if the values race against the reads, and the executed rows go into a hot cache.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_values_beside_reads_change_nothing() {
    for (_, lie) in LIES {
        follow(lie, 3, 64).await;
    }
}

/// Goal: a liar costs one execution, not one for each batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_liar_is_believed_once() {
    let mut chain = Chain::telling(3, wrong_balances);
    let hub = MemoryHub::new();
    let server = hub.join(peer(1), Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    let node = Following::start_replaying(&hub, peer(9), &chain.genesis, config(0, 0), &[peer(1)]).await;
    node.reach(chain.head()).await;
    for number in 4..9 {
        let (header, certificate) = chain.extend(number);
        let blob = |kind| chain.store.blob(kind, BatchNumber::new(number)).unwrap();
        let (body, hints) = (blob(BlobKind::Body).unwrap(), blob(BlobKind::Hints));
        tell_all(&*server, announcement(header, certificate, body, hints).unwrap());
        node.reach(BatchNumber::new(number)).await;
    }
    let liar = &node.stop().await.unwrap().peers[0];
    let times = liar.reasons.iter().filter(|reason| reason.what.contains("wrong values")).count();
    assert_eq!((times, liar.failures), (1, 1), "{liar:#?}");
}
