//! Goal: hints outlive nodes that execute nothing. A node that applies deltas keeps the hints that a validator signed,
//! and that validator answers for their worth.

use std::sync::Arc;

use slipstream_executor::{ExecutorConfig, HintsMode};
use slipstream_network::{MemoryHub, PeerId};
use slipstream_storage::Store;
use slipstream_sync::{Mode, SyncServer, SyncStatus};
use slipstream_types::{BatchNumber, Blob, BlobKind, SecretKey};

use crate::{
    chain::Chain,
    following::{Following, Honest, peer},
    values::wrong_balances,
};

fn hints(store: &Store, number: u64) -> Option<Blob> {
    store.blob(BlobKind::Hints, BatchNumber::new(number)).unwrap()
}

/// Follows a chain from one peer to the next, each in its mode. Returns their stores, and the last node's status.
async fn pass_on(chain: &Chain, modes: &[Mode]) -> (Vec<Store>, SyncStatus) {
    let hub = MemoryHub::new();
    let server = hub.join(peer(1), Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    let (mut from, mut stores, mut nodes): (PeerId, Vec<_>, Vec<_>) = (peer(1), Vec::new(), Vec::new());
    for (id, mode) in (2..).zip(modes) {
        let node = Following::start(&hub, peer(id), &chain.genesis, *mode, &[from]).await;
        node.reach(chain.head()).await;
        hub.leave(from);
        stores.push(node.store.clone());
        nodes.push(node);
        from = peer(id);
    }
    drop(server);
    (stores, nodes.pop().unwrap().stop().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_live_on_in_every_mode() {
    let chain = Chain::vouched(27, Chain::third_key(), None);
    let modes = [Mode::Delta, Mode::Replay, Mode::Snapshot, Mode::Replay];
    let (stores, _) = pass_on(&chain, &modes[..3]).await;
    for (store, mode) in stores.iter().zip(modes) {
        let first = if mode == Mode::Snapshot { 21 } else { 1 };
        for number in first..=27 {
            assert!(hints(store, number).is_some(), "{mode:?} {number}");
            assert_eq!(hints(store, number), hints(&chain.store, number), "{mode:?} {number}");
        }
    }
    let (_, status) = pass_on(&chain, &[Mode::Delta, Mode::Delta, Mode::Replay]).await;
    assert!(status.hint_recall.is_some_and(|recall| recall > 0.9), "{status:#?}");
}

/// Goal: only a node that tries hints keeps those without a validator's signature.
#[tokio::test(flavor = "multi_thread")]
async fn hints_of_strangers_are_not_kept_untried() {
    for chain in [Chain::new(9), Chain::vouched(9, SecretKey::from_seed([99; 32]), None)] {
        let (stores, status) = pass_on(&chain, &[Mode::Delta, Mode::Replay]).await;
        let [applied, replayed] = &stores[..] else { panic!("two nodes") };
        assert!((1..=9).all(|number| hints(applied, number).is_none() && hints(replayed, number).is_some()));
        assert_eq!(status.hint_recall, None);
        assert!(status.peers.iter().all(|peer| peer.failures == 0), "{status:#?}");
    }
}

/// Goal: a validator that signs wrong values is known by name. Peers that passed them on keep their score, and the values go no further.
#[tokio::test(flavor = "multi_thread")]
async fn a_validators_lies_are_not_their_bearers() {
    let lying = Chain::vouched(9, Chain::third_key(), Some(wrong_balances));
    let honest = Chain::vouched(9, Chain::third_key(), Some(|_| {}));
    let hub = MemoryHub::new();
    let _server = hub.join(peer(1), Arc::new(Honest(Arc::new(SyncServer::new(lying.store.clone())))));
    let executor = ExecutorConfig {
        hints: HintsMode::Values,
        hot_cache_mib: 0,
        prefetch_threads: 0,
        ..ExecutorConfig::default()
    };
    let node = Following::start_replaying(&hub, peer(2), &lying.genesis, executor, &[peer(1)]).await;
    node.reach(lying.head()).await;
    assert_eq!(node.store.head().unwrap().digest, honest.store.head().unwrap().digest);
    let lies = (1..=9).filter(|number| hints(&lying.store, *number) != hints(&honest.store, *number));
    let kept = lies.filter(|number| hints(&node.store, *number) == hints(&lying.store, *number)).count();
    let status = node.stop().await.unwrap();
    assert!(status.hints.values_wrong > 0, "{status:#?}");
    assert_eq!(status.peers[0].failures, 0, "{:?}", status.peers[0].last_reason);
    assert_eq!(kept, 0);
}
