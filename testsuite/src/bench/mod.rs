//! Benchmarks that print each figure beside its floor or its peer: `slipnet bench NAME [--quick] [--json FILE]`.
//!
//! A bench measures what it compares alternately, in one process, several times; a figure is the median of its samples.
//! Absolute figures depend on the machine, so ratios of one run are what is quoted.

mod ledger;
mod report;
mod snapshot;
mod state;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::progress::Progress;
pub use report::{Aim, Figure, Report};

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Bench {
    /// Committing certified state: table, tree and roots.
    State,
    /// Exporting and restoring snapshots.
    Snapshot,
    /// Appending, serving and pruning the ledger; cold point reads.
    Ledger,
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
    /// Directory on the disk to measure; a temporary one in it is used and removed.
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
}

/// Runs one benchmark, prints its table, and writes its JSON.
///
/// # Errors
/// If the directory cannot be written, or what is measured fails.
pub fn run(bench: Bench, options: &BenchOptions) -> Result<Report> {
    let progress = Progress::detect();
    let report = match bench {
        Bench::State => state::run(options, progress)?,
        Bench::Snapshot => snapshot::run(options, progress)?,
        Bench::Ledger => ledger::run(options, progress)?,
    };
    if let Some(path) = &options.json {
        report.write_json(path)?;
    }
    Ok(report)
}
