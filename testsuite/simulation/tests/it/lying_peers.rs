//! Peers and validators that lie to the nodes of a scenario; `slipnet run` starts them from this program.

use std::{collections::BTreeMap, path::Path};

use slipnet::{
    progress::Progress,
    report::{LiarOpinion, RunReport},
    scenario::{RunOptions, Scenario, run},
};

const SCENARIO: &str = "\
name: lying-peers
description: A fullnode that runs is given peers that lie, bans those whose lie it can prove, and follows.
duration: 35s
topology:
  validators: 1
  batch_interval_ms: 100
  accounts: 20
  groups:
  - { name: near }
faults:
- { at: 5s, for: 15s, what: { lying_peers: { who: { nodes: [near] }, lie: forged_heads, count: 2 } } }
- { at: 6s, for: 15s, what: { lying_peers: { who: { nodes: [fullnodes] }, lie: stalling_servers } } }
- { between: [8s, 10s], what: { lying_peers: { who: { one_of: [near] }, lie: garbage_answers } } }
- { at: 7s, for: 14s, what: { lying_peers: { who: { nodes: [near] }, lie: foreign_genesis } } }
- { at: 7s, for: 14s, what: { lying_peers: { who: { nodes: [near] }, lie: unsigned_heads } } }
criteria:
- liars_banned: { at_most: 15s }
- liars_banned: { nodes: [near], at_most: 15s, lie: garbage_answers }
- no_progress: { at_most: 15s }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// Runs a scenario, which must pass.
async fn passed(scenario: &str) -> RunReport {
    let dir = tempfile::tempdir().unwrap();
    passed_in(dir.path(), scenario).await
}

/// Runs a scenario with its files in this directory; it must pass.
async fn passed_in(dir: &Path, scenario: &str) -> RunReport {
    let scenario =
        Scenario::parse(scenario, Path::new("here.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let _room = crate::room().await;
    let options = RunOptions {
        dir: dir.canonicalize().unwrap(),
        programs: BTreeMap::new(),
        command: "test".to_owned(),
    };
    let report = run(&scenario, &options, Progress::Lines).await.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.passed(), "{:#?}\n{:#?}", report.criteria, report.liars);
    report
}

/// Goal: liars come and go while a node runs, and the report has the node's opinion of each. Only those that were
/// proven wrong are banned.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_runs_finds_out_its_liars() {
    let report = passed(SCENARIO).await;
    let marks: Vec<(&str, bool)> =
        report.faults.iter().map(|mark| (mark.what.as_str(), mark.until_ms.is_some())).collect();
    let wanted = [
        ("lying peers, 2 of forged_heads", true),
        ("lying peers, 1 of stalling_servers", true),
        ("lying peers, 1 of foreign_genesis", true),
        ("lying peers, 1 of unsigned_heads", true),
        ("lying peers, 1 of garbage_answers", false),
    ];
    assert_eq!(marks, wanted);
    let of = |lie: &str| report.liars.iter().filter(|liar| liar.lie == lie).collect::<Vec<&LiarOpinion>>();
    assert_eq!((report.liars.len(), of("forged_heads").len()), (6, 2), "{:#?}", report.liars);
    for liar in ["forged_heads", "garbage_answers", "foreign_genesis"].into_iter().flat_map(of) {
        assert!(liar.node == "near" && liar.at_ms >= 5_000, "{liar:?}");
        assert!(liar.reason.as_ref().is_some_and(|reason| !reason.is_empty()), "{liar:?}");
    }
    // They are banned for this lie, and not for another.
    let is_for =
        |why: &str, liar: &LiarOpinion| liar.reason.as_ref().is_some_and(|reason| reason.contains(why));
    let is_of_the_lie = of("forged_heads").into_iter().all(|liar| is_for("the signature of validator", liar))
        && of("foreign_genesis").into_iter().all(|liar| is_for("the peer's chain is", liar));
    assert!(is_of_the_lie, "{:#?}", report.liars);
    // Its summaries are true, and all that it can be blamed for is late answers.
    assert_eq!(of("stalling_servers")[0].banned_after_seconds, None);
}

/// Liars answer at once, and the honest node after 600 ms: nodes that join ask liars first. A batch takes longer than
/// its news takes to spread, so that nodes reach the head.
const JOINS: &str = "\
name: lying-sources
description: Nodes that join among liars, each by another way, ban those whose lie they have proof of, and reach the head.
duration: 45s
topology:
  validators: 1
  batch_interval_ms: 500
  accounts: 20
  config: { storage.snapshot_interval_batches: 10 }
  groups:
  - { name: replays, mode: replay, joins: 16s, behind: [validator-0], among: grafted-batches }
  - { name: applies, mode: delta, joins: 16s, behind: [validator-0], among: changed-money }
  - { name: restores, mode: snapshot, joins: 16s, behind: [validator-0], among: hidden-rows }
  settings:
  - { nodes: [validator-0], region: far }
  - { nodes: [fullnodes], region: here }
  links:
  - { between: [far, here], shape: { delay: 300ms } }
workload:
- { name: main, at: 1s, for: 14s, rate: { constant: 20 }, to: [validator-0] }
criteria:
- catch_up: { nodes: [fullnodes], at_most: 60s }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// Goal: nodes that replay, apply deltas and restore a snapshot each detect a lie about what they fetch, by its proof.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_join_find_out_lies_about_what_they_fetch() {
    let report = passed(JOINS).await;
    for (node, lie, why) in [
        ("replays", "grafted-batches", "accumulator root"),
        ("applies", "changed-money", "delta"),
        ("restores", "hidden-rows", "state root"),
    ] {
        let found_out = report.liars.iter().any(|liar| {
            liar.node == node
                && liar.lie == lie
                && liar.banned_after_seconds.is_some()
                && liar.reason.as_ref().is_some_and(|reason| reason.contains(why))
        });
        assert!(found_out, "{node}: {:#?}", report.liars);
    }
}

/// As [`JOINS`], with other lies; one node uses range deltas.
const LEAPS: &str = "\
name: lying-ways
description: Nodes that join among liars find out changed headers, missing parts and false offers; padded range deltas cost time alone.
duration: 45s
topology:
  validators: 1
  batch_interval_ms: 500
  accounts: 20
  config: { storage.snapshot_interval_batches: 10 }
  groups:
  - { name: replays, mode: replay, joins: 16s, behind: [validator-0], among: changed-headers }
  - { name: applies, mode: delta, joins: 16s, behind: [validator-0], among: missing-parts }
  - { name: restores, mode: snapshot, joins: 16s, behind: [validator-0], among: false-offers }
  - { name: leaps, joins: 16s, behind: [validator-0], among: padded-range-deltas }
  settings:
  - { nodes: [validator-0], region: far }
  - { nodes: [fullnodes], region: here }
  - { nodes: [leaps], config: { sync.mode: range_delta } }
  links:
  - { between: [far, here], shape: { delay: 300ms } }
workload:
- { name: main, at: 1s, for: 14s, rate: { constant: 20 }, to: [validator-0] }
criteria:
- catch_up: { nodes: [fullnodes], at_most: 60s }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// Goal: provable lies end with a ban. A padded range delta is true: it is reported, its sender stays, and the node
/// reaches the head.
#[tokio::test(flavor = "multi_thread")]
async fn padded_range_deltas_are_told_and_cost_time_alone() {
    let dir = tempfile::tempdir().unwrap();
    let report = passed_in(dir.path(), LEAPS).await;
    let banned = |node: &str| {
        let mut liars = report.liars.iter().filter(|liar| liar.node == node);
        liars.any(|liar| liar.banned_after_seconds.is_some())
    };
    for node in ["replays", "applies", "restores"] {
        assert!(banned(node), "{node}: {:#?}", report.liars);
    }
    assert!(!banned("leaps"), "{:#?}", report.liars);
    // Its process counts its requests, and the lies that it told.
    let log = std::fs::read_to_string(dir.path().join("attack-padded-range-deltas-leaps.log")).unwrap();
    let told = log.lines().rev().find_map(|line| line.strip_prefix("tally ")?.split_once(' '));
    let told: u64 = told.unwrap().1.parse().unwrap();
    assert!(told > 0, "no range delta was padded:\n{log}");
}

const VALIDATORS: &str = "\
name: lying-validators
description: One of four validators splits its votes, complains, hides and invents what was prepared, and votes twice, one after another.
duration: 60s
topology:
  batch_interval_ms: 100
  accounts: 20
workload:
- { name: main, at: 1s, for: 38s, rate: { constant: 10 }, to: [validator-0, validator-1] }
faults:
- { at: 4s, for: 3s, what: { lying_validator: { who: { nodes: [validator-3] }, lie: split_votes } } }
- { at: 13s, for: 3s, what: { lying_validator: { who: { nodes: [validator-3] }, lie: complaints } } }
- { at: 22s, for: 3s, what: { lying_validator: { who: { nodes: [validator-3] }, lie: hidden_prepares } } }
- { at: 31s, for: 3s, what: { lying_validator: { who: { nodes: [validator-3] }, lie: invented_prepares } } }
- { at: 40s, for: 12s, what: { lying_validator: { who: { nodes: [validator-3] }, lie: double_vote } } }
criteria:
- convicted: { nodes: [validator-3], of: [prepares] }
- no_progress: { at_most: 15s }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// Goal: lies without proof cost the chain nothing and convict no other validator, and a lie with proof convicts the
/// liar.
#[tokio::test(flavor = "multi_thread")]
async fn one_lying_validator_of_four_stops_nothing() {
    let report = passed(VALIDATORS).await;
    let told: Vec<&str> = report.faults.iter().map(|mark| mark.what.as_str()).collect();
    let lies = ["split-votes", "complaints", "hidden-prepares", "invented-prepares", "double-vote"];
    assert_eq!(told, lies.map(|lie| format!("lie {lie}")));
}
