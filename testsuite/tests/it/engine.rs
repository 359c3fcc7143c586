//! Scenarios, run as `slipnet run` runs them.

mod unready;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
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
    run_in(dir.path(), scenario, programs).await
}

async fn run_in(dir: &Path, scenario: &Scenario, programs: BTreeMap<String, PathBuf>) -> RunReport {
    let options = RunOptions { dir: dir.canonicalize().unwrap(), programs, command: "test".to_owned() };
    run(scenario, &options, Progress::Lines).await.unwrap()
}

/// What was done to the nodes, in the order in which it began.
fn marks(report: &RunReport) -> Vec<&str> {
    report.faults.iter().map(|mark| mark.what.as_str()).collect()
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

const FULL: &str = "\
name: full
description: A follower's small disk runs full; the follower ends, and goes on when there is room again.
duration: 30s
topology:
  validators: 1
  batch_interval_ms: 100
  accounts: 20
  groups:
  - { name: follower }
  settings: [{ nodes: [follower], disk_mib: 256 }]
faults:
- { at: 5s, for: 8s, what: { full_disk: { nodes: [follower] } } }
criteria:
- no_progress: { at_most: 15s }
- catch_up: { nodes: [follower], at_most: 60s }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// The disk is full until the end of the run, and so is that of whom the follower follows.
const FULL_TWIN: &str = "\
description: The validator's disk runs full too, and stays so.
defect:
  settings: [{ nodes: [validator-0], disk_mib: 256 }]
  faults:
  - { at: 8s, what: { full_disk: { nodes: [validator-0] } } }
must_fail: [no_progress]
";

/// Whether this process may mount; if not, the test is left out, or fails if `SLIPSTREAM_REQUIRE_TMPFS=1`.
#[allow(clippy::print_stderr, reason = "tells whoever runs the tests that one was left out")]
fn may_mount() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let Err(error) = mount("slipstream", dir.path(), "tmpfs", MountFlags::empty(), Some(c"size=1m")) else {
        unmount(dir.path(), UnmountFlags::DETACH).unwrap();
        return true;
    };
    let is_required = std::env::var_os("SLIPSTREAM_REQUIRE_TMPFS").is_some_and(|value| value == "1");
    assert!(!is_required, "no tmpfs can be mounted: {error}");
    eprintln!("SKIPPED: no tmpfs can be mounted: {error} (SLIPSTREAM_REQUIRE_TMPFS=1 makes this an error)");
    false
}

/// Goal: a node begins on a small disk, ends while that is full, and is at the head again afterwards. A chain whose validator's disk stays
/// full stands.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_disk_runs_full_and_has_room_again() {
    if !may_mount() {
        return;
    }
    let scenario = Scenario::parse(FULL, Path::new("full.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let report = run_here(&scenario).await;
    assert!(report.passed(), "{:#?}", report.criteria);
    let marks: Vec<(&str, bool)> =
        report.faults.iter().map(|mark| (mark.what.as_str(), mark.until_ms.is_some())).collect();
    assert_eq!(marks, [("full disk", true)]);
    let follower = report.nodes.iter().find(|node| node.name == "follower").unwrap();
    assert!(follower.unanswered > 0, "it was there all the time");

    let (defective, must_fail) = Twin::parse(FULL_TWIN, Path::new("full.defect.yaml"), &scenario)
        .unwrap_or_else(|error| panic!("{error}"));
    let report = run_here(&defective).await;
    for name in must_fail {
        assert!(failed(&report).contains(&name.as_str()), "{name}: {:#?}", report.criteria);
    }
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

/// The nodes that the load is sent to, read from and followed at are met by nothing. The second phase is a search.
const WORN: &str = "\
name: worn
description: Two fullnodes are worn out, one exports a snapshot, and a second validator is added.
duration: 42s
topology:
  validators: 1
  batch_interval_ms: 100
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

/// Goal: what nodes suffer and what operators do happens, in turn, beside writes and reads. Nothing is lost, and the new validator's epoch
/// is everybody's.
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
    // One after another, each once.
    let upgraded = report.faults.iter().filter(|mark| mark.what == upgrade);
    let upgraded: Vec<Option<&str>> = upgraded.map(|mark| mark.node.as_deref()).collect();
    assert_eq!(upgraded, [Some("worn-0"), Some("worn-1")]);
    // The pause, the two upgrades, the flipped bit and the wipe.
    assert_eq!(report.catch_up.len(), 5, "{:?}", report.catch_up);
    let archive = std::fs::read_dir(dir.path().join("archive")).unwrap();
    assert!(archive.count() > 0, "the archive is empty");
    let [search] = &report.searches[..] else { panic!("{:?}", report.searches) };
    assert!(search.name == "search" && !search.steps.is_empty(), "{search:?}");
}

/// The load goes to all: to the liar, whose place a program takes that has no API, and to whoever is killed.
const LIES: &str = "\
name: lies
description: A validator votes twice, makes outcomes up and sends garbage; then the primary is killed under load.
duration: 45s
topology:
  batch_interval_ms: 100
  accounts: 20
workload:
- { name: main, at: 1s, for: 40s, rate: { constant: 20 } }
faults:
- { at: 2s, for: 2s, what: { link: { between: [[validator-1], [validator-2]], shape: { delay: 50ms } } } }
- { at: 5s, for: 8s, what: { lying_validator: { who: { nodes: [validator-3] }, lie: double_vote } } }
- { at: 19s, for: 4s, what: { lying_validator: { who: { nodes: [validator-3] }, lie: wrong_root } } }
- { at: 29s, for: 3s, what: { lying_validator: { who: { nodes: [validator-3] }, lie: garbage } } }
- { at: 37s, for: 3s, what: { kill: { nodes: [primary] } } }
criteria:
- convicted: { nodes: [validator-3], of: [prepares] }
- throughput: { phase: main, at_least: 8 }
- load_complete
- catch_up: { nodes: [validator-3], at_most: 40s }
- no_progress: { at_most: 25s }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// Goal: a validator that votes twice is convicted by all others, which outvote what it makes up. A load survives the death of a node that
/// it is sent to: what only that one had is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_survives_a_lying_validator_and_a_killed_primary() {
    let _room = room().await;
    let scenario = Scenario::parse(LIES, Path::new("lies.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let report = run_here(&scenario).await;
    assert!(report.passed(), "{:#?}", report.criteria);
    assert_eq!(marks(&report), ["slow links", "lie double-vote", "lie wrong-root", "lie garbage", "kill"]);
}
