//! One run of one mode: a fresh follower process, timed from its first request for data until it is at its peers' head.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{mode::Mode, v1::V1Report};
use crate::harness::{
    chain::Source,
    follower::{CaughtUp, Goal, SurroundingCpu},
    node::{NodeOptions, NodeProcess},
    relay::Relay,
};

/// Far above the time of any mode on the chains of this bench.
const DEADLINE: Duration = Duration::from_secs(120);

/// The source that followers get a chain from.
pub(super) struct Supply<'a> {
    pub(super) source: &'a Source,
    /// The chain's genesis file.
    pub(super) genesis: &'a Path,
    /// The process that serves the chain, if its CPU matters.
    pub(super) server: Option<&'a NodeProcess>,
    /// The entries of `network.peers`.
    pub(super) peers: Vec<String>,
    /// The link in between, if any.
    pub(super) relay: Option<&'a Relay>,
}

/// The cost of a run.
#[derive(Clone, Debug)]
pub(super) struct Followed {
    pub(super) transactions: u64,
    /// From the first request for data to the head.
    pub(super) seconds: f64,
    /// From the ready line to that request: connecting, and the first summary.
    pub(super) connect_seconds: f64,
    /// Bytes that the follower received on its connections, headers and acknowledgements included.
    pub(super) bytes: u64,
    pub(super) cpu_s: f64,
    pub(super) server_cpu_s: f64,
    pub(super) relay_cpu_s: f64,
    /// Seconds that each stage was busy; stages overlap, except in the baseline.
    pub(super) stages: Vec<(String, f64)>,
}

impl Followed {
    pub(super) fn tps(&self) -> f64 {
        self.transactions as f64 / self.seconds
    }

    pub(super) fn per_transaction(&self, quantity: f64) -> f64 {
        quantity / self.transactions as f64
    }
}

impl Supply<'_> {
    fn around(&self) -> Result<SurroundingCpu> {
        let server = self.server.map_or(Ok(0.0), NodeProcess::cpu_s)?;
        Ok(SurroundingCpu { server, relay: self.relay.map_or(0.0, Relay::cpu_s) })
    }

    /// Follows in a mode with a fresh process, in a directory that is removed again.
    ///
    /// # Errors
    /// If the follower exits, is late, or reaches another state root.
    pub(super) async fn follow(&self, mode: Mode, dir: &Path) -> Result<Followed> {
        fs::create_dir_all(dir)?;
        let followed = self.follow_in(mode, dir).await;
        let followed =
            followed.with_context(|| format!("{} on {}", mode.name(), self.source.workload.name()))?;
        fs::remove_dir_all(dir)?;
        rustix::fs::sync();
        Ok(followed)
    }

    async fn follow_in(&self, mode: Mode, dir: &Path) -> Result<Followed> {
        let (sync, executor) = mode.settings();
        let options = NodeOptions {
            mode: mode.sync_mode(),
            sync: sync.to_owned(),
            executor: executor.to_owned(),
            peers: self.peers.clone(),
            ..NodeOptions::default()
        };
        let Source { head, state_root, transactions, .. } = *self.source;
        let goal = Goal { from: 0, head: head.get(), state_root, deadline: DEADLINE };
        let CaughtUp { seconds, connect_seconds, bytes, cpu_s, around, stages, .. } =
            goal.reach(dir, self.genesis, &options, || self.around()).await?;
        Ok(Followed {
            transactions,
            seconds,
            connect_seconds,
            bytes,
            cpu_s,
            server_cpu_s: around.server,
            relay_cpu_s: around.relay,
            stages,
        })
    }

    /// Lets the baseline follow up to a batch, in its own process.
    ///
    /// # Errors
    /// As [`Supply::follow`].
    pub(super) async fn follow_v1(&self, last: u64, state_root: &str, dir: &Path) -> Result<Followed> {
        let before = self.around()?;
        let mut command = tokio::process::Command::new(std::env::current_exe()?);
        command.args(["child", "v1", "--target", &last.to_string()]);
        command.arg("--dir").arg(dir).arg("--genesis").arg(self.genesis);
        for peer in &self.peers {
            command.args(["--peer", peer]);
        }
        let output = command.kill_on_drop(true).output().await?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the v1 follower failed: {}: {said}", output.status);
        let report: V1Report = serde_json::from_slice(&output.stdout)?;
        let found = report.state_root.to_string();
        ensure!(found == state_root, "the v1 follower ended with state root {found}, not {state_root}");
        let after = self.around()?;
        fs::remove_dir_all(dir)?;
        rustix::fs::sync();
        Ok(Followed {
            transactions: report.transactions,
            seconds: report.seconds,
            connect_seconds: 0.0,
            bytes: report.bytes,
            cpu_s: report.cpu_s,
            server_cpu_s: after.server - before.server,
            relay_cpu_s: after.relay - before.relay,
            stages: report.stages.named(),
        })
    }
}

/// Returns the directory of a follower.
pub(super) fn directory(dir: &Path) -> PathBuf {
    dir.join("follower")
}
