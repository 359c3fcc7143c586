//! [`brake`]: slows processes down, like a slow machine.

use std::time::Duration;

use rustix::process::Signal;
use slipnet::devnet::Node;

/// The brake's period: short compared with a view, so that nodes are slow and do not seem to come and go.
const PERIOD: Duration = Duration::from_millis(100);

/// The share of time in which nodes run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Speed {
    Full,
    Half,
    Quarter,
}

impl Speed {
    pub(super) const ALL: &'static [Speed] = <Speed as strum::VariantArray>::VARIANTS;

    pub(super) fn name(self) -> &'static str {
        self.into()
    }
}

/// Nodes that are stopped periodically; dropping this value continues them.
struct Brake<'a>(&'a [Node]);

impl Brake<'_> {
    fn signal(&self, signal: Signal) {
        self.0.iter().for_each(|node| node.signal(signal));
    }
}

impl Drop for Brake<'_> {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

/// Slows all nodes down, and stops all of them at the same moments.
pub(super) async fn brake(nodes: &[Node], speed: Speed) {
    let runs = match speed {
        Speed::Full => return std::future::pending().await,
        Speed::Half => PERIOD / 2,
        Speed::Quarter => PERIOD / 4,
    };
    let brake = Brake(nodes);
    loop {
        tokio::time::sleep(runs).await;
        brake.signal(Signal::STOP);
        tokio::time::sleep(PERIOD - runs).await;
        brake.signal(Signal::CONT);
    }
}
