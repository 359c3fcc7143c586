//! Scenarios, run as `slipnet run` runs them.

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

/// Small, and with most of the engine's abilities. Its limits are for debug builds on a busy machine: none is what is tested. By `auto`
/// the new node might begin from a snapshot, and have no history.
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
    run_with(scenario, BTreeMap::new()).await
}

async fn run_with(scenario: &Scenario, programs: BTreeMap<String, PathBuf>) -> RunReport {
    let dir = tempfile::tempdir().unwrap();
    let options =
        RunOptions { dir: dir.path().canonicalize().unwrap(), programs, command: "test".to_owned() };
    run(scenario, &options, Progress::Lines).await.unwrap()
}

fn failed(report: &RunReport) -> Vec<&str> {
    let failed = report.criteria.iter().filter(|criterion| !criterion.passed);
    failed.map(|criterion| criterion.name.as_str()).collect()
}

/// Goal: a scenario passes. Its report has a series for every node and a mark for every fault, and its twin fails by the named
/// criterion.
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

/// One validator and its follower: faults below their libc are turned on and off while they run.
const BELOW: &str = "\
name: below
description: A follower's clock is two seconds ahead for a while, and a validator's disk a little slow.
duration: 30s
topology:
  validators: 1
  batch_interval_ms: 100
  accounts: 20
  groups:
  - { name: follower }
faults:
- { at: 4s, for: 3s, what: { clock_jump: { who: { nodes: [follower] }, ahead: 2s } } }
- { at: 4s, for: 3s, what: { slow_disk: { who: { nodes: [validator-0] }, delay: 5ms } } }
criteria:
- no_progress: { at_most: 8s }
- head_age: { nodes: [follower], at_most: 1m }
- catch_up: { nodes: [all], at_most: 40s }
- equal_roots
- no_alarm
";

const BELOW_TWIN: &str = "\
description: The follower's clock is an hour ahead, and each flush of the validator's disk takes ten seconds.
defect:
  faults:
  - { at: 10s, for: 10s, what: { clock_jump: { who: { nodes: [follower] }, ahead: 1h } } }
  - { at: 10s, for: 12s, what: { slow_disk: { who: { nodes: [validator-0] }, delay: 10s } } }
must_fail: [no_progress, head_age of follower]
";

/// Goal: clocks and disks change for as long as the fault lasts, without a hook in the node.
#[tokio::test(flavor = "multi_thread")]
async fn clocks_jump_and_disks_are_slow() {
    let scenario = Scenario::parse(BELOW, Path::new("below.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let report = run_here(&scenario).await;
    assert!(report.passed(), "{:#?}", report.criteria);
    let (defective, must_fail) = Twin::parse(BELOW_TWIN, Path::new("below.defect.yaml"), &scenario)
        .unwrap_or_else(|error| panic!("{error}"));
    let report = run_here(&defective).await;
    for name in must_fail {
        assert!(failed(&report).contains(&name.as_str()), "{name}: {:#?}", report.criteria);
    }
    let follower = report.nodes.iter().find(|node| node.name == "follower").unwrap();
    let (_, last) = follower.head_age.points.iter().rfind(|(_, age)| !age.is_nan()).unwrap();
    assert!(*last < 60.0, "its clock is true again: {last} s");
}

const LIAR: &str = "\
name: liar
description: The primary runs twice for a while, and has old data afterwards.
duration: 45s
topology:
  batch_interval_ms: 100
  accounts: 20
  # It is to be primary still when it has been started again: an order of it is under way whenever it stops.
  config: { consensus.view_timeout_ms: 10000 }
  settings: [{ nodes: [validators], region: here }]
  links: [{ between: [here, here], shape: { delay: 100ms } }]
faults:
- { at: 5s, for: 12s, what: { lying_validator: { who: { nodes: [validator-0] }, lie: { twin: { heard_by: [validator-1] } } } } }
- { at: 25s, for: 5s, what: { lying_validator: { who: { nodes: [validator-0] }, lie: old_state } } }
criteria:
- convicted: { nodes: [validator-0], of: [orders] }
- no_progress: { at_most: 35s }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// Goal: a primary with two selves orders two batches of one number. All others have the proof, the honest stay unblamed, and all
/// roots are equal.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_runs_twice_is_convicted() {
    let _room = room().await;
    let scenario = Scenario::parse(LIAR, Path::new("liar.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let report = run_here(&scenario).await;
    assert!(report.passed(), "{:#?}", report.criteria);
}

const NO_START: &str = "\
name: no-start
description: The program of a node that is there from the start ends at once.
duration: 6s
topology:
  validators: 1
  batch_interval_ms: 100
  accounts: 20
  groups:
  - { name: broken }
  - { name: sound }
  settings: [{ nodes: [broken], program: broken }]
workload:
- { name: main, at: 1s, for: 3s, rate: { constant: 10 } }
- { name: nowhere, at: 1s, for: 1s, rate: { constant: 10 }, to: [broken] }
criteria:
- no_progress: { at_most: 10s }
- throughput: { phase: main, at_least: 1 }
- equal_roots
";

/// Goal: a node that never becomes ready before the clock starts is a finding as one that joins is. The clock runs, and there is a report.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_is_reported() {
    let scenario =
        Scenario::parse(NO_START, Path::new("no-start.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let programs = BTreeMap::from([("broken".to_owned(), PathBuf::from("/bin/false"))]);
    let report = run_with(&scenario, programs).await;
    assert_eq!(failed(&report), ["equal_roots", "nothing_ended"], "{:#?}", report.criteria);
    let ended = &report.criteria.last().unwrap().measured;
    assert!(ended.contains("broken did not start") && ended.contains("the load nowhere"), "{ended}");
    let names: Vec<&str> = report.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["validator-0", "broken", "sound"]);
}

const NO_JOIN: &str = "\
name: no-join
description: The program of the node that joins ends at once.
duration: 12s
topology:
  validators: 1
  batch_interval_ms: 100
  accounts: 20
  groups:
  - { name: broken, joins: 3s }
  settings: [{ nodes: [broken], program: broken }]
faults:
- { at: 6s, for: 2s, what: { restart: { nodes: [validator-0] } } }
criteria:
- catch_up: { nodes: [validator-0], at_most: 10s }
- catch_up: { nodes: [broken], at_most: 10s }
- memory: { nodes: [validator-0], mib_max: 100000 }
- no_progress: { at_most: 10s }
";

/// Goal: a join that never becomes ready is a failed criterion by its name. The run goes on, and its report has everything seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_join_that_fails_is_reported() {
    let scenario =
        Scenario::parse(NO_JOIN, Path::new("no-join.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let programs = BTreeMap::from([("broken".to_owned(), PathBuf::from("/bin/false"))]);
    let report = run_with(&scenario, programs).await;
    assert_eq!(failed(&report), ["catch_up of broken", "nothing_ended"], "{:#?}", report.criteria);
    let ended = report.criteria.last().unwrap();
    assert!(ended.measured.contains("broken did not join"), "{}", ended.measured);
    let marks: Vec<&str> = report.faults.iter().map(|mark| mark.what.as_str()).collect();
    assert_eq!(marks, ["join", "restart"]);
    let [validator, broken] = &report.nodes[..] else { panic!("{:?}", report.nodes) };
    assert!(validator.memory_peak_mib.is_some_and(|peak| peak > 1.0));
    assert!(broken.head.points.is_empty() && broken.unanswered > 0, "{broken:?}");
}
