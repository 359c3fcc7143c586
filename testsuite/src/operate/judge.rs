//! [`Judge`]: who judges the scenario, and is told whether a node's orders were carried out. It sees the nodes alone: an order that failed would
//! leave no trace.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{OperateOptions, failures::Failures};
use crate::{
    load::{Delivery, Ending, Source},
    output,
};

/// How long a judge is looked for. It waits for longer than this, and whoever ends a container for longer than that.
const PATIENCE: Duration = Duration::from_secs(20);
/// What the last order began has ended by then: attackers have gone, and an operator's command has its answer.
const SETTLE_WITHIN: Duration = Duration::from_secs(20);

/// See the module.
pub(super) struct Judge {
    at: String,
    /// What the scenario calls the node.
    node: String,
    has_heard: AtomicBool,
}

impl Judge {
    /// None if nobody judges.
    pub(super) fn of(options: &OperateOptions) -> Option<Judge> {
        let (at, node) = (options.judge.clone()?, options.name.clone()?);
        Some(Judge { at, node, has_heard: AtomicBool::new(false) })
    }

    /// Tells once what came of the orders, all of which are over.
    pub(super) async fn tell_outcome(&self, failures: &Failures) {
        failures.settle(SETTLE_WITHIN).await;
        self.tell(failures.end().err().map(|error| error.to_string())).await;
    }

    /// Tells what could not be carried out, if anything; once, and the first time alone. A judge that cannot be told misses that.
    pub(super) async fn tell(&self, failed: Option<String>) {
        if self.has_heard.swap(true, Ordering::Relaxed) {
            return;
        }
        let delivery = Delivery { from: Source::Node(self.node.clone()), ending: Ending::Orders { failed } };
        if let Err(error) = delivery.send(&self.at, PATIENCE).await {
            output::note(&format!("{error:#}"));
        }
    }
}
