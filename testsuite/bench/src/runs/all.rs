//! `slipnet bench all`: every benchmark, each in its own process.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum as _};
use slipnet::{progress::Progress, report::BenchReport};

use super::BenchRun;
use crate::Bench;

/// The benchmarks to run, and the file for their figures.
#[derive(Clone, Debug, Args)]
pub struct AllOptions {
    /// Quick looks, each of less than a minute. Quote only the figures of full runs.
    #[arg(long)]
    pub quick: bool,
    /// The file for all figures.
    #[arg(long, num_args = 0..=1, default_value = "bench.json", default_missing_value = "bench.json")]
    pub json: PathBuf,
    /// Directory on the disk to measure.
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Sizes, as for a single benchmark: `state`, `open` and `history` measure these, and `snapshot` measures only
    /// bootstraps of these.
    #[arg(long, value_delimiter = ',', value_parser = crate::size::parse)]
    pub keys: Vec<u64>,
    /// Measure only these, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Bench>,
}

impl AllOptions {
    /// Runs the benchmarks one after another, so that the memory and threads of one are gone before the next begins.
    /// Writes the file after each benchmark, so that an interrupted run keeps its figures. A failed benchmark (for
    /// example without its data) does not stop the others.
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
            let name = bench.to_possible_value().context("a benchmark has no name")?.get_name().to_owned();
            progress.step(&format!("bench {name}"));
            let part = scratch.path().join(format!("{name}.json"));
            let mut command = Command::new(&program);
            command.arg(&name).args(self.arguments(&part));
            let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
            if !status.success() {
                failed.push(format!("{name} ({status})"));
                continue;
            }
            let text = fs::read(&part).with_context(|| format!("the benchmark {name} wrote no figures"))?;
            let report: BenchReport = serde_json::from_slice(&text)
                .with_context(|| format!("cannot parse the figures of {name}"))?;
            run.benches.push(report);
            let text = serde_json::to_string_pretty(&run)? + "\n";
            fs::write(&self.json, text).with_context(|| format!("cannot write {}", self.json.display()))?;
        }
        ensure!(
            failed.is_empty(),
            "benchmarks failed: {}; {} has the figures of the others",
            failed.join(", "),
            self.json.display()
        );
        Ok(())
    }

    /// Returns the arguments of each benchmark, whose figures go to the file `json`.
    fn arguments(&self, json: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> =
            vec!["--json".into(), json.into(), "--dir".into(), (&self.dir).into()];
        if !self.keys.is_empty() {
            let keys: Vec<String> = self.keys.iter().map(ToString::to_string).collect();
            arguments.push("--keys".into());
            arguments.push(keys.join(",").into());
        }
        if self.quick {
            arguments.push("--quick".into());
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::BenchOptions;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: BenchOptions,
    }

    #[derive(Parser)]
    struct All {
        #[command(flatten)]
        options: AllOptions,
    }

    /// Goal: each benchmark gets the options of `all`.
    #[test]
    fn each_benchmark_is_told_what_all_are() {
        let told = |line: &[&str]| {
            let all = All::try_parse_from([&["all"][..], line].concat()).unwrap().options;
            let own = all.arguments(Path::new("part.json"));
            Cli::try_parse_from([vec![OsString::from("bench")], own].concat()).unwrap().options
        };
        let options = told(&["--quick", "--dir", "/disk", "--keys", "1m,250k"]);
        assert_eq!((options.quick, options.keys), (true, vec![1_000_000, 250_000]));
        assert_eq!((options.dir, options.json), (PathBuf::from("/disk"), Some(PathBuf::from("part.json"))));
        let options = told(&[]);
        assert_eq!((options.quick, options.keys, options.dir), (false, vec![], PathBuf::from(".")));
    }
}
