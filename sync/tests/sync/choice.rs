//! Goal: a node in `auto` uses each peer for what it is good for, and says what it does and why.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use slipstream_network::{BoxFuture, Handler, MemoryHub, Payload, PeerId, Protocol, Refusal};
use slipstream_storage::{PruneConfig, StorageConfig, Store};
use slipstream_sync::{Mode, Phase, SyncConfig, SyncServer, SyncStatus, protocol::Request};
use slipstream_types::{BatchNumber, codec};

use crate::{
    chain::Chain,
    following::{Following, peer},
};

/// The chain's last batch, its only snapshot, and the first batch of which a peer keeps more than the header.
const HEAD: u64 = 280;
const SNAPSHOT: u64 = 200;
const KEPT_FROM: u64 = 151;

/// Keeps the newest batches, with their hints, and answers at once; it has no snapshot.
const FAST: u8 = 1;
/// Keeps a snapshot, and no batch but the last.
const PRUNED: u8 = 2;
/// Like the fast one, but slow to answer.
const SLOW: u8 = 3;

/// The requests that a peer answered.
#[derive(Default)]
struct Asked {
    batches: u64,
    chunks: u64,
}

/// An honest peer at a distance.
struct Far {
    server: SyncServer,
    delay: Duration,
    asked: Arc<Mutex<Asked>>,
}

impl Handler for Far {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            let request: Request = codec::decode("request", &payload, 4_096).unwrap();
            tokio::time::sleep(self.delay).await;
            let answer = self.server.handle(peer, payload).await?;
            // Counted after the wait: an answer that was cancelled meanwhile was not used.
            let mut asked = self.asked.lock().unwrap();
            match request {
                Request::Range(range) => asked.batches += u64::from(range.batches_max),
                Request::Chunk { .. } => asked.chunks += 1,
                _ => {}
            }
            Ok(answer)
        })
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// A store of the whole chain with a snapshot every `snapshot_interval_batches` batches, pruned to the newest `keep`.
fn copy(chain: &Chain, snapshot_interval_batches: u64, keep: u64) -> Store {
    let prune = PruneConfig::of_batches([keep; 4]);
    let store = Store::memory(&StorageConfig { snapshot_interval_batches, prune, ..Default::default() });
    store.initialize(&chain.genesis).unwrap();
    (1..=HEAD).for_each(|number| chain.commit_to(&store, BatchNumber::new(number)));
    store.prune().unwrap();
    store
}

/// A node's statuses on its way to a batch, by phase.
async fn watch(node: &Following, head: BatchNumber) -> BTreeMap<Phase, Vec<SyncStatus>> {
    let mut phases = BTreeMap::<_, Vec<SyncStatus>>::new();
    let watching = async {
        loop {
            let status = node.follower.status();
            let is_there = status.head == head;
            phases.entry(status.phase).or_default().push(status);
            if is_there {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let watched = tokio::time::timeout(Duration::from_secs(180), watching).await;
    assert!(watched.is_ok(), "stuck: {:#?}", node.follower.status());
    phases
}

/// Lets a new node follow the chain from a fast peer, a pruned one and a slow one. Checks that each is asked for what
/// it is good for. Returns the node's statuses on its way.
async fn follow(chain: &Chain) -> BTreeMap<Phase, Vec<SyncStatus>> {
    let hub = MemoryHub::new();
    let near = copy(chain, 0, HEAD - KEPT_FROM + 1);
    let pruned = copy(chain, SNAPSHOT, 1);
    let mut transports = Vec::new();
    let mut join = |id, store: &Store, delay_ms| {
        let asked = Arc::<Mutex<Asked>>::default();
        let server = SyncServer::new(store.clone());
        let far = Far { server, delay: Duration::from_millis(delay_ms), asked: asked.clone() };
        transports.push(hub.join(peer(id), Arc::new(far)));
        asked
    };
    let asked = [join(FAST, &near, 5), join(PRUNED, &pruned, 20), join(SLOW, &near, 1_000)];

    // Short ranges, so that enough of them show which peer gets which.
    let config = SyncConfig { range_batches_max: 4.try_into().unwrap(), ..Default::default() };
    let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
    store.initialize(&chain.genesis).unwrap();
    let peers = [FAST, PRUNED, SLOW].map(peer);
    let node = Following::start_with(&hub, peer(20), store, config, None, &peers).await;
    let phases = watch(&node, chain.head()).await;
    assert_eq!(node.store.head().unwrap().header.state_root, chain.root());
    node.stop().await.unwrap();
    let [fast, pruned, slow] = asked.map(|asked| {
        let asked = asked.lock().unwrap();
        (asked.batches, asked.chunks)
    });
    assert!(pruned.1 > 0 && fast.1 == 0 && slow.1 == 0, "chunks of {fast:?}, {pruned:?}, {slow:?}");
    assert!(pruned.0 <= 1, "it keeps the last batch alone: {pruned:?}");
    assert!(fast.0 >= 4 * slow.0, "batches of {fast:?}, {slow:?}");
    phases
}

/// Returns what a node should have reported on its way and was not seen to report.
fn unsaid(phases: &BTreeMap<Phase, Vec<SyncStatus>>) -> Vec<&'static str> {
    assert!(phases.values().flatten().all(|status| status.mode == Mode::Auto));
    let said = |phase: Phase, what: &dyn Fn(&SyncStatus) -> bool| {
        phases.get(&phase).is_some_and(|statuses| statuses.iter().any(what))
    };
    let progresses = |status: &SyncStatus| {
        let progress = status.snapshot.as_ref();
        progress.is_some_and(|it| it.rows_total > 20_000 && it.rows_per_second > 0.0)
    };
    let tail = if phases.contains_key(&Phase::Replay) { Phase::Replay } else { Phase::Delta };
    // The reason is that of the last planned range, and the last ones here are at the head.
    let has_reason = |status: &SyncStatus| {
        ["ms a batch", "at the head, batches are executed"]
            .iter()
            .any(|reason| status.reason.contains(reason))
    };
    assert!(phases.get(&tail).into_iter().flatten().all(has_reason), "{phases:#?}");
    let works = |status: &SyncStatus| status.stages.iter().any(|stage| stage.busy_percent > 0.0);
    let wanted = [
        (
            "why it takes a snapshot",
            said(Phase::Snapshot, &|status| status.reason.contains("no peer keeps the next batch")),
        ),
        ("how fast rows come", said(Phase::Snapshot, &progresses)),
        ("how fast batches come", said(tail, &|status| status.batches_per_second > 0.0 && works(status))),
    ];
    wanted.into_iter().filter(|(_, is_said)| !is_said).map(|(what, _)| what).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_peer_is_used_for_what_it_is_good_for() {
    let chain = Chain::with_accounts(HEAD, 20_000);
    // A look is a moment: on a busy machine a whole phase may pass between two of them. Then another node follows.
    for is_last in [false, false, false, true] {
        let phases = follow(&chain).await;
        let missed = unsaid(&phases);
        if missed.is_empty() {
            return;
        }
        assert!(!is_last, "{missed:?}: {phases:#?}");
    }
}
