//! All benchmarks as one run, comparisons of runs, and docs/benchmarks.md made from runs.
//!
//! ```text
//!  slipnet bench all --json FILE ──▶ BenchRun ─┬─▶ slipnet bench compare A B     a regression, or noise
//!   (a process of each benchmark)       ▲      └─▶ slipnet bench document FILE   tables of named runs
//!  slipnet bench NAME --json FILE ──────┘ a run of one
//! ```

mod all;
mod compare;
mod document;

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slipnet::report::{BenchFigure, BenchReport};

pub use self::{all::AllOptions, compare::CompareOptions, document::DocumentOptions};

/// The largest file that is read: all benchmarks together write less than a megabyte.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// One run of several benchmarks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BenchRun {
    /// Whether the run was a quick look: only figures of full runs are quoted.
    pub(crate) quick: bool,
    /// The measured benchmarks, in the order in which they ran.
    pub(crate) benches: Vec<BenchReport>,
}

impl BenchRun {
    /// Reads a run from the file of `slipnet bench all --json`, or from that of `slipnet bench NAME --json` as a run of
    /// one benchmark.
    ///
    /// # Errors
    /// If the file cannot be read, is longer than 32 MiB, or has another format.
    pub(crate) fn load(path: &Path) -> Result<BenchRun> {
        let length = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
        ensure!(
            length <= FILE_BYTES_MAX,
            "{} has {length} bytes, but a run has at most {FILE_BYTES_MAX}",
            path.display()
        );
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let run = serde_json::from_slice(&text).and_then(|value: Value| {
            // The file of a single benchmark has its name at the top level.
            if value.get("bench").is_none() {
                return serde_json::from_value(value);
            }
            let report: BenchReport = serde_json::from_value(value)?;
            Ok(BenchRun { quick: report.quick, benches: vec![report] })
        });
        run.with_context(|| {
            let path = path.display();
            format!(
                "{path} is not a run that `slipnet bench all --json` or `slipnet bench NAME --json` wrote"
            )
        })
    }

    /// Returns all figures, each with the name of its benchmark.
    fn figures(&self) -> impl Iterator<Item = (String, &BenchFigure)> {
        let of = |bench: &BenchReport, figure: &BenchFigure| format!("{}.{}", bench.bench, figure.name);
        self.benches
            .iter()
            .flat_map(move |bench| bench.figures.iter().map(move |figure| (of(bench, figure), figure)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use slipnet::report::{BenchFigure, BenchReport, Better, Environment, Figure, Report};

    use super::*;

    /// Returns a run of two figures, one of which has a direction.
    pub(crate) fn run(seconds: f64) -> BenchRun {
        let figure = |name: &str, value, better| BenchFigure {
            name: name.into(),
            value,
            min: value - 1.0,
            max: value + 1.0,
            unit: "s".into(),
            better,
            aim: Some("at most 7".into()),
            met: Some(value <= 7.0),
        };
        let bench = BenchReport {
            bench: "open".into(),
            quick: false,
            commit: "2750843".into(),
            machine: Environment { cores: 2, processor: "EPYC".into(), ..Environment::default() },
            runs: 5,
            figures: vec![figure("clean", seconds, Some(Better::Lower)), figure("other", 3.0, None)],
            notes: vec![],
        };
        BenchRun { quick: false, benches: vec![bench] }
    }

    #[test]
    fn a_file_that_is_no_run_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        fs::write(&path, "{}").unwrap();
        let error = BenchRun::load(&path).unwrap_err().to_string();
        assert!(error.contains("run.json is not a run that `slipnet bench all --json` or"), "{error}");
        fs::write(&path, r#"{ "bench": "open" }"#).unwrap();
        let error = format!("{:#}", BenchRun::load(&path).unwrap_err());
        assert!(error.contains("missing field"), "{error}");
        fs::write(&path, serde_json::to_string(&run(5.0)).unwrap()).unwrap();
        assert_eq!(BenchRun::load(&path).unwrap(), run(5.0));
    }

    /// Goal: the file of one benchmark is a run of one, and a quick look is still marked as one.
    #[test]
    fn a_single_benchmark_is_a_run_of_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("open.json");
        let figures = vec![Figure::new("clean", "s", vec![5.0, 4.0, 6.0])];
        let report = Report { bench: "open", runs: 3, figures, notes: vec![] };
        for quick in [false, true] {
            report.write_json(&path, quick).unwrap();
            let run = BenchRun::load(&path).unwrap();
            assert_eq!((run.quick, run.benches.len()), (quick, 1));
            let (name, figure) = run.figures().next().unwrap();
            assert_eq!((name.as_str(), figure.value), ("open.clean", 5.0));
        }
    }
}
