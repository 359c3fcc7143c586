//! Goal: nodes that execute detect a quorum that signs a false result; audits detect it on the other nodes.

use std::{sync::Arc, time::Duration};

use slipstream_network::MemoryHub;
use slipstream_storage::{StorageConfig, Store};
use slipstream_sync::{Mode, SyncConfig, SyncError, SyncServer};
use slipstream_types::{Address, BatchNumber};

use crate::{
    chain::Chain,
    following::{Following, Honest, peer},
};

const FALSE: BatchNumber = BatchNumber::new(13);

/// A chain with one false batch, served by peer 1.
fn false_chain() -> (Chain, MemoryHub) {
    let mut chain = Chain::new(FALSE.get() - 1);
    chain.extend_falsely(Address::repeat_byte(0x66));
    (FALSE.get() + 1..=30).for_each(|number| _ = chain.extend(number));
    let hub = MemoryHub::new();
    hub.join(peer(1), Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    (chain, hub)
}

fn empty(chain: &Chain) -> Store {
    let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
    store.initialize(&chain.genesis).unwrap();
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_raises_an_alarm_that_survives_a_restart() {
    for history in [true, false] {
        let (chain, hub) = false_chain();
        let store = empty(&chain);
        let config = SyncConfig { mode: Mode::Delta, audit: 1.0, history, ..Default::default() };
        let peers = [peer(1)];
        let start = || Following::start_with(&hub, peer(9), store.clone(), config.clone(), None, &peers);
        let node = start().await;
        node.reach(chain.head()).await;
        let alarm = loop {
            if let Some(alarm) = node.follower.status().alarm {
                break alarm;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert!(alarm.contains("batch 13: execution gives another delta_digest"), "{alarm}");
        assert!(node.follower.status().audited > 0);
        node.stop().await.unwrap();
        let again = start().await;
        assert_eq!(again.follower.status().alarm, Some(alarm), "history {history}");
        again.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_of_honest_batches_raises_none() {
    let chain = Chain::new(30);
    let hub = MemoryHub::new();
    hub.join(peer(1), Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    let config = SyncConfig { mode: Mode::Delta, audit: 1.0, ..Default::default() };
    let node = Following::start_with(&hub, peer(9), empty(&chain), config, None, &[peer(1)]).await;
    node.reach(chain.head()).await;
    while node.follower.status().audited < 5 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(node.follower.status().alarm, None);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_executes_stops_before_the_false_batch() {
    let (chain, hub) = false_chain();
    let node = Following::start(&hub, peer(9), &chain.genesis, Mode::Replay, &[peer(1)]).await;
    let error = node.task.await.unwrap().unwrap_err();
    assert!(matches!(error, SyncError::Diverged { number: FALSE, field: "delta_digest" }), "{error}");
    assert!(node.store.head().unwrap().header.number < FALSE);
}
