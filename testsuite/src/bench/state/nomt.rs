//! The `nomt` crate: pages of a tree in a hash table on disk beside a B-tree of the values, written through io_uring.

use std::path::Path as FilePath;

use anyhow::Result;
use nomt::{KeyReadWrite, Nomt, Options, SessionParams, hasher::Sha2Hasher, trie::KeyPath};
use slipstream_types::Delta;

use super::{
    contender::{Committed, Contender},
    workload::{Round, Workload, rows},
};
use crate::progress::Progress;

/// Larger batches fill it no faster.
const FILL_ROWS: u64 = 250_000;
/// Pages of the hash table, 1 GiB: one in twelve is used at 1M keys, so that it probes little.
const PAGES: u32 = 1 << 18;
/// Everything fits: what is measured is committing, not reading.
const CACHE_MIB: usize = 1_024;
/// A worker per core of the machine that the aims are about.
const WORKERS: usize = 2;

type Writes = Vec<(KeyPath, KeyReadWrite)>;

pub(super) struct NomtPeer(Nomt<Sha2Hasher>);

impl NomtPeer {
    pub(super) fn fill(dir: &FilePath, workload: &Workload, progress: Progress) -> Result<NomtPeer> {
        let mut options = Options::new();
        options.path(dir);
        options.commit_concurrency(WORKERS);
        options.hashtable_buckets(PAGES);
        options.page_cache_size(CACHE_MIB);
        options.leaf_cache_size(CACHE_MIB);
        let nomt = NomtPeer(Nomt::open(options)?);
        let mut task = progress.task("keys", workload.keys());
        for (index, delta) in workload.initial(FILL_ROWS).enumerate() {
            nomt.write(writes(&delta?))?;
            task.update(FILL_ROWS * (index as u64 + 1), "");
        }
        Ok(nomt)
    }

    /// Durable when it returns: it knows no other way.
    fn write(&self, writes: Writes) -> Result<()> {
        let session = self.0.begin_session(SessionParams::default());
        session.finish(writes)?.commit(&self.0)
    }
}

/// It wants them in the order of their paths.
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
