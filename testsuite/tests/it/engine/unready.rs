//! Nodes that never become ready: before the clock starts, and when they join.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use slipnet::scenario::Scenario;

use super::{failed, marks, run_with};
use crate::common::never_ready;

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
- no_progress: { at_most: 15s }
- throughput: { phase: main, at_least: 1 }
- equal_roots
";

/// Goal: a node that never becomes ready before the clock starts is a finding, like one that joins. The clock runs, and
/// there is a report.
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
- catch_up: { nodes: [validator-0], at_most: 40s }
- catch_up: { nodes: [broken], at_most: 10s }
- memory: { nodes: [validator-0], mib_max: 100000 }
- no_progress: { at_most: 30s }
";

/// Goal: a join that never becomes ready fails a criterion by name. The run continues, and its report has everything
/// observed.
#[tokio::test(flavor = "multi_thread")]
async fn a_join_that_fails_is_reported() {
    let scenario =
        Scenario::parse(NO_JOIN, Path::new("no-join.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let programs = BTreeMap::from([("broken".to_owned(), PathBuf::from("/bin/false"))]);
    let report = run_with(&scenario, programs).await;
    assert_eq!(failed(&report), ["catch_up of broken", "nothing_ended"], "{:#?}", report.criteria);
    let ended = report.criteria.last().unwrap();
    assert!(ended.measured.contains("broken did not join"), "{}", ended.measured);
    assert_eq!(marks(&report), ["join", "restart"]);
    let [validator, broken] = &report.nodes[..] else { panic!("{:?}", report.nodes) };
    assert!(validator.memory_peak_mib.is_some_and(|peak| peak > 1.0));
    assert!(broken.head.points.is_empty() && broken.unanswered > 0, "{broken:?}");
}

/// The clock is over before the time limit of the node that joins.
const STUCK_JOIN: &str = "\
name: stuck-join
description: The program of the node that joins stays, and never answers.
duration: 12s
topology:
  validators: 1
  batch_interval_ms: 100
  accounts: 20
  ready_within: 30s
  groups:
  - { name: stuck, joins: 2s }
  settings: [{ nodes: [stuck], program: stuck }]
workload:
- { name: main, at: 3s, for: 4s, rate: { constant: 10 } }
faults:
- { at: 5s, for: 2s, what: { pause: { nodes: [stuck] } } }
criteria:
- catch_up: { nodes: [stuck], at_most: 10s }
- throughput: { phase: main, at_least: 1 }
- load_complete
";

/// Goal: a join that hangs delays neither faults nor phases, and fails a criterion once its own time limit is over.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_goes_on_while_a_join_hangs() {
    let scenario =
        Scenario::parse(STUCK_JOIN, Path::new("stuck-join.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let programs = BTreeMap::from([("stuck".to_owned(), never_ready())]);
    let report = run_with(&scenario, programs).await;
    assert_eq!(failed(&report), ["catch_up of stuck", "nothing_ended"], "{:#?}", report.criteria);
    let ended = &report.criteria.last().unwrap().measured;
    assert!(
        ended.contains("stuck did not join: it did not answer within 30s")
            && ended.contains("it waits for nothing"),
        "{ended}"
    );
    assert_eq!(marks(&report), ["join", "pause"]);
    let pause = &report.faults[1];
    assert!(pause.at_ms < 30_000 && pause.until_ms.is_some(), "the clock waited for the join: {pause:?}");
}
