//! What is looked at once all is over: states, epochs, and how far back nodes can tell.

use std::time::{Duration, Instant};

use alloy_primitives::B256;
use anyhow::Result;
use serde_json::{Value, json};

use super::Stage;
use crate::{
    rpc::{Rpc, RpcError},
    scenario::{
        criteria::{Criterion, Findings},
        names::Place,
    },
};

/// For nodes that still catch up when the scenario is over.
pub(super) const REACH_DEADLINE: Duration = Duration::from_secs(30);

impl Stage<'_> {
    /// Looks at the nodes that run. One that does not answer is missing in what was found.
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
        let asked: Vec<Place> = self
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
    async fn compare(&mut self, running: &[Place], findings: &mut Findings) {
        let number = self.highest_head().await;
        let deadline = Instant::now() + REACH_DEADLINE;
        let mut first = None;
        for place in running {
            let name = self.names.name(*place).to_owned();
            let Ok(node) = self.node_mut(*place) else { continue };
            if node.pid().is_none() {
                findings.apart.push(format!("{name} does not run"));
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

/// Takes in the root of one more node after a batch; the first one is what others are compared with.
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

/// The first batch that a node gives with its transactions, by bisection: what it keeps has no gaps. None if it does not answer.
pub(super) async fn first_batch(rpc: &Rpc, head: u64) -> Option<u64> {
    // The genesis is no batch that could be pruned; most nodes keep everything behind it.
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

/// Whether a node gives the first batch from `number` on that has transactions, if there is one before `end`; none if it is too slow for
/// now to say. Every node gives an empty batch: its header says that there is nothing in it.
async fn gives_from(rpc: &Rpc, number: u64, end: u64) -> Option<bool> {
    for number in number..end {
        let params = json!([format!("{number:#x}"), true]);
        match rpc.call::<Value>("eth_getBlockByNumber", params).await {
            Ok(block) if block["transactions"].as_array().is_some_and(Vec::is_empty) => {}
            Ok(block) => return Some(!block.is_null()),
            // It says that it has pruned it.
            Err(error) if error.downcast_ref::<RpcError>().is_some() => return Some(false),
            Err(_) => return None,
        }
    }
    Some(true)
}
