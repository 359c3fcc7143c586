//! Peers that lie to nodes of a scenario, as `slipnet run` has them from this program.

use std::{collections::BTreeMap, path::Path};

use slipnet::{
    progress::Progress,
    report::LiarOpinion,
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
criteria:
- liars_banned: { at_most: 10s }
- liars_banned: { nodes: [near], at_most: 10s, lie: garbage_answers }
- no_progress: { at_most: 5s }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// Goal: liars come while a node runs and leave, the report has what the node thought of each, and only those that were proven wrong are
/// banned.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_runs_finds_out_its_liars() {
    let scenario =
        Scenario::parse(SCENARIO, Path::new("lying-peers.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let dir = tempfile::tempdir().unwrap();
    let options = RunOptions {
        dir: dir.path().canonicalize().unwrap(),
        programs: BTreeMap::new(),
        command: "test".to_owned(),
    };
    let report = run(&scenario, &options, Progress::Lines).await.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.passed(), "{:#?}\n{:#?}", report.criteria, report.liars);
    let marks: Vec<(&str, bool)> =
        report.faults.iter().map(|mark| (mark.what.as_str(), mark.until_ms.is_some())).collect();
    let wanted = [
        ("lying peers, 2 of forged_heads", true),
        ("lying peers, 1 of stalling_servers", true),
        ("lying peers, 1 of garbage_answers", false),
    ];
    assert_eq!(marks, wanted);
    let of = |lie: &str| report.liars.iter().filter(|liar| liar.lie == lie).collect::<Vec<&LiarOpinion>>();
    assert_eq!((report.liars.len(), of("forged_heads").len()), (4, 2), "{:#?}", report.liars);
    for liar in of("forged_heads").into_iter().chain(of("garbage_answers")) {
        assert!(liar.node == "near" && liar.at_ms >= 5_000, "{liar:?}");
        assert!(liar.reason.as_ref().is_some_and(|reason| !reason.is_empty()), "{liar:?}");
    }
    // They are banned for this lie, and for nothing else that they may have done.
    let is_of_the_lie = |liar: &&LiarOpinion| {
        liar.reason.as_ref().is_some_and(|it| it.contains("the signature of validator"))
    };
    assert!(of("forged_heads").iter().all(is_of_the_lie), "{:#?}", report.liars);
    // It tells the truth about what it has, and was never asked for more, or was late.
    assert_eq!(of("stalling_servers")[0].banned_after_seconds, None);
}
