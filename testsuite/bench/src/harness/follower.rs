//! [`Goal`]: the head that a fresh fullnode process must reach, timed from its first request for data.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use serde_json::Value;
use slipstream_types::Digest;

use super::node::{NodeOptions, NodeProcess};
use slipnet::accounts::node_key;

/// How often a follower is polled until it starts to follow; the error of the start.
const START_POLL: Duration = Duration::from_millis(2);
/// How often the follower's head is polled once it follows; the error of the end. A poll costs the follower about 0.1
/// ms.
const HEAD_POLL: Duration = Duration::from_millis(5);
const SEED: &str = "slipnet-bench-follower";

/// The head that a follower must reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// The batch after which the follower begins.
    pub(crate) from: u64,
    /// The number of the head's batch.
    pub(crate) head: u64,
    pub(crate) state_root: Digest,
    /// Far above the expected time.
    pub(crate) deadline: Duration,
}

/// CPU seconds so far of the processes around a follower.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct SurroundingCpu {
    pub(crate) server: f64,
    pub(crate) relay: f64,
}

/// The cost of catching up.
#[derive(Clone, Default, Debug)]
pub(crate) struct CaughtUp {
    /// From the first request for data to the head.
    pub(crate) seconds: f64,
    /// From the ready line to that request: connecting, and the first summary.
    pub(crate) connect_seconds: f64,
    /// Bytes that the follower received on its connections, headers and acknowledgements included.
    pub(crate) bytes: u64,
    pub(crate) cpu_s: f64,
    /// CPU seconds of the processes around it, in the same time.
    pub(crate) around: SurroundingCpu,
    /// The follower's peak memory until it reached the head.
    pub(crate) peak_mib: f64,
    /// Bytes that the follower read from the disk.
    pub(crate) disk_bytes: f64,
    /// Seconds that each stage was busy; stages overlap.
    pub(crate) stages: Vec<(String, f64)>,
    /// Its `/v1/status` at the end.
    pub(crate) status: Value,
}

impl Goal {
    /// Starts a follower in a directory and waits until it reaches the head.
    ///
    /// # Errors
    /// If the follower exits, is late, or reaches another state root.
    pub(crate) async fn reach(
        &self,
        dir: &Path,
        genesis: &Path,
        options: &NodeOptions,
        around: impl Fn() -> Result<SurroundingCpu>,
    ) -> Result<CaughtUp> {
        let mut node = NodeProcess::start(dir, genesis, &node_key(SEED, 0), options).await?;
        let ready = Instant::now();
        self.wait_started(&mut node, ready).await?;
        let begin = Instant::now();
        let (cpu_before, disk_before, before) = (node.cpu_s()?, node.disk_bytes()?, around()?);
        while node.head().await? < self.head {
            node.check_alive()?;
            if begin.elapsed() > self.deadline {
                bail!("the follower did not reach batch {}: {}", self.head, node.status().await?["sync"]);
            }
            tokio::time::sleep(HEAD_POLL).await;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let (cpu_after, after, peak_mib) = (node.cpu_s()?, around()?, node.peak_mib()?);
        let disk_bytes = (node.disk_bytes()? - disk_before) as f64;
        let status = node.status().await?;
        self.check_root(&status)?;
        Ok(CaughtUp {
            seconds,
            connect_seconds: (begin - ready).as_secs_f64(),
            bytes: bytes_received(&status),
            cpu_s: cpu_after - cpu_before,
            around: SurroundingCpu {
                server: after.server - before.server,
                relay: after.relay - before.relay,
            },
            peak_mib,
            disk_bytes,
            stages: stages(&status),
            status,
        })
    }

    /// Compares the state root in a follower's status with the chain's.
    ///
    /// # Errors
    /// If the roots differ.
    pub(crate) fn check_root(&self, status: &Value) -> Result<()> {
        let root = status["head"]["state_root"].as_str().unwrap_or_default();
        let expected = self.state_root.to_string();
        ensure!(root == expected, "the follower's state root is {root}, but the chain's is {expected}");
        Ok(())
    }

    /// Waits until a follower knows a peer's certified head: at that moment it sends its first request for data.
    ///
    /// # Errors
    /// If the follower exits, or learns of no head in time.
    pub(crate) async fn wait_started(&self, node: &mut NodeProcess, ready: Instant) -> Result<()> {
        loop {
            let status = node.status().await?;
            let number = |value: &Value| value.as_u64().unwrap_or_default();
            if number(&status["sync"]["target"]) > self.from || number(&status["head"]["number"]) > self.from
            {
                return Ok(());
            }
            node.check_alive()?;
            ensure!(ready.elapsed() < self.deadline, "the follower did not learn a peer's head in time");
            tokio::time::sleep(START_POLL).await;
        }
    }
}

fn bytes_received(status: &Value) -> u64 {
    let peers = status["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
    peers.iter().filter_map(|peer| peer["bytes_received"].as_u64()).sum()
}

/// Returns the busy seconds of each stage from a status.
fn stages(status: &Value) -> Vec<(String, f64)> {
    let stages = status["sync"]["stages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let stage = |stage: &Value| Some((stage["stage"].as_str()?.to_owned(), stage["busy_seconds"].as_f64()?));
    stages.iter().filter_map(stage).collect()
}
