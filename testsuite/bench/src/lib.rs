//! Benchmarks that print each figure beside its floor or a rival's: `slipnet bench NAME [--quick] [--json FILE]`.
//!
//! The program `slipnet-bench` is a thin command line over this library. `slipnet` replaces itself with that program
//! for `bench`. The library depends on the simulations: the broadcast bench measures the costs that the simulations
//! assume, and runs their fabric.
//!
//! ```text
//!  NAME ─▶ the module of that name ─▶ Report of Figures ─▶ table, JSON ─▶ runs (all, compare, document) ─▶ docs/benchmarks.md
//!            │
//!            ├─ harness: chains, nodes, relay, kept directories, plain files, child processes
//!            └─ state (SizeDir, Ours), ledger (chain), mainnet (blocks): shared with other benches
//! ```
//!
//! Invariants:
//! * A bench measures the contenders alternately, in one process, several times; a figure is the median of its samples.
//! * Absolute figures depend on the machine, so quote ratios of one run.
//! * In a directory that is kept, no run reuses the keys of an earlier one.

mod auto;
mod broadcast;
pub mod cli;
mod consensus;
mod harness;
mod head;
mod hints;
mod history;
mod ledger;
mod live;
mod mainnet;
mod open;
mod parallel;
mod predictors;
mod repair;
mod replay;
mod runs;
mod serve;
mod size;
mod snapshot;
mod state;
mod sync;

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

pub use runs::{AllOptions, CompareOptions, DocumentOptions};
pub use slipnet::report::{Aim, Figure, Report};
use slipnet::{output::print_line, progress::Progress};
use tempfile::TempDir;

/// The benchmarks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Bench {
    /// Committing certified state: table, tree and roots.
    State,
    /// Opening a store: after a clean stop, after a kill, and without the files that a stop leaves; and commits beside
    /// the check that follows.
    Open,
    /// Past states: reading them, and their cost for commits.
    History,
    /// Exporting and restoring snapshots; bootstraps over the transport beside the restore.
    Snapshot,
    /// Appending, serving and pruning the ledger; cold point reads.
    Ledger,
    /// Catching up with a chain in each mode, with latency, and with hostile peers.
    Sync,
    /// `sync.mode: auto` beside each way pinned, in many situations.
    Auto,
    /// One node that serves many clients.
    Serve,
    /// A fullnode's lag behind its validator at the head.
    Head,
    /// The chain itself beside geth: its throughput, its latency, and the cost for each node.
    Live,
    /// Executing a batch on two threads: mainnet blocks, synthetic batches, and wrong predictions.
    Parallel,
    /// Replaying mainnet blocks on a cold state, with and without hints.
    Hints,
    /// Replaying mainnet blocks without hints: the predictions, and their gain.
    Predictors,
    /// The cost of consensus: replication, delays, failover, and bugs that replicas mask.
    Consensus,
    /// The cost of the broadcast codecs, beside the algorithm of the paper on network coding.
    Broadcast,
    /// Nodes that replay on a state of 50 million rows, cold and in memory: hints, predictors, threads.
    Replay,
    /// Repairing a state with one wrong row in a thousand, beside fetching all of it.
    Repair,
}

/// The options of a measurement.
#[derive(Clone, Debug, Args)]
pub struct BenchOptions {
    /// A quick look, in less than a minute. Quote only the figures of a full run.
    #[arg(long)]
    pub quick: bool,
    /// Also write the figures to this file.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Directory on the disk to measure; a temporary one in it is used and removed. `state`, `open`, `history`, `auto`,
    /// `hints`, `predictors` and `replay` keep their data there for the next run, unless it is the working
    /// directory.
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Sizes that `state`, `open` and `history` measure, such as `1m,100m`. By default those of a full or a quick run;
    /// `state` and `open` add 100m if `--dir` has a store of that size. With sizes, `snapshot` measures only bootstraps
    /// of states of these sizes, whose stores `--dir` keeps.
    #[arg(long, value_delimiter = ',', value_parser = size::parse)]
    pub keys: Vec<u64>,
    /// Measure only these, separated by commas: situations of `auto`, `WORKLOAD.MODE` of `sync`, parts of `consensus`
    /// and `live`, prefixes of rows of `replay`. The other benchmarks always measure everything.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Directory with `mainnet` blocks and `access-lists`. By default $SLIPSTREAM_DATA, or shared/data in a parent
    /// directory.
    #[arg(long)]
    pub data: Option<PathBuf>,
}

impl BenchOptions {
    /// Makes a temporary directory for this run in `--dir`, which it creates if necessary.
    pub(crate) fn temporary_dir(&self) -> Result<TempDir> {
        let made = fs::create_dir_all(&self.dir)
            .and_then(|()| tempfile::Builder::new().prefix("slipnet-bench-").tempdir_in(&self.dir));
        made.with_context(|| {
            format!("cannot make a directory in {}: name another with --dir", self.dir.display())
        })
    }
}

/// The child processes of a bench; each prints its result as JSON on standard output.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchChild {
    /// Follows a chain as the first version of state sync did.
    V1(sync::V1Options),
    /// Downloads a whole chain from one node, by many clients at once.
    Clients(serve::ClientsOptions),
    /// Sends a chain's answers from memory.
    Sender(serve::SenderOptions),
    /// Commits to a filled store.
    Commit(state::CommitOptions),
    /// Opens a store, and reports the cost.
    Open(state::OpenOptions),
    /// Commits to a store that was just opened, with or without the background check.
    Scrub(open::ScrubOptions),
}

impl BenchChild {
    /// Runs the child's work in this process.
    ///
    /// # Errors
    /// If the work fails.
    pub async fn run(self) -> Result<()> {
        match self {
            BenchChild::V1(options) => sync::run_v1(options).await,
            BenchChild::Clients(options) => serve::run_clients(options).await,
            BenchChild::Sender(options) => serve::run_sender(options).await,
            BenchChild::Commit(options) => tokio::task::block_in_place(|| options.run()),
            BenchChild::Open(options) => tokio::task::block_in_place(|| options.run()),
            BenchChild::Scrub(options) => tokio::task::block_in_place(|| options.run()),
        }
    }
}

/// Prints a child's result for its parent.
fn print_json(result: &impl Serialize) -> Result<()> {
    print_line(&serde_json::to_string(result)?)
}

/// Runs one benchmark, prints its table, and writes its JSON.
///
/// # Errors
/// If the directory cannot be written, or a measurement fails.
pub fn run(bench: Bench, options: &BenchOptions) -> Result<Report> {
    let progress = Progress::detect();
    let report = match bench {
        Bench::State => state::run(options, progress)?,
        Bench::Open => open::run(options, progress)?,
        Bench::History => history::run(options, progress)?,
        Bench::Snapshot => snapshot::run(options, progress)?,
        Bench::Ledger => ledger::run(options, progress)?,
        Bench::Sync => sync::run(options, progress)?,
        Bench::Auto => auto::run(options, progress)?,
        Bench::Serve => serve::run(options, progress)?,
        Bench::Head => head::run(options, progress)?,
        Bench::Live => live::run(options, progress)?,
        Bench::Parallel => parallel::run(options, progress)?,
        Bench::Hints => hints::run(options, progress)?,
        Bench::Predictors => predictors::run(options, progress)?,
        Bench::Consensus => consensus::run(options, progress)?,
        Bench::Broadcast => broadcast::run(options, progress)?,
        Bench::Replay => replay::run(options, progress)?,
        Bench::Repair => repair::run(options, progress)?,
    };
    if let Some(path) = &options.json {
        report.write_json(path, options.quick)?;
    }
    Ok(report)
}
