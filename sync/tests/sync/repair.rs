//! Goal: peers repair a store whose rows and code are wrong on disk, at a cost that follows the damage. Liars among
//! them are detected and banned. If no peer can help, the node says so.

use std::{path::Path as FilePath, sync::Arc, time::Duration};

use slipstream_network::{
    BoxFuture, Handler, MemoryHub, MemoryTransport, NetworkError, Payload, PeerId, Protocol, Refusal,
    Transport,
};
use slipstream_storage::{
    OpenedSubtree, Repair, StorageConfig, StorageError, Store, SubtreePart, plain_database,
};
use slipstream_sync::{
    SyncError, SyncServer,
    protocol::{Codes, Request, Subtrees, SubtreesRequest},
    repair::{RepairRecord, RepairReport, repair},
};
use slipstream_types::{BatchNumber, Digest, PublicKey, bounded::BoundedVec, codec};

use crate::{
    chain::Chain,
    following::{Honest, peer},
    liars::{Liar, Lie},
};

const MAX: usize = 64 << 20;
const BATCHES: u64 = 27;
const ACCOUNTS: u64 = 3_000;
/// The highest id of all: any order by ids asks the other peers first.
const HONEST: PeerId = PublicKey([99; 32]);
const PATIENCE: Duration = Duration::from_secs(60);

fn config() -> StorageConfig {
    StorageConfig { snapshot_interval_batches: 0, disk_free_min_mib: 0, ..StorageConfig::default() }
}

/// A chain that a peer serves, and that is in a node's directory.
fn followed(hub: &MemoryHub, dir: &FilePath) -> Chain {
    let chain = Chain::with_accounts(BATCHES, ACCOUNTS);
    hub.join(HONEST, Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    let store = Store::open(&config(), dir).unwrap();
    store.initialize(&chain.genesis).unwrap();
    (1..=chain.head().get()).for_each(|number| chain.commit_to(&store, BatchNumber::new(number)));
    chain
}

/// Makes one row of a thousand wrong, in one of several ways, and all code. Returns the number of wrong rows.
fn spoil(dir: &FilePath) -> u64 {
    let database = plain_database(&config(), dir).unwrap();
    let keys = |column: &str| {
        let mut all = database.raw_iterator_cf(&database.cf_handle(column).unwrap());
        let mut keys = Vec::new();
        all.seek_to_first();
        while let Some(key) = all.key() {
            keys.push(key.to_vec());
            all.next();
        }
        keys
    };
    let rows = database.cf_handle("state_a").unwrap();
    let mut wrong = 0;
    for (at, key) in keys("state_a").into_iter().enumerate().filter(|(at, _)| at % 1_000 == 7) {
        match at / 1_000 % 3 {
            0 => database.put_cf(&rows, &key, b"nonsense").unwrap(),
            1 => database.delete_cf(&rows, &key).unwrap(),
            _ => {
                let mut other = key.clone();
                *other.last_mut().unwrap() ^= 1;
                database.put_cf(&rows, &other, b"surplus").unwrap();
            }
        }
        wrong += 1;
    }
    let codes = database.cf_handle("codes").unwrap();
    for hash in keys("codes") {
        database.put_cf(&codes, hash, b"nonsense").unwrap();
    }
    wrong
}

/// Repairs the store in a directory with these peers, and opens it afterwards.
async fn repaired(hub: &MemoryHub, dir: &FilePath, peers: &[PeerId]) -> (RepairReport, Store) {
    let report = try_repair(hub, dir, peers).await.1.unwrap();
    (report, Store::open(&config(), dir).unwrap())
}

async fn try_repair(
    hub: &MemoryHub,
    dir: &FilePath,
    peers: &[PeerId],
) -> (Arc<MemoryTransport>, Result<RepairReport, SyncError>) {
    let nobody = Store::memory(&config());
    let transport = hub.join(peer(100), Arc::new(Honest(Arc::new(SyncServer::new(nobody)))));
    for id in peers {
        assert!(hub.connect(peer(100), *id));
    }
    let session = Repair::open(&config(), dir).unwrap();
    let report = repair(session, &*transport, PATIENCE, RepairRecord::default()).await;
    (transport, report)
}

#[tokio::test(start_paused = true)]
async fn what_differs_is_fetched_and_nothing_else() {
    let (hub, dir) = (MemoryHub::new(), tempfile::tempdir().unwrap());
    let chain = followed(&hub, dir.path());
    let wrong = spoil(dir.path());
    assert!(wrong >= 3);
    let error = Store::open(&config(), dir.path()).unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");

    let (report, store) = repaired(&hub, dir.path(), &[HONEST]).await;
    assert_eq!((report.number, report.rows_put + report.rows_removed), (chain.head(), wrong));
    assert!(report.codes > 0 && !report.keys.is_empty(), "{report:?}");
    let rows: u64 = chain.store.snapshots()[0].rows;
    assert!(report.bytes < rows * 80 / 10, "{report:?}: all of the {rows} rows are 80 bytes each");
    assert_eq!(store.head().unwrap().header, chain.store.head().unwrap().header);
    assert_eq!(RepairRecord::of(&store).unwrap().report.as_ref(), Some(&report), "it came with the write");
    drop(store);

    let (report, _) = repaired(&hub, dir.path(), &[HONEST]).await;
    assert_eq!((report.rows_put + report.rows_removed + report.codes, report.bytes), (0, 0));
}

fn change_subtrees(request: &Request, answer: Vec<u8>, change: fn(&mut Vec<SubtreePart>)) -> Option<Vec<u8>> {
    if !matches!(request, Request::Subtrees(_)) {
        return Some(answer);
    }
    let mut subtrees: Subtrees = codec::decode("subtrees", &answer, MAX).unwrap();
    let mut opened = subtrees.opened.to_vec();
    let mut parts = opened.last().unwrap().parts().to_vec();
    change(&mut parts);
    *opened.last_mut().unwrap() = OpenedSubtree::new(parts).unwrap();
    subtrees.opened = BoundedVec::new(opened).unwrap();
    Some(codec::encode("subtrees", &subtrees).unwrap())
}

fn wrong_hash(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_subtrees(request, answer, |parts| *parts.last_mut().unwrap() = SubtreePart::Hash(Digest([1; 32])))
}

fn nothing_there(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_subtrees(request, answer, Vec::clear)
}

fn endless(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_subtrees(request, answer, |parts| *parts = vec![SubtreePart::Fork; 100])
}

fn too_few(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    if !matches!(request, Request::Subtrees(_)) {
        return Some(answer);
    }
    Some(codec::encode("subtrees", &Subtrees { opened: BoundedVec::default() }).unwrap())
}

fn wrong_code(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    if !matches!(request, Request::Codes { .. }) {
        return Some(answer);
    }
    let codes: Codes = codec::decode("codes", &answer, MAX).unwrap();
    let wrong = codes.codes.iter().map(|_| slipstream_types::delta::Code::new(vec![1]).unwrap());
    Some(codec::encode("codes", &Codes { codes: BoundedVec::new(wrong.collect()).unwrap() }).unwrap())
}

/// Answers a request for one code with another missing one. The peer asked for that other code would then seem to send
/// useless code.
fn others_code(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    if !matches!(request, Request::Codes { .. }) {
        return Some(answer);
    }
    let codes: Codes = codec::decode("codes", &answer, MAX).unwrap();
    let mut codes = codes.codes.to_vec();
    codes.rotate_left(1);
    Some(codec::encode("codes", &Codes { codes: BoundedVec::new(codes).unwrap() }).unwrap())
}

fn silent(_: &Request, _: Vec<u8>) -> Option<Vec<u8>> {
    None
}

/// Opens only one level of whatever it is asked for.
struct Shallow(SyncServer);

impl Handler for Shallow {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            let payload = match codec::decode("request", &payload, MAX).unwrap() {
                Request::Subtrees(asked) => {
                    let asked = Request::Subtrees(SubtreesRequest { levels: 1, ..asked });
                    codec::encode("request", &asked).unwrap()
                }
                _ => payload,
            };
            self.0.handle(peer, payload).await
        })
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// Goal: peers that are silent or open less than asked cost only moments, even if many of their keys come before the
/// honest one's.
#[tokio::test(start_paused = true)]
async fn who_plays_for_time_is_asked_last() {
    let (hub, dir) = (MemoryHub::new(), tempfile::tempdir().unwrap());
    let chain = followed(&hub, dir.path());
    let server = || SyncServer::new(chain.store.clone());
    for id in 2..6 {
        hub.join(peer(id), Arc::new(Liar { server: server(), lie: silent }));
    }
    hub.join(peer(6), Arc::new(Shallow(server())));
    let wrong = spoil(dir.path());
    let (transport, alone) = try_repair(&hub, dir.path(), &[peer(2), peer(3)]).await;
    let text = alone.unwrap_err().to_string();
    assert!(text.contains("batch 27") && transport.peers().len() == 2, "silence is no lie: {text}");

    let peers: Vec<PeerId> = (2..7).map(peer).chain([HONEST]).collect();
    let began = tokio::time::Instant::now();
    let (report, store) = repaired(&hub, dir.path(), &peers).await;
    assert_eq!(report.rows_put + report.rows_removed, wrong);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(store.head().unwrap().header, chain.store.head().unwrap().header);
}

/// Goal: a partial answer is kept and its sender is not banned; the error says why the repair waited.
#[tokio::test(start_paused = true)]
async fn who_opens_less_than_asked_is_not_banned() {
    let (hub, dir) = (MemoryHub::new(), tempfile::tempdir().unwrap());
    let chain = followed(&hub, dir.path());
    hub.join(peer(6), Arc::new(Shallow(SyncServer::new(chain.store.clone()))));
    spoil(dir.path());
    let (transport, alone) = try_repair(&hub, dir.path(), &[peer(6)]).await;
    let text = alone.unwrap_err().to_string();
    assert!(text.contains("it opened fewer levels than requested"), "{text}");
    assert_eq!(transport.peers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn liars_are_banned_and_others_are_asked() {
    let (hub, dir) = (MemoryHub::new(), tempfile::tempdir().unwrap());
    let chain = followed(&hub, dir.path());
    let lies: [(u8, Lie); 6] =
        [(2, wrong_hash), (3, nothing_there), (4, endless), (5, too_few), (6, wrong_code), (7, others_code)];
    for (id, lie) in lies {
        let wrong = spoil(dir.path());
        let server = SyncServer::new(chain.store.clone());
        hub.join(peer(id), Arc::new(Liar { server, lie }));
        // Alone, the liar is detected, and nobody is left to ask.
        let (transport, alone) = try_repair(&hub, dir.path(), &[peer(id)]).await;
        let error = alone.unwrap_err();
        assert!(matches!(error, SyncError::Unrepaired { number, .. } if number == chain.head()), "{error}");
        assert!(error.to_string().contains("repair: "), "{error}");
        let limits = slipstream_network::RequestLimits { deadline: PATIENCE, response_bytes_max: MAX };
        let asked = transport.request(peer(id), slipstream_network::Protocol::SYNC, Vec::new(), limits).await;
        assert!(
            matches!(asked, Err(NetworkError::Banned { .. } | NetworkError::UnknownPeer { .. })),
            "{asked:?}"
        );
        assert!(Store::open(&config(), dir.path()).is_err(), "nothing of it was written");

        let (report, store) = repaired(&hub, dir.path(), &[peer(id), HONEST]).await;
        assert_eq!(report.rows_put + report.rows_removed, wrong, "lie {id}");
        assert_eq!(store.head().unwrap().header, chain.store.head().unwrap().header);
    }
}

/// Goal: a peer on another ledger, or without the state, says so and keeps its score.
#[tokio::test(start_paused = true)]
async fn who_does_not_have_the_state_is_not_to_blame() {
    let (hub, dir) = (MemoryHub::new(), tempfile::tempdir().unwrap());
    let _chain = followed(&hub, dir.path());
    spoil(dir.path());
    let shorter = Chain::with_accounts(BATCHES - 1, ACCOUNTS);
    let other = Chain::with_accounts(BATCHES + 1, ACCOUNTS + 1);
    for (id, chain) in [(7, &shorter), (8, &other)] {
        hub.join(peer(id), Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    }
    let (transport, alone) = try_repair(&hub, dir.path(), &[peer(7), peer(8)]).await;
    let text = alone.unwrap_err().to_string();
    assert!(text.contains("not kept: the state of batch 27 is not kept here"), "{text}");
    assert!(text.contains("the state of batch 27 has another root here"), "{text}");
    assert_eq!(transport.peers().len(), 2, "both are still connected");
    repaired(&hub, dir.path(), &[peer(7), peer(8), HONEST]).await;
}
