//! [`Filled`]: a filled store, and the batches with which a child continues.

use std::path::PathBuf;

use anyhow::Result;
use slipstream_storage::StorageConfig;

use super::{
    contender::{OwnStore, config},
    workload::Workload,
};

/// A filled store, and its next batches.
#[derive(Clone, Debug, clap::Args)]
pub struct Filled {
    /// The store.
    #[arg(long)]
    pub dir: PathBuf,
    /// The number of keys that it was filled with.
    #[arg(long)]
    pub keys: u64,
    /// The number of batches made before.
    #[arg(long)]
    pub after: u64,
    /// Memory for the state tree, as in the configuration.
    #[arg(long)]
    pub tree_memory_mib: u64,
    /// Updates of a batch.
    #[arg(long)]
    pub updates: usize,
    /// Batches of a round.
    #[arg(long)]
    pub batches: usize,
}

impl Filled {
    /// Returns the arguments of a child that takes these options and the options in `own`.
    pub(crate) fn arguments(&self, own: impl IntoIterator<Item = (&'static str, String)>) -> Vec<String> {
        [
            ("--dir", self.dir.display().to_string()),
            ("--keys", self.keys.to_string()),
            ("--after", self.after.to_string()),
            ("--tree-memory-mib", self.tree_memory_mib.to_string()),
            ("--updates", self.updates.to_string()),
            ("--batches", self.batches.to_string()),
        ]
        .into_iter()
        .chain(own)
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }

    /// Opens the store, and continues its workload.
    pub(crate) fn open(&self) -> Result<(OwnStore, Workload)> {
        let config = StorageConfig { tree_memory_mib: self.tree_memory_mib, ..config(true) };
        Ok((OwnStore::open(&config, &self.dir)?, Workload::after(self.keys, self.after)))
    }
}
