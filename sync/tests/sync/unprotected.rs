//! Goal: whether a transaction without a chain id counts is a rule of the chain. Nodes take it from the genesis,
//! whichever way they got that. A node that replays or audits a batch against the rule stops at it.

use std::{sync::Arc, time::Duration};

use slipstream_network::MemoryHub;
use slipstream_storage::{StorageConfig, Store};
use slipstream_sync::{Mode, SyncConfig, SyncError, SyncServer};
use slipstream_types::{Address, BatchNumber, ChainConfig, Genesis};

use crate::{
    chain::Chain,
    following::{Following, Honest, peer},
};

/// The batch with the transaction that names no chain.
const UNPROTECTED: BatchNumber = BatchNumber::new(4);

/// A chain whose quorum takes the transaction, whether or not its genesis allows it, and its only server.
fn chain(unprotected_transactions: bool) -> (Chain, MemoryHub) {
    let rules = ChainConfig { unprotected_transactions, ..ChainConfig::default() };
    let mut chain = Chain::under(rules, UNPROTECTED.get() - 1, 0);
    chain.extend_unprotected(Address::repeat_byte(0x77));
    (UNPROTECTED.get() + 1..=8).for_each(|number| _ = chain.extend(number));
    let hub = MemoryHub::new();
    hub.join(peer(1), Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    (chain, hub)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lax_chain_is_replayed() {
    let (chain, hub) = chain(true);
    // As a node without a genesis file gets it from peers.
    let genesis = Genesis::decode(&chain.genesis.content().unwrap()).unwrap();
    let node = Following::start(&hub, peer(9), &genesis, Mode::Replay, &[peer(1)]).await;
    node.reach(chain.head()).await;
    assert_eq!(node.store.head().unwrap().digest, chain.store.head().unwrap().digest);
    assert_eq!(node.stop().await.unwrap().batches_replayed, chain.head().get());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_replays_a_strict_chain_stops_at_it() {
    let (chain, hub) = chain(false);
    let node = Following::start(&hub, peer(9), &chain.genesis, Mode::Replay, &[peer(1)]).await;
    let error = node.task.await.unwrap().unwrap_err();
    assert!(matches!(error, SyncError::Unreadable { number: UNPROTECTED, .. }), "{error}");
    assert!(
        error.to_string().contains("transaction 0 of the body: the transaction has no chain id"),
        "{error}"
    );
    assert!(node.store.head().unwrap().header.number < UNPROTECTED);
}

#[tokio::test(flavor = "multi_thread")]
async fn audits_know_the_rule() {
    for is_lax in [true, false] {
        let (chain, hub) = chain(is_lax);
        let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
        store.initialize(&chain.genesis).unwrap();
        let config = SyncConfig { mode: Mode::Delta, audit: 1.0, ..Default::default() };
        let node = Following::start_with(&hub, peer(9), store, config, None, &[peer(1)]).await;
        node.reach(chain.head()).await;
        let alarm = loop {
            let status = node.follower.status();
            if status.alarm.is_some() || status.audited >= chain.head().get() {
                break status.alarm;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!(alarm.is_some(), !is_lax, "{alarm:?}");
        assert!(alarm.is_none_or(|alarm| alarm.contains("the transaction has no chain id")));
        node.stop().await.unwrap();
    }
}
