//! [`Node`]: the setup of a script's node, and the chains that scripts run on.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use slipstream_executor::{ExecutorConfig, HintsMode, Session};
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{Rig, chain::Chain};
use crate::{
    Mode, SyncConfig,
    engine::{Engine, Local, Setup},
    planted::Defences,
    work::Worker,
};

/// The last batch of [`chain()`]. It has a snapshot, and so has the batch ten before it.
pub(in crate::engine) const HEAD: u64 = 40;

/// Batches and snapshots that are the same in every test; each test takes its prefix of them.
pub(in crate::engine) fn chain() -> &'static Chain {
    static CHAIN: OnceLock<Chain> = OnceLock::new();
    CHAIN.get_or_init(|| Chain::new(HEAD))
}

/// The last batch of [`long_chain()`]; it has a snapshot.
pub(in crate::engine) const FAR: u64 = 80;

/// A chain that is longer than the distance between two bases of range deltas.
pub(in crate::engine) fn long_chain() -> &'static Chain {
    static CHAIN: OnceLock<Chain> = OnceLock::new();
    CHAIN.get_or_init(|| Chain::new(FAR))
}

/// A chain whose epoch 0 ends with batch 8.
pub(in crate::engine) fn chain_of_epochs() -> &'static Chain {
    static CHAIN: OnceLock<Chain> = OnceLock::new();
    CHAIN.get_or_init(Chain::of_three_epochs)
}

/// The setup of a node for a script.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Node {
    pub(in crate::engine) config: SyncConfig,
    pub(in crate::engine) head: u64,
    pub(in crate::engine) hints: bool,
    pub(in crate::engine) patience: Duration,
}

impl Node {
    pub(in crate::engine) fn new(mode: Mode, head: u64) -> Node {
        let config = SyncConfig { mode, history: false, ..SyncConfig::default() };
        Node { config, head, hints: false, patience: Duration::ZERO }
    }

    pub(in crate::engine) fn rig(self) -> Rig {
        self.rig_on(chain())
    }

    /// As [`Node::rig`], on another chain.
    pub(in crate::engine) fn rig_on(self, chain: &'static Chain) -> Rig {
        let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
        store.initialize(&chain.genesis).unwrap();
        (1..=self.head).for_each(|number| chain.commit_to(&store, BatchNumber::new(number)));
        self.rig_with(chain, store)
    }

    /// As [`Node::rig_on`], on an existing store.
    pub(super) fn rig_with(self, chain: &'static Chain, store: Store) -> Rig {
        let Node { config, hints, patience, .. } = self;
        let executor =
            ExecutorConfig { hints: HintsMode::Off, prefetch_threads: 0, ..ExecutorConfig::default() };
        let session = Session::new(&executor, chain.genesis.chain.clone()).unwrap();
        let worker = Worker::new(store.clone(), &config, Arc::new(session), None, 7).unwrap();
        let waypoint = BatchNumber::GENESIS;
        let setup = Setup { hints, patience, waypoint, cores: 2, seed: 7, defences: Defences::default() };
        let now = Instant::now();
        let engine = Engine::new(config, &setup, Local::of(&store).unwrap(), None, now);
        Rig {
            engine,
            now,
            open: Vec::new(),
            bans: Vec::new(),
            quiet: Vec::new(),
            holds_jobs: false,
            held: Vec::new(),
            peers: Vec::new(),
            worker,
            store,
            chain,
        }
    }
}
