//! Goal: ranges of one gap are followed in both modes: an executed range builds on earlier deltas that are not
//! committed yet.

use std::sync::Arc;

use slipstream_executor::{ExecutorConfig, HintsMode};
use slipstream_predict::PredictMode;
use slipstream_storage::{StorageConfig, Store};
use slipstream_sync::{
    SyncConfig, Trust, answer,
    plan::RangeMode::{self, Delta, Replay},
    protocol::{Parts, RangeRequest, Request},
    work::{Done, ExecutionResult, Job, PreparedRange, ReadyRange, Worker},
};
use slipstream_types::{BatchNumber, codec};

use crate::{
    chain::Chain,
    following::{peer, session},
};

const BATCHES: u64 = 24;
/// Batches per range.
const RANGE: u64 = 2;

struct Node<'a> {
    chain: &'a Chain,
    store: Store,
    worker: Worker,
}

impl Node<'_> {
    fn new(chain: &Chain) -> Node<'_> {
        let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
        store.initialize(&chain.genesis).unwrap();
        let quiet = ExecutorConfig { hints: HintsMode::Off, predict: PredictMode::Off, ..Default::default() };
        let config = SyncConfig { history: false, ..Default::default() };
        let worker = Worker::new(store.clone(), &config, session(&quiet, &store), None, 0).unwrap();
        Node { chain, store, worker }
    }

    fn prepare(&self, first: u64, mode: RangeMode) -> Box<PreparedRange> {
        let parts = if mode == Replay { Parts::BODY } else { Parts::DELTA };
        let (batches_max, bytes_max) = (RANGE as u32, 1 << 20);
        let request = RangeRequest { first: BatchNumber::new(first), batches_max, bytes_max, parts };
        let payload = codec::encode("request", &Request::Range(request)).unwrap();
        let answer = answer(&self.chain.store, &payload).unwrap();
        let trust = Arc::new(Trust::of_genesis(&self.chain.genesis));
        let job = Job::CheckRange { answer, request, due: RANGE, trust };
        let Done::Range(range) = self.worker.run(job) else { panic!("a range") };
        let job = Job::Prepare { range: range.unwrap(), mode, from: peer(1) };
        let Done::Prepared(prepared) = self.worker.run(job) else { panic!("prepared") };
        prepared.unwrap()
    }

    fn execute(&self, range: Box<PreparedRange>) -> Option<ReadyRange> {
        let Done::Executed(executed) = self.worker.run(Job::Execute { range }) else { panic!("executed") };
        match executed.unwrap() {
            ExecutionResult::Range(range) => Some(ReadyRange::Executed(range)),
            ExecutionResult::Unprepared(_) => None,
        }
    }

    fn commit(&self, ranges: Vec<ReadyRange>) {
        let Done::Committed(committed) =
            self.worker.run(Job::Commit { ranges, target: BatchNumber::GENESIS })
        else {
            panic!("committed")
        };
        committed.unwrap();
    }

    fn head(&self) -> u64 {
        self.store.head().unwrap().header.number.get()
    }
}

/// Follows ranges in these modes, and commits `at_once` of them at a time.
fn follow(chain: &Chain, modes: &[RangeMode], at_once: usize) {
    let node = Node::new(chain);
    let mut ready = Vec::new();
    for (index, mode) in modes.iter().enumerate() {
        let prepared = node.prepare(1 + RANGE * index as u64, *mode);
        ready.push(match mode {
            Replay => node.execute(prepared).expect("all before it is here"),
            Delta => ReadyRange::Opened(prepared),
        });
        if ready.len() == at_once {
            node.commit(std::mem::take(&mut ready));
        }
    }
    node.commit(ready);
    assert_eq!(node.store.head().unwrap(), chain.store.head().unwrap(), "{modes:?}, {at_once} at once");
}

#[test]
fn any_order_of_modes_leads_to_the_same_state() {
    let chain = Chain::new(BATCHES);
    let ranges = (BATCHES / RANGE) as usize;
    let patterns: [fn(usize) -> RangeMode; 4] = [
        |index| if index % 2 == 0 { Delta } else { Replay },
        |index| if index % 2 == 0 { Replay } else { Delta },
        |index| if index % 4 == 3 { Replay } else { Delta },
        |index| if index % 4 == 0 { Delta } else { Replay },
    ];
    for pattern in patterns {
        let modes: Vec<RangeMode> = (0..ranges).map(pattern).collect();
        for at_once in [1, 3, ranges + 1] {
            follow(&chain, &modes, at_once);
        }
    }
}

/// Goal: deltas may be committed while a range on top of them waits for execution. A range on top of missing deltas is
/// prepared again.
#[test]
fn what_is_prepared_keeps_the_deltas_that_it_stands_on() {
    let chain = Chain::new(BATCHES);
    let node = Node::new(&chain);
    let deltas = [1, 3].map(|first| ReadyRange::Opened(node.prepare(first, Delta)));
    let replay = node.prepare(5, Replay);
    node.commit(deltas.into());
    assert_eq!(node.head(), 4);
    let executed = node.execute(replay).expect("the deltas are kept with it");
    node.commit(vec![executed]);
    assert_eq!(node.head(), 6);

    let node = Node::new(&chain);
    drop(node.prepare(1, Delta));
    assert!(node.execute(node.prepare(3, Replay)).is_none(), "the deltas are gone");
    let first = ReadyRange::Opened(node.prepare(1, Delta));
    assert!(node.execute(node.prepare(5, Replay)).is_none(), "batches between the two are missing");
    let executed = node.execute(node.prepare(3, Replay)).expect("all before it is here");
    node.commit(vec![first, executed]);
    assert_eq!(node.head(), 4);
}

/// Goal: a commit that ends while a range behind it is being prepared takes nothing away from that range.
#[test]
fn commits_and_preparations_overlap() {
    let chain = Chain::new(BATCHES);
    for _ in 0..20 {
        let node = Node::new(&chain);
        let deltas = [1, 3].map(|first| ReadyRange::Opened(node.prepare(first, Delta)));
        let replay = std::thread::scope(|scope| {
            let commit = scope.spawn(|| node.commit(deltas.into()));
            let replay = node.prepare(5, Replay);
            commit.join().unwrap();
            replay
        });
        let executed = node.execute(replay).expect("all before it is here, or committed");
        node.commit(vec![executed]);
        assert_eq!(node.head(), 6);
    }
}
