//! The ways to replay the blocks.

use anyhow::Result;
use rayon::{ThreadPool, ThreadPoolBuilder};
use slipstream_executor::{PrefetchLimits, Prefetcher, predict_batch};
use slipstream_predict::{PredictMode, Predictors};
use slipstream_storage::StateReader;
use slipstream_types::Hints;

use super::{READAHEADS, programs::Programs, score::Score};
use crate::{
    Figure,
    hints::{Case, ColdState, Cost, World, replay_ahead},
};

/// A way to replay the blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Variant {
    /// Execution reads every key when it needs it.
    Cold,
    /// Keys are read ahead, for this many blocks while one executes.
    Ahead(Way, usize),
}

/// The source of a block's keys before it executes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Way {
    /// The hints of the block's maker.
    Hints,
    /// The transactions themselves name the keys.
    Accounts,
    /// The predictors' programs name the keys, as far as they get without reading slots.
    NoSlotReads,
    /// The predictors' programs name the keys.
    Full,
}

impl Variant {
    pub(super) fn all() -> Vec<Variant> {
        let ways = [Way::Hints].into_iter().chain(Way::FORETOLD);
        let ahead = ways.flat_map(|way| READAHEADS.map(|readahead| Variant::Ahead(way, readahead)));
        std::iter::once(Variant::Cold).chain(ahead).collect()
    }

    /// Returns the name in figures.
    pub(super) fn name(self) -> String {
        match self {
            Variant::Cold => "cold".into(),
            Variant::Ahead(way, readahead) => format!("{}.readahead_{readahead}", way.name()),
        }
    }
}

impl Way {
    pub(super) const FORETOLD: [Way; 3] = [Way::Accounts, Way::NoSlotReads, Way::Full];

    /// Returns the name in figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Hints => "hints",
            Way::Accounts => "accounts",
            Way::NoSlotReads => "no_slot_reads",
            Way::Full => "full",
        }
    }
}

/// The blocks to replay, and the threads that help.
pub(super) struct Bench<'a> {
    state: &'a ColdState,
    programs: &'a Programs,
    /// As many threads as a node's prefetcher has by default.
    threads: ThreadPool,
}

impl<'a> Bench<'a> {
    pub(super) fn new(state: &'a ColdState, programs: &'a Programs) -> Result<Bench<'a>> {
        let threads = ThreadPoolBuilder::new().num_threads(PrefetchLimits::default().threads).build()?;
        Ok(Bench { state, programs, threads })
    }

    /// Replays all blocks on a store with an empty cache.
    pub(super) fn measure(&self, variant: Variant) -> Result<Cost> {
        let ColdState { store, cases, worlds, .. } = self.state;
        // Threads and their rings exist before a node's first batch.
        let prefetcher = Prefetcher::new(PrefetchLimits::default())?;
        store.drop_cached();
        let (cost, done) = Cost::of(store, || match variant {
            Variant::Cold => cases.iter().zip(worlds).try_for_each(|(case, world)| case.check(world)),
            Variant::Ahead(way, readahead) => {
                let blocks: Vec<(&Case, World)> = cases.iter().zip(worlds.iter().cloned()).collect();
                replay_ahead(&prefetcher, readahead, &blocks, |case, world| self.hints(way, case, world))
            }
        });
        done.map(|()| cost)
    }

    /// Returns the reads of a block that are known before it executes.
    fn hints(&self, way: Way, case: &Case, state: &dyn StateReader) -> Result<Hints> {
        let foretell = |predictors: &Predictors, mode| {
            let block = &case.block;
            self.threads.install(|| {
                predict_batch(predictors, &block.transactions, &block.env, block.gas_used, state, mode).hints
            })
        };
        Ok(match way {
            Way::Hints => case.hints()?,
            Way::Accounts => foretell(&self.programs.full, PredictMode::Accounts),
            Way::NoSlotReads => foretell(&self.programs.no_slot_reads, PredictMode::Full),
            Way::Full => foretell(&self.programs.full, PredictMode::Full),
        })
    }

    /// Returns the quality of one source of keys, over all blocks.
    pub(super) fn score(&self, way: Way) -> Result<[Figure; 2]> {
        let mut score = Score::default();
        for case in &self.state.cases {
            score.add(case, &self.hints(way, case, &case.block.state)?);
        }
        let figure = |name, share| Figure::new(format!("{name}.{}", way.name()), "ratio", vec![share]);
        Ok([figure("predicted_share", score.predicted_share()), figure("wasted_share", score.wasted_share())])
    }
}
