use std::time::Duration;

use super::*;
use crate::{
    load::Latencies,
    report::{CatchUp, CriterionResult},
};

/// Returns the commits of a run of this length with these latencies in ms.
fn commits(seconds: f64, latencies_ms: impl IntoIterator<Item = f64>) -> LoadSeries {
    let mut all = Latencies::default();
    latencies_ms.into_iter().for_each(|ms| all.record(Duration::from_secs_f64(ms / 1_000.0)));
    let total = Total { per_second: all.len() as f64 / seconds, latency_ms: all.percentiles() };
    LoadSeries { total: Some(total), ..LoadSeries::new("commit") }
}

fn series(unit: &str, value: f64) -> Series {
    Series { unit: unit.into(), points: vec![(0, value), (1_000, value)] }
}

fn node(role: &str, memory: f64) -> NodeSeries {
    NodeSeries {
        name: format!("{role}-{memory}"),
        role: role.into(),
        head: series("batches", 9.0),
        head_age: series("s", 0.1),
        cpu: series("cores", 0.5),
        memory: series("MiB", memory),
        disk: series("MiB", 1.0),
        ..NodeSeries::default()
    }
}

fn run(memory: f64, latency_ms: f64) -> RunReport {
    let criterion =
        CriterionResult { name: "x".into(), passed: true, measured: "1".into(), wanted: "1".into() };
    RunReport {
        scenario: "steady".into(),
        nodes: vec![node("validator", 50.0), node("fullnode", memory), node("fullnode", 10.0)],
        load: vec![commits(1.0, [latency_ms; 10])],
        catch_up: [Some(4.0), None]
            .map(|seconds| CatchUp {
                node: "n".into(),
                mode: "delta".into(),
                seconds,
                behind: series("batches", 1.0),
            })
            .to_vec(),
        criteria: vec![criterion],
        ..RunReport::default()
    }
}

fn thresholds(only: &[&str]) -> Thresholds {
    let only = only.iter().map(|name| (*name).to_owned()).collect();
    Thresholds { alpha: 0.05, effect: 0.05, only, json: false }
}

/// Goal: the worst fullnode represents all, a curve without an end counts as infinite, and the regression of a measure
/// has the measure's name.
#[test]
fn a_run_becomes_named_measures() {
    let names: Vec<String> = measured(&run(60.0, 5.0)).into_keys().collect();
    let wanted = [
        "catch_up.delta",
        "commit.p50",
        "commit.p99",
        "commit.per_second",
        "criteria_failed",
        "fullnode.cpu",
        "fullnode.head_age_max",
        "fullnode.memory_max",
        "unanswered",
        "validator.cpu",
        "validator.head_age_max",
        "validator.memory_max",
    ];
    assert_eq!(names, wanted);
    assert_eq!(measured(&run(60.0, 5.0))["fullnode.memory_max"].2, 60.0);
    assert_eq!(measured(&run(60.0, 5.0))["catch_up.delta"].2, f64::INFINITY);
    let before: Vec<_> = (0..6).map(|index| run(60.0 + f64::from(index), 5.0)).collect();
    let after: Vec<_> = (0..6).map(|index| run(80.0 + f64::from(index), 5.0)).collect();
    let found = compare(&before, &after, &thresholds(&[])).unwrap();
    assert_eq!(found.regressions(), ["fullnode.memory_max"]);
    let other = compare(&before, &after, &thresholds(&["commit"])).unwrap();
    assert_eq!((other.measures.len(), other.regressions().len()), (3, 0));
}

/// Goal: a change after which nodes never catch up and nothing is committed is a regression, and undoing it is an
/// improvement.
#[test]
fn what_never_comes_is_worse_than_anything() {
    let mut before = vec![run(60.0, 5.0); 6];
    before.iter_mut().for_each(|run| drop(run.catch_up.pop()));
    let mut after = vec![run(60.0, 5.0); 6];
    after.iter_mut().for_each(|run| run.load.clear());
    let found = compare(&before, &after, &thresholds(&[])).unwrap();
    assert_eq!(found.regressions(), ["catch_up.delta", "commit.p50", "commit.p99", "commit.per_second"]);
    assert!(found.to_string().contains("never") && found.to_string().contains("-100.0 %"), "{found}");
    let back = compare(&after, &before, &thresholds(&[])).unwrap();
    assert!(back.regressions().is_empty() && back.to_string().contains("from never"), "{back}");
    assert!(back.notes.iter().any(|note| note.contains("not in every run before")), "{back}");
}

/// Goal: a node that dies early in every run is a regression, even if no other figure became worse.
#[test]
fn a_node_that_is_gone_is_seen() {
    let before = vec![run(60.0, 5.0); 6];
    let mut after = before.clone();
    after.iter_mut().for_each(|run| run.nodes[1].unanswered = 100);
    let found = compare(&before, &after, &thresholds(&[])).unwrap();
    assert_eq!(found.regressions(), ["unanswered"]);
}

/// Goal: a stall that medians over seconds miss is a regression.
#[test]
fn a_stall_is_seen() {
    let stalled = |latency: f64| {
        // Half a minute at ten per second; then nothing for ten seconds, and all of it at once.
        let late = (0..100).map(|step| 10_000.0 - f64::from(step) * 100.0);
        let load = commits(41.0, std::iter::repeat_n(latency, 300).chain(late));
        RunReport { load: vec![load], ..run(60.0, 5.0) }
    };
    let steady = |latency: f64| RunReport { load: vec![commits(40.0, [latency; 400])], ..run(60.0, 5.0) };
    let side =
        |make: &dyn Fn(f64) -> RunReport| (0..5).map(|it| make(5.0 + f64::from(it))).collect::<Vec<_>>();
    let found = compare(&side(&steady), &side(&stalled), &thresholds(&["commit.p99"])).unwrap();
    assert_eq!(found.regressions(), ["commit.p99"]);
}

/// Goal: differences between the sides are noted, and runs of other scenarios are refused.
#[test]
fn what_differs_is_said() {
    let before = vec![run(60.0, 5.0); 6];
    let mut after = before.clone();
    after[3].load.clear();
    after[4].environment.cores = 64;
    after[5].harness.offered = 1_000.0;
    after[5].harness.generators_limit = true;
    let notes = compare(&before, &after, &thresholds(&[])).unwrap().notes.join("\n");
    for part in [
        "different machines",
        "in 1 runs the harness sent less",
        "in 1 runs the generators",
        "commit.p50 is not in every run",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    after[0].scenario = "other".into();
    assert!(compare(&before, &after, &thresholds(&[])).unwrap_err().to_string().contains("two scenarios"));
}

#[test]
fn a_side_is_a_file_or_a_directory_of_runs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    assert!(report_files(path).unwrap_err().to_string().contains("holds no run"));
    run(1.0, 1.0).write(&path.join("first")).unwrap();
    fs::write(path.join("second.json"), serde_json::to_string(&run(2.0, 1.0)).unwrap()).unwrap();
    fs::write(path.join("notes.txt"), "x").unwrap();
    assert_eq!(report_files(path).unwrap(), [path.join("first/report.json"), path.join("second.json")]);
    assert_eq!(read(path).unwrap().len(), 2);
    assert_eq!(read(&path.join("second.json")).unwrap().len(), 1);
}
