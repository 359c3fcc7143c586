//! Goal: a node whose schedule lacks a fork hears of the fork beforehand, stops at it by name, and blames no peer. Once
//! its schedule has the fork, it goes on with the same data.

use std::sync::Arc;

use slipstream_network::MemoryHub;
use slipstream_storage::{StorageConfig, StorageError, Store};
use slipstream_sync::{Mode, SyncConfig, SyncError, SyncServer};
use slipstream_types::{
    BatchNumber, ChainConfig, Schedule, ScheduledFork,
    chain::Fork,
    schedule::{Activation, Forks},
};

use crate::{
    chain::Chain,
    following::{Following, Honest, peer},
};

const FIRST: BatchNumber = BatchNumber::new(21);

fn schedule(at: Activation) -> Schedule {
    Schedule::new(Forks::new(vec![ScheduledFork::evm("osaka", at, Fork::Osaka)]).unwrap())
}

/// A chain whose validators have the fork, up to the batch before it, and its only server.
fn forking(at: Activation) -> (Chain, MemoryHub) {
    let rules = ChainConfig { fork: Fork::Prague, ..ChainConfig::default() };
    let mut chain = Chain::under(rules, 0, 0);
    chain.store.follow_schedule(schedule(at)).unwrap();
    (1..FIRST.get()).for_each(|number| _ = chain.extend(number));
    let hub = MemoryHub::new();
    hub.join(peer(1), Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    (chain, hub)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_the_fork_hears_of_it_stops_at_it_and_goes_on_with_it() {
    let by_time = Activation::TimeMs(1_700_000_000_000 + 100 * (FIRST.get() - 1) + 1);
    for (mode, at) in [Mode::Replay, Mode::Delta]
        .into_iter()
        .flat_map(|mode| [Activation::Batch(FIRST), by_time].map(|at| (mode, at)))
    {
        let (mut chain, hub) = forking(at);
        let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
        store.initialize(&chain.genesis).unwrap();
        let config = SyncConfig { mode, ..Default::default() };
        let peers = [peer(1)];
        let start = || Following::start_with(&hub, peer(9), store.clone(), config.clone(), None, &peers);

        // Before the fork: it follows, and knows what is to come.
        let node = start().await;
        node.reach(chain.head()).await;
        assert_eq!(store.unknown_forks(), [schedule(at).forks()[0].0.clone()]);
        node.stop().await.unwrap();

        // At the fork: it stops by name, where it was.
        (FIRST.get()..=30).for_each(|number| _ = chain.extend(number));
        assert_ne!(chain.store.header(FIRST).unwrap().unwrap().rules, Default::default());
        let error = start().await.task.await.unwrap().unwrap_err();
        assert!(
            matches!(error, SyncError::Storage(StorageError::OtherRules { number: FIRST, .. })),
            "{mode:?} {at}: {error}"
        );
        assert!(error.to_string().contains(&format!("of fork osaka at {at}")), "{error}");
        assert_eq!(store.head().unwrap().header.number.next(), FIRST);

        // With the fork it goes on, by the same peer.
        store.follow_schedule(schedule(at)).unwrap();
        let node = start().await;
        node.reach(chain.head()).await;
        assert_eq!(store.head().unwrap().header.state_root, chain.root());
        node.stop().await.unwrap();
    }
}
