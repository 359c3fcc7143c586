//! [`Follower`]: one run of one way: a fresh process, timed from its first request for data until it is at its peers'
//! head.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    chain::{Chain, SNAPSHOT_INTERVAL},
    situation::{Situation, Start},
    supply::Supply,
};
use crate::harness::{
    follower::Goal,
    kept::clone_store,
    node::{NodeOptions, NodeProcess, database},
};
use slipnet::accounts::node_key;

/// The polling interval of the head: the error of the end.
const HEAD_POLL: Duration = Duration::from_millis(5);
/// The polling interval of a follower's status.
const STATUS_POLL: Duration = Duration::from_millis(250);
/// A follower without a serving peer for this long counts as stuck: its peers do not change.
const STUCK: Duration = Duration::from_secs(2);
/// When the ETA is read.
const ETA_AT: Duration = Duration::from_secs(5);
/// The polling interval for the first batch of the history, of a node at the head.
const WINDOW_POLL: Duration = Duration::from_millis(20);
/// The longest wait for a history.
const WINDOW_MAX: Duration = Duration::from_secs(180);
/// A node that fetches no history for this long has all that it will fetch.
const WINDOW_GRACE: Duration = Duration::from_secs(2);
/// Longer than any way should take.
pub(super) const DEADLINE: Duration = Duration::from_secs(120);
/// A node is idle if it uses less than this share of a core for this time.
const RESTS: Duration = Duration::from_millis(500);
const RESTS_SHARE: f64 = 0.05;
const SEED: &str = "slipnet-bench-follower";
/// A node's data directory within its directory.
const DATA: &str = "data";

/// A way to the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Way {
    /// Begins from a snapshot; a stopped node's data is removed first, as an operator would remove it.
    Snapshot,
    /// Applies the range delta up to a snapshot.
    RangeDelta,
    /// Applies every delta.
    Delta,
    /// Executes every batch.
    Replay,
    /// The node's own choice.
    Auto,
}

impl Way {
    /// The ways that an operator can pin.
    pub(super) const PINNED: [Way; 4] = [Way::Snapshot, Way::RangeDelta, Way::Delta, Way::Replay];
    /// All ways.
    pub(super) const ALL: &'static [Way] = <Way as strum::VariantArray>::VARIANTS;

    /// Returns the name for figures and `sync.mode`.
    pub(super) fn name(self) -> &'static str {
        self.into()
    }
}

/// The end of a run.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Run {
    /// It got to the head.
    Arrived(Arrived),
    /// It was cut off after this time, in seconds.
    Cut(f64),
    /// No peer served the node.
    Stuck,
}

impl Run {
    /// Returns the times of a run that got to the head; `None` for other runs.
    pub(super) fn arrived(&self) -> Option<&Arrived> {
        match self {
            Run::Arrived(arrived) => Some(arrived),
            Run::Cut(_) | Run::Stuck => None,
        }
    }
}

/// A run that got to the head.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Arrived {
    /// From the first request for data to the head.
    pub(super) seconds: f64,
    /// The node's ETA five seconds after its first request, in seconds; 0 if it had none. `None` if it was at the head
    /// by then.
    pub(super) eta_seconds: Option<f64>,
    /// Seconds from the first request to a complete history; `None` if the history was not measured or never complete.
    pub(super) window_seconds: Option<f64>,
}

impl Arrived {
    /// Returns the error of the ETA, as a share of the time that was left.
    pub(super) fn eta_error(&self) -> Option<f64> {
        let left = self.seconds - ETA_AT.as_secs_f64();
        Some((self.eta_seconds? - left).abs() / left)
    }
}

/// Runs a node on the ledger of a stopped node until it is idle, and stops it. Beside the ledger, the node leaves in
/// `dir` the measured speed of its machine and the filters of logs.
///
/// # Errors
/// If the node does not start, or does not become idle.
pub(super) async fn rest(chain: &Chain, behind: u64, dir: &Path) -> Result<()> {
    clone_store(&chain.stopped(behind), &database(dir))?;
    let options =
        NodeOptions { snapshot_interval: SNAPSHOT_INTERVAL, mode: "auto", ..NodeOptions::default() };
    let node = NodeProcess::start(dir, &chain.genesis(), &node_key(SEED, 0), &options).await?;
    let begin = Instant::now();
    let mut used = node.cpu_s()?;
    loop {
        tokio::time::sleep(RESTS).await;
        let before = std::mem::replace(&mut used, node.cpu_s()?);
        if used - before < RESTS_SHARE * RESTS.as_secs_f64() {
            return node.stop().await;
        }
        ensure!(begin.elapsed() < DEADLINE, "a node without peers does not become idle");
    }
}

/// Follows a chain from a situation's suppliers.
pub(super) struct Follower<'a> {
    pub(super) situation: &'a Situation,
    pub(super) chain: &'a Chain,
    pub(super) supply: &'a Supply,
    /// The directory that [`rest`] left for a stopped node; `None` if every run begins with an empty directory.
    pub(super) stopped: Option<&'a Path>,
    /// Removed before and after each run.
    pub(super) dir: &'a Path,
}

impl Follower<'_> {
    /// Follows the chain by a way, for `leash` at most. If `with_window` is set, then waits for the history.
    ///
    /// # Errors
    /// If the follower exits, or reaches another state root.
    pub(super) async fn run(&self, way: Way, leash: Duration, with_window: bool) -> Result<Run> {
        fs::create_dir_all(self.dir)?;
        let mut from = 0;
        if let (Some(stopped), Start::Stopped(behind)) = (self.stopped, self.situation.start)
            && way != Way::Snapshot
        {
            clone_store(&stopped.join(DATA), &self.dir.join(DATA))?;
            from = self.chain.head - behind;
        }
        let serving = self.supply.serve().await?;
        let options = self.options(way, serving.addresses());
        let key = node_key(SEED, 0);
        let mut node = NodeProcess::start(self.dir, &self.chain.genesis(), &key, &options).await?;
        let ran = self.follow(&mut node, from, leash, with_window).await;
        let ran = ran.with_context(|| format!("{} by {}", self.situation.name, way.name()))?;
        drop(node);
        serving.stop().await;
        fs::remove_dir_all(self.dir)?;
        rustix::fs::sync();
        Ok(ran)
    }

    fn options(&self, way: Way, peers: Vec<String>) -> NodeOptions {
        let archives = self.supply.archive().map(|archive| format!("  archives: [\"{archive}\"]\n"));
        NodeOptions {
            mode: way.name(),
            sync: format!("  history: {}\n{}", self.situation.history, archives.unwrap_or_default()),
            snapshot_interval: SNAPSHOT_INTERVAL,
            peers,
            ..NodeOptions::default()
        }
    }

    async fn follow(
        &self,
        node: &mut NodeProcess,
        from: u64,
        leash: Duration,
        with_window: bool,
    ) -> Result<Run> {
        let Chain { head, state_root, .. } = *self.chain;
        let goal = Goal { from, head, state_root, deadline: DEADLINE };
        goal.wait_started(node, Instant::now()).await?;
        let begin = Instant::now();
        let (mut looked, mut stuck_since, mut eta_seconds) = (begin, None, None);
        while node.head().await? < self.chain.head {
            node.check_alive()?;
            let now = Instant::now();
            if now - begin > leash {
                return Ok(Run::Cut((now - begin).as_secs_f64()));
            }
            let reads_eta = eta_seconds.is_none() && now - begin >= ETA_AT;
            if reads_eta || now - looked >= STATUS_POLL {
                looked = now;
                let status = node.status().await?;
                if reads_eta {
                    eta_seconds = Some(status["sync"]["eta_seconds"].as_f64().unwrap_or_default());
                }
                let is_stuck = status["sync"]["phase"] == "stuck";
                stuck_since = is_stuck.then(|| stuck_since.unwrap_or(now));
                if stuck_since.is_some_and(|since| now - since > STUCK) {
                    return Ok(Run::Stuck);
                }
            }
            tokio::time::sleep(HEAD_POLL).await;
        }
        let seconds = begin.elapsed().as_secs_f64();
        goal.check_root(&node.status().await?)?;
        let window_seconds = match with_window {
            true => wait_window(node, from + 1, begin).await?,
            false => None,
        };
        Ok(Run::Arrived(Arrived { seconds, eta_seconds, window_seconds }))
    }
}

/// Returns the seconds until a node serves the receipts of a batch, the first of its history; `None` if it never does.
async fn wait_window(node: &mut NodeProcess, first: u64, begin: Instant) -> Result<Option<f64>> {
    let mut idle_since = None;
    loop {
        let answer = node.call("eth_getBlockReceipts", json!([format!("0x{first:x}")])).await;
        let now = Instant::now();
        if answer.is_ok_and(|receipts: Value| receipts.is_array()) {
            return Ok(Some((now - begin).as_secs_f64()));
        }
        node.check_alive()?;
        let is_idle = node.status().await?["sync"]["backfill"].is_null();
        idle_since = is_idle.then(|| idle_since.unwrap_or(now));
        let has_ended = idle_since.is_some_and(|since| now - since > WINDOW_GRACE);
        if has_ended || now - begin > WINDOW_MAX {
            return Ok(None);
        }
        tokio::time::sleep(WINDOW_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an ETA is compared with the time that was left when it was read; no ETA counts as 0.
    #[test]
    fn an_eta_is_compared_with_what_was_left() {
        let arrived = |eta_seconds| Arrived { seconds: 15.0, eta_seconds, window_seconds: None };
        assert_eq!(arrived(Some(12.0)).eta_error(), Some(0.2));
        assert_eq!(arrived(Some(0.0)).eta_error(), Some(1.0));
        assert_eq!(arrived(None).eta_error(), None);
    }
}
