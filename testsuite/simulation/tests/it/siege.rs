//! A short siege: `slipnet campaign siege` runs for minutes; these cheap attacks run for seconds.

use std::{path::Path, process::Command};

use serde_json::Value;
use slipnet::{
    progress::Progress,
    scenario::{ATTACKS, fault::PeerLie},
};
use slipnet_simulation::campaign::siege::{Pace, SiegeCampaign, Summary, run_at};

/// Runs a short siege with these attacks, which the node must survive; returns also the figures of its JSON, by name.
async fn wage(attacks: &[&str]) -> (Summary, impl Fn(&str) -> f64 + use<>) {
    let _room = crate::room().await;
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("siege.json");
    let only = attacks.iter().map(|name| (*name).to_owned()).collect();
    let options = SiegeCampaign { json: Some(json.clone()), only, ..SiegeCampaign::default() };
    let program = Path::new(env!("CARGO_BIN_EXE_slipnet-simulation"));
    let summary = run_at(&options, &Pace::BRIEF, program, Progress::Lines).await;
    let summary = summary.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(summary.lost_to().is_empty(), "{summary}");
    let written: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(written["bench"], "siege");
    let figure = move |name: &str| {
        let figures = written["figures"].as_array().unwrap();
        let found = figures.iter().find(|figure| figure["name"] == name);
        found
            .and_then(|figure| figure["value"].as_f64())
            .unwrap_or_else(|| panic!("there is no figure {name}"))
    };
    assert_eq!(figure("attacks_survived"), 1.0);
    (summary, figure)
}

/// Goal: attackers reach a real node over HTTP, WebSocket and QUIC, the honest users are measured, and the table and
/// the JSON agree.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_survives_and_the_figures_say_so() {
    let attacks = ["endless-headers", "ws-unread-news", "truncated-frames"];
    let (summary, figure) = wage(&attacks).await;
    let table = summary.to_string();
    for attack in attacks {
        assert!(figure(&format!("{attack}.done")) > 0.0, "{attack} reached the node: {table}");
        assert!(figure(&format!("{attack}.p99_ratio")) <= figure("honest_p99_ratio"));
        assert!(figure(&format!("{attack}.memory_mib")) > 1.0);
        for user in ["wallet", "reader", "follower"] {
            let [p50, p99] = ["p50", "p99"].map(|share| figure(&format!("{attack}.{user}_{share}_ms")));
            assert!(0.0 < p99 && p50 <= p99, "{user}: {table}");
        }
        assert!(table.lines().any(|line| line.starts_with(attack)), "{table}");
    }
}

/// Goal: peers that forge addresses, accept no broadcast, repeat the same request, or lie in numbers reach real nodes,
/// and keep no node from joining.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_on_the_network_cost_the_honest_nothing() {
    let attackers = ["forged-addresses", "epochs-flood", "untaken-broadcasts"];
    // Whether a node asks a liar for the subject of its lie is chance.
    let attacks = [&attackers[..], &["false-genesis"]].concat();
    let (summary, figure) = wage(&attacks).await;
    for attack in attackers {
        assert!(figure(&format!("{attack}.done")) > 0.0, "{attack} reached a node: {summary}");
    }
    for attack in ["forged-addresses", "epochs-flood", "false-genesis"] {
        assert!(figure(&format!("{attack}.join_s")) > 0.0, "{summary}");
    }
}

/// Goal: load on a node's disk and memory (a batch of very many logs, and transactions sent one by one) does no harm
/// either.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_batches_and_lone_transactions_cost_the_honest_nothing() {
    let attacks = ["receipt-bomb", "lone-transactions"];
    let (summary, figure) = wage(&attacks).await;
    for attack in attacks {
        assert!(figure(&format!("{attack}.done")) > 0.0, "{attack} reached the node: {summary}");
    }
}

/// Goal: an unknown name is refused with the list of known ones; the list has all that scenarios may name, and mentions
/// no issue.
#[test]
fn attacks_are_listed_and_unknown_ones_refused() {
    let slipnet = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_slipnet-simulation"))
            .args(["campaign", "siege"])
            .args(arguments)
            .output()
            .unwrap()
    };
    let list = slipnet(&["--list"]);
    let text = String::from_utf8(list.stdout).unwrap();
    assert!(list.status.success() && !text.contains("issue"), "{text}");
    let named = |line: &str| line.trim_start_matches('*').split_whitespace().next().map(str::to_owned);
    let (servers, others): (Vec<String>, Vec<String>) =
        text.lines().skip(1).filter_map(named).partition(|name| PeerLie::of_attack(name).is_some());
    assert_eq!(others, ATTACKS);
    assert_eq!(servers.len(), PeerLie::ALL.len());
    let refused = slipnet(&["--only", "slow-headers,nonsense"]);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text.contains("nonsense") && text.contains("junk-transactions"), "{text}");
}
