//! Benchmarks that print each figure beside its floor or its peer: `slipnet bench NAME [--quick] [--json FILE]`.
//!
//! The program `slipnet-bench` is a thin command line over this library, and `slipnet` becomes it for `bench`. Simulations stand
//! below it: the bench of broadcast measures what theirs assume, and runs the fabric that they run.
//!
//! ```text
//!  NAME ─▶ the module of that name ─▶ Report of Figures ─▶ table, JSON ─▶ runs (all, compare, document) ─▶ docs/benchmarks.md
//!            │
//!            ├─ harness: chains, nodes, relay, kept directories, plain files, child processes
//!            └─ state (SizeDir, Ours), ledger (chain), mainnet (blocks): what other benches measure on, too
//! ```
//!
//! Invariants:
//! * A bench measures what it compares alternately, in one process, several times; a figure is the median of its samples.
//! * Absolute figures depend on the machine, so ratios of one run are quoted.
//! * No later run repeats the keys of an earlier one on a directory that is kept.

mod auto;
mod broadcast;
pub mod cli;
mod consensus;
mod growth;
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
mod sweep;
mod sync;

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

pub use runs::{AllOptions, CompareOptions, DocumentOptions};
pub use slipnet::report::{Aim, Figure, Report};
use slipnet::{output::print_line, progress::Progress};
use tempfile::TempDir;

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Bench {
    /// Committing certified state: table, tree and roots.
    State,
    /// Opening a store: after a clean stop, after a kill, and without what a stop leaves; and commits beside the check that follows.
    Open,
    /// States of the past: reading them, and what commits pay for them.
    History,
    /// Exporting and restoring snapshots; bootstraps over the transport beside the restore.
    Snapshot,
    /// Appending, serving and pruning the ledger; cold point reads.
    Ledger,
    /// What everything but the state takes on disk for a batch and a transaction, and which compression would pay.
    Growth,
    /// Catching up with a chain in each mode, with latency, and with hostile peers.
    Sync,
    /// `sync.mode: auto` beside each way pinned, in many situations.
    Auto,
    /// One node that serves many.
    Serve,
    /// How far behind its validator a fullnode is at the head.
    Head,
    /// The chain itself beside geth: what it takes, how soon, and what that costs each node.
    Live,
    /// Executing a batch on two threads: mainnet blocks, synthetic batches, and wrong predictions.
    Parallel,
    /// Replaying mainnet blocks on a cold state, with and without hints.
    Hints,
    /// The same without hints: what is foretold, and what that gains.
    Predictors,
    /// Both over threads, readahead, cache and modelled disks, with plots.
    Sweep,
    /// What agreement costs: replication, delays, failover, and bugs that replicas mask.
    Consensus,
    /// What the codecs of broadcast cost, beside the path of the paper that network coding is from.
    Broadcast,
    /// Nodes that follow by executing on a state of 50 million rows, cold and in memory: hints, predictors, threads.
    Replay,
    /// Repairing a state of which one row of a thousand is wrong, beside fetching all of it.
    Repair,
}

/// How it is measured.
#[derive(Clone, Debug, Args)]
pub struct BenchOptions {
    /// A look, in less than a minute. Figures that are quoted come from a full run.
    #[arg(long)]
    pub quick: bool,
    /// Also write the figures to this file.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Directory on the disk to measure; a temporary one in it is used and removed. `state`, `open`, `history`, `auto`, `hints`, `predictors`,
    /// `sweep` and `replay` keep what they filled there, for the next run, unless this is the working directory.
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Sizes that `state`, `open` and `history` measure, such as `1m,100m`. Without it: those of a full or a quick run; `state` and `open` add
    /// 100m if `--dir` keeps a store of that size. With it, `snapshot` measures nothing but bootstraps of states of these sizes, whose stores
    /// `--dir` keeps.
    #[arg(long, value_delimiter = ',', value_parser = size::parse)]
    pub keys: Vec<u64>,
    /// Measure only these, separated by commas: situations of `auto`, `WORKLOAD.MODE` of `sync`, parts of `consensus` and `live`, beginnings of rows of
    /// `replay`. The other benchmarks measure all that they have.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Directory with `mainnet` blocks and `access-lists`. Without it: $SLIPSTREAM_DATA, or shared/data beside the checkout.
    #[arg(long)]
    pub data: Option<PathBuf>,
}

impl BenchOptions {
    /// A directory of this run's own on the disk to measure. That of `--dir` is made if need be.
    pub(crate) fn temporary_dir(&self) -> Result<TempDir> {
        let made = fs::create_dir_all(&self.dir)
            .and_then(|()| tempfile::Builder::new().prefix("slipnet-bench-").tempdir_in(&self.dir));
        made.with_context(|| {
            format!("cannot make a directory in {}: name another with --dir", self.dir.display())
        })
    }
}

/// What a bench runs in a process of its own; its result is JSON on standard output.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchChild {
    /// Follows a chain as the first version of state sync did.
    V1(sync::V1Options),
    /// Asks one node for a whole chain, many times at once.
    Clients(serve::ClientsOptions),
    /// Sends a chain's answers from memory.
    Sender(serve::SenderOptions),
    /// Commits on a store that was filled.
    Commit(state::CommitOptions),
    /// Opens a store, and tells what that took.
    Open(state::OpenOptions),
    /// Commits on a store that was just opened, beside the background check or without it.
    Scrub(open::ScrubOptions),
}

impl BenchChild {
    /// Runs it in this process.
    ///
    /// # Errors
    /// The error that stopped it.
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

/// A child's result, for its parent.
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
        Bench::Growth => growth::run(options, progress)?,
        Bench::Sync => sync::run(options, progress)?,
        Bench::Auto => auto::run(options, progress)?,
        Bench::Serve => serve::run(options, progress)?,
        Bench::Head => head::run(options, progress)?,
        Bench::Live => live::run(options, progress)?,
        Bench::Parallel => parallel::run(options, progress)?,
        Bench::Hints => hints::run(options, progress)?,
        Bench::Predictors => predictors::run(options, progress)?,
        Bench::Sweep => sweep::run(options, progress)?,
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
