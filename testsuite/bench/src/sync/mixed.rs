//! A follower between two peers that serve different parts: one keeps bodies and hints, the other has deltas and a slow
//! link. `auto` is measured beside each mode pinned.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};

use super::{
    follow::{Followed, Supply, directory},
    mode::Mode,
};
use crate::harness::{
    ONE_WAY,
    chain::Source,
    node::{NodeOptions, NodeProcess},
    relay::Relay,
};
use slipnet::{accounts::node_key, progress::Progress};

/// The modes that take turns.
pub(super) const MODES: [Mode; 3] = [Mode::ReplayAlone, Mode::Delta, Mode::Auto];
const KEEPER_SEED: &str = "slipnet-bench-keeper";
const POLL: Duration = Duration::from_millis(50);
const DEADLINE: Duration = Duration::from_secs(120);

/// The runs of each of [`MODES`].
pub(super) type Runs = [Vec<Followed>; 3];

/// Measures each mode `runs` times. The slow link delivers the deltas in the time that the first run takes to execute
/// the batches. So both pinned modes are about equally fast.
pub(super) async fn run(
    source: &Source,
    genesis: &Path,
    server: &NodeProcess,
    runs: usize,
    dir: &Path,
    progress: Progress,
) -> Result<Runs> {
    progress.step("mixed: two peers that keep different things");
    let peers = vec![server.peer_at(server.address())];
    let bodies = NodeOptions {
        mode: "replay",
        storage: "  prune:\n    deltas: 1\n".to_owned(),
        peers: peers.clone(),
        ..NodeOptions::default()
    };
    let deltas =
        NodeOptions { mode: "delta", sync: "  history: false\n".to_owned(), peers, ..NodeOptions::default() };
    let keeper = |index: u32, options: NodeOptions| async move {
        let dir = dir.join(format!("keeper-{index}"));
        let mut node = NodeProcess::start(&dir, genesis, &node_key(KEEPER_SEED, index), &options).await?;
        let begin = std::time::Instant::now();
        while node.head().await? < source.head.get() {
            node.check_alive()?;
            ensure!(begin.elapsed() < DEADLINE, "a peer did not reach the head in time");
            tokio::time::sleep(POLL).await;
        }
        anyhow::Ok(node)
    };
    // Two nodes that follow the whole chain, and keep a part of its history.
    let (bodies, deltas) = (keeper(0, bodies).await?, keeper(1, deltas).await?);
    let relays = [Relay::start(bodies.address(), ONE_WAY)?, Relay::start(deltas.address(), ONE_WAY)?];
    let peers = [&bodies, &deltas].into_iter().zip(&relays);
    let supply = Supply {
        source,
        genesis,
        server: None,
        peers: peers.map(|(keeper, relay)| keeper.peer_at(relay.address())).collect(),
        relay: None,
    };
    let dir = directory(dir);
    let follow = |mode| supply.follow(mode, &dir);
    let replay = follow(Mode::ReplayAlone).await?;
    let delta = follow(Mode::Delta).await?;
    relays[1].set_bandwidth((delta.bytes as f64 / replay.seconds) as u64);
    let mut measured = Runs::default();
    for run in 0..runs {
        for turn in 0..MODES.len() {
            let place = (run + turn) % MODES.len();
            progress.step(&format!("mixed, {}, run {} of {runs}", MODES[place].name(), run + 1));
            measured[place].push(follow(MODES[place]).await?);
        }
    }
    bodies.stop().await?;
    deltas.stop().await?;
    Ok(measured)
}
