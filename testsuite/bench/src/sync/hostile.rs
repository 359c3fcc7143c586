//! Catching up from ten peers, some of which are hostile.

use std::{iter::repeat_n, path::Path};

use anyhow::Result;
use slipstream_storage::{StorageConfig, Store};

use super::{
    follow::{Followed, Supply, directory},
    mode::Mode,
    peers::Peers,
    source_dir,
};
use crate::harness::{chain::Source, node::database};
use slipnet::progress::Progress;

const PEERS: usize = 10;
/// The numbers of hostile peers, in turn.
pub(super) const HOSTILE: [usize; 3] = [0, 5, 9];
/// The mode: its peers limit it. In a mode that its own work limits, the peers' effect would not show.
pub(super) const MODE: Mode = Mode::Delta;

/// The runs with 0, 5 and 9 hostile peers, in the order of [`HOSTILE`]; they took turns, run by run.
pub(super) type Runs = [Vec<Followed>; HOSTILE.len()];

/// Follows a chain whose database no process has open.
pub(super) async fn run(
    source: &Source,
    genesis: &Path,
    times: usize,
    dir: &Path,
    progress: Progress,
) -> Result<Runs> {
    let config = StorageConfig { snapshot_interval_batches: 0, ..StorageConfig::default() };
    let store = Store::open(&config, &database(&source_dir(dir)))?;
    let mut runs = Runs::default();
    for time in 1..=times {
        for (hostile, runs) in HOSTILE.into_iter().zip(&mut runs) {
            progress.step(&format!("{hostile} of {PEERS} peers are hostile, run {time} of {times}"));
            let peers = Peers::start(repeat_n(store.clone(), PEERS), hostile).await?;
            let supply = Supply { source, genesis, server: None, peers: peers.addresses(), relay: None };
            runs.push(supply.follow(MODE, &directory(dir)).await?);
            peers.stop().await;
        }
    }
    store.close();
    Ok(runs)
}
