//! Goal: a node that is far behind takes the chunks of a range delta from any peers, and believes none of them.

use std::sync::Arc;

use slipstream_executor::ExecutorConfig;
use slipstream_network::MemoryHub;
use slipstream_storage::{
    self as storage, CommitBatch, PruneConfig, RangeDeltaChunk, RangeDeltaTakeover, RestoreTarget,
    StorageConfig, StorageError, Store, Takeover,
};
use slipstream_sync::{
    Fault, Mode, SyncConfig, SyncServer, Violation,
    protocol::{Codes, Headers, RangeDeltaRequest, Request},
    range_delta,
    work::{AbandonReason, Ancestry, Done, Job, RestoreJob, RestoreOutcome, Worker},
};
use slipstream_types::{
    Address, BatchHeader, BatchNumber, Blob, BlobKind, Delta, Path, StateKey,
    accumulator::AccumulatorRangeProof, bounded::BoundedVec, codec, delta::DeltaEntry, keccak256,
};

use crate::{
    chain::Chain,
    following::{Following, Honest, peer, session},
    liars::Liar,
    serving::ask,
};

const TO: BatchNumber = BatchNumber::new(70);
const BYTES_MAX: u32 = 2_000;

/// A chain with a snapshot at [`TO`], and a node whose head is the chain's batch `head`.
fn behind(head: u64) -> (Chain, Store) {
    let chain = Chain::new(75);
    let store = Store::memory(&StorageConfig { snapshot_interval_batches: 10, ..Default::default() });
    store.initialize(&chain.genesis).unwrap();
    for number in 1..=head {
        commit(&chain.store, &store, BatchNumber::new(number));
    }
    (chain, store)
}

fn commit(from: &Store, to: &Store, number: BatchNumber) {
    let delta = from.blob(BlobKind::Delta, number).unwrap().unwrap();
    let (header, opened) = (from.header(number).unwrap().unwrap(), Delta::open(&delta).unwrap());
    to.commit(CommitBatch { delta_blob: Some(&delta), ..CommitBatch::new(&header, &opened) }, None).unwrap();
}

fn target(chain: &Chain) -> RestoreTarget {
    RestoreTarget {
        header: chain.store.header(TO).unwrap().unwrap(),
        certificate: chain.store.certificate(TO).unwrap().unwrap(),
    }
}

fn request(takeover: &RangeDeltaTakeover, index: usize) -> RangeDeltaRequest {
    let from = range_delta::base(takeover.base().number, BatchNumber::new(1)).unwrap();
    let missing = takeover.missing(usize::MAX);
    let span = missing[index % missing.len()];
    RangeDeltaRequest { from, to: TO, first: span.first, last: span.last, bytes_max: BYTES_MAX }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_far_behind_takes_chunks_from_many_peers() {
    for head in [0, 7, 66] {
        let (chain, store) = behind(head);
        let servers = [(); 3].map(|()| SyncServer::new(chain.store.clone()));
        let takeover = store.take_range_delta(&target(&chain), 2, 1 << 20).unwrap();
        let mut chunks = 0;
        while !takeover.missing(1).is_empty() {
            let request = request(&takeover, chunks * 7);
            let answer = ask(&servers[chunks % 3], &Request::RangeDelta(request)).await.unwrap();
            takeover.add(range_delta::open(answer, &request).unwrap()).unwrap();
            chunks += 1;
        }
        assert!(chunks >= 4, "{chunks} chunks");
        let hashes = BoundedVec::new(takeover.missing_codes(64).unwrap()).unwrap();
        let wanted = Request::Codes { number: TO, hashes };
        let codes: Codes =
            codec::decode("codes", &ask(&servers[0], &wanted).await.unwrap(), 1 << 20).unwrap();
        codes.codes.iter().for_each(|code| takeover.add_code(code).unwrap());
        let headers = chain.store.headers(BatchNumber::new(head + 1), (TO.get() - head) as usize).unwrap();
        let none = AccumulatorRangeProof::default();
        takeover
            .finish(&storage::Ancestry { headers: &headers, proof: &none, genesis_proof: &none })
            .unwrap();
        assert_eq!(store.head().unwrap().header, chain.store.header(TO).unwrap().unwrap());
        assert_eq!(store.snapshots()[0], chain.store.snapshots()[0], "what it has now it serves");
        for number in TO.get() + 1..=75 {
            commit(&chain.store, &store, BatchNumber::new(number));
        }
        assert_eq!(store.head().unwrap(), chain.store.head().unwrap());
    }
}

/// Goal: the chunks of one range may come from any peer, and each peer makes them once, however many ask.
#[tokio::test(flavor = "multi_thread")]
async fn who_asks_alike_gets_the_same_chunk() {
    let (chain, store) = behind(3);
    let (server, other) = (SyncServer::new(chain.store.clone()), SyncServer::new(chain.store.clone()));
    let takeover = store.take_range_delta(&target(&chain), 4, 1 << 20).unwrap();
    let requests: Vec<_> = (0..16).map(|i| Request::RangeDelta(request(&takeover, i))).collect();
    let all = |server| futures::future::join_all(requests.iter().map(move |request| ask(server, request)));
    let (first, again, elsewhere) = tokio::join!(all(&server), all(&server), all(&other));
    assert!(first.iter().all(Result::is_ok), "{first:?}");
    assert_eq!((&first, &first), (&again, &elsewhere));
    let status = server.status();
    assert_eq!((status.cache_misses, status.cache_hits), (16, 16), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_kept_is_refused_with_its_reason() {
    let (chain, _) = behind(0);
    let prune = PruneConfig::of_batches([0, 0, 40, 0]);
    let pruned = Store::memory(&StorageConfig { prune, ..Default::default() });
    pruned.initialize(&chain.genesis).unwrap();
    for number in 1..=75 {
        commit(&chain.store, &pruned, BatchNumber::new(number));
    }
    let server = SyncServer::new(chain.store.clone());
    let (first, last, bytes_max) = (Path::MIN, Path::MAX, BYTES_MAX);
    let request = RangeDeltaRequest { from: BatchNumber::GENESIS, to: TO, first, last, bytes_max };
    ask(&server, &Request::RangeDelta(request)).await.unwrap();
    let refuse = async |server: &SyncServer, request: RangeDeltaRequest, reason: &str| {
        let refusal = ask(server, &Request::RangeDelta(request)).await.unwrap_err();
        assert!(refusal.contains(reason), "{refusal}");
    };
    refuse(&server, RangeDeltaRequest { to: BatchNumber::new(71), ..request }, "the snapshot of batch 71")
        .await;
    refuse(&server, RangeDeltaRequest { first: last, last: first, ..request }, "empty").await;
    for from in [TO.get(), TO.get() + 1, u64::MAX] {
        refuse(&server, RangeDeltaRequest { from: BatchNumber::new(from), ..request }, "below the second")
            .await;
    }
    pruned.put_certificate(&chain.store.certificate(BatchNumber::new(75)).unwrap().unwrap()).unwrap();
    let to = pruned.create_snapshot().unwrap().number;
    let server = SyncServer::new(pruned.clone());
    let request = RangeDeltaRequest { to, ..request };
    ask(&server, &Request::RangeDelta(request)).await.unwrap();
    pruned.prune().unwrap();
    refuse(&server, request, "the delta of batch 1").await;
    ask(&server, &Request::RangeDelta(RangeDeltaRequest { from: BatchNumber::new(64), ..request }))
        .await
        .unwrap();
    // It keeps the deltas after batch 35, but each base is a merge of its own.
    refuse(&server, RangeDeltaRequest { from: BatchNumber::new(35), ..request }, "a multiple of 64").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lies_are_told_from_the_truth() {
    let (chain, store) = behind(3);
    let server = SyncServer::with_config(chain.store.clone(), &SyncConfig::default());
    let takeover = store.take_range_delta(&target(&chain), 0, 1 << 20).unwrap();
    let request = request(&takeover, 0);
    let answer = ask(&server, &Request::RangeDelta(request)).await.unwrap();
    let chunk: RangeDeltaChunk =
        Blob::from_bytes(answer.clone()).unwrap().open(BlobKind::RangeDelta).unwrap();
    assert!(chunk.last < Path::MAX && chunk.entries.len() > 10);
    let sealed = |chunk: &RangeDeltaChunk| Blob::seal(BlobKind::RangeDelta, chunk).unwrap().into_bytes();
    let half = || BoundedVec::new(chunk.entries[..chunk.entries.len() / 2].to_vec()).unwrap();

    // Lies that the answer itself, or a comparison with the request, exposes at once.
    let short = RangeDeltaChunk {
        entries: half(),
        last: chunk.entries[chunk.entries.len() / 2].key.path(),
        ..chunk.clone()
    };
    let elsewhere = RangeDeltaChunk { first: chunk.last, last: Path::MAX, ..chunk.clone() };
    for (lie, reason) in [(&short, "before it is full"), (&elsewhere, "another path")] {
        let violation = range_delta::open(sealed(lie), &request).unwrap_err();
        assert!(matches!(violation, Violation::Unrelated(text) if text.contains(reason)), "{violation}");
    }
    let narrow = RangeDeltaRequest { last: chunk.entries[3].key.path(), ..request };
    assert!(matches!(range_delta::open(answer.clone(), &narrow), Err(Violation::Unrelated(_))));
    let thrifty = RangeDeltaRequest { bytes_max: 10, ..request };
    let bloated = Blob::compress(BlobKind::RangeDelta, &vec![0; 100_000]).unwrap().into_bytes();
    let violation = range_delta::open(bloated, &thrifty).unwrap_err();
    assert!(matches!(violation, Violation::Unrelated(text) if text.contains("longer")), "{violation}");
    for other in [vec![], vec![7], Blob::compress(BlobKind::StateChunk, b"x").unwrap().into_bytes()] {
        assert!(matches!(range_delta::open(other, &request), Err(Violation::Codec(_))));
    }

    // Omitted changes show against the rows.
    let hiding = RangeDeltaChunk { entries: half(), ..chunk.clone() };
    let whole = RangeDeltaRequest { last: chunk.last, ..request };
    let error = takeover.add(range_delta::open(sealed(&hiding), &whole).unwrap()).unwrap_err();
    assert!(error.is_bad_supply() && matches!(error, StorageError::RangeDelta(_)), "{error}");
    takeover.add(range_delta::open(answer, &request).unwrap()).unwrap();
    assert_eq!(takeover.rows(), chunk.entries.len() as u64);
}

/// Goal: the daemon itself takes the range delta, from two peers, and goes on with the batches behind it. The batches
/// in between are not there.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_takes_the_range_delta_and_then_batches() {
    for head in [0, 7] {
        let (chain, store) = behind(head);
        let hub = MemoryHub::new();
        for id in [1, 2] {
            hub.join(peer(id), Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
        }
        let config = SyncConfig { mode: Mode::RangeDelta, history: false, ..Default::default() };
        let peers = [peer(1), peer(2)];
        let node = Following::start_with(&hub, peer(9), store, config, None, &peers).await;
        let status = node.reach(chain.head()).await;
        assert_eq!(status.snapshot.map(|it| it.number), Some(TO));
        assert_eq!(node.store.head().unwrap(), chain.store.head().unwrap());
        for (number, kept) in [(TO, false), (chain.head(), true)] {
            assert_eq!(node.store.blob(BlobKind::Delta, number).unwrap().is_some(), kept, "{number}");
            assert_eq!(node.store.header(number).unwrap(), chain.store.header(number).unwrap());
        }
        assert_eq!(node.stop().await.unwrap().batches, 5);
    }
}

/// The headers up to [`TO`] for a node whose head is batch `head`.
fn ancestry(chain: &Chain, head: u64) -> Box<Ancestry> {
    let headers = chain.store.headers(BatchNumber::new(head + 1), (TO.get() - head) as usize).unwrap();
    let headers = Headers { headers: BoundedVec::new(headers).unwrap(), proof: Default::default() };
    Box::new(Ancestry { headers, genesis_proof: Default::default(), passes: None })
}

/// Gives a worker the chunks of one range delta, up to the first refused one.
async fn take(worker: &Worker, chain: &Chain, head: u64, lie: fn(&mut RangeDeltaChunk)) -> RestoreOutcome {
    let server = SyncServer::new(chain.store.clone());
    let run = |job| match worker.run(Job::Restore(job)) {
        Done::Restored(restored) => restored.unwrap(),
        other => panic!("{other:?}"),
    };
    let target = Box::new(target(chain));
    let begun = run(RestoreJob::Begin { target, ancestry: ancestry(chain, head), range_delta: true });
    let from = range_delta::base(BatchNumber::new(head), BatchNumber::new(1)).unwrap();
    for span in begun.progress.unwrap().spans {
        let (first, last, bytes_max) = (span.first, span.last, 1 << 20);
        let request = Request::RangeDelta(RangeDeltaRequest { from, to: TO, first, last, bytes_max });
        let answer = ask(&server, &request).await.unwrap();
        let mut chunk: RangeDeltaChunk =
            Blob::from_bytes(answer).unwrap().open(BlobKind::RangeDelta).unwrap();
        lie(&mut chunk);
        let answer = Blob::seal(BlobKind::RangeDelta, &chunk).unwrap().into_bytes();
        let added = run(RestoreJob::Chunk { answer, request });
        if !matches!(added.step, RestoreOutcome::Chunk { checked: Ok(()), .. }) {
            return added.step;
        }
    }
    run(RestoreJob::Finish).step
}

fn worker(store: &Store) -> Worker {
    let session = session(&ExecutorConfig::default(), store);
    Worker::new(store.clone(), &SyncConfig::default(), session, None, 0).unwrap()
}

/// Adds deletions of `count` accounts that never existed. They leave the state as it is, so the proof stays good.
fn pad(chunk: &mut RangeDeltaChunk, count: usize) {
    let absent = (0u64..).map(|i| StateKey::Account(Address::from_word(keccak256(i.to_be_bytes()))));
    let inside = absent.filter(|key| (chunk.first..=chunk.last).contains(&key.path())).take(count);
    let padding: Vec<_> = inside.map(|key| DeltaEntry { key, value: None }).collect();
    let mut entries: Vec<_> = chunk.entries.iter().copied().chain(padding).collect();
    entries.sort_by_key(|entry| entry.key.path());
    chunk.entries = BoundedVec::new(entries).unwrap();
}

/// Goal: a range delta that is true but too large for this node ends only itself, and another way leads on.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_delta_that_is_too_large_is_put_down() {
    let (chain, store) = behind(7);
    let small = worker(&store).with_range_delta_bytes(2_000);
    let step = take(&small, &chain, 7, |_| {}).await;
    assert!(
        matches!(&step, RestoreOutcome::Abandoned { why: AbandonReason::TooLarge, reason } if reason.contains("bytes of memory")),
        "{step:?}"
    );
    assert_eq!(store.head().unwrap().header.number, BatchNumber::new(7));
    commit(&chain.store, &store, BatchNumber::new(8));
    let step = take(&worker(&store), &chain, 8, |_| {}).await;
    assert!(matches!(step, RestoreOutcome::Finished(TO)), "{step:?}");
}

/// Goal: unchanged rows prove well, but a peer can add at most as many of them as the batches have changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_delta_has_no_more_changes_than_its_batches() {
    let (chain, store) = behind(66);
    let sum = |headers: Vec<BatchHeader>| headers.iter().map(|it| u64::from(it.delta_bytes)).sum::<u64>();
    let all = sum(chain.store.headers(BatchNumber::new(1), TO.get() as usize).unwrap());
    assert!((16 * 200 * 22..200_000).contains(&(all * 4)), "{all} bytes of changes");
    let step = take(&worker(&store), &chain, 66, |chunk| pad(chunk, 20_000)).await;
    let is_blamed = |fault: &Fault| fault.to_string().contains("more changes than all batches together");
    assert!(
        matches!(&step, RestoreOutcome::Chunk { checked: Err(fault), .. } if is_blamed(fault)),
        "{step:?}"
    );
    let step = take(&worker(&store), &chain, 66, |chunk| pad(chunk, 300)).await;
    assert!(
        matches!(&step, RestoreOutcome::Abandoned { why: AbandonReason::Padded, reason } if reason.contains("did not change")),
        "{step:?}"
    );
    let step = take(&worker(&store), &chain, 66, |chunk| pad(chunk, 1)).await;
    assert!(matches!(step, RestoreOutcome::Finished(TO)), "{step:?}");
}

/// Goal: a commit by a validator's consensus while a range delta is fetched ends the range delta and not the node.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_delta_that_the_head_overtook_is_put_down() {
    let (chain, store) = behind(69);
    let (worker, target) = (worker(&store), Box::new(target(&chain)));
    commit(&chain.store, &store, TO);
    let begin = RestoreJob::Begin { target, ancestry: ancestry(&chain, 69), range_delta: true };
    let Done::Restored(Ok(restored)) = worker.run(Job::Restore(begin)) else { panic!("an error") };
    assert!(
        matches!(restored.step, RestoreOutcome::Abandoned { why: AbandonReason::Overtaken, .. }),
        "{:?}",
        restored.step
    );
    assert!(restored.progress.is_none());
}

/// Goal: a node whose only peer pads gets to the head all the same, batch by batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_goes_another_way_past_a_padded_range_delta() {
    fn padded(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
        if !matches!(request, Request::RangeDelta(_)) {
            return Some(answer);
        }
        let mut chunk: RangeDeltaChunk =
            Blob::from_bytes(answer).unwrap().open(BlobKind::RangeDelta).unwrap();
        pad(&mut chunk, 300);
        Some(Blob::seal(BlobKind::RangeDelta, &chunk).unwrap().into_bytes())
    }
    let (chain, store) = behind(3);
    let hub = MemoryHub::new();
    let server = SyncServer::new(chain.store.clone());
    hub.join(peer(1), Arc::new(Liar { server, lie: padded }));
    let config = SyncConfig { mode: Mode::RangeDelta, history: false, ..Default::default() };
    let node = Following::start_with(&hub, peer(9), store, config, None, &[peer(1)]).await;
    node.reach(chain.head()).await;
    assert_eq!(node.store.head().unwrap(), chain.store.head().unwrap());
    let status = node.stop().await.unwrap();
    assert_eq!((status.batches, status.peers[0].banned), (72, false), "all came one by one: {status:?}");
}
