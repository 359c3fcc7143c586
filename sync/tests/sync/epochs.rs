//! Goal: a ledger whose validators change is followed from the genesis on, and nobody can slip in validators of their own.

use std::{sync::Arc, time::Duration};

use slipstream_executor::{ExecutorConfig, Session};
use slipstream_network::{MemoryHub, Transport};
use slipstream_storage::{self as storage, StorageConfig, Store};
use slipstream_sync::{
    Follower, Mode, SyncConfig, SyncError, SyncServer, Trust, announcement,
    protocol::{EpochEnds, Request},
};
use slipstream_types::{BatchNumber, BlobKind, Digest, Epoch, bounded::BoundedVec, codec};

use crate::{
    chain::Chain,
    following::{Following, Honest, peer, tell_all},
    liars::follow_beside,
};

fn hub_with(chain: &Chain) -> (MemoryHub, Arc<dyn Transport>) {
    let hub = MemoryHub::new();
    let transport = hub.join(peer(1), Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    (hub, transport)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mode_follows_changing_validators() {
    let chain = Chain::of_three_epochs();
    let (hub, _server) = hub_with(&chain);
    let ends = chain.store.epoch_ends(Epoch(0), 10).unwrap();
    assert_eq!(ends.iter().map(|end| end.info.number.get()).collect::<Vec<_>>(), [8, 16]);
    for (id, mode) in [(11, Mode::Replay), (12, Mode::Delta), (13, Mode::Snapshot)] {
        let node = Following::start(&hub, peer(id), &chain.genesis, mode, &[peer(1)]).await;
        node.reach(chain.head()).await;
        let store = node.store.clone();
        assert_eq!(store.head().unwrap().digest, chain.store.head().unwrap().digest, "{mode:?}");
        node.stop().await.unwrap();
        assert_eq!(store.epoch_ends(Epoch(0), 10).unwrap(), ends, "{mode:?}");
        assert_eq!(Trust::of(&store).unwrap().epoch(), Epoch(2));

        // It serves the next node as it was served itself.
        let next_hub = MemoryHub::new();
        let _server = next_hub.join(peer(id), Arc::new(Honest(Arc::new(SyncServer::new(store)))));
        let next = Following::start(&next_hub, peer(40), &chain.genesis, Mode::Delta, &[peer(id)]).await;
        if mode != Mode::Snapshot {
            next.reach(chain.head()).await;
        }
        next.stop().await.unwrap();
    }
}

/// Goal: a waypoint may be the end of an epoch, even if the range over it comes under a later certificate.
#[tokio::test(flavor = "multi_thread")]
async fn a_waypoint_that_ends_an_epoch_is_passed() {
    let chain = Chain::of_three_epochs();
    let (hub, _server) = hub_with(&chain);
    let config = || SyncConfig { mode: Mode::Delta, ..Default::default() };
    for (id, at, passes) in [(11, 8, true), (12, 9, true), (13, 8, false)] {
        let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
        store.initialize(&chain.genesis).unwrap();
        let mut waypoint = chain.waypoint(at);
        if !passes {
            waypoint.hash = Digest::ZERO;
        }
        let node = Following::start_with(&hub, peer(id), store, config(), Some(waypoint), &[peer(1)]).await;
        if passes {
            node.reach(chain.head()).await;
            assert_eq!(node.store.certificate(BatchNumber::new(at)).unwrap(), None);
            node.stop().await.unwrap();
        } else {
            let ended = node.task.await.unwrap().unwrap_err();
            assert!(matches!(ended, SyncError::WrongWaypoint { .. }), "{ended}");
            assert_eq!(node.store.head().unwrap().header.number, BatchNumber::new(at - 1));
        }
    }
}

/// Goal: a quorum may hand the chain to other validators than the contract wants. Every node with the state detects
/// that, whichever way it got the state and wherever its snapshot is. It stops, and stays stopped after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn validators_that_the_state_does_not_want_stop_every_mode() {
    for usurped in [9, 10, 11] {
        let mut chain = Chain::new(usurped - 1);
        chain.usurp();
        (usurped + 1..=22).for_each(|number| _ = chain.extend(number));
        let (hub, _server) = hub_with(&chain);
        for (id, mode) in [(11, Mode::Replay), (12, Mode::Delta), (13, Mode::Snapshot)] {
            let node = Following::start(&hub, peer(id), &chain.genesis, mode, &[peer(1)]).await;
            let (store, ended) = (node.store, node.task.await.unwrap().unwrap_err());
            let number = if mode == Mode::Snapshot { 20 } else { usurped };
            let text = ended.to_string();
            assert!(matches!(ended, SyncError::WrongSuccession { .. }), "{usurped} {mode:?}: {text}");
            assert!(text.contains(&format!("batch {number}, ")), "{usurped} {mode:?}: {text}");
            if mode == Mode::Snapshot {
                assert_eq!(store.head().unwrap().header.number, BatchNumber::new(number), "it is durable");
                assert_stays_down(&hub, store);
            }
        }
    }
}

/// Checks that a node does not begin on this store.
fn assert_stays_down(hub: &MemoryHub, store: Store) {
    let transport = hub.join(peer(30), Arc::new(Honest(Arc::new(SyncServer::new(store.clone())))));
    let session = Session::new(&ExecutorConfig::default(), store.genesis().unwrap().chain).unwrap();
    let (config, session) = (SyncConfig::default(), Arc::new(session));
    let follower = Follower::new(config, store, transport, session, None, Duration::ZERO);
    assert!(matches!(follower, Err(SyncError::WrongSuccession { .. })));
}

/// Goal: a range delta over two epochs brings the validators of today, too.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_node_follows_across_by_range_delta() {
    let mut chain = Chain::of_three_epochs();
    let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
    store.initialize(&chain.genesis).unwrap();
    (1..=3).for_each(|number| chain.commit_to(&store, BatchNumber::new(number)));
    (26..60).for_each(|_| chain.extend_quietly());
    let (hub, _server) = hub_with(&chain);
    let config = SyncConfig { mode: Mode::RangeDelta, history: false, ..Default::default() };
    let node = Following::start_with(&hub, peer(11), store, config, None, &[peer(1)]).await;
    node.reach(chain.head()).await;
    assert_eq!(node.store.next_set().unwrap(), chain.store.next_set().unwrap());
    assert_eq!(node.store.next_set().unwrap().epoch, Epoch(2));
    let status = node.stop().await.unwrap();
    assert!(status.batches < 20, "most came by the range delta: {status:?}");
}

/// Goal: the files of a later epoch's snapshot are accepted with nothing but the genesis, and the imported node goes on
/// from there.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_a_later_epoch_is_imported() {
    let chain = Chain::of_three_epochs();
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("export");
    let trust = storage::Trust { waypoint: None, genesis: Some(chain.genesis.clone()) };
    storage::export_snapshot(&chain.store, BatchNumber::new(20), &export).unwrap();
    storage::verify_export(&export, &trust).unwrap();
    let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
    storage::import_snapshot(&store, &export, &trust).unwrap();
    assert_eq!(store.next_set().unwrap(), chain.store.next_set().unwrap());
    let (hub, _server) = hub_with(&chain);
    let config = SyncConfig { mode: Mode::Delta, ..Default::default() };
    let node = Following::start_with(&hub, peer(11), store, config, None, &[peer(1)]).await;
    node.reach(chain.head()).await;
    node.stop().await.unwrap();
}

/// Goal: at the head, validators that are still unknown sign the first batch of an epoch; its sender is no liar.
#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_ends_while_its_head_is_followed() {
    let mut chain = Chain::new(3);
    let (hub, server) = hub_with(&chain);
    let node = Following::start(&hub, peer(9), &chain.genesis, Mode::Auto, &[peer(1)]).await;
    node.reach(chain.head()).await;
    for epoch in 1..=2 {
        // This batch is not announced.
        chain.end_epoch();
        let number = chain.head().get() + 1;
        let (header, certificate) = chain.extend(number);
        let blob = |kind| chain.store.blob(kind, BatchNumber::new(number)).unwrap();
        let body = blob(BlobKind::Body).unwrap();
        let bytes = announcement(header, certificate, body, blob(BlobKind::Hints)).unwrap();
        tell_all(&*server, bytes);
        let status = node.reach(chain.head()).await;
        assert!(status.peers.iter().all(|peer| peer.last_reason.is_none()), "{status:#?}");
        assert_eq!(node.store.epoch(), Epoch(epoch));
    }
    node.stop().await.unwrap();
}

fn change_ends(request: &Request, answer: Vec<u8>, change: fn(&mut EpochEnds)) -> Option<Vec<u8>> {
    if !matches!(request, Request::Epochs { .. }) {
        return Some(answer);
    }
    let mut ends: EpochEnds = codec::decode("epoch ends", &answer, 1 << 20).unwrap();
    change(&mut ends);
    Some(codec::encode("epoch ends", &ends).unwrap())
}

fn own_validators(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_ends(request, answer, |ends| {
        let mut certificates = ends.certificates.to_vec();
        let mut own = certificates[1].info.next_validators.clone().unwrap();
        own.epoch = Epoch(1);
        certificates[0].info.next_validators = Some(own);
        ends.certificates = BoundedVec::new(certificates).unwrap();
    })
}

fn skipped_epoch(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_ends(request, answer, |ends| {
        ends.certificates = BoundedVec::new(ends.certificates[1..].to_vec()).unwrap();
    })
}

fn no_ends(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_ends(request, answer, |ends| ends.certificates = BoundedVec::default())
}

#[tokio::test(flavor = "multi_thread")]
async fn validators_that_nobody_signed_are_refused() {
    follow_beside(Chain::of_three_epochs(), own_validators, Mode::Delta, true, "does not verify").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skipped_epoch_is_refused() {
    follow_beside(
        Chain::of_three_epochs(),
        skipped_epoch,
        Mode::Delta,
        true,
        "in order from the requested epoch on",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_shows_no_epoch_ends_only_pauses() {
    follow_beside(Chain::of_three_epochs(), no_ends, Mode::Delta, false, "only up to epoch 0").await;
}
