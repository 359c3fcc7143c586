//! Child processes that work on a store: commits (a fixed number, or until the process is killed), and one opening.

use std::{path::PathBuf, time::Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use slipstream_storage::{StorageConfig, Store};

use super::{
    contender::{Way, config, measure},
    filled::Filled,
    meter::Cost,
    workload::Choice,
};
use crate::{harness::child, print_json};
use slipnet::{memory, output::print_line};

const COMMIT: &str = "commit";
const OPEN: &str = "open";
/// Batches in each round of an endless child.
const ENDLESS_BATCHES: usize = 10;

/// Commits to a filled store.
#[derive(Clone, Debug, clap::Args)]
pub struct CommitOptions {
    /// The store, and its next batches.
    #[command(flatten)]
    pub filled: Filled,
    /// Rounds before the measured ones.
    #[arg(long)]
    pub warm_rounds: usize,
    /// Measured rounds; 0 continues until the process is killed.
    #[arg(long)]
    pub rounds: usize,
}

/// The costs of commits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CommitReport {
    /// The costs, round by round.
    pub(super) costs: Vec<Cost>,
    /// Data blocks that missed the block cache, per update.
    pub(super) block_reads_per_update: f64,
    /// Peak memory of the process at the end.
    pub(super) peak_mib: f64,
}

impl CommitOptions {
    fn arguments(&self) -> Vec<String> {
        let rounds = [("--warm-rounds", self.warm_rounds), ("--rounds", self.rounds)];
        self.filled.arguments(rounds.map(|(name, rounds)| (name, rounds.to_string())))
    }

    /// Returns the number of batches that the child makes, unless it is endless.
    pub(super) fn total_batches(&self) -> u64 {
        ((self.warm_rounds + self.rounds) * self.filled.batches) as u64
    }

    /// Runs the child in its own process.
    pub(crate) fn in_child(&self) -> Result<CommitReport> {
        child::run(COMMIT, &self.arguments())
    }

    /// Starts a child that commits until it is killed.
    pub(crate) fn start_endless(self) -> Result<child::Endless> {
        let endless = CommitOptions {
            filled: Filled { batches: ENDLESS_BATCHES, ..self.filled },
            warm_rounds: 1,
            rounds: 0,
        };
        child::Endless::start(COMMIT, &endless.arguments())
    }

    /// Does the work in this process and prints its result.
    pub(crate) fn run(&self) -> Result<()> {
        let (ours, mut workload) = self.filled.open()?;
        let mut round = || {
            let round = workload.round(self.filled.batches, self.filled.updates, Choice::Uniform)?;
            measure(&mut ours.by(Way::Fresh), &round)
        };
        for _ in 0..self.warm_rounds {
            round()?;
        }
        if self.rounds == 0 {
            print_line("at work")?;
            loop {
                round()?;
            }
        }
        let before = ours.store().io_counts().blocks;
        let costs = (0..self.rounds).map(|_| round()).collect::<Result<Vec<_>>>()?;
        let updates = (self.rounds * self.filled.batches * self.filled.updates) as f64;
        let block_reads_per_update = (ours.store().io_counts().blocks - before) as f64 / updates;
        let peak_mib = memory::peak_mib(std::process::id())?;
        ours.store().close();
        print_json(&CommitReport { costs, block_reads_per_update, peak_mib })
    }
}

/// Opens a store.
#[derive(Clone, Debug, clap::Args)]
pub struct OpenOptions {
    /// The store.
    #[arg(long)]
    pub dir: PathBuf,
    /// Memory for the state tree, as in the configuration.
    #[arg(long)]
    pub tree_memory_mib: u64,
}

/// The cost of opening.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OpenReport {
    pub(crate) seconds: f64,
    /// Resident memory of the process when the store was open.
    pub(crate) resident_mib: f64,
    /// Peak memory of the process until then.
    pub(crate) peak_mib: f64,
    /// The number of the head's batch.
    pub(crate) head: u64,
}

impl OpenOptions {
    /// Runs the child in its own process.
    pub(crate) fn in_child(&self) -> Result<OpenReport> {
        let memory = self.tree_memory_mib.to_string();
        let dir = self.dir.display().to_string();
        child::run(OPEN, &["--dir".to_owned(), dir, "--tree-memory-mib".to_owned(), memory])
    }

    /// Does the work in this process and prints its result.
    pub(crate) fn run(&self) -> Result<()> {
        let config = StorageConfig { tree_memory_mib: self.tree_memory_mib, ..config(true) };
        let start = Instant::now();
        let store = Store::open(&config, &self.dir)?;
        let seconds = start.elapsed().as_secs_f64();
        let me = std::process::id();
        let (resident_mib, peak_mib) = (memory::resident_mib(me)?, memory::peak_mib(me)?);
        let head = store.head()?.header.number.get();
        store.close();
        print_json(&OpenReport { seconds, resident_mib, peak_mib, head })
    }
}
