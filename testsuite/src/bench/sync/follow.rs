//! One run of one mode: a fresh follower process, timed from its first request for data to the head of its peers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{mode::Mode, v1::V1Report};
use crate::{
    accounts::node_key,
    bench::harness::{
        chain::Source,
        node::{NodeOptions, NodeProcess},
        relay::Relay,
    },
};

/// How often a follower is asked until it starts to follow; the error of the start.
const START_POLL: Duration = Duration::from_millis(2);
/// How often its head is asked for after that; the error of the end. A question costs the follower about 0.1 ms.
const HEAD_POLL: Duration = Duration::from_millis(5);
/// Far above what any mode takes on the chains of this bench.
const DEADLINE: Duration = Duration::from_secs(120);
const FOLLOWER_SEED: &str = "slipnet-bench-follower";

/// Where followers get a chain from.
pub(super) struct Supply<'a> {
    pub(super) source: &'a Source,
    /// The chain's genesis file.
    pub(super) genesis: &'a Path,
    /// What serves it, if that is one process whose CPU is of interest.
    pub(super) server: Option<&'a NodeProcess>,
    /// Entries for `network.peers`.
    pub(super) peers: Vec<String>,
    /// The link in between, if there is one.
    pub(super) relay: Option<&'a Relay>,
}

/// What a run took.
#[derive(Clone, Debug)]
pub(super) struct Followed {
    pub(super) transactions: u64,
    /// From the first request for data to the head.
    pub(super) seconds: f64,
    /// From the ready line until then: connecting, and the first summary.
    pub(super) connect_seconds: f64,
    /// That the follower received on its connections, headers and acknowledgements included.
    pub(super) bytes: u64,
    pub(super) cpu_s: f64,
    pub(super) server_cpu_s: f64,
    pub(super) relay_cpu_s: f64,
    /// Seconds that each stage worked; stages overlap but in the baseline.
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

/// CPU of the processes around the follower.
#[derive(Clone, Copy)]
struct Around {
    server: f64,
    relay: f64,
}

impl Supply<'_> {
    fn around(&self) -> Result<Around> {
        let server = self.server.map_or(Ok(0.0), NodeProcess::cpu_s)?;
        Ok(Around { server, relay: self.relay.map_or(0.0, Relay::cpu_s) })
    }

    /// Follows in a mode with a fresh process in a directory that is removed again.
    ///
    /// # Errors
    /// If the follower ends, does not get there in time, or gets somewhere else.
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
            sync,
            executor: executor.into(),
            peers: self.peers.clone(),
            ..NodeOptions::default()
        };
        let mut node = NodeProcess::start(dir, self.genesis, &node_key(FOLLOWER_SEED, 0), &options).await?;
        let ready = Instant::now();
        wait_started(&mut node, ready).await?;
        let begin = Instant::now();
        let (cpu_before, before) = (node.cpu_s()?, self.around()?);
        let target = self.source.head.0;
        while node.head().await? < target {
            node.check_alive()?;
            if begin.elapsed() > DEADLINE {
                bail!("it does not reach batch {target}: {}", node.status().await?["sync"]);
            }
            tokio::time::sleep(HEAD_POLL).await;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let (cpu_after, after) = (node.cpu_s()?, self.around()?);
        let status = node.status().await?;
        let root = status["head"]["state_root"].as_str().unwrap_or_default();
        let expected = self.source.state_root.to_string();
        ensure!(root == expected, "its state root is {root}, the chain's is {expected}");
        Ok(Followed {
            transactions: self.source.transactions,
            seconds,
            connect_seconds: (begin - ready).as_secs_f64(),
            bytes: bytes_received(&status),
            cpu_s: cpu_after - cpu_before,
            server_cpu_s: after.server - before.server,
            relay_cpu_s: after.relay - before.relay,
            stages: stages(&status),
        })
    }

    /// The baseline follows up to a batch, in a process of its own.
    ///
    /// # Errors
    /// As [`Supply::follow`].
    pub(super) async fn follow_v1(&self, last: u64, state_root: &str, dir: &Path) -> Result<Followed> {
        let before = self.around()?;
        let mut command = tokio::process::Command::new(std::env::current_exe()?);
        command.args(["bench-child", "v1", "--target", &last.to_string()]);
        command.arg("--dir").arg(dir).arg("--genesis").arg(self.genesis);
        for peer in &self.peers {
            command.args(["--peer", peer]);
        }
        let output = command.stderr(Stdio::inherit()).kill_on_drop(true).output().await?;
        ensure!(output.status.success(), "the v1 follower failed: {}", output.status);
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

/// Waits until the follower knows a peer's certified head: in that moment its first request for data leaves.
async fn wait_started(node: &mut NodeProcess, ready: Instant) -> Result<()> {
    loop {
        let status = node.status().await?;
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        if number(&status["sync"]["target"]) > 0 || number(&status["head"]["number"]) > 0 {
            return Ok(());
        }
        node.check_alive()?;
        ensure!(ready.elapsed() < DEADLINE, "it never heard of a peer's head");
        tokio::time::sleep(START_POLL).await;
    }
}

fn bytes_received(status: &Value) -> u64 {
    let peers = status["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
    peers.iter().filter_map(|peer| peer["bytes_received"].as_u64()).sum()
}

/// The stage table of a status.
fn stages(status: &Value) -> Vec<(String, f64)> {
    let stages = status["sync"]["stages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let stage = |stage: &Value| Some((stage["stage"].as_str()?.to_owned(), stage["busy_seconds"].as_f64()?));
    stages.iter().filter_map(stage).collect()
}

/// The directory of a follower.
pub(super) fn directory(dir: &Path) -> PathBuf {
    dir.join("follower")
}
