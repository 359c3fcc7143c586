//! `slipnet bench compare A B`: finds benchmarks that became worse, by the test of [`slipnet::compare`].

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use clap::Args;
use slipnet::{
    compare::{Comparison, Measure, Thresholds, judge, report_files},
    report::Better,
};

use super::BenchRun;

/// The two sides of a comparison.
#[derive(Clone, Debug, Args)]
pub struct CompareOptions {
    /// The reference side: the file of `slipnet bench all --json` or of one benchmark, or a directory with several.
    pub before: PathBuf,
    /// The side that is judged, in the same form.
    pub after: PathBuf,
    /// The thresholds that separate regressions from noise.
    #[command(flatten)]
    pub thresholds: Thresholds,
}

impl CompareOptions {
    /// Compares, and prints the result.
    ///
    /// # Errors
    /// If something is worse, a side cannot be read, or there are too few runs.
    pub fn run(&self) -> Result<()> {
        let [before, after] = [&self.before, &self.after].map(|side| read(side));
        compare(&before?, &after?, &self.thresholds)?.show(self.thresholds.json)
    }
}

fn read(path: &Path) -> Result<Vec<BenchRun>> {
    report_files(path)?.iter().map(|file| BenchRun::load(file)).collect()
}

/// Compares with one sample per run: its median. The rounds within a run share its machine and time, so they are not
/// independent samples.
fn compare(before: &[BenchRun], after: &[BenchRun], thresholds: &Thresholds) -> Result<Comparison> {
    let looks = before.iter().chain(after).filter(|run| run.quick).count();
    ensure!(
        looks == 0 || looks == before.len() + after.len(),
        "{looks} runs are quick looks (--quick) and the others are full runs: they measure different sizes"
    );
    let [old, new] = [before, after].map(|side| side.iter().map(judged).collect::<Vec<_>>());
    let names: BTreeSet<&String> = old.iter().chain(&new).flat_map(BTreeMap::keys).collect();
    let mut notes = machine_notes(before, after);
    let mut measures = Vec::new();
    for name in names.into_iter().filter(|name| thresholds.wants(name)) {
        let side =
            |runs: &[Judgeable]| runs.iter().map(|run| run.get(name).cloned()).collect::<Option<Vec<_>>>();
        match (side(&old), side(&new)) {
            (Some(before), Some(after)) => {
                let (unit, better, _) = before[0].clone();
                let values =
                    |side: Vec<(String, Better, f64)>| side.into_iter().map(|(_, _, value)| value).collect();
                let (before, after) = (values(before), values(after));
                measures.push(Measure { name: name.clone(), unit, better, before, after });
            }
            _ => notes.push(format!("{name} is not judged, because some runs lack it")),
        }
    }
    judge(measures, thresholds, notes)
}

/// The figures of a run that have a direction: unit, direction, median.
type Judgeable = BTreeMap<String, (String, Better, f64)>;

fn judged(run: &BenchRun) -> Judgeable {
    let figures = run.figures();
    figures.filter_map(|(name, it)| Some((name, (it.unit.clone(), it.better?, it.value)))).collect()
}

fn machine_notes(before: &[BenchRun], after: &[BenchRun]) -> Vec<String> {
    let benches = before.iter().chain(after).flat_map(|run| &run.benches);
    let machines: BTreeSet<String> =
        benches.map(|bench| format!("{} cores, {}", bench.machine.cores, bench.machine.processor)).collect();
    match machines.len() {
        0 | 1 => Vec::new(),
        _ => vec![format!(
            "the runs are from different machines: {}",
            machines.into_iter().collect::<Vec<_>>().join("; ")
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::tests::run;

    fn thresholds() -> Thresholds {
        Thresholds { alpha: 0.05, effect: 0.05, only: Vec::new(), json: false }
    }

    /// Goal: a figure that became worse is named with its benchmark; one without a direction is skipped.
    #[test]
    fn a_worse_benchmark_is_named() {
        let before = [5.0, 5.1, 4.9].map(run);
        let after = [6.0, 6.1, 5.9].map(run);
        let found = compare(&before, &after, &thresholds()).unwrap();
        assert_eq!(found.regressions(), ["open.clean"]);
        assert_eq!(found.measures.len(), 1);
        assert!(compare(&after, &before, &thresholds()).unwrap().regressions().is_empty());
    }

    #[test]
    fn looks_and_machines_are_told_apart() {
        let before = [5.0, 5.1, 4.9].map(run);
        let mut after = before.clone();
        after[0].benches[0].machine.cores = 64;
        let notes = compare(&before, &after, &thresholds()).unwrap().notes;
        assert!(notes[0].contains("different machines"), "{notes:?}");
        after[0].quick = true;
        assert!(
            compare(&before, &after, &thresholds())
                .unwrap_err()
                .to_string()
                .contains("1 runs are quick looks")
        );
    }
}
