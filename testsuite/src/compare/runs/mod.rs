//! Converts runs of a scenario to measures.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::{Comparison, Measure, SAMPLES_MAX, Thresholds, judge};
use crate::report::{Better, Environment, LoadSeries, NodeSeries, RunReport, Series, Total};

/// The arguments of `slipnet compare`.
#[derive(Clone, Debug, Args)]
pub struct RunsOptions {
    /// The reference side: a report.json, or a directory with runs, each `*.json` or `*/report.json`.
    pub before: PathBuf,
    /// The side that is judged, in the same form.
    pub after: PathBuf,
    /// The thresholds between regressions and noise.
    #[command(flatten)]
    pub thresholds: Thresholds,
}

/// Compares two sides of runs of one scenario.
///
/// # Errors
/// If a side cannot be read, the scenarios differ, or there are too few runs.
pub fn compare_runs(options: &RunsOptions) -> Result<Comparison> {
    let [before, after] = [&options.before, &options.after].map(|side| read(side));
    compare(&before?, &after?, &options.thresholds)
}

fn compare(before: &[RunReport], after: &[RunReport], thresholds: &Thresholds) -> Result<Comparison> {
    let scenario = &before[0].scenario;
    for run in before.iter().chain(after) {
        ensure!(run.scenario == *scenario, "the runs are of two scenarios, {scenario} and {}", run.scenario);
    }
    let [old, new] = [before, after].map(|side| side.iter().map(measured).collect::<Vec<_>>());
    let mut notes = environment_notes(before, after);
    let names: BTreeSet<&String> = old.iter().chain(&new).flat_map(BTreeMap::keys).collect();
    let mut measures = Vec::new();
    for name in names.into_iter().filter(|name| thresholds.wants(name)) {
        let all = old.iter().map(|run| run.get(name).copied()).collect::<Option<Vec<Number>>>();
        let Some(all) = all else {
            notes.push(format!("{name} is not in every run before and is not judged"));
            continue;
        };
        let (unit, better, _) = all[0];
        let missing = new.iter().filter(|run| !run.contains_key(name)).count();
        if missing > 0 {
            notes.push(format!("{name} is not in every run: {missing} runs after count as the worst"));
        }
        // A chain that commits nothing has no figure, and so has a node that never answers: both count as the worst
        // value.
        let worst = match better {
            Better::Higher => 0.0,
            Better::Lower => f64::INFINITY,
        };
        let before = all.into_iter().map(|(_, _, value)| value).collect();
        let after = new.iter().map(|run| run.get(name).map_or(worst, |(_, _, value)| *value)).collect();
        measures.push(Measure { name: name.clone(), unit: unit.to_owned(), better, before, after });
    }
    judge(measures, thresholds, notes)
}

/// Reads the runs of one side.
fn read(path: &Path) -> Result<Vec<RunReport>> {
    let files = report_files(path)?;
    files.iter().map(|file| RunReport::load(file)).collect()
}

/// Returns the runs at a path: the file itself, or a directory's JSON files and the report.json of each directory in
/// it.
///
/// # Errors
/// If the path cannot be read, or has no run or more than 32.
pub fn report_files(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", path.display()))?.path();
        let inner = entry.join("report.json");
        if inner.is_file() {
            files.push(inner);
        } else if entry.is_file() && entry.extension().is_some_and(|extension| extension == "json") {
            files.push(entry);
        }
        ensure!(files.len() <= SAMPLES_MAX, "{} has more than {SAMPLES_MAX} runs", path.display());
    }
    ensure!(!files.is_empty(), "{} holds no run: neither *.json nor */report.json", path.display());
    files.sort();
    Ok(files)
}

/// The unit, the good direction and the value.
type Number = (&'static str, Better, f64);
/// The figures of a run, by name.
type Measured = BTreeMap<String, Number>;

/// Returns a figure of a node, if it was measured.
type OfNode = fn(&NodeSeries) -> Option<f64>;

/// Returns the measures of a run. Nodes of one role, and curves of one mode, count by the worst of them, which
/// determines a fleet's quality. A node that never caught up counts as infinite.
fn measured(run: &RunReport) -> Measured {
    let mut all = Measured::new();
    for LoadSeries { name, total, .. } in &run.load {
        // The total is used, because medians over seconds would miss a stall.
        let Some(Total { per_second, latency_ms }) = total else { continue };
        all.insert(format!("{name}.per_second"), ("1/s", Better::Higher, *per_second));
        for (kind, of) in [("p50", latency_ms.map(|it| it.p50)), ("p99", latency_ms.map(|it| it.p99))] {
            all.extend(of.map(|value| (format!("{name}.{kind}"), ("ms", Better::Lower, value))));
        }
    }
    let of_node: [(&str, &'static str, OfNode); 3] = [
        ("head_age_max", "s", |node| Series::max(&node.head_age)),
        ("memory_max", "MiB", NodeSeries::memory_max),
        ("cpu", "cores", |node| Series::median(&node.cpu)),
    ];
    for node in &run.nodes {
        for (kind, unit, of) in of_node {
            let Some(value) = of(node) else { continue };
            let worst = all.entry(format!("{}.{kind}", node.role)).or_insert((unit, Better::Lower, value));
            worst.2 = worst.2.max(value);
        }
    }
    for curve in &run.catch_up {
        let seconds = curve.seconds.unwrap_or(f64::INFINITY);
        let worst = all.entry(format!("catch_up.{}", curve.mode)).or_insert(("s", Better::Lower, seconds));
        worst.2 = worst.2.max(seconds);
    }
    let failed = run.criteria.iter().filter(|criterion| !criterion.passed).count();
    all.insert("criteria_failed".to_owned(), ("criteria", Better::Lower, failed as f64));
    // A node that is down has a head that does not age, and uses no memory; its silence is what counts.
    let unanswered: u64 = run.nodes.iter().map(|node| node.unanswered).sum();
    all.insert("unanswered".to_owned(), ("samples", Better::Lower, unanswered as f64));
    all
}

/// Returns notes on differences between the runs' machines, and on runs whose figures are limited by the harness.
fn environment_notes(before: &[RunReport], after: &[RunReport]) -> Vec<String> {
    let machine = |run: &RunReport| {
        let Environment { cores, processor, memory_mib, debug, .. } = &run.environment;
        let build = if *debug { ", debug build" } else { "" };
        format!("{cores} cores, {processor}, {memory_mib} MiB{build}")
    };
    let mut machines: Vec<String> = before.iter().chain(after).map(machine).collect();
    machines.sort();
    machines.dedup();
    let short = |run: &&RunReport| run.harness.achieved < 0.99 * run.harness.offered;
    let short = before.iter().chain(after).filter(short).count();
    let mut notes = Vec::new();
    if machines.len() > 1 {
        notes.push(format!("the runs are of different machines: {}", machines.join("; ")));
    }
    let limited = before.iter().chain(after).filter(|run| run.harness.generators_limit).count();
    if limited > 0 {
        notes.push(format!("in {limited} runs the generators of the load were the limit, not the nodes"));
    }
    if short > 0 {
        notes.push(format!(
            "in {short} runs the harness sent less than its schedule: their throughput shows its limit, not the nodes'"
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
