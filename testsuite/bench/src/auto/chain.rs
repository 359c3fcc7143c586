//! [`Recipe`] and [`Chain`]: the ledgers of the situations. Each is made once, and kept with the stores of nodes that
//! stopped along the way.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use slipstream_executor::HintsMode;
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::Digest;

use crate::harness::{
    chain::{Maker, Stretch, one_validator},
    kept::{clone_store, once},
    node::database,
    workload::{Signer, Workload},
};
use slipnet::progress::Progress;

/// Batches between two snapshots: the default of nodes.
pub(super) const SNAPSHOT_INTERVAL: u64 = 100;
/// Change this when chains are made differently.
const VERSION: u8 = 1;
const SOURCE: &str = "source";
const GENESIS: &str = "genesis.json";

/// The recipe of a chain.
#[derive(Debug)]
pub(super) struct Recipe {
    pub(super) name: &'static str,
    pub(super) workload: Workload,
    /// The number of sending accounts; the hot-key workload has its own.
    pub(super) senders: u32,
    /// Rows of the state that no later transaction touches. The first batches make them, and count as batches of the
    /// first stretch.
    pub(super) rows: u64,
    pub(super) stretches: &'static [Stretch],
    /// For each stopped node, the number of batches between its last batch and the head.
    pub(super) stops: &'static [u64],
}

/// A finished chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Chain {
    #[serde(skip)]
    dir: PathBuf,
    /// The number of the last batch.
    pub(super) head: u64,
    pub(super) state_root: Digest,
    /// The transactions of all batches.
    pub(super) transactions: u64,
}

impl Recipe {
    /// Returns the number of batches in all stretches.
    pub(super) fn batches(&self) -> u64 {
        self.stretches.iter().map(|stretch| stretch.batches).sum()
    }

    /// Makes the chain in a directory, unless an earlier run did.
    ///
    /// # Errors
    /// If a transaction or the disk fails.
    pub(super) fn make(&self, dir: &Path, progress: Progress) -> Result<Chain> {
        let dir = dir.join(format!("slipnet-auto-{}-{}", self.name, &self.fingerprint().to_string()[..16]));
        let described = dir.join("chain.json");
        once(&dir, |dir| {
            progress.step(&format!("making the chain {} of {} batches", self.name, self.batches()));
            let chain = self.fill(dir, progress)?;
            Ok(fs::write(&described, serde_json::to_string(&chain)?)?)
        })?;
        let text = fs::read(&described).with_context(|| format!("cannot read {}", described.display()))?;
        Ok(Chain { dir, ..serde_json::from_slice(&text)? })
    }

    fn fingerprint(&self) -> Digest {
        Digest::tagged("slipnet/bench-auto", format!("{VERSION} {self:?}").as_bytes())
    }

    fn fill(&self, dir: &Path, progress: Progress) -> Result<Chain> {
        let db = database(&dir.join(SOURCE));
        fs::create_dir_all(&db)?;
        let signer = Signer::new(self.workload, Default::default(), self.senders);
        let genesis = one_validator(&signer.funded());
        fs::write(dir.join(GENESIS), serde_json::to_string(&genesis)?)?;
        let mut store = open(&db)?;
        store.initialize(&genesis)?;
        let mut maker = Maker::new(&store, &genesis, HintsMode::Keys);
        signer.prelude(self.rows).try_for_each(|batch| maker.append(&batch?))?;
        let (mut transactions, mut extended) = (maker.transactions, 0);
        for (stretch, stop) in self.pieces(store.head()?.header.number.get())? {
            let mut maker = Maker::new(&store, &genesis, HintsMode::Keys);
            (maker.transactions, maker.extended) = (transactions, extended);
            maker.extend(&signer, stretch, progress)?;
            (transactions, extended) = (maker.transactions, maker.extended);
            if let Some(behind) = stop {
                store.close();
                // The directory is in use as long as a handle exists.
                drop(store);
                clone_store(&db, &stopped(dir, behind))?;
                store = open(&db)?;
            }
        }
        let head = store.head()?.header;
        store.close();
        let (head, state_root) = (head.number.get(), head.state_root);
        Ok(Chain { dir: PathBuf::new(), head, state_root, transactions })
    }

    /// Returns the stretches without the first `made` batches, cut where nodes stopped. A piece at whose end a node
    /// stopped comes with the number of batches after it.
    fn pieces(&self, made: u64) -> Result<Vec<(Stretch, Option<u64>)>> {
        let mut pieces = Vec::new();
        let (mut at, total) = (0, self.batches());
        for stretch in self.stretches {
            let end = at + stretch.batches;
            at = at.max(made.min(end));
            let mut cuts: Vec<u64> = self.stops.iter().map(|behind| total.saturating_sub(*behind)).collect();
            cuts.retain(|cut| (at + 1..=end).contains(cut));
            cuts.sort_unstable();
            for cut in cuts {
                let piece = Stretch { batches: cut - at, ..*stretch };
                pieces.push((piece, Some(total - cut)));
                at = cut;
            }
            pieces.push((Stretch { batches: end - at, ..*stretch }, None));
            at = end;
        }
        pieces.retain(|(piece, stop)| piece.batches > 0 || stop.is_some());
        let stops = pieces.iter().filter(|(_, stop)| stop.is_some()).count();
        ensure!(
            stops == self.stops.len() && made <= total,
            "the chain {} has {total} batches, and the first {made} of them create its rows: no node stopped there",
            self.name
        );
        Ok(pieces)
    }
}

impl Chain {
    /// Returns the chain's genesis file.
    pub(super) fn genesis(&self) -> PathBuf {
        self.dir.join(GENESIS)
    }

    /// Returns the database of a node with the whole chain.
    pub(super) fn database(&self) -> PathBuf {
        database(&self.dir.join(SOURCE))
    }

    /// Returns the database of a node that stopped `behind` batches before the head.
    pub(super) fn stopped(&self, behind: u64) -> PathBuf {
        stopped(&self.dir, behind)
    }
}

fn stopped(dir: &Path, behind: u64) -> PathBuf {
    database(&dir.join(format!("stopped-{behind}")))
}

fn open(dir: &Path) -> Result<Store> {
    let config = StorageConfig {
        fsync: false,
        snapshot_interval_batches: SNAPSHOT_INTERVAL,
        ..StorageConfig::default()
    };
    Ok(Store::open(&config, dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe = Recipe {
        name: "test",
        workload: Workload::Hot,
        senders: 0,
        rows: 300,
        stretches: &[
            Stretch { batches: 6, transactions: 0 },
            Stretch { batches: 4, transactions: 3 },
            Stretch { batches: 2, transactions: 1 },
        ],
        stops: &[3, 6],
    };

    /// Goal: the batches that make rows count as batches of the first stretch, and stops cut the stretches.
    #[test]
    fn stretches_are_cut_where_nodes_stopped() {
        let pieces = RECIPE.pieces(2).unwrap();
        let found: Vec<_> =
            pieces.iter().map(|(piece, stop)| (piece.batches, piece.transactions, *stop)).collect();
        assert_eq!(found, [(4, 0, Some(6)), (3, 3, Some(3)), (1, 3, None), (2, 1, None)]);
        assert!(RECIPE.pieces(7).is_err(), "the first stop is among the batches that create rows");
    }

    /// Goal: a chain has the batches, rows and stopped nodes of its recipe; it is made once.
    #[test]
    fn a_chain_is_what_its_recipe_says() {
        let dir = tempfile::tempdir().unwrap();
        let chain = RECIPE.make(dir.path(), Progress::Quiet).unwrap();
        // One transaction creates the token, two mint for 300 holders.
        assert_eq!((chain.head, chain.transactions), (12, 3 + 4 * 3 + 2));
        for behind in RECIPE.stops {
            let store = open(&chain.stopped(*behind)).unwrap();
            assert_eq!(store.head().unwrap().header.number.get(), 12 - behind);
            store.close();
        }
        let again = RECIPE.make(dir.path(), Progress::Quiet).unwrap();
        assert_eq!((again.head, again.state_root), (chain.head, chain.state_root));
    }
}
