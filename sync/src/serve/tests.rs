//! Goal: whatever one peer asks for, the others get what they need, and no peer is told to retry without need.

use std::time::Duration;

use slipstream_storage::StorageConfig;
use slipstream_types::{BatchNumber, Path, PublicKey};

use super::{cost::MERGE, merges::MergeKey, *};
use crate::protocol::RangeDeltaRequest;

fn peer(id: u8) -> PeerId {
    PublicKey([id; 32])
}

fn server() -> SyncServer {
    SyncServer::new(Store::memory(&StorageConfig::default()))
}

async fn ask(server: &SyncServer, id: u8, request: &Request) -> String {
    server.handle(peer(id), codec::encode("request", request).unwrap()).await.unwrap_err().to_string()
}

fn headers() -> Request {
    Request::Headers { first: BatchNumber::new(1), last: BatchNumber::new(1_000) }
}

// A peer that disconnects drops its request, but not the work behind it: that goes on to count.
#[test]
fn a_dropped_request_holds_its_place_until_its_work_ends() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let server = server();
        let (open, gate) = std::sync::mpsc::channel::<()>();
        // The only thread for such work is taken, so the request's own work cannot begin.
        let blocker = tokio::task::spawn_blocking(move || gate.recv());
        let payload = codec::encode("request", &Request::Summary).unwrap();
        let request = server.handle(peer(1), payload);
        assert!(tokio::time::timeout(Duration::from_millis(20), request).await.is_err());
        assert_eq!(server.shared.cheap.load(), (1, 0));
        open.send(()).unwrap();
        blocker.await.unwrap().unwrap();
        // The request's work has the only thread before this.
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert_eq!(server.shared.cheap.load(), (0, 0));
    });
}

/// Goal: only a peer that exceeded its rate is told to retry later; it may still ask where the head is.
#[tokio::test(start_paused = true)]
async fn a_peer_in_debt_is_told_to_come_back() {
    let server = server();
    let cost = Cost { bytes: 8 << 30, work: Duration::ZERO };
    let now = Instant::now();
    let (debit, _) = server.shared.meter.admit(peer(1), Kind::Disk, cost, WAIT_MAX, now).unwrap();
    assert!(ask(&server, 1, &headers()).await.contains("busy for 10000 ms: you have used more"));
    assert!(ask(&server, 2, &headers()).await.contains("no ledger"));
    assert!(ask(&server, 1, &Request::Summary).await.contains("no ledger"));
    assert_eq!(server.status().refused_busy, 1);
    drop(debit);
    assert!(ask(&server, 1, &headers()).await.contains("no ledger"), "nothing of it was done");
}

/// Goal: a malformed request is refused before it waits for anything, even while no place is free.
#[tokio::test(start_paused = true)]
async fn a_malformed_request_waits_for_nothing() {
    let server = server();
    let mut held = Vec::new();
    for id in 0..DISK.places {
        held.push(server.shared.disk.enter(peer(id as u8), Class::Stranger).await.unwrap());
    }
    let began = Instant::now();
    let (number, from, to) = (BatchNumber::new(64), BatchNumber::new(1), BatchNumber::new(64));
    let (first, last, bytes_max) = (Path::MIN, Path::MAX, 1);
    let refused = [
        Request::RangeDelta(RangeDeltaRequest { from, to, first, last, bytes_max }),
        Request::RangeDelta(RangeDeltaRequest { from: to, to, first, last, bytes_max }),
        Request::Chunk { number, first: last, last: first, bytes_max },
        Request::Headers { first: BatchNumber::new(2), last: BatchNumber::new(1) },
    ];
    for request in &refused {
        let text = ask(&server, 100, request).await;
        assert!(!text.contains("busy") && !text.contains("no ledger"), "{request:?}: {text}");
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// Goal: with all places for the disk and for merges taken, a follower learns where the head is at once.
#[tokio::test(start_paused = true)]
async fn what_is_cheap_does_not_wait_for_what_is_dear() {
    let server = server();
    let mut held = Vec::new();
    for id in 0..DISK.places {
        held.push(server.shared.disk.enter(peer(id as u8), Class::Stranger).await.unwrap());
    }
    let began = Instant::now();
    assert!(ask(&server, 100, &Request::Summary).await.contains("no ledger"));
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(ask(&server, 100, &headers()).await.contains("busy for 3000 ms: other peers are served first"));
    assert_eq!(began.elapsed(), DISK.wait, "it is told before it takes the silence for a failure");
    assert_eq!(server.status().refused_busy, 1);
    drop(held.pop());
    assert!(ask(&server, 100, &headers()).await.contains("no ledger"));
}

/// Goal: merges wait only for each other, and a wait for a merge holds no place for the disk.
#[tokio::test(start_paused = true)]
async fn a_merge_waits_in_its_own_lane() {
    let server = server();
    let range = MergeKey::Range(BatchNumber::GENESIS, BatchNumber::new(70));
    let lane = server.shared.merges.lane(range);
    let held = [lane.enter(peer(1), Class::Stranger).await, lane.enter(peer(2), Class::Stranger).await];
    let asker = server.admit(peer(3), Kind::Disk, MERGE).await.unwrap();
    let waiting = server.merged(&asker, range);
    tokio::pin!(waiting);
    assert!(futures::poll!(&mut waiting).is_pending());
    assert_eq!((lane.load(), server.shared.disk.load()), ((2, 1), (0, 0)));
    // Another asker made it: this one need not wait for a place any more.
    let making = server.shared.merges.begin(range).unwrap();
    making.land(peer(1), Err(Refusal::not_kept("too large")));
    let refused = waiting.await.unwrap_err().into_refusal();
    assert_eq!(refused.text(), "too large");
    assert_eq!(lane.load(), (2, 0));
    drop(held);
}

/// Goal: a peer that asks for a long merge is told to retry before it takes the silence for a failure.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_merge_without_end() {
    let server = server();
    let range = MergeKey::Range(BatchNumber::GENESIS, BatchNumber::new(70));
    let making = server.shared.merges.begin(range).unwrap();
    let asker = server.admit(peer(3), Kind::Disk, MERGE).await.unwrap();
    let began = Instant::now();
    let refused = server.merged(&asker, range).await.unwrap_err().into_refusal();
    assert!(refused.to_string().contains("busy for 2000 ms: the deltas are being merged"), "{refused}");
    assert_eq!(began.elapsed(), merges::LIMITS.wait);
    making.land(peer(1), Err(Refusal::not_kept("too large")));
    assert_eq!(server.merged(&asker, range).await.unwrap_err().into_refusal().text(), "too large");
}

/// Goal: the waits of one request do not add up beyond the asker's deadline.
#[tokio::test(start_paused = true)]
async fn all_waits_of_a_request_have_one_deadline() {
    let server = server();
    let range = MergeKey::Range(BatchNumber::GENESIS, BatchNumber::new(70));
    let _making = server.shared.merges.begin(range).unwrap();
    let asker = server.admit(peer(3), Kind::Disk, MERGE).await.unwrap();
    let began = Instant::now();
    for _ in 0..3 {
        assert!(matches!(server.merged(&asker, range).await, Err(ServeError::Busy { .. })));
    }
    let mut held = Vec::new();
    for id in 0..DISK.places {
        held.push(server.shared.disk.enter(peer(id as u8), Class::Stranger).await.unwrap());
    }
    assert!(matches!(server.work(&asker, |_| Ok(())).await, Err(ServeError::Busy { .. })));
    assert_eq!(began.elapsed(), REQUEST_WAIT);
}

/// Goal: one state is made at a time, in a place that no range needs.
#[tokio::test(start_paused = true)]
async fn a_state_has_a_place_of_its_own() {
    let server = server();
    let (merges, range) =
        (&server.shared.merges, MergeKey::Range(BatchNumber::GENESIS, BatchNumber::new(70)));
    let (state, next) = (MergeKey::State(BatchNumber::new(1)), MergeKey::State(BatchNumber::new(2)));
    let _held = merges.lane(state).enter(peer(1), Class::Stranger).await.unwrap();
    let other = merges.lane(next).enter(peer(2), Class::Stranger);
    assert!(futures::FutureExt::now_or_never(other).is_none());
    assert!(merges.lane(range).enter(peer(2), Class::Stranger).await.is_ok());
}

/// Goal: 64 requests at once do not all pass as if each were the first.
#[tokio::test(start_paused = true)]
async fn many_requests_at_once_are_paid_for_before_they_are_worked_on() {
    let server = server();
    let range = crate::protocol::RangeRequest {
        first: BatchNumber::new(1),
        batches_max: 1_024,
        bytes_max: 16 << 20,
        parts: crate::protocol::Parts::BODY,
    };
    let (kind, cost) = Cost::of(&Request::Range(range));
    let now = Instant::now();
    let admit = || server.shared.meter.admit(peer(1), kind, cost, WAIT_MAX, now).ok();
    let admitted: Vec<_> = (0..64).filter_map(|_| admit()).collect();
    // 512 MiB at once, and 256 MiB in the second that a request may wait, at 16 MiB each.
    assert_eq!(admitted.len(), 49);
}
