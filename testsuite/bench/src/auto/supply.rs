//! [`Supply`]: a situation's suppliers. Each supplier has a clone of the chain that holds only the parts that this
//! supplier keeps.
//!
//! Peers are servers in this process, over QUIC, each behind its own relay.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result};
use slipstream_archive::{Archive, Location, Settings};
use slipstream_storage::{PruneConfig, SNAPSHOTS_DIR, StorageConfig, Store};
use slipstream_types::{BatchNumber, Path as StatePath};

use super::{
    chain::Chain,
    situation::{Keeps, Supplier},
};
use crate::{
    harness::{kept::clone_store, relay::Relay},
    sync::Peers,
};

/// The suppliers of a situation.
pub(super) struct Supply {
    peers: Vec<(Supplier, Store)>,
    archive: Option<Location>,
}

/// Suppliers that are serving.
pub(super) struct Serving {
    peers: Peers,
    relays: Vec<Relay>,
}

impl Supply {
    /// Clones a chain for each supplier, in a directory.
    ///
    /// # Errors
    /// If the disk fails, or the chain has no snapshot for a supplier that keeps one.
    pub(super) async fn of(suppliers: &[Supplier], chain: &Chain, dir: &Path) -> Result<Supply> {
        let mut supply = Supply { peers: Vec::new(), archive: None };
        for (index, supplier) in suppliers.iter().enumerate() {
            let dir = dir.join(format!("supplier-{index}"));
            let store = clone_of(chain, supplier.keeps, &dir.join("db"))?;
            match supplier.keeps {
                Keeps::Archive => {
                    let location = format!("file://{}", dir.join("archive").display()).parse()?;
                    let newest = newest_snapshot(&store)?;
                    Archive::create(&location, &Settings::from_env())?.export(&store, newest).await?;
                    store.close();
                    supply.archive = Some(location);
                }
                _ => supply.peers.push((*supplier, store)),
            }
        }
        Ok(supply)
    }

    /// Starts fresh servers with empty caches.
    ///
    /// # Errors
    /// If a socket cannot be opened.
    pub(super) async fn serve(&self) -> Result<Serving> {
        let peers = Peers::start(self.peers.iter().map(|(_, store)| store.clone()), 0).await?;
        let mut relays = Vec::new();
        for (address, (supplier, _)) in peers.listening().into_iter().zip(&self.peers) {
            let relay = Relay::start(address, Duration::from_millis(supplier.round_trip_ms) / 2)?;
            relay.set_bandwidth(supplier.mbit_per_s * 1_000_000 / 8);
            relays.push(relay);
        }
        Ok(Serving { peers, relays })
    }

    /// Returns the archive, as `sync.archives` names it.
    pub(super) fn archive(&self) -> Option<&Location> {
        self.archive.as_ref()
    }

    /// Closes the stores. All servers must have ended before.
    pub(super) fn close(self) {
        self.peers.iter().for_each(|(_, store)| store.close());
    }
}

impl Serving {
    /// Returns the entries for `network.peers`.
    pub(super) fn addresses(&self) -> Vec<String> {
        let at: Vec<_> = self.relays.iter().map(Relay::address).collect();
        self.peers.addresses_at(&at)
    }

    /// Ends all servers.
    pub(super) async fn stop(self) {
        self.peers.stop().await;
    }
}

fn newest_snapshot(store: &Store) -> Result<BatchNumber> {
    let newest = store.snapshots().into_iter().next();
    Ok(newest.context("the chain has no snapshot")?.number)
}

/// Opens a clone of a chain's database, pruned to what its supplier keeps.
fn clone_of(chain: &Chain, keeps: Keeps, db: &Path) -> Result<Store> {
    clone_store(&chain.database(), db)?;
    // 1 keeps only the blob of the head, 0 keeps all.
    let blobs = match keeps {
        Keeps::All | Keeps::Archive => [0, 0, 0, 0],
        Keeps::Bodies => [0, 0, 1, 0],
        Keeps::Deltas => [1, 1, 0, 1],
        Keeps::Snapshots => {
            [chain.head % super::chain::SNAPSHOT_INTERVAL + super::chain::SNAPSHOT_INTERVAL; 4]
        }
    };
    if matches!(keeps, Keeps::Bodies | Keeps::Deltas) {
        fs::remove_dir_all(db.join(SNAPSHOTS_DIR))?;
    }
    let config = StorageConfig {
        snapshot_interval_batches: 0,
        prune: PruneConfig::of_batches(blobs),
        ..StorageConfig::default()
    };
    let store = Store::open(&config, db)?;
    store.prune()?;
    for info in store.snapshots() {
        let snapshot = store.snapshot(info.number)?.context("a listed snapshot is missing")?;
        // The first reader opens the checkpoint.
        snapshot.encoded_chunk(StatePath::MIN, StatePath::MAX, 1)?;
    }
    Ok(store)
}

/// Threads that each occupy a core, until they are dropped.
pub(super) struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Starts `threads` threads that only compute.
    pub(super) fn start(threads: usize) -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        Busy { threads: (0..threads).map(spin).collect(), stop }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // Nothing in the thread panics.
            let _ = thread.join();
        }
    }
}
