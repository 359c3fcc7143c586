//! Goal: many followers cost a server the work of one, and no asker can tell a cached answer from a fresh one.

use std::sync::Arc;

use slipstream_network::{MemoryHub, Payload};
use slipstream_storage::{PathPrefix, StorageConfig, Store};
use slipstream_sync::{
    Mode, ServeStatus, SyncConfig, SyncServer,
    protocol::{Parts, Range, RangeDeltaRequest, RangeRequest, Request, SubtreesRequest, Summary},
};
use slipstream_types::{BatchNumber, Digest, Path, bounded::BoundedVec, codec};

use crate::{
    chain::Chain,
    following::{Following, Honest, peer},
};

pub(crate) async fn ask(server: &SyncServer, request: &Request) -> Result<Vec<u8>, String> {
    let payload = codec::encode("request", request).unwrap();
    server.handle(peer(9), payload).await.map(Payload::into_vec).map_err(|refusal| refusal.to_string())
}

fn range(first: u64, batches_max: u32) -> Request {
    let parts = Parts::BODY.with(Parts::RECEIPTS).with(Parts::DELTA).with(Parts::HINTS);
    Request::Range(RangeRequest { first: BatchNumber::new(first), batches_max, bytes_max: 4 << 20, parts })
}

fn chunk(number: u64) -> Request {
    let (first, last) = (Path::MIN, Path::MAX);
    Request::Chunk { number: BatchNumber::new(number), first, last, bytes_max: 1 << 20 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cached_answer_has_the_bytes_of_a_fresh_one() {
    let mut chain = Chain::new(27);
    let cached = SyncServer::new(chain.store.clone());
    let off = SyncConfig { serve_cache_mib: 0, ..Default::default() };
    let fresh = SyncServer::with_config(chain.store.clone(), &off);
    let snapshot = BatchNumber::new(20);
    let (first, last) = (BatchNumber::new(1), snapshot);
    let requests = [
        range(1, 8),
        range(8, 4_000),
        chunk(20),
        Request::Headers { first, last },
        Request::Codes { number: snapshot, hashes: BoundedVec::new(vec![]).unwrap() },
    ];
    for request in &requests {
        let expected = ask(&fresh, request).await.unwrap();
        assert_eq!(ask(&cached, request).await.unwrap(), expected, "{request:?}");
        assert_eq!(ask(&cached, request).await.unwrap(), expected, "{request:?}");
    }
    let count = requests.len() as u64;
    let status = cached.status();
    assert_eq!((status.cache_hits, status.cache_misses), (count, count), "{status:?}");
    assert!(status.cache_bytes > 0);
    let off = fresh.status();
    assert_eq!((off.cache_hits, off.cache_bytes), (0, 0), "{off:?}");

    // The same request means more batches once the head has moved, and its answer must have them.
    let open = range(21, 100);
    for head in 28..32 {
        let answer = ask(&cached, &open).await.unwrap();
        let decoded: Range = codec::decode("range", &answer, 1 << 20).unwrap();
        assert_eq!(decoded.batches.last().unwrap().header.number.get(), head - 1);
        assert_eq!(answer, ask(&fresh, &open).await.unwrap());
        chain.extend(head);
    }

    // A dropped snapshot is not served, although its chunk is still cached.
    chain.extend(32);
    for number in 33..=40 {
        chain.extend(number);
    }
    assert!(ask(&cached, &chunk(20)).await.unwrap_err().contains("not kept"));
    let (hits, misses) = (cached.status().cache_hits, cached.status().cache_misses);
    assert!(ask(&cached, &range(60, 1)).await.is_err());
    assert_eq!((cached.status().cache_hits, cached.status().cache_misses), (hits, misses));
}

/// Goal: a summary gives the cost of a snapshot, so that no node has to fetch one to learn it.
#[tokio::test]
async fn a_summary_tells_how_large_its_snapshots_are() {
    let chain = Chain::with_accounts(27, 300);
    let server = SyncServer::new(chain.store.clone());
    let summary: Summary =
        codec::decode("summary", &ask(&server, &Request::Summary).await.unwrap(), 1 << 20).unwrap();
    let numbers: Vec<_> = summary.snapshots.iter().map(|offer| offer.number.get()).collect();
    assert_eq!(numbers, [20, 10]);
    for offer in &summary.snapshots {
        let snapshot = chain.store.snapshot(offer.number).unwrap().unwrap();
        let chunk = snapshot.encoded_chunk(Path::MIN, Path::MAX, 1 << 20).unwrap();
        assert_eq!(offer.rows, chunk.rows as u64);
        let share = offer.bytes as f64 / chunk.row_bytes as f64;
        assert!(
            (0.75..1.35).contains(&share),
            "{} bytes are offered, it has {}",
            offer.bytes,
            chunk.row_bytes
        );
    }
}

/// Goal: a range whose last batch lacks a certificate of its own goes out under the latest one, cached or fresh.
#[tokio::test(flavor = "multi_thread")]
async fn a_cached_range_goes_out_under_the_certificate_of_today() {
    let mut chain = Chain::new(12);
    let (hub, source) = (MemoryHub::new(), peer(1));
    let _source = hub.join(source, Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    // The node commits ranges, so most of its batches have no certificate of their own.
    let node = Following::start(&hub, peer(2), &chain.genesis, Mode::Delta, &[source]).await;
    node.reach(chain.head()).await;
    let cached = SyncServer::new(node.store.clone());
    assert_eq!(node.store.certificate(BatchNumber::new(4)).unwrap(), None);
    let certified = async |server: &SyncServer| {
        let answer = ask(server, &range(1, 4)).await.unwrap();
        let range: Range = codec::decode("range", &answer, 1 << 20).unwrap();
        range.certificate.info.number
    };
    assert_eq!(certified(&cached).await, BatchNumber::new(12));
    chain.extend(13);
    node.reach(chain.head()).await;
    assert_eq!(certified(&cached).await, BatchNumber::new(13));
    assert_eq!(cached.status().cache_hits, 1);
}

/// Goal: followers share the server's work, wherever they begin.
#[tokio::test(flavor = "multi_thread")]
async fn many_followers_share_the_work_of_one() {
    const ACCOUNTS: u64 = 20_000;
    let chain = Chain::with_accounts(64, ACCOUNTS);
    let apart = [3, 5, 10].map(|batches| Chain::with_accounts(batches, ACCOUNTS).store);
    let status = follow(&chain, Mode::Delta, apart.into()).await;
    // From genesis on, 9 ranges with the same ends, and one more for each node that begins within another range.
    assert_eq!(status.cache_misses, 9 + 3, "{status:?}");
    assert_eq!(status.cache_hits, 5 * 9 + (9 + 9 + 8) - (9 + 3), "{status:?}");

    let status = follow(&chain, Mode::Snapshot, vec![]).await;
    let share = status.cache_hits as f64 / (status.cache_hits + status.cache_misses) as f64;
    assert!(share >= 0.7, "{share}: {status:?}");
}

/// The store of a node that was restarted: the tree of its snapshot is only on disk.
fn restarted(chain: &Chain, dir: &std::path::Path) -> Store {
    let config = StorageConfig { snapshot_interval_batches: 10, ..Default::default() };
    let store = Store::open(&config, dir).unwrap();
    store.initialize(&chain.genesis).unwrap();
    (1..=12).for_each(|number| chain.commit_to(&store, BatchNumber::new(number)));
    store.close();
    drop(store);
    Store::open(&config, dir).unwrap()
}

/// Goal: no tree is loaded for a request that is refused in any case.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_loads_nothing() {
    let chain = Chain::with_accounts(12, 300);
    let dir = tempfile::tempdir().unwrap();
    let store = restarted(&chain, dir.path());
    let server = SyncServer::new(store.clone());
    let is_ready = || store.snapshot(BatchNumber::new(10)).unwrap().unwrap().is_ready();
    let (number, first, last, bytes_max) = (BatchNumber::new(10), Path::MIN, Path::MAX, 1 << 20);
    let range_delta = |from| {
        let from = BatchNumber::new(from);
        Request::RangeDelta(RangeDeltaRequest { from, to: number, first, last, bytes_max })
    };
    let subtrees = |places| {
        let (number, root) = (BatchNumber::new(12), Digest::ZERO);
        let places = BoundedVec::new(places).unwrap();
        Request::Subtrees(SubtreesRequest { number, root, levels: 1, places })
    };
    for request in [
        range_delta(1),
        range_delta(64),
        Request::Chunk { number, first: last, last: first, bytes_max },
        subtrees(vec![]),
        subtrees(vec![PathPrefix::ROOT]),
    ] {
        let refused = ask(&server, &request).await.unwrap_err();
        assert!(!is_ready(), "{request:?}: {refused}");
    }
    // A request that can be answered has the tree loaded, even if that takes longer than the asker may wait.
    for _ in 0..30 {
        if !is_ready() {
            let _ = ask(&server, &range_delta(0)).await;
        }
    }
    assert!(is_ready());
}

/// Asks a freshly restarted server for its snapshot, fifty times at once, and for something else. Returns `None` if an
/// asker had to retry.
async fn asked_after_a_restart(chain: &Chain) -> Option<Vec<Vec<u8>>> {
    let dir = tempfile::tempdir().unwrap();
    let server = SyncServer::new(restarted(chain, dir.path()));
    // More requests than the places for the disk.
    let (request, another) = (chunk(10), range(1, 8));
    let asked = (0..50).map(|id| {
        let payload = codec::encode("request", &request).unwrap();
        server.handle(peer(id), payload)
    });
    let (answers, other) = tokio::join!(futures::future::join_all(asked), ask(&server, &another));
    if server.status().refused_busy > 0 {
        return None;
    }
    assert!(other.is_ok());
    Some(answers.into_iter().map(|answer| answer.unwrap().into_vec()).collect())
}

/// Goal: after a restart, a request for a snapshot waits until its tree is loaded. The asker need not retry, and the
/// request takes no place meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_being_loaded_is_waited_for() {
    let chain = Chain::with_accounts(12, 300);
    let mut answers = None;
    // If the loading thread stood still for two seconds, another server is tried.
    for _ in 0..3 {
        if answers.is_none() {
            answers = asked_after_a_restart(&chain).await;
        }
    }
    let answers = answers.expect("somebody had to come back each time");
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

/// Goal: a follower that a server refuses for its debt retries when the debt is paid.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_comes_back_to_a_server_that_is_busy() {
    let chain = Chain::with_accounts(20, 20_000);
    let (hub, source) = (MemoryHub::new(), peer(1));
    let slow = SyncConfig { serve_peer_mib_per_second: 1.try_into().unwrap(), ..Default::default() };
    let server = Arc::new(SyncServer::with_config(chain.store.clone(), &slow));
    let _transport = hub.join(source, Arc::new(Honest(server.clone())));
    // Simultaneous requests are served on credit, up to what a second may bring.
    let request = chunk(20);
    let asked = (0..12).map(|_| ask(&server, &request));
    let served = futures::future::join_all(asked).await.iter().filter(|answer| answer.is_ok()).count();
    assert!((3..12).contains(&served), "{served}");
    let node = Following::start(&hub, peer(9), &chain.genesis, Mode::Delta, &[source]).await;
    let status = node.reach(chain.head()).await;
    assert!(server.status().refused_busy > 0, "{:?}", server.status());
    assert!(status.peers.iter().all(|peer| !peer.banned), "{status:?}");
    node.stop().await.unwrap();
}

/// Five nodes catch up from genesis, others from the content of their stores, all from one server.
async fn follow(chain: &Chain, mode: Mode, mut stores: Vec<Store>) -> ServeStatus {
    let (hub, source) = (MemoryHub::new(), peer(1));
    let server = Arc::new(SyncServer::new(chain.store.clone()));
    let _transport = hub.join(source, Arc::new(Honest(server.clone())));
    for _ in 0..5 {
        let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
        store.initialize(&chain.genesis).unwrap();
        stores.push(store);
    }
    let mut following = Vec::new();
    for (store, id) in stores.into_iter().zip(20..) {
        let config = SyncConfig { mode, range_batches_max: 8.try_into().unwrap(), ..Default::default() };
        following.push(Following::start_with(&hub, peer(id), store, config, None, &[source]).await);
    }
    for node in following {
        node.reach(chain.head()).await;
        assert_eq!(node.store.head().unwrap().header.state_root, chain.root());
        node.stop().await.unwrap();
    }
    server.status()
}
