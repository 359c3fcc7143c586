//! The audit after the end: states, epochs, and how far back nodes' history goes.

use std::time::{Duration, Instant};

use alloy_primitives::B256;
use anyhow::Result;
use serde_json::{Value, json};

use super::Stage;
use crate::{
    rpc::{Rpc, RpcError},
    scenario::{
        criteria::{Criterion, Findings},
        names::NodeIndex,
    },
};

/// The time limit for nodes that are still catching up when the scenario is over.
pub(super) const REACH_DEADLINE: Duration = Duration::from_secs(30);

impl Stage<'_> {
    /// Audits the running nodes. A node that does not answer is missing from the findings.
    pub(super) async fn audit(&mut self, findings: &mut Findings) {
        findings.held = self.held.places().map(|place| self.names.name(place).to_owned()).collect();
        let running = self.running();
        self.compare(&running, findings).await;
        for place in &running {
            let Ok(node) = self.node(*place) else { continue };
            if let Ok(status) = node.status().await {
                findings.epochs.insert(node.name().to_owned(), status.epoch.number);
            }
        }
        let asked: Vec<NodeIndex> = self
            .scenario
            .criteria
            .iter()
            .filter(|criterion| matches!(criterion, Criterion::History { .. }))
            .flat_map(|criterion| self.names.find_all(criterion.nodes()))
            .filter(|place| running.contains(place))
            .collect();
        for place in asked {
            let Ok(node) = self.node(place) else { continue };
            let Ok(status) = node.status().await else { continue };
            if let Some(first) = first_batch(node.rpc(), status.head.number).await {
                findings.history.insert(node.name().to_owned(), first);
            }
        }
    }

    /// Compares the states after the highest batch that any of the nodes has.
    async fn compare(&mut self, running: &[NodeIndex], findings: &mut Findings) {
        let number = self.highest_head().await;
        let deadline = Instant::now() + REACH_DEADLINE;
        let mut first = None;
        for place in running {
            let name = self.names.name(*place).to_owned();
            let Ok(node) = self.node_mut(*place) else { continue };
            if node.pid().is_none() {
                findings.apart.push(format!("{name} is not running"));
                continue;
            }
            let root = match node.wait_head(number, deadline).await {
                Ok(_) => node.state_root(number).await,
                Err(error) => Err(error),
            };
            take_root(findings, &mut first, (&name, number), root);
        }
        findings.compared_at = first.map(|_| number);
    }
}

/// Records the state root of one more node after a batch. The first root is the reference for the others.
pub(super) fn take_root(
    findings: &mut Findings,
    first: &mut Option<B256>,
    (name, number): (&str, u64),
    root: Result<B256>,
) {
    match (root, *first) {
        (Ok(root), None) => (*first, findings.compared) = (Some(root), 1),
        (Ok(root), Some(first)) if root == first => findings.compared += 1,
        (Ok(root), Some(first)) => {
            findings.apart.push(format!("{name} has {root} after batch {number}, others {first}"));
        }
        (Err(error), _) => findings.apart.push(format!("{name}: {error:#}")),
    }
}

/// Finds by bisection the first batch that a node serves with its transactions: its history has no gaps. `None` if it
/// does not answer.
pub(super) async fn first_batch(rpc: &Rpc, head: u64) -> Option<u64> {
    // The genesis cannot be pruned; most nodes keep everything after it.
    let (mut missing, mut there) = (None, head);
    while missing.map_or(1, |missing: u64| missing + 1) < there {
        let middle = missing.map_or(1, |missing| missing + (there - missing) / 2);
        match gives_from(rpc, middle, there).await? {
            true => there = middle,
            false => missing = Some(middle),
        }
    }
    Some(there)
}

/// Whether a node serves the first non-empty batch from `number` on, or there is none before `end`; `None` if it is too
/// slow to tell. Every node serves an empty batch: its header says that it has no transactions.
async fn gives_from(rpc: &Rpc, number: u64, end: u64) -> Option<bool> {
    for number in number..end {
        let params = json!([format!("{number:#x}"), true]);
        match rpc.call::<Value>("eth_getBlockByNumber", params).await {
            Ok(block) if block["transactions"].as_array().is_some_and(Vec::is_empty) => {}
            Ok(block) => return Some(!block.is_null()),
            // The node says that it has pruned the batch.
            Err(error) if error.downcast_ref::<RpcError>().is_some() => return Some(false),
            Err(_) => return None,
        }
    }
    Some(true)
}
