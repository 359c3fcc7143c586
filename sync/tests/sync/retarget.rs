//! Goal: a restore whose peers drop the snapshot goes on with their next one and keeps the rows that are still right. A
//! liar about these rows is exposed by a proved lie, at the cost of a chunk.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use slipstream_network::{BoxFuture, Handler, MemoryHub, Payload, PeerId, Protocol, Refusal};
use slipstream_storage::{StateChunk, StorageConfig, Store};
use slipstream_sync::{Mode, SnapshotStatus, SyncConfig, SyncServer, SyncStatus, protocol::Request};
use slipstream_types::{
    BatchNumber, Blob, BlobKind,
    bounded::BoundedVec,
    codec,
    tree::{SiblingNode, StateRangeProof},
};
use tokio_util::sync::CancellationToken;

use crate::{
    chain::Chain,
    following::{Following, peer},
};

const MAX: usize = 64 << 20;
/// Enough accounts that one check covers only a part of them.
const ACCOUNTS: u64 = 80_000;
/// The snapshot that a restore begins with, and the one that it ends with.
const DROPPED: BatchNumber = BatchNumber::new(30);
const NEXT: BatchNumber = BatchNumber::new(50);
/// Chunks of the first snapshot that are served: most of its 64.
const CHUNKS: usize = 58;
/// Rows that one wrong proof can make a node fetch again.
const ROWS_PER_LIE: u64 = 8_192;

/// The state that all peers share.
#[derive(Default)]
struct Supply {
    /// Requests for chunks of the first snapshot.
    asked: AtomicUsize,
    /// Ends the wait of the requests beyond [`CHUNKS`].
    dropped: CancellationToken,
    /// Rows that were sent, by snapshot and request: a late peer also answers a request that another peer got.
    rows: Mutex<BTreeMap<BatchNumber, BTreeMap<Vec<u8>, u64>>>,
    /// Range proofs that were sent.
    proofs: AtomicUsize,
}

impl Supply {
    fn rows(&self, number: BatchNumber) -> u64 {
        self.rows.lock().unwrap().get(&number).map_or(0, |requests| requests.values().sum())
    }
}

type Lie = fn(usize, StateRangeProof) -> StateRangeProof;

/// Serves all but the last chunks of the first snapshot, and lies about ranges if it has a `lie`.
struct Server {
    server: SyncServer,
    supply: Arc<Supply>,
    lie: Option<Lie>,
}

impl Handler for Server {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            let request: Request = codec::decode("request", &payload, MAX).unwrap();
            if matches!(request, Request::Chunk { number: DROPPED, .. })
                && self.supply.asked.fetch_add(1, Ordering::AcqRel) >= CHUNKS
            {
                self.supply.dropped.cancelled().await;
            }
            let answer = self.server.handle(peer, payload.clone()).await?;
            match (request, self.lie) {
                (Request::Chunk { number, .. }, _) => {
                    let chunk = Blob::from_bytes(answer.clone().into_vec()).unwrap();
                    let chunk: StateChunk = chunk.open(BlobKind::StateChunk).unwrap();
                    let mut rows = self.supply.rows.lock().unwrap();
                    rows.entry(number).or_default().insert(payload, chunk.rows.len() as u64);
                    Ok(answer)
                }
                (Request::RangeProof { .. }, Some(lie)) => {
                    let told = self.supply.proofs.fetch_add(1, Ordering::AcqRel);
                    let proof = codec::decode("range proof", &answer.into_bytes(), MAX).unwrap();
                    Ok(codec::encode("range proof", &lie(told, proof)).unwrap().into())
                }
                _ => Ok(answer),
            }
        })
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// A node in the middle of a restore whose peers dropped the snapshot.
struct Stranded {
    chain: Chain,
    supply: Arc<Supply>,
    node: Following,
}

impl Stranded {
    /// With one peer for each entry of `lies`, numbered from 1; `None` stands for an honest peer.
    async fn new(hub: &MemoryHub, lies: &[Option<Lie>]) -> Stranded {
        let mut chain = Chain::with_accounts(DROPPED.get(), ACCOUNTS);
        let supply = Arc::new(Supply::default());
        let mut peers = Vec::new();
        for (id, lie) in (1..).zip(lies) {
            join(hub, id, &chain, &supply, *lie);
            peers.push(peer(id));
        }
        let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
        store.initialize(&chain.genesis).unwrap();
        let config = SyncConfig { mode: Mode::Snapshot, ..Default::default() };
        let node = Following::start_with(hub, peer(9), store, config, None, &peers).await;
        eventually(&node, "all that is served is restored", |status| {
            let restored = status.snapshot.as_ref().map_or(0, |snapshot| snapshot.rows);
            supply.asked.load(Ordering::Acquire) > CHUNKS && restored > 0 && restored == supply.rows(DROPPED)
        })
        .await;

        for _ in DROPPED.get()..NEXT.get() + 5 {
            chain.extend_quietly();
        }
        let served: Vec<_> = chain.store.snapshots().iter().map(|info| info.number).collect();
        assert_eq!(served, [NEXT, BatchNumber::new(40)], "the first snapshot was replaced by newer ones");
        assert_eq!(node.store.head().unwrap().header.number, BatchNumber::GENESIS);
        let target = node.store.recorded_restore().unwrap().unwrap();
        assert_eq!(target.header.number, DROPPED);
        supply.dropped.cancel();
        Stranded { chain, supply, node }
    }

    /// Waits until the node has the whole chain, and checks the state. Returns the restore's status, and the rows of
    /// the second snapshot that were fetched for it.
    async fn arrive(&self) -> (SnapshotStatus, u64) {
        let status = self.node.reach(self.chain.head()).await;
        let head = self.node.store.head().unwrap();
        assert_eq!(head.header.state_root, self.chain.root());
        assert_eq!(head.digest, self.chain.store.head().unwrap().digest);
        let restored = status.snapshot.unwrap();
        assert_eq!(restored.number, NEXT);
        assert!(restored.rows > ACCOUNTS, "{restored:?}");
        assert!(restored.bytes_kept > 60 * restored.rows_kept, "{restored:?}");
        let before = self.supply.rows(DROPPED);
        assert!(restored.rows_kept > before / 2 && restored.rows_kept < before, "{restored:?} of {before}");
        (restored, self.supply.rows(NEXT))
    }
}

fn join(hub: &MemoryHub, id: u8, chain: &Chain, supply: &Arc<Supply>, lie: Option<Lie>) {
    let server = SyncServer::new(chain.store.clone());
    hub.join(peer(id), Arc::new(Server { server, supply: supply.clone(), lie }));
}

async fn eventually(node: &Following, what: &str, is_so: impl Fn(&SyncStatus) -> bool) {
    let wait = async {
        while !is_so(&node.follower.status()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(180), wait).await;
    assert!(waited.is_ok(), "{what}: not so with {:#?}", node.follower.status());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_goes_on_with_the_next_snapshot_and_keeps_what_is_right() {
    let hub = MemoryHub::new();
    let stranded = Stranded::new(&hub, &[None, None]).await;
    let (restored, again) = stranded.arrive().await;
    assert_eq!(restored.rows_kept + again, restored.rows, "every row was kept or fetched, and none twice");
    assert!(again < ACCOUNTS / 2, "{again} rows were fetched again");
    let peers = stranded.node.follower.status().peers;
    assert!(peers.len() == 2 && peers.iter().all(|peer| !peer.banned), "{peers:#?}");
    stranded.node.stop().await.unwrap();
}

/// Checks that a lone liar is detected and banned for `reason`. An honest peer then ends the restore, which fetches
/// little more than it would without the liar.
async fn found_out(lie: Lie, reason: &str) {
    let hub = MemoryHub::new();
    let stranded = Stranded::new(&hub, &[Some(lie)]).await;
    let judged = |status: &SyncStatus| {
        status.peers.iter().find(|known| known.id == peer(1)).filter(|known| known.banned).cloned()
    };
    eventually(&stranded.node, "the liar is banned", |status| judged(status).is_some()).await;
    let liar = judged(&stranded.node.follower.status()).unwrap();
    let text = liar.last_reason.unwrap();
    assert!(text.contains(reason), "{text:?} should contain {reason:?}");
    join(&hub, 2, &stranded.chain, &stranded.supply, None);
    assert!(hub.connect(peer(9), peer(2)));
    let (_, again) = stranded.arrive().await;
    assert!(again < ACCOUNTS / 2 + ROWS_PER_LIE, "{again} rows were fetched again");
    stranded.node.stop().await.unwrap();
}

/// Replaces the hash of the widest subtree beside the range.
fn falsify(proof: StateRangeProof) -> StateRangeProof {
    let mut right = proof.right.to_vec();
    let widest = right.first_mut().expect("the range ends before the last path");
    let SiblingNode::Inner(hash) = &mut widest.node else { panic!("half of the rows are not one") };
    hash.0[7] ^= 1;
    StateRangeProof { right: BoundedVec::new(right).unwrap(), ..proof }
}

#[tokio::test(flavor = "multi_thread")]
async fn siblings_out_of_place_are_refused() {
    let reversed = |_, proof: StateRangeProof| {
        let right = proof.right.iter().rev().cloned().collect();
        StateRangeProof { right: BoundedVec::new(right).unwrap(), ..proof }
    };
    found_out(reversed, "range proof: a sibling of the range proof is out of place").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn false_siblings_are_found_out_by_a_chunk() {
    found_out(|_, proof| falsify(proof), "the siblings of a range do not match the certified state").await;
}

/// Goal: a peer that first told the truth and then lies is detected too, when the chunk comes.
#[tokio::test(flavor = "multi_thread")]
async fn later_false_siblings_are_found_out_by_a_chunk() {
    // The first proof covers all rows together, the next ones cover parts of them.
    let lie: Lie = |told, proof| if told == 5 { falsify(proof) } else { proof };
    found_out(lie, "the siblings of a range do not match the certified state").await;
}
