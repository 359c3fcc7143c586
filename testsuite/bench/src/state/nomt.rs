//! The `nomt` crate: tree pages in a hash table on disk beside a B-tree of the values, written through io_uring.

use std::path::Path as FilePath;

use anyhow::Result;
use nomt::{KeyReadWrite, Nomt, Options, SessionParams, hasher::Sha2Hasher, trie::KeyPath};
use slipstream_types::Delta;

use super::{
    contender::{Committed, Contender},
    workload::{Initial, Round, rows},
};
use slipnet::progress::Progress;

/// Rows of one batch during filling; `nomt` syncs five files for each batch.
const FILL_ROWS: usize = 1_000_000;
/// Pages of the hash table, which allocates them all on disk at once. They take 1 GiB up to 5M keys. Then each 20 keys
/// have a page, so that lookups probe little, up to 10 GiB at 50M keys. At 100M keys a little more than half of these
/// pages is used.
const PAGES: (u64, u64) = (1 << 18, 2_500_000);
const KEYS_PER_PAGE: u64 = 20;
const PAGE_BYTES: u64 = 4 << 10;
/// Bytes per key and value in the file of values, with its free space and log: 165 were measured with 2M keys.
const VALUE_BYTES: u64 = 192;
/// A worker per core of the aims' machine.
const WORKERS: usize = 2;

type Writes = Vec<(KeyPath, KeyReadWrite)>;

/// The sizes of the caches of `nomt`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caches {
    pub(super) pages_mib: usize,
    pub(super) leaves_mib: usize,
}

pub(super) struct NomtPeer(Nomt<Sha2Hasher>);

impl NomtPeer {
    /// Returns the bytes that `nomt` needs on disk for `keys` keys.
    pub(super) fn disk_bytes(keys: u64) -> u64 {
        u64::from(pages(keys)) * PAGE_BYTES + keys * VALUE_BYTES
    }

    pub(super) fn fill(dir: &FilePath, caches: Caches, initial: &Initial, progress: Progress) -> Result<()> {
        let nomt = NomtPeer::open(dir, caches, initial.keys())?;
        let mut task = progress.task("keys", initial.keys());
        for (index, delta) in initial.deltas(FILL_ROWS).enumerate() {
            nomt.write(writes(&delta?))?;
            task.update(((FILL_ROWS * (index + 1)) as u64).min(initial.keys()), "");
        }
        Ok(())
    }

    pub(super) fn open(dir: &FilePath, caches: Caches, keys: u64) -> Result<NomtPeer> {
        let mut options = Options::new();
        options.path(dir);
        options.commit_concurrency(WORKERS);
        options.hashtable_buckets(pages(keys));
        options.page_cache_size(caches.pages_mib);
        options.leaf_cache_size(caches.leaves_mib);
        Ok(NomtPeer(Nomt::open(options)?))
    }

    /// Writes rows durably; `nomt` has no other mode.
    fn write(&self, writes: Writes) -> Result<()> {
        let session = self.0.begin_session(SessionParams::default());
        session.finish(writes)?.commit(&self.0)
    }
}

fn pages(keys: u64) -> u32 {
    (keys / KEYS_PER_PAGE).clamp(PAGES.0, PAGES.1) as u32
}

/// Returns the writes in the order of their paths, as `nomt` requires.
fn writes(delta: &Delta) -> Writes {
    let mut writes: Writes =
        rows(delta).into_iter().map(|(path, row)| (path.0, KeyReadWrite::Write(Some(row)))).collect();
    writes.sort_unstable_by_key(|(path, _)| *path);
    writes
}

impl Contender for NomtPeer {
    type Prepared = Vec<Writes>;

    fn prepare(&mut self, round: &Round) -> Result<Self::Prepared> {
        Ok(round.batches.iter().map(writes).collect())
    }

    fn commit(&mut self, prepared: Self::Prepared) -> Result<Committed> {
        let updates = prepared.iter().map(Vec::len).sum();
        prepared.into_iter().try_for_each(|writes| self.write(writes))?;
        Ok(Committed { updates })
    }
}
