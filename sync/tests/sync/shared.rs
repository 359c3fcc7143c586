//! Goal: a validator that follows has one execution session, which knows the same whether sync or consensus commits.

use std::sync::Arc;

use slipstream_executor::{
    BatchContext, ExecutionMethod, ExecutorConfig, HintsMode, HotStats, Layer, OrderedBatch, Overlay,
    Session, State, Trust, decode_body,
};
use slipstream_predict::PredictMode;
use slipstream_storage::{StorageConfig, Store};
use slipstream_sync::{
    SyncConfig,
    plan::RangeMode,
    protocol::Announcement,
    work::{Done, ExecutedRange, ExecutionResult, Job, PreparedRange, ReadyRange, Worker},
};
use slipstream_types::{BatchNumber, Blob, BlobKind, Body};

use crate::{
    chain::Chain,
    following::{peer, session},
};

/// A validator's sync, and a stand-in for its consensus.
struct Node<'a> {
    chain: &'a Chain,
    store: Store,
    session: Arc<Session>,
    worker: Worker,
}

impl Node<'_> {
    fn new(chain: &Chain) -> Node<'_> {
        let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
        store.initialize(&chain.genesis).unwrap();
        let quiet = ExecutorConfig { hints: HintsMode::Off, predict: PredictMode::Off, ..Default::default() };
        let session = session(&quiet, &store);
        let worker = Worker::new(store.clone(), &SyncConfig::default(), session.clone(), None, 0).unwrap();
        Node { chain, store, session, worker }
    }

    fn body(&self, number: u64) -> Blob {
        self.chain.store.blob(BlobKind::Body, BatchNumber::new(number)).unwrap().unwrap()
    }

    fn prepare(&self, number: u64) -> Box<PreparedRange> {
        let header = self.chain.store.header(BatchNumber::new(number)).unwrap().unwrap();
        let certificate = self.chain.store.certificate(header.number).unwrap().unwrap();
        let announcement = Announcement { header, certificate, body: self.body(number), hints: None };
        let trust = Arc::new(slipstream_sync::Trust::of_genesis(&self.chain.genesis));
        let job = Job::CheckAnnounced { announcement: Box::new(announcement), trust };
        let Done::Announced(range) = self.worker.run(job) else { panic!("announced") };
        let job = Job::Prepare { range: range.unwrap().unwrap(), mode: RangeMode::Replay, from: peer(1) };
        let Done::Prepared(prepared) = self.worker.run(job) else { panic!("prepared") };
        prepared.unwrap()
    }

    fn execute(&self, range: Box<PreparedRange>) -> Box<ExecutedRange> {
        let Done::Executed(executed) = self.worker.run(Job::Execute { range }) else { panic!("executed") };
        let ExecutionResult::Range(range) = executed.unwrap() else { panic!("the state before it is here") };
        range
    }

    fn commit(&self, ranges: impl IntoIterator<Item = Box<ExecutedRange>>) {
        let ranges = ranges.into_iter().map(ReadyRange::Executed).collect();
        let Done::Committed(committed) =
            self.worker.run(Job::Commit { ranges, target: BatchNumber::GENESIS })
        else {
            panic!("committed")
        };
        assert_eq!(committed.unwrap().head, self.store.head().unwrap().header.number);
    }

    /// Executes and commits a batch as sync does.
    fn follow(&self, number: u64) {
        self.commit([self.execute(self.prepare(number))]);
    }

    /// Executes and commits a batch as consensus does.
    fn certify(&self, number: u64) {
        let (view, overlay) = (self.store.view().unwrap(), Overlay::default());
        let header = self.chain.store.header(BatchNumber::new(number)).unwrap().unwrap();
        let body: Body = self.body(number).open(BlobKind::Body).unwrap();
        let transactions = decode_body(&body, &self.chain.genesis.chain).unwrap();
        let batch = OrderedBatch::of(&header, &transactions, None);
        let ahead = self.session.prepare(&batch, &view, &overlay, Trust::Keys).unwrap();
        let (basis, state) = (BatchContext::of(view.head(), &header), State::on(&view, &overlay).unwrap());
        let executed =
            self.session.execute(&ahead, &basis, &transactions, &state, ExecutionMethod::Fitting).unwrap();
        self.chain.commit_to(&self.store, header.number);
        let outcome = executed.outcome;
        self.session.committed(&Arc::new(Layer::of(&header, Some(&outcome.touched), &outcome.delta)));
    }

    fn arrived(&self) -> HotStats {
        assert_eq!(self.store.head().unwrap(), self.chain.store.head().unwrap());
        self.session.hot_stats()
    }
}

#[test]
fn the_cache_is_the_same_whoever_commits() {
    const BATCHES: u64 = 12;
    let chain = Chain::new(BATCHES);
    let run = |is_of_sync: fn(u64) -> bool| {
        let node = Node::new(&chain);
        (1..=BATCHES).for_each(|number| match is_of_sync(number) {
            true => node.follow(number),
            false => node.certify(number),
        });
        node.arrived()
    };
    let followed = run(|_| true);
    assert!(followed.hits > 4 * followed.misses / 5 && followed.rows > 30, "{followed:?}");
    assert_eq!(run(|_| false), followed);
    assert_eq!(run(|number| number % 2 == 0), followed);
    assert_eq!(run(|number| number % 5 < 2), followed);
}

/// Goal: batches that sync executed ahead stay useful even if consensus commits the first of them sooner, and nothing
/// is counted twice.
#[test]
fn consensus_overtakes_what_sync_has_executed() {
    let chain = Chain::new(6);
    let node = Node::new(&chain);
    (1..=2).for_each(|number| node.follow(number));
    let ahead: Vec<_> = (3..=5).map(|number| node.execute(node.prepare(number))).collect();
    let rows = node.session.hot_stats().rows;
    node.certify(3);
    let certified = node.session.hot_stats().rows;
    assert!(certified > rows, "sync's batches ahead are in no cache before they are committed");
    node.commit(ahead);
    assert_eq!(node.store.head().unwrap().header.number, BatchNumber::new(5));
    let before = node.session.hot_stats();
    assert!(before.rows > certified);
    node.follow(6);
    let after = node.arrived();
    let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
    let alone = Node::new(&chain);
    (1..=5).for_each(|number| alone.certify(number));
    let before = alone.session.hot_stats();
    alone.certify(6);
    let after = alone.arrived();
    assert_eq!((hits, misses), (after.hits - before.hits, after.misses - before.misses));
}
