//! Faults at the moment of a join, and faults that cannot be done.

use std::path::Path;

use slipnet::scenario::Scenario;

use super::{failed, marks, run_here};
use crate::common::room;

const AT_ONCE: &str = "\
name: at-once
description: Nodes have a slow disk and a flipped bit as they join, and the primary is to be killed while nobody is primary.
duration: 25s
topology:
  validators: 1
  batch_interval_ms: 100
  accounts: 20
  groups:
  - { name: slow, joins: 4s }
  - { name: worn, mode: replay, joins: 6s }
faults:
- { at: 4s, for: 4s, what: { slow_disk: { who: { nodes: [slow] }, delay: 5ms } } }
- { at: 6s, what: { bit_flip: { nodes: [worn] } } }
- { at: 12s, for: 6s, what: { kill: { nodes: [validator-0] } } }
- { at: 13s, for: 1s, what: { kill: { nodes: [primary] } } }
- { at: 20s, what: { restart: { nodes: [slow] } } }
criteria:
- catch_up: { nodes: [slow, worn], at_most: 1m }
";

/// Goal: a fault that comes as its node joins waits for the node, and one that cannot be done is a finding with its
/// name. The clock continues, and later events happen.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_fails_ends_no_clock() {
    let _room = room().await;
    let scenario =
        Scenario::parse(AT_ONCE, Path::new("at-once.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let report = run_here(&scenario).await;
    assert_eq!(failed(&report), ["nothing_ended"], "{:#?}", report.criteria);
    let ended = &report.criteria.last().unwrap().measured;
    assert_eq!(ended, "kill the primary: no validator that could be primary is running");
    let slow = "slow disk, 5 ms per flush";
    assert_eq!(marks(&report), ["join", slow, "join", "bit flip", "kill", "kill", "restart"]);
}
