//! Scenarios, run as `slipnet run` runs them.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::{collections::BTreeMap, path::Path};

use slipnet::{
    progress::Progress,
    report::RunReport,
    scenario::{RunOptions, Scenario, Twin, run},
};

/// Small, and with most of what the engine does.
const SCENARIO: &str = "\
name: small
description: Two fullnodes follow one validator; one is killed, one joins.
duration: 20s
topology:
  validators: 1
  batch_interval_ms: 100
  accounts: 20
  groups:
  - { name: old }
  - { name: new, joins: 6s }
workload:
- { name: main, at: 1s, for: 10s, rate: { constant: 20 }, follower: old }
faults:
- { at: 12s, for: 2s, what: { kill: { nodes: [old] } } }
criteria:
- throughput: { phase: main, at_least: 15 }
- load_complete
- catch_up: { nodes: [old, new], at_most: 10s }
- no_progress: { at_most: 5s }
- history: { nodes: [new], from_at_most: 1 }
- epoch: { at_least: 0 }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// A partition, so that relays are laid and cut too.
const TWIN: &str = "\
description: The new node is cut off from everybody soon after it joined, and stays so.
defect:
  faults:
  - { at: 8s, what: { partition: { between: [[validator-0], [old, new]] } } }
must_fail: [equal_roots]
";

async fn run_here(scenario: &Scenario) -> RunReport {
    let dir = tempfile::tempdir().unwrap();
    let options = RunOptions {
        dir: dir.path().canonicalize().unwrap(),
        programs: BTreeMap::new(),
        command: "test".to_owned(),
    };
    run(scenario, &options, Progress::Lines).await.unwrap()
}

fn failed(report: &RunReport) -> Vec<&str> {
    let failed = report.criteria.iter().filter(|criterion| !criterion.passed);
    failed.map(|criterion| criterion.name.as_str()).collect()
}

/// Goal: a scenario passes, its report has a series for every node and a mark for every fault, and its twin fails by the named criterion.
#[tokio::test(flavor = "multi_thread")]
async fn a_scenario_passes_and_its_twin_fails_by_name() {
    let scenario =
        Scenario::parse(SCENARIO, Path::new("small.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let report = run_here(&scenario).await;
    assert!(report.passed(), "{:#?}", report.criteria);
    let names: Vec<&str> = report.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["validator-0", "old", "new"]);
    assert!(report.nodes.iter().all(|node| !node.head.points.is_empty()));
    let marks: Vec<(&str, bool)> =
        report.faults.iter().map(|mark| (mark.what.as_str(), mark.until_ms.is_some())).collect();
    assert_eq!(marks, [("join", false), ("kill", true)]);
    assert_eq!(report.catch_up.len(), 2);
    assert!(report.harness.offered > 0.0);

    let (defective, must_fail) = Twin::parse(TWIN, Path::new("small.defect.yaml"), &scenario)
        .unwrap_or_else(|error| panic!("{error}"));
    let report = run_here(&defective).await;
    for name in must_fail {
        assert!(failed(&report).contains(&name.as_str()), "{name}: {:#?}", report.criteria);
    }
}
