//! The questions to nodes on other machines after the clock has ended: their states, epochs, and how far back their
//! history goes.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use anyhow::{Context, Result, bail};
use futures::future::join_all;
use serde_json::{Value, json};

use crate::{
    rpc::Rpc,
    scenario::{
        criteria::{Criterion, Findings},
        engine::audit::{REACH_DEADLINE, first_batch, take_root},
        model::Scenario,
        names::{Names, Place},
    },
};

/// The timeout of an answer: a node that hangs must not delay the others.
const ANSWER_MAX: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);

/// A node to audit.
pub(super) struct Asked<'a> {
    pub(super) place: Place,
    pub(super) name: &'a str,
    pub(super) rpc: &'a Rpc,
}

/// Waits until these nodes answer, at most `within`: nodes whose fault ended with the clock start again. Returns those
/// that answer, and the names of the silent ones. The wait ends early if at most `silent_max` nodes are silent and all
/// of them may be.
pub(super) async fn answering<'a>(
    nodes: Vec<Asked<'a>>,
    (silent_max, may_be_silent): (usize, impl Fn(&str) -> bool),
    within: Duration,
) -> (Vec<Asked<'a>>, Vec<&'a str>) {
    let deadline = Instant::now() + within;
    let answers = loop {
        let answers = join_all(nodes.iter().map(|node| head(node.rpc))).await;
        let silent = nodes.iter().zip(&answers).filter(|(_, answer)| answer.is_none());
        let silent: Vec<&str> = silent.map(|(node, _)| node.name).collect();
        let is_known = silent.len() <= silent_max && silent.iter().all(|name| may_be_silent(name));
        if is_known || Instant::now() >= deadline {
            break answers;
        }
        tokio::time::sleep(POLL).await;
    };
    let (mut there, mut silent) = (Vec::new(), Vec::new());
    for (node, answer) in nodes.into_iter().zip(answers) {
        match answer {
            Some(_) => there.push(node),
            None => silent.push(node.name),
        }
    }
    (there, silent)
}

/// Audits nodes. A node that does not answer is missing from the findings.
pub(super) async fn audit(scenario: &Scenario, names: &Names, nodes: &[Asked<'_>], findings: &mut Findings) {
    compare(nodes, findings).await;
    for node in nodes {
        let Some(status) = status(node.rpc).await else { continue };
        if let Some(epoch) = status["epoch"]["number"].as_u64() {
            findings.epochs.insert(node.name.to_owned(), epoch);
        }
    }
    let history = scenario.criteria.iter().filter(|it| matches!(it, Criterion::History { .. }));
    let wanted: BTreeSet<Place> = history.flat_map(|criterion| names.find_all(criterion.nodes())).collect();
    for node in nodes.iter().filter(|node| wanted.contains(&node.place)) {
        let Some(head) = head(node.rpc).await else { continue };
        if let Some(first) = first_batch(node.rpc, head).await {
            findings.history.insert(node.name.to_owned(), first);
        }
    }
}

/// Compares the states after the highest batch that any of the nodes has.
async fn compare(nodes: &[Asked<'_>], findings: &mut Findings) {
    let heads = join_all(nodes.iter().map(|node| head(node.rpc))).await;
    let number = heads.into_iter().flatten().max().unwrap_or_default();
    let deadline = Instant::now() + REACH_DEADLINE;
    let roots = join_all(nodes.iter().map(|node| root_at(node.rpc, number, deadline))).await;
    let mut first = None;
    for (node, root) in nodes.iter().zip(roots) {
        take_root(findings, &mut first, (node.name, number), root);
    }
    findings.compared_at = first.map(|_| number);
}

/// Waits until the node has a batch, and returns the state root after it.
async fn root_at(rpc: &Rpc, number: u64, deadline: Instant) -> Result<B256> {
    loop {
        let last = match head(rpc).await {
            Some(head) if head >= number => break,
            Some(head) => format!("its head is batch {head}"),
            None => "it does not answer".to_owned(),
        };
        if Instant::now() > deadline {
            bail!("it did not reach batch {number} in time: {last}");
        }
        tokio::time::sleep(POLL).await;
    }
    let params = json!([format!("{number:#x}"), false]);
    let block: Value = rpc.call("eth_getBlockByNumber", params).await?;
    let root = block["stateRoot"].as_str().and_then(|root| root.parse().ok());
    root.with_context(|| format!("it has no batch {number}"))
}

async fn head(rpc: &Rpc) -> Option<u64> {
    tokio::time::timeout(ANSWER_MAX, rpc.head()).await.ok()?.ok()
}

async fn status(rpc: &Rpc) -> Option<Value> {
    tokio::time::timeout(ANSWER_MAX, rpc.page("/v1/status")).await.ok()?.ok()
}
