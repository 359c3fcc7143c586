//! A scenario of one's own, run from a program: nodes, load, a fault, and what must hold in the end.
//!
//! `slipnet run FILE.yaml` runs the same text from a file; a program can also look into the report. The nodes are
//! processes of the program `slipstream`, which cargo puts one folder above this one
//! (`cargo build -p slipstream-cli`).
//!
//! `cargo run -p slipstream-testsuite --example custom_scenario`

use std::{collections::BTreeMap, path::Path};

use anyhow::{Result, ensure};
use slipnet::{
    output::print_line,
    progress::Progress,
    scenario::{RunOptions, Scenario, run},
};

/// docs/scenarios.md has every key. Each limit is far above what a busy machine needs.
const SCENARIO: &str = "\
name: killed-follower
description: A fullnode that follows one validator is killed, comes back, and catches up.
duration: 14s
topology:
  validators: 1
  batch_interval_ms: 200
  accounts: 10
  groups:
  - { name: follower, mode: replay }
workload:
- { name: main, at: 1s, for: 5s, rate: { constant: 10 }, followers: [follower] }
faults:
- { at: 7s, for: 2s, what: { kill: { nodes: [follower] } } }
criteria:
- load_complete
- catch_up: { nodes: [follower], at_most: 60s }
- equal_roots
- no_alarm
";

#[tokio::main]
async fn main() -> Result<()> {
    // A mistake in the text is told with its line and key, before anything starts.
    let scenario = Scenario::parse(SCENARIO, Path::new("killed-follower.yaml"))?;
    let dir = tempfile::tempdir()?;
    let options = RunOptions {
        dir: dir.path().canonicalize()?,
        programs: BTreeMap::new(),
        command: "cargo run -p slipstream-testsuite --example custom_scenario".to_owned(),
    };

    // A criterion that fails is no error: the report says so, and has the series of every node.
    let report = run(&scenario, &options, Progress::detect()).await?;
    for criterion in &report.criteria {
        let verdict = if criterion.passed { "ok" } else { "FAILED" };
        print_line(&format!("{verdict} {}: {} ({})", criterion.name, criterion.measured, criterion.wanted))?;
    }
    ensure!(report.passed(), "the scenario failed");
    let [caught_up] = &report.catch_up[..] else {
        anyhow::bail!("one node was behind: {:?}", report.catch_up)
    };
    print_line(&format!("{} was down, and at the head again", caught_up.node))?;
    print_line("proved: the killed fullnode caught up, and all nodes have one state")
}
