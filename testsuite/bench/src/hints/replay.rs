//! The ways to replay the blocks.

use std::{collections::VecDeque, thread, time::Instant};

use anyhow::{Context, Result, ensure};
use slipstream_executor::{
    BatchEnv, ExecuteError, ExecutionState, Outcome, PrefetchBackend, PrefetchLimits, PrefetchRequest,
    Prefetcher, Transaction, WarmState, execute, execute_silently, open_hints, seal_hints,
};
use slipstream_storage::{MemoryState, StateReader as _, Store};
use slipstream_types::{BatchNumber, Blob, Digest, Hints, StateKey};

use super::{cold::World, meter::Cost};
use crate::mainnet::Block;

/// Threads that read the working set alone: by point reads, or by multi-gets of this many keys.
const FLOOR_THREADS: usize = 16;
const MULTI_GET_THREADS: usize = 4;
const MULTI_GET_KEYS: usize = 256;
/// Batches that the pipeline passes to the prefetcher before they execute.
const READAHEAD: usize = 8;

/// A block, and the result of executing it.
pub(crate) struct Case {
    pub(crate) block: Block,
    pub(crate) expected: Outcome,
    /// The distinct keys of the block's hints, in first-use order.
    pub(crate) keys: Vec<StateKey>,
    /// All that the block reads, in a hash map, so that only CPU time remains.
    in_memory: WarmState<MemoryState>,
    /// The block's hints as sent over the network; `None` if the block reads more than hints may name.
    sealed: Option<Blob>,
}

/// A way to replay the blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Variant {
    /// State in memory.
    CpuOnly,
    /// 16 threads read the working sets, and nothing is executed.
    IoOnly,
    /// The same with multi-gets, whose blocks the kernel reads at once (io_uring).
    IoMultiGet,
    /// Execution reads every key when it needs it.
    Cold,
    /// This many threads read a block's hinted keys by point reads while it executes.
    Single(usize),
    /// The same with multi-gets.
    SingleMultiGet,
    /// Hinted keys are read ahead while earlier blocks execute; without a backend the probe chooses one.
    Pipelined(Option<Backend>),
}

/// [`PrefetchBackend`] with an order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Backend {
    Threads,
    MultiGet,
}

impl Variant {
    pub(super) const PIPELINED: Variant = Variant::Pipelined(None);
    /// The ways that only read the working sets; the faster one is the floor.
    pub(super) const IO_ONLY: [Variant; 2] = [Variant::IoOnly, Variant::IoMultiGet];
    /// The ways that replay blocks in isolation: no key is read before the block arrives.
    pub(super) const ISOLATED: [Variant; 2] = [Variant::Single(16), Variant::SingleMultiGet];
    pub(super) const ALL: [Variant; 11] = [
        Variant::CpuOnly,
        Variant::IoOnly,
        Variant::IoMultiGet,
        Variant::Cold,
        Variant::Single(1),
        Variant::Single(4),
        Variant::Single(16),
        Variant::SingleMultiGet,
        Variant::PIPELINED,
        Variant::Pipelined(Some(Backend::Threads)),
        Variant::Pipelined(Some(Backend::MultiGet)),
    ];

    /// Returns the name in figures.
    pub(super) fn name(self) -> String {
        match self {
            Variant::CpuOnly => "cpu_only".into(),
            Variant::IoOnly => "io_only".into(),
            Variant::IoMultiGet => "io_only.multi_get".into(),
            Variant::Cold => "cold".into(),
            Variant::Single(threads) => format!("single.t{threads}"),
            Variant::SingleMultiGet => "single.multi_get".into(),
            Variant::Pipelined(None) => "pipelined".into(),
            Variant::Pipelined(Some(Backend::Threads)) => "pipelined.threads".into(),
            Variant::Pipelined(Some(Backend::MultiGet)) => "pipelined.multi_get".into(),
        }
    }

    /// Returns the cost of each block; a pipeline has one total cost.
    pub(super) fn measure(self, store: &Store, cases: &[Case], worlds: &[World]) -> Result<Vec<Cost>> {
        // Threads and their rings exist before a node's first batch.
        let prefetcher = Prefetcher::new(self.limits())?;
        store.drop_cached();
        if let Variant::Pipelined(_) = self {
            let (cost, done) = Cost::of(store, || pipelined(&prefetcher, cases, worlds));
            return done.map(|()| vec![cost]);
        }
        let measure = |(case, world): (&Case, &World)| {
            store.drop_cached();
            let (cost, done) = Cost::of(store, || self.replay(&prefetcher, case, world));
            done.map(|()| cost)
        };
        cases.iter().zip(worlds).map(measure).collect()
    }

    fn limits(self) -> PrefetchLimits {
        let (threads, backend) = match self {
            Variant::Single(threads) => (threads, Some(PrefetchBackend::Threads)),
            Variant::SingleMultiGet | Variant::Pipelined(Some(Backend::MultiGet)) => {
                (FLOOR_THREADS, Some(PrefetchBackend::MultiGet))
            }
            Variant::Pipelined(Some(Backend::Threads)) => (FLOOR_THREADS, Some(PrefetchBackend::Threads)),
            _ => (FLOOR_THREADS, None),
        };
        PrefetchLimits { threads, backend, ..PrefetchLimits::default() }
    }

    fn replay(self, prefetcher: &Prefetcher, case: &Case, world: &World) -> Result<()> {
        match self {
            Variant::CpuOnly => case.check(&case.in_memory),
            Variant::IoOnly => read_all(world, &case.keys, &case.codes()),
            Variant::IoMultiGet => read_all_at_once(world, &case.keys, &case.codes()),
            Variant::Cold => case.check(world),
            Variant::Single(_) | Variant::SingleMultiGet | Variant::Pipelined(_) => {
                case.check(&case.read_ahead(prefetcher, world)?)
            }
        }
    }
}

impl Case {
    pub(super) fn new(block: Block) -> Result<Case> {
        let number = block.env.number;
        let expected = execute(&block.state, &block.env, &block.transactions)
            .with_context(|| format!("block {number}"))?;
        ensure!(
            expected.gas_used == block.gas_used,
            "block {number} used {} gas, and not {}",
            expected.gas_used,
            block.gas_used
        );
        let in_memory = WarmState::complete(block.state.clone(), PrefetchRequest::from(&expected.hints))?;
        let keys = expected.hints.keys().collect();
        let sealed = seal_hints(&expected, block.env.beneficiary, &block.transactions);
        Ok(Case { block, expected, keys, in_memory, sealed })
    }

    /// Returns the block's hints, opened as a follower opens them.
    pub(crate) fn hints(&self) -> Result<Hints> {
        let Block { gas_used, env, transactions, .. } = &self.block;
        let Some(sealed) = &self.sealed else { return Ok(self.expected.hints.clone()) };
        Ok(open_hints(sealed, *gas_used, env.beneficiary, transactions)?.hints)
    }

    fn codes(&self) -> Vec<Digest> {
        self.expected.touched.codes.iter().map(|(hash, _)| Digest::from(*hash)).collect()
    }

    fn read_ahead(&self, prefetcher: &Prefetcher, world: &World) -> Result<WarmState<World>> {
        let number = BatchNumber::new(self.block.env.number);
        Ok(prefetcher.read_ahead(number, world.clone(), PrefetchRequest::from(&self.hints()?)))
    }

    /// Executes the block on a state, and checks that the outcome is the same.
    pub(crate) fn check(&self, state: &dyn ExecutionState) -> Result<()> {
        let outcome = execute(state, &self.block.env, &self.block.transactions)?;
        ensure!(outcome.gas_used == self.expected.gas_used, "block {} differs", self.block.env.number);
        Ok(())
    }

    /// Measures a batch's hints: their cost for the maker beside executing the batch, and their length. The order
    /// alternates between rounds.
    pub(super) fn make_hints(&self, round: usize) -> Result<MadeHints> {
        let Block { env, transactions, .. } = &self.block;
        let timed = |execute: fn(&dyn ExecutionState, &BatchEnv, &[Transaction]) -> _| {
            let start = Instant::now();
            let outcome: Result<Outcome, ExecuteError> = execute(&self.in_memory, env, transactions);
            outcome.map(|outcome| (outcome, start.elapsed().as_secs_f64()))
        };
        // The second execution finds warm CPU caches.
        let (silent_s, (outcome, execute_s)) = match round % 2 {
            0 => (timed(execute_silently)?.1, timed(execute)?),
            _ => {
                let noting = timed(execute)?;
                (timed(execute_silently)?.1, noting)
            }
        };
        let start = Instant::now();
        // A block from before Berlin may read more than hints may name: then it has none.
        let blob = seal_hints(&outcome, env.beneficiary, transactions);
        let make_s = start.elapsed().as_secs_f64();
        Ok(MadeHints { silent_s, execute_s, make_s, bytes: blob.map_or(0, |blob| blob.len()) })
    }
}

/// The result of [`Case::make_hints`].
pub(super) struct MadeHints {
    /// Seconds of executing the batch without recording reads.
    pub(super) silent_s: f64,
    pub(super) execute_s: f64,
    pub(super) make_s: f64,
    pub(super) bytes: usize,
}

/// Reads a working set, keys and code, with many threads, by point reads.
pub(super) fn read_all(world: &World, keys: &[StateKey], codes: &[Digest]) -> Result<()> {
    thread::scope(|scope| {
        let keys = keys.chunks(keys.len().div_ceil(FLOOR_THREADS).max(1));
        let mut codes = codes.chunks(codes.len().div_ceil(FLOOR_THREADS).max(1));
        let spawn = |keys: &[StateKey]| {
            let codes = codes.next().unwrap_or_default();
            let keys = keys.to_vec();
            scope.spawn(move || {
                for key in keys {
                    world.row(&key)?;
                }
                codes.iter().try_for_each(|hash| world.code(hash).map(drop))
            })
        };
        let readers: Vec<_> = keys.map(spawn).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })?;
    Ok(())
}

/// Reads a working set with multi-gets in each thread.
fn read_all_at_once(world: &World, keys: &[StateKey], codes: &[Digest]) -> Result<()> {
    thread::scope(|scope| {
        let keys = keys.chunks(keys.len().div_ceil(MULTI_GET_THREADS).max(1));
        let spawn = |keys: &[StateKey]| {
            let keys = keys.to_vec();
            scope.spawn(move || keys.chunks(MULTI_GET_KEYS).try_for_each(|keys| world.rows(keys).map(drop)))
        };
        let mut readers: Vec<_> = keys.map(spawn).collect();
        for codes in codes.chunks(codes.len().div_ceil(FLOOR_THREADS).max(1)) {
            readers.push(scope.spawn(move || codes.iter().try_for_each(|hash| world.code(hash).map(drop))));
        }
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })?;
    Ok(())
}

fn pipelined(prefetcher: &Prefetcher, cases: &[Case], worlds: &[World]) -> Result<()> {
    let mut ahead = VecDeque::new();
    let mut coming = cases.iter().zip(worlds);
    for case in cases {
        let missing = READAHEAD + 1 - ahead.len();
        for (case, world) in coming.by_ref().take(missing) {
            ahead.push_back(case.read_ahead(prefetcher, world)?);
        }
        // The block's state is dropped after its execution, so that the next block can be prefetched.
        let warm = ahead.pop_front().expect("each block is read for before it executes");
        case.check(&warm)?;
    }
    Ok(())
}
