//! The time without commits after the primary is killed under load.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cluster::Cluster;
use slipnet::{
    load::{self, LoadOptions, Rate, Workload},
    progress::Progress,
    rpc::Rpc,
};

const TPS: u32 = 200;
/// The load's duration before the primary is killed.
const BEFORE: Duration = Duration::from_secs(3);
/// The duration of the whole load, in seconds.
const SECONDS: u64 = 9;
/// The time since the kill after which a validator that has not committed counts as stuck.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);
/// Longer than the time between two commits without faults.
const PAUSE: Duration = Duration::from_millis(600);

/// Kills the primary while the others are under load; returns the seconds until the first commit of the next primary.
/// Then restarts the killed one.
///
/// # Errors
/// If the others stop committing, or the killed one does not come back.
pub(super) async fn seconds(cluster: &mut Cluster) -> Result<f64> {
    let status = cluster.devnet.nodes()[0].status().await?;
    let primary = status.consensus.as_ref().and_then(|it| it["primary"].as_u64());
    let primary = primary.context("the first node does not validate")? as usize;
    let others: Vec<Rpc> = cluster.devnet.nodes().iter().map(|node| node.rpc().clone()).collect();
    let others: Vec<Rpc> =
        others.into_iter().enumerate().filter(|(index, _)| *index != primary).map(|(_, rpc)| rpc).collect();
    let watched = others[0].clone();
    let options = LoadOptions {
        workload: Workload::Transfers.into(),
        rate: Rate::constant(TPS),
        duration: Duration::from_secs(SECONDS),
        accounts: cluster.devnet.accounts()[..200].to_vec(),
        submit: others,
        ..LoadOptions::default()
    };
    let load = tokio::spawn(async move { load::run(&options, Progress::Quiet).await });
    wait_for_load(&watched).await?;
    tokio::time::sleep(BEFORE).await;
    cluster.devnet.node_mut(primary).kill();
    let took = first_commit(&watched, Instant::now()).await;
    let report = load.await??;
    ensure!(report.committed > 0, "the load committed nothing");
    let node = cluster.devnet.node_mut(primary);
    node.start()?;
    let head = watched.head().await?;
    node.wait_head(head, Instant::now() + Duration::from_secs(60)).await?;
    took
}

/// Waits until batches come faster than empty ones do.
async fn wait_for_load(rpc: &Rpc) -> Result<()> {
    let begin = Instant::now();
    loop {
        let before = rpc.head().await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        if rpc.head().await? >= before + 3 {
            return Ok(());
        }
        ensure!(begin.elapsed() < PATIENCE, "the load did not begin in time");
    }
}

/// Returns the seconds from the kill to the end of the first pause. Until the pause, batches that were decided before
/// the kill may still be committed.
async fn first_commit(rpc: &Rpc, killed: Instant) -> Result<f64> {
    let (mut last, mut moved) = (rpc.head().await?, killed);
    while killed.elapsed() < PATIENCE {
        let (now, at) = (rpc.head().await?, Instant::now());
        if now > last {
            if at.duration_since(moved) > PAUSE {
                return Ok(at.duration_since(killed).as_secs_f64());
            }
            (last, moved) = (now, at);
        }
        tokio::time::sleep(POLL).await;
    }
    anyhow::bail!(
        "commits did not pause and resume within {} s after the kill of the primary",
        PATIENCE.as_secs()
    )
}
