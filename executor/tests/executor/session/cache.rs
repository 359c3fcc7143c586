//! Tests of the session's cache after commits that are reported late, twice, or for many batches at once.

use slipstream_executor::ExecutionState;
use std::{
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use alloy_primitives::{B256, Bytes};
use parking_lot::Mutex;
use slipstream_storage::StorageError;
use slipstream_types::AccountValue;

use super::*;

/// Goal: two engines of one node report the same commits, each as soon as it can.
#[test]
fn commits_told_twice_or_late_change_nothing() {
    let mut node = Node::new(&config());
    (0..4).for_each(|round| _ = node.run(&transactions(round, round)));
    let first = node.commit();
    let second = node.commit();
    let stats = node.session.hot_stats();
    for late in [&first, &second, &first] {
        node.session.committed(late);
    }
    assert_eq!(node.session.hot_stats(), stats);
    // A commit reported by its delta works too, and the next one continues from there.
    let Batch { header, outcome, .. } = &node.ahead[0];
    node.session.applied(header, &outcome.delta);
    node.session.applied(header, &outcome.delta);
    let third = node.commit();
    assert!(node.rows() >= stats.rows);
    node.session.committed(&third);
    let hits = node.session.hot_stats().hits;
    node.run(&transactions(4, 9));
    assert!(node.session.hot_stats().hits > hits);

    node.session.forget();
    assert_eq!(node.rows(), 0);
    // A batch that does not continue the cache restarts it; a delta alone does not.
    let Batch { header, outcome, .. } = &node.ahead[0];
    node.session.applied(header, &outcome.delta);
    assert_eq!(node.rows(), 0);
    node.commit();
    assert!(node.rows() > 0);
}

/// Goal: a cache that advanced by layers of several batches holds the same as one that advanced by single batches.
#[test]
fn a_layer_of_many_batches_is_as_good_as_many_layers() {
    let mut node = Node::new(&config());
    (0..4).for_each(|round| _ = node.run(&transactions(round, round)));
    let other = Session::new(&config(), node.genesis.chain.clone()).unwrap();
    let mut together = Overlay::default();
    for Batch { header, outcome, .. } in &node.ahead {
        together.extend(header, Some(&outcome.touched), &outcome.delta);
    }
    let layer = Arc::clone(together.newest().unwrap());
    assert_eq!((layer.batches(), layer.header()), (4, &node.ahead[3].header));
    let next = transactions(4, 4);
    // The faster engine reported half of it.
    let single = Arc::clone(node.overlay.up_to(BatchNumber::new(1)).unwrap().newest().unwrap());
    other.committed(&single);
    other.committed(&layer);
    (0..4).for_each(|_| _ = node.commit());
    assert_eq!(other.hot_stats().rows, node.rows());
    let (parent, view, none) = (node.parent(), node.store.view().unwrap(), Overlay::default());
    let state = State::on(&view, &none).unwrap();
    let run = |session: &Session| {
        let executed =
            session.execute(&Ahead::default(), &node.basis(&parent), &next, &state, ExecutionMethod::Fitting);
        (executed.unwrap().outcome, session.hot_stats().misses)
    };
    let (before, after) = (node.session.hot_stats().misses, run(&node.session));
    assert_eq!(run(&other), (after.0, after.1 - before));
}

/// A state whose first read waits until it is released.
struct Slow {
    state: MemoryState,
    asked: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl StateReader for Slow {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        if let Some((asked, go_on)) = self.asked.lock().take() {
            asked.send(()).unwrap();
            go_on.recv().unwrap();
        }
        self.state.account(address)
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.state.slot(address, slot)
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.state.code(hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.state.header_digest(number)
    }
}

impl ExecutionState for Slow {}

/// Goal: the commit of one batch does not wait for the execution of a later one.
#[test]
fn a_commit_never_waits_for_an_execution() {
    let mut node = Node::new(&config());
    let next = transactions(0, 0);
    let (parent, state) = (node.parent(), node.model());
    let expected = node.expected(&next);
    (0..2).for_each(|round| _ = node.run(&transactions(round, 5)));
    let (asked, is_asked) = channel();
    let (go_on, goes_on) = channel();
    let slow = Slow { state, asked: Mutex::new(Some((asked, goes_on))) };
    let (slow, none, basis) = (&slow, Overlay::default(), node.basis(&parent));
    let at = parent.digest();
    thread::scope(|scope| {
        let session = &node.session;
        let running = scope.spawn(move || {
            let state = State::over(slow, at, &none).unwrap();
            session
                .execute(&Ahead::default(), &basis, &next, &state, ExecutionMethod::Fitting)
                .unwrap()
                .outcome
        });
        is_asked.recv_timeout(Duration::from_secs(60)).unwrap();
        let layers = [1, 2].map(|number| node.overlay.up_to(BatchNumber::new(number)).unwrap());
        layers.iter().for_each(|layer| session.committed(layer.newest().unwrap()));
        assert_eq!(session.hot_stats().rows, 0, "it is taken in later");
        go_on.send(()).unwrap();
        assert_eq!(running.join().unwrap(), expected);
        assert!(session.hot_stats().rows > 0);
    });
}
