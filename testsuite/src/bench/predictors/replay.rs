//! The ways in which the blocks are replayed.

use std::{sync::mpsc, thread};

use anyhow::{Context, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};
use slipstream_executor::{
    PrefetchLimits, Prefetcher, StateReader, Wanted, Warm,
    predict::{PredictMode, Predictors},
};
use slipstream_types::{BatchNumber, Hints};

use super::{READAHEADS, analysis::Programs, score::Score};
use crate::bench::{
    Figure,
    hints::{Case, ColdState, Cost, World},
};

/// A way to replay the blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Variant {
    /// Every key is read when execution comes to it.
    Cold,
    /// Keys are read ahead, for so many blocks while one executes.
    Ahead(Way, usize),
}

/// How keys are known before a block executes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Way {
    /// Whoever made the block said so.
    Hints,
    /// They stand in the transactions.
    Accounts,
    /// Programs name them, as far as they get without reading slots.
    NoSlotReads,
    /// Programs name them.
    Full,
}

impl Variant {
    pub(super) fn all() -> Vec<Variant> {
        let ways = [Way::Hints].into_iter().chain(Way::FORETOLD);
        let ahead = ways.flat_map(|way| READAHEADS.map(|readahead| Variant::Ahead(way, readahead)));
        std::iter::once(Variant::Cold).chain(ahead).collect()
    }

    /// As in the figures.
    pub(super) fn name(self) -> String {
        match self {
            Variant::Cold => "cold".into(),
            Variant::Ahead(way, readahead) => format!("{}.readahead_{readahead}", way.name()),
        }
    }
}

impl Way {
    pub(super) const FORETOLD: [Way; 3] = [Way::Accounts, Way::NoSlotReads, Way::Full];

    /// As in the figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Hints => "hints",
            Way::Accounts => "accounts",
            Way::NoSlotReads => "no_slot_reads",
            Way::Full => "full",
        }
    }
}

/// What is replayed, and the threads that help.
pub(super) struct Bench<'a> {
    state: &'a ColdState,
    programs: &'a Programs,
    /// As many as read ahead, like a node's.
    threads: ThreadPool,
}

impl<'a> Bench<'a> {
    pub(super) fn new(state: &'a ColdState, programs: &'a Programs) -> Result<Bench<'a>> {
        let threads = ThreadPoolBuilder::new().num_threads(PrefetchLimits::default().threads).build()?;
        Ok(Bench { state, programs, threads })
    }

    /// Replays all blocks on a store whose cache is empty.
    pub(super) fn measure(&self, variant: Variant) -> Result<Cost> {
        let ColdState { store, cases, worlds, .. } = self.state;
        // Threads and their rings are there before a node's first batch.
        let prefetcher = Prefetcher::new(PrefetchLimits::default())?;
        store.drop_cached();
        let (cost, done) = Cost::of(store, || match variant {
            Variant::Cold => cases.iter().zip(worlds).try_for_each(|(case, world)| case.check(world)),
            Variant::Ahead(way, readahead) => self.replay_ahead(&prefetcher, way, readahead),
        });
        done.map(|()| cost)
    }

    /// One thread prepares blocks and one executes them.
    fn replay_ahead(&self, prefetcher: &Prefetcher, way: Way, readahead: usize) -> Result<()> {
        let ColdState { cases, worlds, .. } = self.state;
        // One more block is ahead in the hands of the thread that waits to send it.
        let (sender, prepared) = mpsc::sync_channel::<Warm<World>>(readahead - 1);
        thread::scope(|scope| {
            scope.spawn(move || {
                for (case, world) in cases.iter().zip(worlds) {
                    // A chain that cannot be opened shows when it is made.
                    let Ok(hints) = self.hints(way, case, world) else { return };
                    let wanted = Wanted::from(&hints);
                    let number = BatchNumber(case.block.env.number);
                    if sender.send(prefetcher.read_ahead(number, world.clone(), wanted)).is_err() {
                        return;
                    }
                }
            });
            // Its end, on an error too, is what stops the other thread.
            let prepared = prepared;
            for case in cases {
                let warm = prepared.recv().context("the thread that prepares blocks has ended")?;
                case.check(&warm)?;
            }
            Ok(())
        })
    }

    /// What is known of a block before it executes.
    fn hints(&self, way: Way, case: &Case, state: &dyn StateReader) -> Result<Hints> {
        let foretell = |predictors: &Predictors, mode| {
            let block = &case.block;
            self.threads
                .install(|| predictors.foretell(&block.transactions, &block.env, block.gas_used, state, mode))
        };
        Ok(match way {
            Way::Hints => case.hints()?,
            Way::Accounts => foretell(&self.programs.full, PredictMode::Accounts),
            Way::NoSlotReads => foretell(&self.programs.no_slot_reads, PredictMode::Full),
            Way::Full => foretell(&self.programs.full, PredictMode::Full),
        })
    }

    /// How good it is to know keys in some way, over all blocks.
    pub(super) fn score(&self, way: Way) -> Result<[Figure; 2]> {
        let mut score = Score::default();
        for case in &self.state.cases {
            score.add(case, &self.hints(way, case, &case.block.state)?);
        }
        let figure = |name, share| Figure::new(format!("{name}.{}", way.name()), "ratio", vec![share]);
        Ok([figure("predicted_share", score.predicted_share()), figure("wasted_share", score.wasted_share())])
    }
}
