//! Goal: whatever way a node takes, it passes its operator's waypoint or stops before it. A node that began from a snapshot
//! serves others as it was served itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use slipstream_executor::ExecutorConfig;
use slipstream_network::{BoxFuture, Handler, MemoryHub, Payload, PeerId, Protocol, Refusal, Transport};
use slipstream_storage::{StorageConfig, StorageError, Store};
use slipstream_sync::{
    Mode, Patience, PeerStatus, SyncConfig, SyncError, SyncServer, fetch_genesis,
    protocol::{Origin, Request},
    work::Worker,
};
use slipstream_types::{BatchNumber, Blob, BlobKind, Digest, Waypoint, codec};

use crate::{
    chain::Chain,
    following::{Following, Honest, peer, session},
};

fn join(hub: &MemoryHub, id: u8, store: &Store) -> Arc<dyn Transport> {
    hub.join(peer(id), Arc::new(Honest(Arc::new(SyncServer::new(store.clone())))))
}

fn fresh(chain: &Chain) -> Store {
    let store = Store::memory(&StorageConfig { snapshot_interval_batches: 10, ..Default::default() });
    store.initialize(&chain.genesis).unwrap();
    store
}

async fn start(hub: &MemoryHub, id: u8, store: &Store, mode: Mode, waypoint: Waypoint, of: u8) -> Following {
    let config = SyncConfig { mode, ..Default::default() };
    Following::start_with(hub, peer(id), store.clone(), config, Some(waypoint), &[peer(of)]).await
}

/// Goal: a snapshot below, at or above the waypoint is taken as asked for, with the batches behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_leap_passes_the_waypoint_or_the_tail_does() {
    let chain = Chain::new(27);
    let hub = MemoryHub::new();
    let _server = join(&hub, 1, &chain.store);
    let mut id = 10;
    for mode in [Mode::Snapshot, Mode::RangeDelta] {
        for at in [25, 20, 13] {
            id += 1;
            let node = start(&hub, id, &fresh(&chain), mode, chain.waypoint(at), 1).await;
            node.reach(chain.head()).await;
            assert_eq!(node.store.head().unwrap().digest, chain.store.head().unwrap().digest);
            let status = node.stop().await.unwrap();
            assert_eq!(status.snapshot.unwrap().number, BatchNumber::new(20), "{mode:?}, waypoint {at}");
            assert_eq!((status.batches, status.waypoint), (7, None));

            id += 1;
            let wrong = Waypoint { hash: Digest([1; 32]), ..chain.waypoint(at) };
            let node = start(&hub, id, &fresh(&chain), mode, wrong, 1).await;
            let (error, store) = (node.task.await.unwrap().unwrap_err(), node.store);
            let stopped = matches!(&error, SyncError::WrongWaypoint { waypoint, found, .. }
                if *waypoint == wrong && *found == chain.waypoint(at));
            assert!(stopped, "{error}");
            let head = store.head().unwrap().header.number;
            assert_eq!(head, BatchNumber::new(if at == 25 { 24 } else { 0 }), "{mode:?}, waypoint {at}");
        }
    }
}

/// Goal: the end of an epoch is a waypoint like any other, even though its certificate says more than its header.
#[tokio::test(flavor = "multi_thread")]
async fn a_leap_passes_a_waypoint_that_ends_an_epoch() {
    let chain = Chain::of_three_epochs();
    let hub = MemoryHub::new();
    let _server = join(&hub, 1, &chain.store);
    for (id, at) in [(11, 8), (12, 16)] {
        let node = start(&hub, id, &fresh(&chain), Mode::Snapshot, chain.waypoint(at), 1).await;
        node.reach(chain.head()).await;
        assert_eq!(node.stop().await.unwrap().snapshot.unwrap().number, BatchNumber::new(20));
    }
}

/// Goal: until a peer shows the waypoint, the node reports that it waits for it and is not at the head.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_not_passed_the_waypoint_is_not_at_the_head() {
    let (behind, ahead) = (Chain::new(12), Chain::new(15));
    let hub = MemoryHub::new();
    let _server = join(&hub, 1, &behind.store);
    let node = start(&hub, 2, &fresh(&behind), Mode::Snapshot, ahead.waypoint(15), 1).await;
    node.reach(BatchNumber::new(12)).await;
    let expected = "no peer has reached the waypoint's batch 15 yet";
    let told = async {
        while node.follower.status().reason != expected {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(180), told).await.is_ok(),
        "{:#?}",
        node.follower.status()
    );
    let status = node.follower.status();
    assert_eq!((status.target, status.waypoint), (BatchNumber::new(15), Some(BatchNumber::new(15))));
    let _ahead = join(&hub, 3, &ahead.store);
    assert!(hub.connect(peer(2), peer(3)));
    node.reach(BatchNumber::new(15)).await;
    assert_eq!(node.stop().await.unwrap().waypoint, None);
}

/// Goal: a node that a snapshot led past its waypoint restarts with that waypoint, although it has no header from
/// there. A node that was led there without the comparison does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_knows_whether_the_ledger_was_compared() {
    let mut chain = Chain::new(1);
    (1..303).for_each(|_| chain.extend_quietly());
    let hub = MemoryHub::new();
    let _server = join(&hub, 1, &chain.store);
    let waypoint = chain.waypoint(44);
    let restarted = |store: &Store, waypoint| {
        let session = session(&ExecutorConfig::default(), store);
        Worker::new(store.clone(), &SyncConfig::default(), session, Some(waypoint), 0)
    };
    let store = fresh(&chain);
    let compared = start(&hub, 2, &store, Mode::Snapshot, waypoint, 1).await;
    compared.reach(chain.head()).await;
    compared.stop().await.unwrap();
    assert_eq!(store.header(BatchNumber::new(44)).unwrap(), None);
    restarted(&store, waypoint).unwrap();
    let unproven = |error: &SyncError, of: Waypoint| matches!(error, SyncError::Storage(StorageError::UnprovenWaypoint { waypoint }) if *waypoint == of);
    let wrong = Waypoint { hash: Digest([1; 32]), ..waypoint };
    let error = restarted(&store, wrong).err().unwrap();
    assert!(unproven(&error, wrong), "{error}");

    let store = fresh(&chain);
    let config = SyncConfig { mode: Mode::Snapshot, ..Default::default() };
    let node = Following::start_with(&hub, peer(3), store.clone(), config, None, &[peer(1)]).await;
    node.reach(chain.head()).await;
    node.stop().await.unwrap();
    let error = restarted(&store, waypoint).err().unwrap();
    assert!(unproven(&error, waypoint), "{error}");
    restarted(&store, chain.waypoint(60)).unwrap();
}

/// Goal: a newcomer that knows only a waypoint gets the genesis, the state and the ledger from a single node that
/// itself began from a snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_born_from_a_snapshot_introduces_others() {
    let mut chain = Chain::new(1);
    (1..303).for_each(|_| chain.extend_quietly());
    let hub = MemoryHub::new();
    let _server = join(&hub, 1, &chain.store);
    let store = fresh(&chain);
    let born = start(&hub, 2, &store, Mode::Snapshot, chain.waypoint(302), 1).await;
    born.reach(chain.head()).await;
    born.stop().await.unwrap();
    // 256 headers came with batch 300.
    assert_eq!(store.header(BatchNumber::new(44)).unwrap(), None);
    assert!(store.header(BatchNumber::new(45)).unwrap().is_some());

    let hub = MemoryHub::new();
    let _born = join(&hub, 2, &store);
    let newcomer = join(&hub, 3, &Store::memory(&Default::default()));
    assert!(hub.connect(peer(3), peer(2)));
    for at in [45, 46, 255, 256, 299, 300, 301, 303] {
        let genesis =
            fetch_genesis(&*newcomer, &chain.waypoint(at), Patience::AtMost(Duration::from_secs(120)))
                .await
                .unwrap();
        assert_eq!(genesis, chain.genesis, "waypoint {at}");
    }
    let unknown =
        fetch_genesis(&*newcomer, &chain.waypoint(44), Patience::AtMost(Duration::ZERO)).await.unwrap_err();
    assert!(matches!(&unknown, SyncError::UnknownWaypoint { .. }), "{unknown}");
    assert!(unknown.to_string().contains("the header of batch 44 is not kept here"), "{unknown}");

    // Its own first window of headers begins where the other node's did.
    let next = start(&hub, 4, &fresh(&chain), Mode::Snapshot, chain.waypoint(303), 2).await;
    next.reach(chain.head()).await;
    assert_eq!(next.stop().await.unwrap().snapshot.unwrap().number, BatchNumber::new(300));
}

/// Goal: if no peer can show that a snapshot's ledger passes through the waypoint, the node uses another way, and says
/// so.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_nobody_can_prove_is_left_alone() {
    let chain = Chain::new(27);
    let hub = MemoryHub::new();
    let server = SyncServer::new(chain.store.clone());
    let _server = hub.join(peer(1), Arc::new(Forgetful(server)));
    let node = start(&hub, 2, &fresh(&chain), Mode::Snapshot, chain.waypoint(7), 1).await;
    node.reach(chain.head()).await;
    let status = node.stop().await.unwrap();
    assert!(status.snapshot.is_none(), "{status:#?}");
    let refused =
        |peer: &PeerStatus| peer.last_reason.as_ref().is_some_and(|it| it.contains("header of batch 7"));
    assert!(status.peers.iter().any(refused), "{status:#?}");
}

/// Knows nothing about batches before its snapshots.
struct Forgetful(SyncServer);

impl Handler for Forgetful {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            match codec::decode("request", &payload, payload.len()).unwrap() {
                Request::Offer { passing: Some(batch), .. } => {
                    Err(Refusal::not_kept(format!("the header of batch {batch} is not kept here")))
                }
                _ => self.0.handle(peer, payload).await,
            }
        })
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// Goal: a peer that shows the waypoint's ledger info with another genesis, or with junk, costs a newcomer one check.
/// The sender of another genesis has lied, and is banned. Junk cannot be judged, so its sender is not asked again.
#[tokio::test(start_paused = true)]
async fn a_false_genesis_costs_its_sender() {
    let (chain, other) = (Chain::new(3), Chain::with_accounts(3, 1));
    let genesis = |content: &[u8]| Blob::compress(BlobKind::Genesis, content).unwrap();
    let (false_one, junk) = (genesis(&other.genesis.content().unwrap()), genesis(&[7; 100]));
    let hub = MemoryHub::new();
    let newcomer = join(&hub, 1, &Store::memory(&Default::default()));
    let liars = [(2, false_one), (3, junk)].map(|(id, genesis)| {
        let liar =
            Arc::new(OtherGenesis { server: SyncServer::new(chain.store.clone()), genesis, asked: 0.into() });
        let _ = hub.join(peer(id), liar.clone());
        assert!(hub.connect(peer(1), peer(id)));
        liar
    });
    let patience = Patience::AtMost(Duration::from_secs(5));
    let error = fetch_genesis(&*newcomer, &chain.waypoint(2), patience).await.unwrap_err();
    assert!(error.to_string().contains("cannot read the genesis that it sent"), "{error}");
    assert_eq!(liars.map(|liar| liar.asked.load(Ordering::SeqCst)), [1, 1]);
    let bans = newcomer.bans();
    let [ban] = &bans[..] else { panic!("{bans:?}") };
    assert!(
        ban.peer == peer(2) && ban.reason.contains("does not belong to the waypoint's ledger"),
        "{ban:?}"
    );
}

/// Answers nothing.
struct Mute;

impl Handler for Mute {
    fn request<'a>(
        &'a self,
        _peer: PeerId,
        _protocol: Protocol,
        _payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(std::future::pending())
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// Goal: a peer that comes first and answers nothing does not keep later peers from being asked.
#[tokio::test(start_paused = true)]
async fn whoever_comes_is_asked_at_once() {
    let chain = Chain::new(3);
    let hub = MemoryHub::new();
    let newcomer = join(&hub, 1, &Store::memory(&Default::default()));
    let _mute = hub.join(peer(2), Arc::new(Mute));
    assert!(hub.connect(peer(1), peer(2)));
    let (waypoint, patience) = (chain.waypoint(2), Patience::AtMost(Duration::from_secs(60)));
    let began = tokio::time::Instant::now();
    let joining = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let honest = join(&hub, 9, &chain.store);
        assert!(hub.connect(peer(1), peer(9)));
        honest
    };
    let (genesis, _honest) = tokio::join!(fetch_genesis(&*newcomer, &waypoint, patience), joining);
    assert_eq!(genesis.unwrap(), chain.genesis);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// Goal: a newcomer among peers that send long false geneses waits for at most one check of them, not for one of each.
#[tokio::test(start_paused = true)]
async fn long_false_geneses_keep_no_newcomer_from_the_true_one() {
    let (chain, other) = (Chain::new(3), Chain::with_accounts(3, 2_000));
    let genesis = Blob::compress(BlobKind::Genesis, &other.genesis.content().unwrap()).unwrap();
    let hub = MemoryHub::new();
    let newcomer = join(&hub, 1, &Store::memory(&Default::default()));
    let mut peers = Vec::new();
    for id in 2..9 {
        let server = SyncServer::new(chain.store.clone());
        peers.push(match id {
            8 => join(&hub, id, &chain.store),
            _ => hub
                .join(peer(id), Arc::new(OtherGenesis { server, genesis: genesis.clone(), asked: 0.into() })),
        });
        assert!(hub.connect(peer(1), peer(id)));
    }
    let found = fetch_genesis(&*newcomer, &chain.waypoint(2), Patience::AtMost(Duration::from_secs(5))).await;
    assert_eq!(found.unwrap(), chain.genesis);
    let banned = newcomer.bans().len();
    assert!(banned <= 2, "{banned} were checked before it");
}

/// Serves its ledger with another genesis.
struct OtherGenesis {
    server: SyncServer,
    genesis: Blob,
    asked: AtomicU64,
}

impl Handler for OtherGenesis {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let answer = self.server.handle(peer, payload).await?.into_vec();
            let origin: Origin = codec::decode("origin", &answer, answer.len()).unwrap();
            Ok(codec::encode("origin", &Origin { genesis: self.genesis.clone(), ..origin }).unwrap().into())
        })
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// Goal: hostile peers that come first end nothing; a later peer that knows the waypoint is believed.
#[tokio::test(start_paused = true)]
async fn whoever_knows_the_waypoint_may_come_late() {
    let (chain, other) = (Chain::new(3), Chain::with_accounts(3, 1));
    let hub = MemoryHub::new();
    let newcomer = join(&hub, 1, &Store::memory(&Default::default()));
    let _hostile: Vec<_> = (2..6).map(|id| join(&hub, id, &other.store)).collect();
    (2..6).for_each(|id| assert!(hub.connect(peer(1), peer(id))));
    let waypoint = chain.waypoint(2);
    let hopeful = Patience::WhileHopeful(Duration::from_secs(60));
    let fetching = fetch_genesis(&*newcomer, &waypoint, hopeful);
    let joining = async {
        tokio::time::sleep(Duration::from_secs(50)).await;
        let honest = join(&hub, 9, &chain.store);
        assert!(hub.connect(peer(1), peer(9)));
        honest
    };
    let (genesis, _honest) = tokio::join!(fetching, joining);
    assert_eq!(genesis.unwrap(), chain.genesis);

    let lonely = join(&hub, 10, &Store::memory(&Default::default()));
    assert!(hub.connect(peer(10), peer(2)));
    let began = tokio::time::Instant::now();
    let error = fetch_genesis(&*lonely, &waypoint, hopeful).await.unwrap_err();
    assert!(
        matches!(&error, SyncError::OtherLedger { answers, .. } if answers.contains("its ledger has")),
        "{error}"
    );
    assert!(began.elapsed() >= Duration::from_secs(60), "{:?}", began.elapsed());
}
