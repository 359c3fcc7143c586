//! Goal: batches have the same results whatever a session reads ahead, keeps and foretells, ahead of their commit too. Rolled-back
//! batches and wrong values leave no trace.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use crate::{
    store::{LIMITS, certified_genesis, store},
    support::*,
};
use alloy_primitives::{Address, B256, Bytes, U256};
use parking_lot::Mutex;
use slipstream_executor::{
    Ahead, AheadUse, Basis, ExecuteError, Executed, ExecutorConfig, HintsMode, Layer, MemoryState,
    OrderedBatch, Outcome, Overlay, Sealed, Session, State, StateReader, Transaction, Trust, Way, build,
    execute, predict::PredictMode, seal, seal_hints, seal_hints_with_values,
};
use slipstream_storage::{CommitBatch, Speculation, StorageError, Store};
use slipstream_types::{
    AccountValue, BatchHeader, BatchNumber, Blob, Delta, Digest, Epoch, Genesis, StateKey, StateValue,
};

/// A store, a session, and batches that were executed and are not committed.
struct Node {
    genesis: Genesis,
    store: Store,
    session: Session,
    overlay: Overlay,
    ahead: Vec<Batch>,
}

/// An executed batch.
struct Batch {
    header: BatchHeader,
    outcome: Outcome,
    speculation: Speculation,
    /// The state behind it, as the model has it.
    model: MemoryState,
}

fn config() -> ExecutorConfig {
    ExecutorConfig { hints: HintsMode::Off, predict: PredictMode::Off, ..ExecutorConfig::default() }
}

/// Callers and contracts that come again and again, and one account that was never seen.
fn transactions(nonce: u64, seed: u64) -> Vec<Transaction> {
    let fresh = Address::left_padding_from(&(0xfeed_0000 + seed).to_be_bytes());
    vec![
        transfer(1, nonce, fresh, 1_000),
        invoke(2, nonce, COUNTER, &[]),
        invoke(3, nonce, WRITER, &word(seed % 3)),
        invoke(4, nonce, HASHES, &word(nonce)),
        create(5, nonce, "64 5f355f5500 5f52 6005 601b f3"),
    ]
}

impl Node {
    fn new(config: &ExecutorConfig) -> Node {
        let genesis = certified_genesis();
        let store = store(&genesis);
        let session = Session::new(config, genesis.chain.clone()).unwrap();
        Node { genesis, store, session, overlay: Overlay::default(), ahead: Vec::new() }
    }

    fn parent(&self) -> BatchHeader {
        let committed = || self.store.head().unwrap().header;
        self.overlay.header().cloned().unwrap_or_else(committed)
    }

    /// The state that the next batch is executed on, as the model has it.
    fn model(&self) -> MemoryState {
        let mut model = match self.ahead.last() {
            Some(last) => last.model.clone(),
            None => MemoryState::from_genesis(&self.genesis).unwrap(),
        };
        let parent = self.parent();
        model.insert_header(parent.number, parent.digest());
        model
    }

    fn basis<'a>(&self, parent: &'a BatchHeader) -> Basis<'a> {
        Basis { parent, epoch: Epoch(0), timestamp_ms: parent.timestamp_ms + 1_000, proposer: PROPOSER }
    }

    fn prepare(&self, transactions: &[Transaction], hints: Option<&Blob>, trust: Trust) -> Ahead {
        let (parent, view) = (self.parent(), self.store.view().unwrap());
        let (number, gas_limit) = (parent.number.next(), self.genesis.chain.gas_limit);
        let time = self.basis(&parent).timestamp_ms;
        let batch = OrderedBatch::without_header(number, time, PROPOSER, gas_limit, transactions, hints);
        self.session.prepare(&batch, &view, &self.overlay, trust).unwrap()
    }

    fn execute(
        &self,
        ahead: &Ahead,
        transactions: &[Transaction],
        way: Way,
    ) -> Result<Executed, ExecuteError> {
        let (parent, view) = (self.parent(), self.store.view().unwrap());
        let state = State::on(&view, &self.overlay).unwrap();
        self.session.execute(ahead, &self.basis(&parent), transactions, &state, way)
    }

    /// The expected outcome of the next batch.
    fn expected(&self, transactions: &[Transaction]) -> Outcome {
        let parent = self.parent();
        execute(&self.model(), &self.basis(&parent).env(&self.genesis.chain), transactions).unwrap()
    }

    /// Executes a batch behind those that are ahead.
    fn run(&mut self, transactions: &[Transaction]) -> AheadUse {
        let ahead = self.prepare(transactions, None, Trust::Keys);
        let executed = self.execute(&ahead, transactions, Way::Fitting).unwrap();
        assert_eq!(executed.outcome, self.expected(transactions));
        self.keep(transactions, executed.outcome);
        executed.ahead
    }

    fn keep(&mut self, transactions: &[Transaction], outcome: Outcome) {
        let speculation = match self.ahead.last() {
            Some(before) => self.store.speculate_after(&before.speculation.state(), &outcome.delta),
            None => self.store.speculate(&outcome.delta),
        };
        let speculation = speculation.unwrap();
        let mut model = self.model();
        model.apply(&outcome.delta);
        let header = self.seal(transactions, &outcome, speculation.root()).header;
        let layer = Layer::of(&header, Some(&outcome.touched), &outcome.delta);
        self.overlay.push(Arc::new(layer));
        self.ahead.push(Batch { header, outcome, speculation, model });
    }

    fn seal(&self, transactions: &[Transaction], outcome: &Outcome, root: Digest) -> Sealed {
        let parent = self.parent();
        seal(HintsMode::Keys, &self.basis(&parent), transactions, outcome, root).unwrap()
    }

    /// Forgets the last batches, as after a divergence.
    fn roll_back(&mut self, batches: usize) {
        self.ahead.truncate(self.ahead.len() - batches);
        let to = self.ahead.last().map(|batch| batch.header.digest());
        self.overlay.roll_back(to.unwrap_or(self.store.head().unwrap().digest));
    }

    /// Commits the oldest batch, and says what was told of it.
    fn commit(&mut self) -> Arc<Layer> {
        let number = self.store.head().unwrap().header.number.next();
        let Batch { header, outcome, speculation, .. } = self.ahead.remove(0);
        let delta = &outcome.delta;
        self.store.commit(CommitBatch::new(&header, delta), Some(speculation)).unwrap();
        let layer = Arc::clone(self.overlay.up_to(number).unwrap().newest().unwrap());
        self.session.committed(&layer);
        layer
    }

    fn rows(&self) -> usize {
        self.session.hot_stats().rows
    }
}

#[test]
fn batches_ahead_run_on_each_other_and_leave_nothing_when_they_are_rolled_back() {
    let mut node = Node::new(&config());
    for round in 0..3 {
        node.run(&transactions(round, round));
    }
    assert_eq!(node.rows(), 0, "only commits change the cache");
    assert_eq!((node.overlay.batches(), node.parent().number.get()), (3, 3));
    assert_eq!(slot(&node.model(), COUNTER, 0), U256::from(3));

    // Agreement is on another batch 2.
    node.roll_back(2);
    node.run(&transactions(1, 70));
    node.run(&transactions(2, 71));
    let models: Vec<MemoryState> = node.ahead.iter().map(|batch| batch.model.clone()).collect();
    for model in models {
        node.commit();
        let view = node.store.view().unwrap();
        for (key, value) in model.iter() {
            assert_eq!(StateReader::row(&view, key).unwrap().as_ref(), Some(value));
        }
    }
    let rolled_back = Address::left_padding_from(&0xfeed_0001_u64.to_be_bytes());
    assert_eq!(node.store.view().unwrap().account(&rolled_back).unwrap(), None);
    let (rows, hits) = (node.rows(), node.session.hot_stats().hits);
    assert!(rows > 10, "{rows} rows");
    node.overlay.forget_up_to(BatchNumber::new(3));
    node.ahead.clear();
    let expected = node.store.view().unwrap();
    let next = transactions(3, 72);
    let parent = node.parent();
    let env = node.basis(&parent).env(&node.genesis.chain);
    let executed = node.execute(&Ahead::default(), &next, Way::Fitting).unwrap();
    assert_eq!(executed.outcome, execute(&expected, &env, &next).unwrap());
    assert!(node.session.hot_stats().hits > hits + 10, "the next batch finds what the last ones touched");
}

/// Goal: two engines of one node tell of the same commits, each as soon as it can.
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
    // By its delta, too, and the one after it starts from there.
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
    // A batch that does not continue the cache begins it anew; a delta alone does not.
    let Batch { header, outcome, .. } = &node.ahead[0];
    node.session.applied(header, &outcome.delta);
    assert_eq!(node.rows(), 0);
    node.commit();
    assert!(node.rows() > 0);
}

/// Goal: a cache that was moved on in layers of several batches has what one of single batches has.
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
    // Half of it was told by who was faster.
    let single = Arc::clone(node.overlay.up_to(BatchNumber::new(1)).unwrap().newest().unwrap());
    other.committed(&single);
    other.committed(&layer);
    (0..4).for_each(|_| _ = node.commit());
    assert_eq!(other.hot_stats().rows, node.rows());
    let (parent, view, none) = (node.parent(), node.store.view().unwrap(), Overlay::default());
    let state = State::on(&view, &none).unwrap();
    let run = |session: &Session| {
        let executed = session.execute(&Ahead::default(), &node.basis(&parent), &next, &state, Way::Fitting);
        (executed.unwrap().outcome, session.hot_stats().misses)
    };
    let (before, after) = (node.session.hot_stats().misses, run(&node.session));
    assert_eq!(run(&other), (after.0, after.1 - before));
}

/// A state whose first read waits for a word.
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
            session.execute(&Ahead::default(), &basis, &next, &state, Way::Fitting).unwrap().outcome
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

/// Goal: the read-ahead from an older state serves a batch as long as the layers tell the changes since. Afterwards it is
/// harmless.
#[test]
fn what_was_read_ahead_is_used_where_the_state_covers_it() {
    let config = ExecutorConfig { predict: PredictMode::Accounts, ..config() };
    for keeps_layers in [true, false] {
        let mut node = Node::new(&config);
        let second = transactions(1, 1);
        let ahead = node.prepare(&second, None, Trust::Keys);
        assert!(!ahead.is_hinted());
        let first = node.run(&transactions(0, 0));
        assert!(first.named > 5 && first.used > 5, "validators have predictors too: {first:?}");
        let expected = node.expected(&second);
        node.commit();
        node.session.forget();
        if !keeps_layers {
            node.overlay.forget_up_to(BatchNumber::new(1));
        }
        let executed = node.execute(&ahead, &second, Way::Fitting).unwrap();
        assert_eq!(executed.outcome, expected);
        assert_eq!(executed.ahead.used > 0, keeps_layers, "{:?}", executed.ahead);
    }
}

/// Goal: what the cache or a layer has is not read again.
#[test]
fn what_is_at_hand_is_not_read_ahead() {
    for threads in [0, 2] {
        let config = ExecutorConfig { hints: HintsMode::Keys, prefetch_threads: threads, ..config() };
        let mut node = Node::new(&config);
        let mut named = Vec::new();
        for round in 0..4 {
            let next = transactions(round, round);
            let hints = seal_hints(&node.expected(&next), PROPOSER, &next).unwrap();
            let ahead = node.prepare(&next, Some(&hints), Trust::Keys);
            assert!(ahead.is_hinted() && ahead.conflicts().is_none());
            let executed = node.execute(&ahead, &next, Way::Fitting).unwrap();
            assert_eq!(executed.outcome, node.expected(&next));
            assert_eq!(executed.ahead.used, executed.ahead.reads, "honest hints leave nothing to read");
            node.keep(&next, executed.outcome);
            named.push(executed.ahead.named);
            if round == 2 {
                // From layers to cache.
                (0..3).for_each(|_| _ = node.commit());
                node.overlay = Overlay::default();
                node.ahead.clear();
                break;
            }
        }
        assert!(named[0] > 2 * named[1] && named[1] == named[2], "{named:?}");
        let next = transactions(3, 3);
        let (parent, view) = (node.parent(), node.store.view().unwrap());
        let env = node.basis(&parent).env(&node.genesis.chain);
        let expected = execute(&view, &env, &next).unwrap();
        let hints = seal_hints(&expected, PROPOSER, &next).unwrap();
        let ahead = node.prepare(&next, Some(&hints), Trust::Keys);
        let executed = node.execute(&ahead, &next, Way::Fitting).unwrap();
        assert!(executed.outcome == expected);
        assert_eq!(executed.ahead.named, named[2]);
    }
}

/// Goal: values that hints tell wrongly are found before anything is made of them, and only who asked for them meets them.
#[test]
fn wrong_values_stay_with_who_believes_them() {
    for threads in [0, 2] {
        let config = ExecutorConfig { hints: HintsMode::Values, prefetch_threads: threads, ..config() };
        let mut node = Node::new(&config);
        let batch = transactions(0, 0);
        let expected = node.expected(&batch);
        let mut told = expected.clone();
        let counter = StateKey::Slot(COUNTER, B256::ZERO);
        told.touched.rows.iter_mut().filter(|(key, _)| *key == counter).for_each(|(_, value)| {
            *value = Some(StateValue::Slot(U256::from(41)));
        });
        let hints = seal_hints_with_values(&told, PROPOSER, &batch).unwrap();

        let careful = node.prepare(&batch, Some(&hints), Trust::Keys);
        assert_eq!(node.execute(&careful, &batch, Way::Fitting).unwrap().outcome, expected);
        assert!(careful.confirm().unwrap().is_empty());

        let mut believing = node.prepare(&batch, Some(&hints), Trust::Values);
        let executed = node.execute(&believing, &batch, Way::Fitting).unwrap();
        let wrong = believing.confirm().unwrap();
        // With threads the row may have been there first.
        assert_eq!(wrong.is_empty(), executed.outcome == expected);
        assert!(threads > 0 || wrong == [counter]);
        believing.distrust();
        let again = node.execute(&believing, &batch, Way::Fitting).unwrap();
        assert_eq!(again.outcome, expected);
        assert!(believing.confirm().unwrap().is_empty() && believing.is_confirmable());
        believing.release();
        assert_eq!(node.execute(&believing, &batch, Way::Fitting).unwrap().ahead, AheadUse::default());
        assert_eq!(node.rows(), 0);
        node.keep(&batch, again.outcome);
        node.run(&transactions(1, 1));
    }
}

/// Goal: after a divergence a batch can be run on one thread, whatever is configured; and a batch that gains nothing by more is.
#[test]
fn a_batch_is_run_on_one_thread_if_asked_to() {
    let config = ExecutorConfig { hints: HintsMode::Conflicts, threads: 2, ..config() };
    let node = Node::new(&config);
    let filler = |seed: u8, nonce: u64| {
        let first = u64::from(seed) * 100 + nonce * 8;
        invoke(seed, nonce, FILLER, &[word(first), word(first + 7)].concat())
    };
    let independent: Vec<_> = (0..4).flat_map(|nonce| (1..=8).map(move |seed| filler(seed, nonce))).collect();
    let expected = node.expected(&independent);
    let hints = seal_hints(&expected, PROPOSER, &independent).unwrap();
    let ahead = node.prepare(&independent, Some(&hints), Trust::Keys);
    for (way, is_parallel) in [(Way::Fitting, true), (Way::Sequential, false)] {
        let executed = node.execute(&ahead, &independent, way).unwrap();
        assert_eq!((executed.outcome, executed.parallel.is_parallel), (expected.clone(), is_parallel));
    }
    let serial: Vec<_> = (0..12).map(|nonce| invoke(1, nonce, COUNTER, &[])).collect();
    let ahead = node.prepare(&serial, None, Trust::Keys);
    assert!(ahead.conflicts().is_some(), "transactions tell enough to begin with");
    let executed = node.execute(&ahead, &serial, Way::Fitting).unwrap();
    assert_eq!((executed.outcome, executed.parallel.is_parallel), (node.expected(&serial), false));
}

/// Goal: a proposer makes the next batch while the last ones are voted on, as it would behind their commit, and reads ahead for it.
#[test]
fn a_batch_is_built_behind_batches_that_are_not_committed() {
    let mut node = Node::new(&ExecutorConfig { predict: PredictMode::Accounts, ..config() });
    (0..2).for_each(|round| _ = node.run(&transactions(round, round)));
    let mut candidates = transactions(2, 2);
    candidates.push(transfer(6, 7, account(9), 1));
    candidates.push(transfer(7, 0, account(9), 5));
    let parent = node.parent();
    let expected = {
        let env = node.basis(&parent).env(&node.genesis.chain);
        build(&node.model(), &env, &mut candidates.clone().into_iter(), &LIMITS).unwrap()
    };
    let view = node.store.view().unwrap();
    let (number, gas) = (parent.number.next(), node.genesis.chain.gas_limit);
    let likely = OrderedBatch::without_header(number, 0, PROPOSER, gas, &candidates, None);
    let ahead = node.session.prepare_candidates(&likely, &view, &node.overlay).unwrap();
    let state = State::on(&view, &node.overlay).unwrap();
    let candidates = &mut candidates.into_iter();
    let (built, read) =
        node.session.build(&ahead, &node.basis(&parent), candidates, &LIMITS, &state).unwrap();
    assert!(read.reads > 0, "what was read ahead is asked first: {read:?}");
    assert_eq!((&built.included, &built.rejected), (&expected.included, &expected.rejected));
    assert_eq!((built.included.len(), built.outcome), (6, expected.outcome));
    assert_eq!(
        node.execute(&ahead, &built.included, Way::Fitting).unwrap().outcome.delta,
        Delta::clone(&node.expected(&built.included).delta)
    );
}
