//! How a node that was behind caught up.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    devnet::Node,
    report::{CatchUp, Series},
    rpc::{Rpc, quantity},
};

const POLL: Duration = Duration::from_millis(100);

/// The curves of all nodes that joined or came back.
#[derive(Default)]
pub(super) struct Catching {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<CatchUp>>,
}

impl Catching {
    /// Follows a node until its head is `target`, the highest of all when it joined or came back.
    /// `times` are the start of the run and of the node.
    pub(super) fn add(&mut self, node: &Node, mode: &str, target: u64, times: (Instant, Instant)) {
        let curve = CatchUp {
            node: node.name().to_owned(),
            mode: mode.to_owned(),
            seconds: None,
            behind: Series::new("batches"),
        };
        self.tasks.push(tokio::spawn(follow(curve, node.rpc().clone(), target, times, self.stop.clone())));
    }

    /// Ends those that still go on, and gives all curves in the order in which they began.
    pub(super) async fn finish(self) -> Vec<CatchUp> {
        self.stop.cancel();
        let mut curves = Vec::with_capacity(self.tasks.len());
        for task in self.tasks {
            // A task that panicked has no curve, and the criterion says that the node has none.
            curves.extend(task.await.ok());
        }
        curves
    }
}

async fn follow(
    mut curve: CatchUp,
    rpc: Rpc,
    target: u64,
    (begin, since): (Instant, Instant),
    stop: CancellationToken,
) -> CatchUp {
    while !stop.is_cancelled() {
        let answer = tokio::select! {
            answer = rpc.call::<Value>("eth_blockNumber", json!([])) => answer,
            () = stop.cancelled() => break,
        };
        if let Some(head) = answer.ok().and_then(|head| quantity(&head).ok()) {
            let at_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
            curve.behind.push(at_ms, target.saturating_sub(head) as f64);
            if head >= target {
                curve.seconds = Some(since.elapsed().as_secs_f64());
                break;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = stop.cancelled() => break,
        }
    }
    curve
}
