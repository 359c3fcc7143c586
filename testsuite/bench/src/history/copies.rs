//! [`Copies`]: copies of one store that keep different past states, and their figures.

use anyhow::Result;
use slipstream_storage::{StateHistory, StorageConfig};
use tempfile::TempDir;

use crate::{
    Figure,
    harness::kept::{WorkDir, clone_store},
    size::short,
    state::{Cost, OwnStore, SizeDir, Workload, config, tree_memory_mib},
};
use slipnet::progress::Progress;

/// The states that a copy keeps, with their name in figures.
pub(super) type Kept = (&'static str, StateHistory);

pub(super) struct Copies {
    /// In the order of the requested [`Kept`].
    pub(super) stores: Vec<OwnStore>,
    pub(super) workload: Workload,
    // Declared after the stores: fields drop in order, and a store must close before its files are removed.
    _dir: TempDir,
}

impl Copies {
    /// Copies a filled store of `keys` keys, once for each of `kept`, with a workload of `batches` batches.
    pub(super) fn of(
        keys: u64,
        kept: &[Kept],
        batches: usize,
        place: &WorkDir,
        progress: Progress,
    ) -> Result<Copies> {
        let size_dir = SizeDir::open(place.dir(), keys)?;
        let store = size_dir.filled_store(progress)?;
        let copies = tempfile::tempdir_in(place.dir())?;
        let mut stores = Vec::new();
        for (name, state_history) in kept {
            let dir = copies.path().join(name);
            progress.step(&format!("opening a copy of {} keys that keeps {name}", short(keys)));
            clone_store(&store, &dir)?;
            let config = StorageConfig {
                state_history: *state_history,
                tree_memory_mib: tree_memory_mib(keys),
                ..config(true)
            };
            stores.push(OwnStore::open(&config, &dir)?);
        }
        Ok(Copies { stores, workload: size_dir.take(batches as u64)?, _dir: copies })
    }

    pub(super) fn close(self) {
        self.stores.iter().for_each(|ours| ours.store().close());
    }
}

/// Returns the figures of one copy.
pub(super) fn figures(name: &str, size: &str, costs: &[Cost]) -> [Figure; 3] {
    let name = |figure: &str| format!("{figure}.{name}.{size}");
    let of = |figure: fn(&Cost) -> f64| costs.iter().map(figure).collect();
    [
        Figure::new(name("updates_per_s"), "1/s", of(Cost::updates_per_s)),
        Figure::new(name("cpu_per_update"), "us", of(Cost::cpu_us_per_update)),
        Figure::new(name("bytes_per_update"), "bytes", of(Cost::bytes_per_update)),
    ]
}

/// Returns the seconds per update, round by round.
pub(super) fn seconds(commits: &[Cost]) -> Vec<f64> {
    commits.iter().map(|cost| 1.0 / cost.updates_per_s()).collect()
}
