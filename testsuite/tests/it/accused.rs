//! Scenarios with a lying validator, and the proofs that convict it.

use std::path::Path;

use slipnet::scenario::Scenario;

use crate::{
    common::room,
    engine::{marks, run_here},
};

const LIAR: &str = "\
name: liar
description: The primary runs twice for a while, and has old data afterwards.
duration: 45s
topology:
  # It is to be primary still when it has been started again, and an order of it is to be under way when it is killed: each takes long, and
  # the next one follows upon it.
  batch_interval_ms: 20
  accounts: 20
  config: { consensus.view_timeout_ms: 20000 }
  settings: [{ nodes: [validators], region: here }]
  links: [{ between: [here, here], shape: { delay: 400ms } }]
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

/// Goal: a primary with two instances orders two batches with the same number. All others have the proof, honest nodes
/// are not blamed, and all roots are equal.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_runs_twice_is_convicted() {
    let _room = room().await;
    let scenario = Scenario::parse(LIAR, Path::new("liar.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let report = run_here(&scenario).await;
    assert!(report.passed(), "{:#?}", report.criteria);
}

/// The load goes to all nodes: to the liar, whose replacement program has no API, and to the node that is killed.
const LIES: &str = "\
name: lies
description: A validator votes twice, makes outcomes up and sends garbage; then the primary is killed under load.
duration: 45s
topology:
  # A batch is to be undecided still when the liar's second vote comes, on a busy machine too.
  batch_interval_ms: 200
  accounts: 20
  settings: [{ nodes: [validators], region: here }]
  links: [{ between: [here, here], shape: { delay: 100ms } }]
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

/// Goal: a validator that votes twice is convicted by all others, which outvote its made-up outcomes. A load survives
/// the death of a node that gets its transactions: those that only this node had are resent.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_survives_a_lying_validator_and_a_killed_primary() {
    let _room = room().await;
    let scenario = Scenario::parse(LIES, Path::new("lies.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let report = run_here(&scenario).await;
    assert!(report.passed(), "{:#?}", report.criteria);
    assert_eq!(marks(&report), ["slow links", "lie double-vote", "lie wrong-root", "lie garbage", "kill"]);
}
