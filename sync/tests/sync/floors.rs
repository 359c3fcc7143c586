//! Goal: a server's windows end where its summary says: the batch at the floor is served, and the one below it is
//! refused.

use slipstream_storage::{PruneConfig, StorageConfig, Store};
use slipstream_sync::{
    SyncServer,
    protocol::{Parts, Range, RangeDeltaRequest, RangeRequest, Request, Summary},
};
use slipstream_types::{BatchNumber, Path, codec};

use crate::{chain::Chain, serving::ask};

/// The head, which has a snapshot.
const HEAD: u64 = 80;
/// A base of range deltas, not far behind the head.
const BASE: u64 = 64;

/// A server of the last `kept` batches, before it prunes.
fn keeping(chain: &Chain, kept: u64) -> (Store, SyncServer) {
    let prune = PruneConfig::of_batches([kept; 4]);
    let config = StorageConfig { snapshot_interval_batches: HEAD / 2, prune, ..Default::default() };
    let store = Store::memory(&config);
    store.initialize(&chain.genesis).unwrap();
    (1..=HEAD).for_each(|number| chain.commit_to(&store, BatchNumber::new(number)));
    (store.clone(), SyncServer::new(store))
}

fn range(first: u64, parts: Parts) -> Request {
    Request::Range(RangeRequest { first: BatchNumber::new(first), batches_max: 1, bytes_max: 1 << 20, parts })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_served_from_the_floor_on() {
    let chain = Chain::new(HEAD);
    let (store, server) = keeping(&chain, 16);
    let floor = HEAD - 15;
    for parts in [Parts::BODY, Parts::RECEIPTS, Parts::DELTA] {
        ask(&server, &range(floor - 1, parts)).await.unwrap();
    }
    store.prune().unwrap();
    let summary = ask(&server, &Request::Summary).await.unwrap();
    let summary: Summary = codec::decode("summary", &summary, 1 << 20).unwrap();
    let from = [summary.bodies_from, summary.receipts_from, summary.deltas_from];
    assert_eq!(from, [Some(BatchNumber::new(floor)); 3]);
    for parts in [Parts::BODY, Parts::RECEIPTS, Parts::DELTA] {
        let answer = ask(&server, &range(floor, parts)).await.unwrap();
        let answer: Range = codec::decode("range", &answer, 1 << 20).unwrap();
        assert_eq!(answer.batches[0].header.number.get(), floor);
        let fresh = SyncServer::new(store.clone());
        let refusal = ask(&fresh, &range(floor - 1, parts)).await.unwrap_err();
        assert!(refusal.contains("not kept"), "{refusal}");
    }
}

/// Goal: a range delta needs every delta after its base, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_delta_is_served_while_the_delta_after_its_base_is_kept() {
    let chain = Chain::new(HEAD);
    let (first, last, bytes_max) = (Path::MIN, Path::MAX, 1 << 20);
    let (from, to) = (BatchNumber::new(BASE), BatchNumber::new(HEAD));
    let request = Request::RangeDelta(RangeDeltaRequest { from, to, first, last, bytes_max });
    for (kept, is_served) in [(HEAD - BASE, true), (HEAD - BASE - 1, false)] {
        let (store, server) = keeping(&chain, kept);
        let before = ask(&server, &request).await.unwrap();
        store.prune().unwrap();
        match (is_served, ask(&server, &request).await) {
            (true, answer) => assert_eq!(answer.unwrap(), before),
            (false, answer) => {
                let refusal = answer.unwrap_err();
                assert!(refusal.contains("the delta of batch 65"), "{refusal}");
            }
        }
    }
}
