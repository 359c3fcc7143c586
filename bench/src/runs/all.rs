//! `slipnet bench all`: every benchmark, each in a process of its own.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum as _};
use slipnet::{progress::Progress, report::BenchReport};

use super::BenchRun;
use crate::Bench;

/// Which benchmarks, and where their figures go.
#[derive(Clone, Debug, Args)]
pub struct AllOptions {
    /// Looks, each of less than a minute. Figures that are quoted come from full runs.
    #[arg(long)]
    pub quick: bool,
    /// The file that all figures go to.
    #[arg(long, num_args = 0..=1, default_value = "bench.json", default_missing_value = "bench.json")]
    pub json: PathBuf,
    /// Directory on the disk to measure.
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Measure only these, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Bench>,
}

impl AllOptions {
    /// Runs them one after the other. Memory and threads of one are gone before the next begins. The file is written after each, so that a
    /// run that is ended early leaves what it had; one that fails, as without its data, does not keep the others from running.
    ///
    /// # Errors
    /// If a benchmark failed, or the file cannot be written.
    pub fn run(&self) -> Result<()> {
        let program = std::env::current_exe().context("this program's path is unknown")?;
        let scratch = tempfile::tempdir().context("cannot make a temporary directory")?;
        let progress = Progress::detect();
        let mut run = BenchRun { quick: self.quick, benches: Vec::new() };
        let all: &[Bench] = if self.only.is_empty() { Bench::value_variants() } else { &self.only };
        let mut failed = Vec::new();
        for bench in all {
            let name = bench.to_possible_value().context("every benchmark has a name")?.get_name().to_owned();
            progress.step(&format!("bench {name}"));
            let part = scratch.path().join(format!("{name}.json"));
            let mut command = Command::new(&program);
            command.arg(&name).arg("--json").arg(&part).arg("--dir").arg(&self.dir);
            if self.quick {
                command.arg("--quick");
            }
            let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
            if !status.success() {
                failed.push(format!("{name} ({status})"));
                continue;
            }
            let text = fs::read(&part).with_context(|| format!("the benchmark {name} wrote no figures"))?;
            let report: BenchReport =
                serde_json::from_slice(&text).with_context(|| format!("the figures of {name}"))?;
            run.benches.push(report);
            let text = serde_json::to_string_pretty(&run)? + "\n";
            fs::write(&self.json, text).with_context(|| format!("cannot write {}", self.json.display()))?;
        }
        ensure!(
            failed.is_empty(),
            "benchmarks failed: {}; {} has the others",
            failed.join(", "),
            self.json.display()
        );
        Ok(())
    }
}
