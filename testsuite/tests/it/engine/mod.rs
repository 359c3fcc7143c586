//! The engine of scenarios, as `slipnet run` uses it. Its other tests are in `accused` and `below`.

mod at_once;
mod unready;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use slipnet::{
    progress::Progress,
    report::RunReport,
    scenario::{RunOptions, Scenario, Twin, run},
};

use crate::common::room;

/// A small scenario with most of the engine's features. Its limits suit debug builds on a busy machine: they are not
/// what is tested. With `auto` the new node might start from a snapshot, and lack history.
const SCENARIO: &str = "\
name: small
description: Two fullnodes follow one validator; one is killed, one joins.
duration: 20s
topology:
  validators: 1
  batch_interval_ms: 200
  accounts: 20
  groups:
  - { name: old }
  - { name: new, mode: replay, joins: 6s }
workload:
- { name: main, at: 1s, for: 10s, rate: { constant: 20 }, followers: [old] }
faults:
- { at: 12s, for: 2s, what: { kill: { nodes: [old] } } }
criteria:
- throughput: { phase: main, at_least: 10 }
- load_complete
- catch_up: { nodes: [old, new], at_most: 40s }
- no_progress: { at_most: 15s }
- history: { nodes: [new], from_at_most: 1 }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// A partition, so that relays are created and cut too.
const TWIN: &str = "\
description: The new node is cut off from everybody soon after it joined, and stays so.
defect:
  faults:
  - { at: 8s, what: { partition: { between: [[validator-0], [old, new]] } } }
must_fail: [equal_roots]
";

pub(crate) async fn run_here(scenario: &Scenario) -> RunReport {
    run_with(scenario, BTreeMap::new()).await
}

async fn run_with(scenario: &Scenario, programs: BTreeMap<String, PathBuf>) -> RunReport {
    let dir = tempfile::tempdir().unwrap();
    run_in(dir.path(), scenario, programs).await
}

async fn run_in(dir: &Path, scenario: &Scenario, programs: BTreeMap<String, PathBuf>) -> RunReport {
    let options = RunOptions { dir: dir.canonicalize().unwrap(), programs, command: "test".to_owned() };
    run(scenario, &options, Progress::Lines).await.unwrap()
}

/// Returns the events that affected nodes, in the order in which they began.
pub(crate) fn marks(report: &RunReport) -> Vec<&str> {
    report.faults.iter().map(|mark| mark.what.as_str()).collect()
}

pub(crate) fn failed(report: &RunReport) -> Vec<&str> {
    let failed = report.criteria.iter().filter(|criterion| !criterion.passed);
    failed.map(|criterion| criterion.name.as_str()).collect()
}

/// Runs a scenario and its twin in parallel: most of their time is that of their clocks. Returns both reports if the
/// scenario passed and its twin failed as it must.
pub(crate) async fn run_with_twin(scenario: &str, twin: &str) -> (RunReport, RunReport) {
    let scenario =
        Scenario::parse(scenario, Path::new("here.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let (defective, must_fail) =
        Twin::parse(twin, Path::new("here.defect.yaml"), &scenario).unwrap_or_else(|error| panic!("{error}"));
    let (sound, broken) = tokio::join!(run_here(&scenario), run_here(&defective));
    assert!(sound.passed(), "{:#?}", sound.criteria);
    for name in must_fail {
        assert!(failed(&broken).contains(&name.as_str()), "{name}: {:#?}", broken.criteria);
    }
    (sound, broken)
}

/// Goal: a scenario passes. Its report has a series for every node and a mark for every fault, and its twin fails the
/// named criterion.
#[tokio::test(flavor = "multi_thread")]
async fn a_scenario_passes_and_its_twin_fails_by_name() {
    let (report, _) = run_with_twin(SCENARIO, TWIN).await;
    let names: Vec<&str> = report.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["validator-0", "old", "new"]);
    assert!(report.nodes.iter().all(|node| !node.head.points.is_empty()));
    let marks: Vec<(&str, bool)> =
        report.faults.iter().map(|mark| (mark.what.as_str(), mark.until_ms.is_some())).collect();
    assert_eq!(marks, [("join", false), ("kill", true)]);
    assert_eq!(report.catch_up.len(), 2);
    assert!(report.harness.offered > 0.0);
}

/// No fault affects the nodes of the load: those that get its transactions, are read from, or follow. The second phase
/// is a search.
const WORN: &str = "\
name: worn
description: Two fullnodes are worn out, one exports a snapshot, and a second validator is added.
duration: 42s
topology:
  validators: 1
  batch_interval_ms: 200
  snapshot_interval_batches: 20
  accounts: 40
  groups:
  - { name: steady, mode: replay }
  - { name: worn, count: 2 }
  - { name: candidate, part: candidate }
workload:
- name: main
  at: 1s
  for: 20s
  rate: { constant: 20 }
  mix: { transfers: 2, erc20: 1 }
  followers: [steady]
  reads_per_second: 16
- { name: search, at: 23s, for: 10s, rate: { saturation: { from: 4, step_seconds: 2 } } }
faults:
- { at: 4s, for: 2s, what: { pause: { nodes: [worn-0] } } }
- { at: 8s, what: { upgrade: { who: { rolling: { nodes: [worn], every: 3s } }, to: current } } }
- { at: 16s, what: { bit_flip: { nodes: [worn-1] } } }
- { at: 18s, what: { export_snapshot: steady } }
- { at: 19s, for: 1s, what: { wipe: { nodes: [worn-0] } } }
- { at: 20s, what: { add_validator: candidate } }
criteria:
- throughput: { phase: main, at_least: 8 }
- commit: { phase: main, percentile: p90, at_most: 10s }
- follow: { phase: main, percentile: p90, at_most: 12s }
- read: { phase: main, percentile: p90, at_most: 5s, way: http }
- read: { phase: main, percentile: p90, at_most: 5s, way: websocket }
- new_heads: { phase: main, percentile: p90, at_most: 10s }
- load_complete
- catch_up: { nodes: [worn], at_most: 40s }
- epoch: { at_least: 1 }
- history: { nodes: [steady], from_at_most: 1 }
- no_progress: { at_most: 15s }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// Goal: faults of nodes and actions of operators happen, in turn, during writes and reads. Nothing is lost, and all
/// nodes reach the new validator's epoch.
#[tokio::test(flavor = "multi_thread")]
async fn worn_nodes_come_back_and_operators_do_their_work() {
    let _room = room().await;
    let scenario = Scenario::parse(WORN, Path::new("worn.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let dir = tempfile::tempdir().unwrap();
    let report = run_in(dir.path(), &scenario, BTreeMap::new()).await;
    assert!(report.passed(), "{:#?}", report.criteria);
    let upgrade = "upgrade to current";
    assert_eq!(
        marks(&report),
        ["pause", upgrade, upgrade, "bit flip", "export snapshot", "wipe", "add validator"]
    );
    // One after the other, each once.
    let upgraded = report.faults.iter().filter(|mark| mark.what == upgrade);
    let upgraded: Vec<Option<&str>> = upgraded.map(|mark| mark.node.as_deref()).collect();
    assert_eq!(upgraded, [Some("worn-0"), Some("worn-1")]);
    // The pause, the two upgrades, the flipped bit and the wipe. If a node was not at the head by its next fault, only
    // the last one counts.
    assert!((2..=5).contains(&report.catch_up.len()), "{:?}", report.catch_up);
    let archive = std::fs::read_dir(dir.path().join("archive")).unwrap();
    assert!(archive.count() > 0, "the archive is empty");
    let [search] = &report.searches[..] else { panic!("{:?}", report.searches) };
    assert!(search.name == "search" && !search.steps.is_empty(), "{search:?}");
}
