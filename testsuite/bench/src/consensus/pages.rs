//! The cost of shipping state instead of batches: all pages of 4 KiB that a batch changes. Systems that replicate a
//! whole machine ship such pages (Remus, in figure 11 of the Eve paper).

use std::{
    collections::{BTreeSet, HashMap},
    ops::RangeInclusive,
};

use anyhow::{Context, Result};
use slipstream_storage::Store;
use slipstream_types::{BatchNumber, BlobKind, Delta, Genesis, Path, StateKey, state::ROW_BYTES_MAX};

const PAGE_BYTES: u64 = 4_096;

/// The rows of a state, packed in order and as densely as possible into pages. Tree, ledger and free space are left
/// out.
pub(super) struct Pages {
    ranks: HashMap<StateKey, u64>,
}

impl Pages {
    /// Collects all rows that ever existed.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(super) fn of(store: &Store, genesis: &Genesis, head: u64) -> Result<Pages> {
        let accounts = genesis.accounts.keys().map(|address| StateKey::Account(*address));
        let mut rows: BTreeSet<(Path, StateKey)> = accounts.map(|key| (key.path(), key)).collect();
        for number in 1..=head {
            let delta = delta(store, number)?;
            rows.extend(delta.entries().iter().map(|entry| (entry.key.path(), entry.key)));
        }
        Ok(Pages { ranks: rows.into_iter().zip(0..).map(|((_, key), rank)| (key, rank)).collect() })
    }

    /// Returns the number of rows in all pages.
    pub(super) fn rows(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the bytes of the pages that these batches change, counted for each batch separately.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(super) fn changed_bytes(&self, store: &Store, batches: RangeInclusive<u64>) -> Result<u64> {
        let mut pages = 0;
        for number in batches {
            let delta = delta(store, number)?;
            let ranks = delta.entries().iter().filter_map(|entry| self.ranks.get(&entry.key));
            pages +=
                ranks.map(|rank| rank / (PAGE_BYTES / ROW_BYTES_MAX as u64)).collect::<BTreeSet<_>>().len();
        }
        Ok(pages as u64 * PAGE_BYTES)
    }
}

fn delta(store: &Store, number: u64) -> Result<Delta> {
    let blob = store.blob(BlobKind::Delta, BatchNumber::new(number))?;
    let blob = blob.with_context(|| format!("the delta of batch {number} is not kept"))?;
    Ok(Delta::decode(&blob.content(BlobKind::Delta)?)?)
}
