//! Goal: every mode brings the same chain to the same state, and a node that followed can serve in turn.

use std::{sync::Arc, time::Duration};

use slipstream_executor::{ExecutorConfig, HintsMode};
use slipstream_network::{MemoryHub, Transport};
use slipstream_predict::PredictMode;
use slipstream_storage::{StorageConfig, Store};
use slipstream_sync::{Mode, Patience, SyncConfig, SyncError, SyncServer, announcement, fetch_genesis};
use slipstream_types::{BatchNumber, BlobKind, Digest, Waypoint};

use crate::{
    chain::Chain,
    following::{Following, Honest, peer, tell_all},
};

pub(crate) fn hub_with(chain: &Chain) -> (MemoryHub, Arc<dyn Transport>) {
    let hub = MemoryHub::new();
    let transport = hub.join(peer(1), Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    (hub, transport)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mode_ends_in_the_same_state() {
    let chain = Chain::new(27);
    let (hub, _server) = hub_with(&chain);
    for (id, mode) in [(11, Mode::Replay), (12, Mode::Delta), (13, Mode::Snapshot), (14, Mode::Auto)] {
        let node = Following::start(&hub, peer(id), &chain.genesis, mode, &[peer(1)]).await;
        node.reach(chain.head()).await;
        assert_eq!(node.store.head().unwrap().header.state_root, chain.root(), "{mode:?}");
        let kinds = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta];
        let first = if mode == Mode::Snapshot { 21 } else { 1 };
        for number in (first..=27).map(BatchNumber::new) {
            for kind in kinds {
                let content =
                    |store: &Store| store.blob(kind, number).unwrap().unwrap().content(kind).unwrap();
                assert_eq!(content(&node.store), content(&chain.store), "{mode:?} {kind:?} {number}");
            }
        }
        let status = node.stop().await.unwrap();
        match mode {
            Mode::Snapshot => {
                assert_eq!((status.batches, status.snapshot.unwrap().number), (7, BatchNumber::new(20)))
            }
            Mode::Replay => assert!(status.hint_recall.is_some_and(|recall| recall > 0.9), "{status:?}"),
            Mode::Delta => assert_eq!(status.batches_replayed, 0),
            Mode::Auto | Mode::RangeDelta => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_threads_make_the_same_blobs() {
    let mut chain = Chain::new(3);
    (0..4).for_each(|_| chain.extend_widely(60));
    let (hub, _server) = hub_with(&chain);
    let executor = ExecutorConfig { hints: HintsMode::Conflicts, threads: 2, ..Default::default() };
    let node = Following::start_replaying(&hub, peer(2), &chain.genesis, executor, &[peer(1)]).await;
    node.reach(chain.head()).await;
    assert_eq!(node.store.head().unwrap().digest, chain.store.head().unwrap().digest);
    for number in BatchNumber::new(1).through(chain.head()) {
        for kind in [BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints] {
            let [made, found] = [&chain.store, &node.store].map(|store| store.blob(kind, number).unwrap());
            assert!(made.is_some() && made == found, "{kind:?} of batch {number}");
        }
    }
}

/// Goal: a node that gets no hints, because its peer applied deltas, runs transactions in parallel by what they show
/// themselves.
#[tokio::test(flavor = "multi_thread")]
async fn several_threads_do_without_hints() {
    let mut chain = Chain::new(3);
    (0..4).for_each(|_| chain.extend_widely(60));
    let (hub, _server) = hub_with(&chain);
    let first = Following::start(&hub, peer(2), &chain.genesis, Mode::Delta, &[peer(1)]).await;
    first.reach(chain.head()).await;
    hub.leave(peer(1));
    let executor = ExecutorConfig { hints: HintsMode::Conflicts, threads: 2, ..Default::default() };
    let node = Following::start_replaying(&hub, peer(3), &chain.genesis, executor, &[peer(2)]).await;
    node.reach(chain.head()).await;
    assert_eq!(node.store.head().unwrap().digest, chain.store.head().unwrap().digest);
    let status = node.stop().await.unwrap();
    assert_eq!((status.batches_replayed, status.hint_recall), (chain.head().get(), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_serves_the_next_one() {
    let chain = Chain::new(15);
    let (hub, _server) = hub_with(&chain);
    let first = Following::start(&hub, peer(2), &chain.genesis, Mode::Delta, &[peer(1)]).await;
    first.reach(chain.head()).await;
    hub.leave(peer(1));
    let second = Following::start(&hub, peer(3), &chain.genesis, Mode::Replay, &[peer(2)]).await;
    second.reach(chain.head()).await;
    assert_eq!(second.store.head().unwrap().digest, chain.store.head().unwrap().digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_batches_are_executed_as_they_are_announced() {
    let mut chain = Chain::new(3);
    let (hub, server) = hub_with(&chain);
    let node = Following::start(&hub, peer(2), &chain.genesis, Mode::Auto, &[peer(1)]).await;
    node.reach(chain.head()).await;
    for number in 4..8 {
        let (header, certificate) = chain.extend(number);
        let blob = |kind| chain.store.blob(kind, BatchNumber::new(number)).unwrap();
        tell_all(
            &*server,
            announcement(header, certificate, blob(BlobKind::Body).unwrap(), blob(BlobKind::Hints)).unwrap(),
        );
        node.reach(BatchNumber::new(number)).await;
    }
    assert_eq!(node.store.head().unwrap().header.state_root, chain.root());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_starts_from_a_waypoint_alone() {
    let chain = Chain::new(12);
    let (hub, _server) = hub_with(&chain);
    let transport =
        hub.join(peer(2), Arc::new(Honest(Arc::new(SyncServer::new(Store::memory(&Default::default()))))));
    hub.connect(peer(2), peer(1));
    let waypoint = chain.waypoint(7);
    let genesis =
        fetch_genesis(&*transport, &waypoint, Patience::AtMost(Duration::from_secs(120))).await.unwrap();
    assert_eq!(genesis, chain.genesis);

    let wrong = Waypoint { hash: Digest([1; 32]), ..waypoint };
    let error = fetch_genesis(&*transport, &wrong, Patience::AtMost(Duration::from_secs(3)))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains(&wrong.to_string()) && error.contains(&waypoint.to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_waypoint_stops_the_node_before_its_batch_is_stored() {
    let chain = Chain::new(12);
    let (hub, _server) = hub_with(&chain);
    for (id, mode) in [(5, Mode::Replay), (6, Mode::Delta)] {
        let store = Store::memory(&StorageConfig::default());
        store.initialize(&chain.genesis).unwrap();
        let wrong = Waypoint { number: BatchNumber::new(7), hash: Digest([1; 32]) };
        let config = SyncConfig { mode, ..Default::default() };
        let node = Following::start_with(&hub, peer(id), store, config, Some(wrong), &[peer(1)]).await;
        let error = node.task.await.unwrap().unwrap_err();
        assert!(matches!(error, SyncError::WrongWaypoint { .. }), "{error}");
        assert_eq!(node.store.head().unwrap().header.number, BatchNumber::new(6));
    }
    let store = Store::memory(&StorageConfig::default());
    store.initialize(&chain.genesis).unwrap();
    let right = Some(chain.waypoint(7));
    let node = Following::start_with(&hub, peer(8), store, SyncConfig::default(), right, &[peer(1)]).await;
    node.reach(chain.head()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delta_node_without_history_keeps_none() {
    let chain = Chain::new(8);
    let (hub, _server) = hub_with(&chain);
    let store = Store::memory(&StorageConfig::default());
    store.initialize(&chain.genesis).unwrap();
    let config = SyncConfig { mode: Mode::Delta, history: false, ..Default::default() };
    let node = Following::start_with(&hub, peer(2), store, config, None, &[peer(1)]).await;
    node.reach(chain.head()).await;
    assert_eq!(node.store.head().unwrap().header.state_root, chain.root());
    assert_eq!(node.store.blob(BlobKind::Body, BatchNumber::new(3)).unwrap(), None);
}

/// Goal: peers' scores survive a restart, and a damaged record of them stops nothing.
#[tokio::test(flavor = "multi_thread")]
async fn scores_are_kept_and_a_damaged_record_is_dropped() {
    let mut chain = Chain::new(25);
    let hub = MemoryHub::new();
    let _honest = hub.join(peer(1), Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    let node = Following::start(&hub, peer(9), &chain.genesis, Mode::Replay, &[peer(1)]).await;
    node.reach(chain.head()).await;
    let store = node.store.clone();
    let config = || SyncConfig { mode: Mode::Replay, ..Default::default() };
    let score = |node: &Following| {
        let status = node.follower.status();
        status.peers.iter().find(|status| status.id == peer(1)).map_or(0, |status| status.score)
    };
    assert!(score(&node) > 200, "{:#?}", node.follower.status());
    node.stop().await.unwrap();
    let record = store.record("sync/scores").unwrap().unwrap();

    let node = Following::start_with(&hub, peer(9), store.clone(), config(), None, &[peer(1)]).await;
    while score(&node) == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(score(&node) > 200, "known before anything was asked: {:#?}", node.follower.status());
    node.stop().await.unwrap();
    assert_eq!(store.record("sync/scores").unwrap().unwrap(), record, "nothing new, nothing written");

    store.put_record("sync/scores", b"damaged").unwrap();
    let node = Following::start_with(&hub, peer(9), store.clone(), config(), None, &[peer(1)]).await;
    chain.extend(26);
    node.reach(BatchNumber::new(26)).await;
    node.stop().await.unwrap();
    assert_ne!(store.record("sync/scores").unwrap().unwrap(), b"damaged");
}

/// Goal: predictions for batches without hints change only time, and judge no peer.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_foretold_changes_no_result_and_no_score() {
    let chain = Chain::new(40);
    let (hub, _server) = hub_with(&chain);
    let modes = [PredictMode::Off, PredictMode::Accounts, PredictMode::Full];
    for (id, (predict, prefetch_threads)) in
        (2..).zip(modes.into_iter().flat_map(|mode| [(mode, 0), (mode, 3)]))
    {
        let executor = ExecutorConfig {
            hints: HintsMode::Off,
            predict,
            prefetch_threads,
            hot_cache_mib: 0,
            ..ExecutorConfig::default()
        };
        let node = Following::start_replaying(&hub, peer(id), &chain.genesis, executor, &[peer(1)]).await;
        node.reach(chain.head()).await;
        assert_eq!(node.store.head().unwrap().header.state_root, chain.root());
        let status = node.stop().await.unwrap();
        assert_eq!((status.hint_recall, status.hint_precision), (None, None));
        let foretold = status.foretold;
        match predict {
            PredictMode::Off => assert_eq!((foretold.named, foretold.reads), (0, 0)),
            PredictMode::Accounts | PredictMode::Full => {
                assert!(
                    0 < foretold.used && foretold.used <= foretold.named.min(foretold.reads),
                    "{foretold:?}"
                );
            }
        }
    }
}
