//! The network and the mesh that ship, on a wire in memory, in virtual time: the same seed sends the same packets.
//!
//! Nodes have the positions, links, latencies, bandwidths and CPU times of the event simulation. The fabric adds what
//! the event simulation leaves out: QUIC with its handshakes, acknowledgements, windows and message order, and packet
//! loss on a full up-link.

mod node;
mod wire;

use std::sync::Arc;

use anyhow::{Context, Result};
use slipstream_broadcast::BroadcastConfig;
use slipstream_coding::CodecKind;
use slipstream_types::BatchNumber;
use tokio::time::{Duration, Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use self::{
    node::{Node, Spreading},
    wire::Wire,
};
use super::{
    chain::{Chain, body_of},
    costs::Costs,
    scenario::Scenario,
    topology::Topology,
};

/// Batches of one run; the first ones meet the small windows of new connections.
const BATCHES: usize = 4;
/// The time between two batches.
const INTERVAL: Duration = Duration::from_secs(10);
/// The time for connecting all nodes.
const CONNECTING: Duration = Duration::from_secs(5);

/// The fullnodes' results.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// Milliseconds from each batch's certificate until half of the fullnodes had its body.
    pub p50_ms: f64,
    /// Milliseconds until 99 % had it.
    pub p99_ms: f64,
    /// All bytes that a node sent per batch, in payloads.
    pub sent_payloads: f64,
    /// Milliseconds of CPU time that a node used per batch.
    pub busy_ms: f64,
    /// Bodies that never arrived.
    pub missing: usize,
    /// Batches that a mesh gave up.
    pub gave_up: u64,
    /// How often a node asked for missing chunks, per batch.
    pub pulls: f64,
    /// The share of all datagrams that an up-link dropped.
    pub lost: f64,
    /// The number of batches.
    pub batches: usize,
    /// A hash of all datagrams and their times.
    pub trace: u64,
}

/// Plays a scenario: by the mesh, or, without a codec, by flooding, which the mesh replaced.
///
/// # Errors
/// If a node cannot be started.
pub fn run(scenario: &Scenario, codec: Option<CodecKind>, costs: &Costs) -> Result<Run> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(play(scenario, codec, costs))
}

async fn play(scenario: &Scenario, codec: Option<CodecKind>, costs: &Costs) -> Result<Run> {
    let bodies = (0..BATCHES as u64).map(|batch| body_of(scenario.payload_bytes, batch)).collect();
    let chain = Arc::new(Chain::new(scenario.validators, bodies)?);
    let wire = Wire::new(scenario, Topology::draw(scenario));
    let stop = CancellationToken::new();
    tokio::spawn(wire.clone().carry());
    let spreading = if codec.is_some() { Spreading::Mesh } else { Spreading::Flood };
    let shipped = BroadcastConfig::default();
    let config = BroadcastConfig { codec: codec.unwrap_or(shipped.codec), ..shipped };
    let mut nodes = Vec::new();
    for index in 0..scenario.nodes {
        let ground = (&chain, &wire);
        nodes.push(Node::start(index, ground, (spreading, &config), costs, &stop).await?);
    }
    sleep(CONNECTING).await;
    let before: Vec<_> = (0..nodes.len()).map(|node| wire.bytes_sent(node)).collect();
    let mut times = Vec::new();
    for number in 1..=BATCHES {
        let certified = Instant::now();
        decide(scenario, &wire, &nodes, number).await;
        sleep_until(certified + INTERVAL).await;
        for node in &nodes[scenario.validators..] {
            times.push(node.held.at(BatchNumber::new(number as u64)).map(|at| at - certified));
        }
    }
    let sent: u64 = (scenario.validators..nodes.len()).map(|node| wire.bytes_sent(node) - before[node]).sum();
    let run = outcome(scenario, &wire, &nodes, times, sent)?;
    stop.cancel();
    for node in &nodes {
        node.network.shutdown().await;
    }
    Ok(run)
}

/// Gives the leader the batch at once. The other validators get the batch when its certificate may have reached them.
async fn decide(scenario: &Scenario, wire: &Wire, nodes: &[Node], number: usize) {
    let certified = Instant::now();
    let mut order: Vec<_> = (0..scenario.validators).collect();
    let at = |node: usize| match node {
        0 => certified,
        _ => certified + wire.topology().latency(0, node),
    };
    order.sort_by_key(|node| at(*node));
    for node in order {
        sleep_until(at(node)).await;
        nodes[node].decide(number, node == 0);
    }
}

fn outcome(
    scenario: &Scenario,
    wire: &Wire,
    nodes: &[Node],
    times: Vec<Option<Duration>>,
    sent: u64,
) -> Result<Run> {
    let missing = times.iter().filter(|time| time.is_none()).count();
    let mut times: Vec<_> =
        times.into_iter().map(|time| time.unwrap_or(INTERVAL).as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let index = ((times.len() - 1) as f64 * share) as usize;
        times.get(index).copied().context("there are fullnodes")
    };
    let fullnodes = &nodes[scenario.validators..];
    let parts = (fullnodes.len() * BATCHES) as f64;
    let pulls: u64 =
        fullnodes.iter().filter_map(|node| node.broadcaster.as_ref()).map(|it| it.status().pulls).sum();
    let busy: Duration = fullnodes.iter().map(|node| node.processor.busy()).sum();
    let (count, dropped) = wire.counts();
    Ok(Run {
        p50_ms: at(0.5)?,
        p99_ms: at(0.99)?,
        sent_payloads: sent as f64 / parts / scenario.payload_bytes as f64,
        busy_ms: busy.as_secs_f64() * 1e3 / parts,
        missing,
        gave_up: fullnodes.iter().map(|node| node.held.gave_up()).sum(),
        pulls: pulls as f64 / parts,
        lost: dropped as f64 / count.max(1) as f64,
        batches: BATCHES,
        trace: wire.trace(),
    })
}
