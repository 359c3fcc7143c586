//! [`Judge`]: who judges the scenario, and is told whether a node's orders were carried out. It sees the nodes alone: an order that failed would
//! leave no trace.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, Result};

use super::{OperateOptions, Order, failures::Failures};
use crate::{
    load::{Delivery, Ending, Source, given_secret},
    output,
};

/// How long a judge is looked for. It waits for longer than this, and whoever ends a container for longer than that.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same where the order waits for it.
const BEFORE_WITHIN: Duration = Duration::from_secs(2);
/// What the last order began has ended by then: attackers have gone, and an operator's command has its answer.
const SETTLE_WITHIN: Duration = Duration::from_secs(20);

/// See the module.
pub(super) struct Judge {
    at: String,
    secret: String,
    /// What the scenario calls the node.
    node: String,
    has_heard: AtomicBool,
}

impl Judge {
    /// None if nobody judges.
    pub(super) fn of(options: &OperateOptions) -> Option<Judge> {
        let (at, node) = (options.judge.clone()?, options.name.clone()?);
        Some(Judge { at, secret: given_secret(), node, has_heard: AtomicBool::new(false) })
    }

    /// Tells that the node takes an order to the primary, before it is carried out.
    ///
    /// # Errors
    /// If the judge does not take it in time.
    pub(super) async fn tell_taken(&self, order: &Order) -> Result<()> {
        let ending = Ending::Taken { order: order.to_string() };
        let delivery = Delivery { from: Source::Node(self.node.clone()), ending };
        let sending = delivery.send(&self.at, &self.secret, BEFORE_WITHIN);
        let sent = tokio::time::timeout(BEFORE_WITHIN, sending).await;
        sent.with_context(|| format!("no judge at {} took it within {} s", self.at, BEFORE_WITHIN.as_secs()))?
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
        if let Err(error) = delivery.send(&self.at, &self.secret, PATIENCE).await {
            output::note(&format!("{error:#}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::load::TAKEN;

    /// Goal: a judge hears which node takes an order, in the order's own words, and a node knows whether it was heard.
    #[tokio::test]
    async fn a_judge_hears_who_takes_an_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let judge = Judge {
            at: listener.local_addr().unwrap().to_string(),
            secret: "the secret".to_owned(),
            node: "validator-1".to_owned(),
            has_heard: AtomicBool::new(false),
        };
        let order: Order = "5s..9s,lie=garbage,primary".parse().unwrap();
        assert!(order.is_told());
        for quiet in ["5s..9s,kill,primary", "5s..9s,lie=garbage"] {
            assert!(!quiet.parse::<Order>().unwrap().is_told(), "{quiet}");
        }
        let hears = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = Vec::new();
            stream.read_to_end(&mut text).await.unwrap();
            stream.write_all(TAKEN.as_bytes()).await.unwrap();
            text
        });
        judge.tell_taken(&order).await.unwrap();
        let text = hears.await.unwrap();
        let value = text.strip_prefix(b"the secret\n").expect("the secret stands before the value");
        let Delivery { from, ending } = serde_json::from_slice(value).unwrap();
        assert_eq!(from, Source::Node("validator-1".to_owned()));
        assert!(matches!(ending, Ending::Taken { order: told } if told == order.to_string()));
        // Nobody listens any more.
        judge.tell_taken(&order).await.unwrap_err();
    }
}
