//! [`Judge`]: the connection to the scenario's judge, which learns whether a node's orders were carried out. The judge
//! sees only the nodes: a failed order would leave no trace.

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

/// How long a delivery is retried. The judge waits longer than this, and containers get even longer to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same for a delivery on which an order waits.
const BEFORE_WITHIN: Duration = Duration::from_secs(2);
/// The time limit for tasks of the last order to end: attackers have gone, and an operator's command has its answer.
const SETTLE_WITHIN: Duration = Duration::from_secs(20);

/// The connection to the scenario's judge.
pub(super) struct Judge {
    at: String,
    secret: String,
    /// The node's name in the scenario.
    node: String,
    has_heard: AtomicBool,
}

impl Judge {
    /// Returns `None` if there is no judge.
    pub(super) fn of(options: &OperateOptions) -> Option<Judge> {
        let (at, node) = (options.judge.clone()?, options.name.clone()?);
        Some(Judge { at, secret: given_secret(), node, has_heard: AtomicBool::new(false) })
    }

    /// Announces that the node will carry out an order to the primary.
    ///
    /// # Errors
    /// If the judge does not accept it in time.
    pub(super) async fn tell_taken(&self, order: &Order) -> Result<()> {
        let ending = Ending::Taken { order: order.to_string() };
        let delivery = Delivery { from: Source::Node(self.node.clone()), ending };
        let sending = delivery.send(&self.at, &self.secret, BEFORE_WITHIN);
        let sent = tokio::time::timeout(BEFORE_WITHIN, sending).await;
        sent.with_context(|| format!("no judge at {} took it within {} s", self.at, BEFORE_WITHIN.as_secs()))?
    }

    /// Reports the outcome of the orders once, after all of them are over.
    pub(super) async fn tell_outcome(&self, failures: &Failures) {
        failures.settle(SETTLE_WITHIN).await;
        self.tell(failures.end().err().map(|error| error.to_string())).await;
    }

    /// Reports what could not be carried out, if anything. Only the first call reports. If the delivery fails, the
    /// judge misses it.
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

    /// Goal: the judge learns which node carries out an order, in the order's own words, and the node knows whether it
    /// was heard.
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
