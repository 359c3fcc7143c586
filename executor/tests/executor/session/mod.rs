//! Goal: batches have the same results whatever a session reads ahead, keeps and predicts, also before they are
//! committed. Rolled-back batches and wrong values leave no trace.

mod ahead;
mod cache;

use std::sync::Arc;

use crate::{
    store::{LIMITS, certified_genesis, store},
    support::*,
};
use alloy_primitives::{Address, U256};
use slipstream_executor::{
    Ahead, AheadUse, BatchContext, BatchExecution, ExecuteError, ExecutionMethod, ExecutorConfig, HintsMode,
    Layer, NoTimeLimit, OrderedBatch, Outcome, Overlay, SealedBatch, Session, State, Transaction, Trust,
    build, execute, seal, seal_hints,
};
use slipstream_predict::PredictMode;
use slipstream_storage::{CommitBatch, MemoryState, Speculation, StateReader, Store};
use slipstream_types::{BatchHeader, BatchNumber, Blob, Delta, Digest, Epoch, Genesis};

/// A store, a session, and batches that are executed but not committed.
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
    /// The model's state after the batch.
    model: MemoryState,
}

fn config() -> ExecutorConfig {
    ExecutorConfig { hints: HintsMode::Off, predict: PredictMode::Off, ..ExecutorConfig::default() }
}

/// Callers and contracts that recur, and one new account.
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

    /// The model's state on which the next batch is executed.
    fn model(&self) -> MemoryState {
        let mut model = match self.ahead.last() {
            Some(last) => last.model.clone(),
            None => MemoryState::from_genesis(&self.genesis).unwrap(),
        };
        let parent = self.parent();
        model.insert_header(parent.number, parent.digest());
        model
    }

    fn basis<'a>(&self, parent: &'a BatchHeader) -> BatchContext<'a> {
        BatchContext {
            parent,
            epoch: Epoch(0),
            timestamp_ms: parent.timestamp_ms + 1_000,
            proposer: PROPOSER,
        }
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
        way: ExecutionMethod,
    ) -> Result<BatchExecution, ExecuteError> {
        let (parent, view) = (self.parent(), self.store.view().unwrap());
        let state = State::on(&view, &self.overlay).unwrap();
        self.session.execute(ahead, &self.basis(&parent), transactions, &state, way)
    }

    /// The expected outcome of the next batch.
    fn expected(&self, transactions: &[Transaction]) -> Outcome {
        let parent = self.parent();
        execute(&self.model(), &self.basis(&parent).env(&self.genesis.chain), transactions).unwrap()
    }

    /// Executes a batch after those that are ahead.
    fn run(&mut self, transactions: &[Transaction]) -> AheadUse {
        let ahead = self.prepare(transactions, None, Trust::Keys);
        let executed = self.execute(&ahead, transactions, ExecutionMethod::Fitting).unwrap();
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

    fn seal(&self, transactions: &[Transaction], outcome: &Outcome, root: Digest) -> SealedBatch {
        let parent = self.parent();
        seal(HintsMode::Keys, &self.basis(&parent), transactions, outcome, root).unwrap()
    }

    /// Drops the last batches, as after a divergence.
    fn roll_back(&mut self, batches: usize) {
        self.ahead.truncate(self.ahead.len() - batches);
        let to = self.ahead.last().map(|batch| batch.header.digest());
        self.overlay.roll_back(to.unwrap_or(self.store.head().unwrap().digest));
    }

    /// Commits the oldest batch. Returns the layer that it reported to the session.
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

    // The validators agreed on another batch 2.
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
    let executed = node.execute(&Ahead::default(), &next, ExecutionMethod::Fitting).unwrap();
    assert_eq!(executed.outcome, execute(&expected, &env, &next).unwrap());
    assert!(node.session.hot_stats().hits > hits + 10, "the next batch finds what the last ones touched");
}

/// Goal: after a divergence a batch can run on one thread, whatever is configured. A batch that gains nothing from more
/// threads runs on one too.
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
    for (way, is_parallel) in [(ExecutionMethod::Fitting, true), (ExecutionMethod::Sequential, false)] {
        let executed = node.execute(&ahead, &independent, way).unwrap();
        assert_eq!((executed.outcome, executed.parallel.is_parallel), (expected.clone(), is_parallel));
    }
    let serial: Vec<_> = (0..12).map(|nonce| invoke(1, nonce, COUNTER, &[])).collect();
    let ahead = node.prepare(&serial, None, Trust::Keys);
    assert!(ahead.conflicts().is_some(), "transactions tell enough to begin with");
    let executed = node.execute(&ahead, &serial, ExecutionMethod::Fitting).unwrap();
    assert_eq!((executed.outcome, executed.parallel.is_parallel), (node.expected(&serial), false));
}

/// Goal: a proposer builds the next batch while the last batches are voted on, as it would after their commit, and
/// reads ahead for it.
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
    let (built, read) = node
        .session
        .build(&mut NoTimeLimit, &ahead, &node.basis(&parent), candidates, &LIMITS, &state)
        .unwrap();
    assert!(read.reads > 0, "what was read ahead is asked first: {read:?}");
    assert_eq!((&built.included, &built.rejected), (&expected.included, &expected.rejected));
    assert_eq!((built.included.len(), built.outcome), (6, expected.outcome));
    assert_eq!(
        node.execute(&ahead, &built.included, ExecutionMethod::Fitting).unwrap().outcome.delta,
        Delta::clone(&node.expected(&built.included).delta)
    );
}
