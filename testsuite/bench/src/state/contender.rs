//! The contenders: the store, and RocksDB without a tree.

use std::{num::NonZeroUsize, path::Path as FilePath};

use anyhow::{Context, Result};
use rocksdb::{DB, WriteBatch, WriteOptions};
use slipstream_storage::{CommitBatch, StateHistory, StorageConfig, Store, plain_database};
use slipstream_types::{BatchHeader, Delta, Digest, Genesis, Path};

use super::{
    meter::{Cost, Meter},
    workload::{Initial, Round, rows},
};
use crate::harness::files::wait_until_quiet;
use slipnet::progress::Progress;

/// Rows of one batch while a store is filled.
pub(super) const FILL_ROWS: usize = 250_000;
/// The column of a store's state; see docs/formats.md.
pub(super) const STATE_COLUMN: &str = "state_a";

/// A system that makes batches durable.
pub(crate) trait Contender {
    /// A round in the form in which the timed part takes it.
    type Prepared;

    fn prepare(&mut self, round: &Round) -> Result<Self::Prepared>;

    /// Makes batch after batch durable. Only this is timed.
    fn commit(&mut self, prepared: Self::Prepared) -> Result<Committed>;
}

/// The durable result of a commit.
pub(crate) struct Committed {
    pub(super) updates: usize,
}

/// Measures one round of a contender.
pub(crate) fn measure<C: Contender>(contender: &mut C, round: &Round) -> Result<Cost> {
    let prepared = contender.prepare(round)?;
    let meter = Meter::start()?;
    let Committed { updates } = contender.commit(prepared)?;
    meter.stop(updates)
}

/// Returns the configuration of all contenders. A state's working set fits into the cache: the bench measures
/// committing, not reading.
pub(crate) fn config(fsync: bool) -> StorageConfig {
    // Past states are not part of this measurement.
    let state_history = StateHistory::Batches(0);
    StorageConfig { snapshot_interval_batches: 0, fsync, state_history, ..StorageConfig::default() }
}

/// How a store gets its batches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Way {
    /// As a follower commits certified batches: roots are in the headers, and one batch is hashed while the previous
    /// one is written. The roots are computed before the clock starts, which touches the timed keys.
    Given,
    /// As a validator commits: the root is computed and put into the header, and the batch is committed with the
    /// computed nodes. All of it is timed, and nothing touched the keys before.
    Fresh,
    /// As [`Way::Fresh`], for a validator that is a batch ahead: the next root is computed while a batch is written.
    Ahead,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Given => "given",
            Way::Fresh => "fresh",
            Way::Ahead => "ahead",
        }
    }
}

/// The node's own store.
pub(crate) struct OwnStore(Store);

impl OwnStore {
    pub(crate) fn fill(dir: &FilePath, initial: &Initial, progress: Progress) -> Result<()> {
        let store = Store::open(&config(false), dir)?;
        store.initialize(&genesis())?;
        let mut task = progress.task("keys", initial.keys());
        for (index, delta) in initial.deltas(FILL_ROWS).enumerate() {
            let delta = delta?;
            let speculation = store.speculate(&delta)?;
            let header = next_header(&store.head()?.header, speculation.root());
            store.commit(CommitBatch::new(&header, &delta), Some(speculation))?;
            task.update(((FILL_ROWS * (index + 1)) as u64).min(initial.keys()), "");
        }
        // RocksDB is still compacting; closing it now would stop the compactions.
        wait_until_quiet()?;
        store.close();
        Ok(())
    }

    pub(crate) fn open(config: &StorageConfig, dir: &FilePath) -> Result<OwnStore> {
        let store = Store::open(config, dir);
        let store = store.with_context(|| {
            format!(
                "cannot open the kept store in {}; remove it, and the bench fills a new one",
                dir.display()
            )
        });
        Ok(OwnStore(store?))
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0
    }

    /// Returns the store as a contender that gets its batches in one way.
    pub(crate) fn by(&self, way: Way) -> ByWay<'_> {
        ByWay { store: &self.0, way }
    }
}

/// A store, and how it gets its batches.
pub(crate) struct ByWay<'a> {
    store: &'a Store,
    way: Way,
}

impl ByWay<'_> {
    fn commit_fresh(&self, deltas: &[Delta]) -> Result<()> {
        let mut parent = self.store.head()?.header;
        for delta in deltas {
            let speculation = self.store.speculate(delta)?;
            let header = next_header(&parent, speculation.root());
            self.store.commit(CommitBatch::new(&header, delta), Some(speculation))?;
            parent = header;
        }
        Ok(())
    }

    fn commit_ahead(&self, deltas: &[Delta]) -> Result<()> {
        let Some(first) = deltas.first() else { return Ok(()) };
        let mut parent = self.store.head()?.header;
        let mut speculation = self.store.speculate(first)?;
        for (index, delta) in deltas.iter().enumerate() {
            let header = next_header(&parent, speculation.root());
            let state = speculation.state();
            let commit = || self.store.commit(CommitBatch::new(&header, delta), Some(speculation));
            let following = deltas.get(index + 1);
            let speculate = || following.map(|delta| self.store.speculate_after(&state, delta)).transpose();
            let (committed, next) = rayon::join(commit, speculate);
            committed?;
            let Some(next) = next? else { break };
            speculation = next;
            parent = header;
        }
        Ok(())
    }
}

/// A round for the store.
pub(crate) struct Deltas {
    /// The headers for [`Way::Given`].
    headers: Vec<BatchHeader>,
    deltas: Vec<Delta>,
}

impl Contender for ByWay<'_> {
    type Prepared = Deltas;

    /// Each header's root is that of all deltas up to it.
    fn prepare(&mut self, round: &Round) -> Result<Deltas> {
        let mut prepared = Deltas { headers: Vec::new(), deltas: round.batches.clone() };
        if self.way == Way::Given {
            let mut parent = self.store.head()?.header;
            for end in 1..=round.batches.len() {
                let run: Vec<&Delta> = round.batches[..end].iter().collect();
                parent = next_header(&parent, self.store.speculate_run(&run)?);
                prepared.headers.push(parent.clone());
            }
        }
        Ok(prepared)
    }

    fn commit(&mut self, Deltas { headers, deltas }: Deltas) -> Result<Committed> {
        match self.way {
            Way::Given => {
                let batches: Vec<_> = headers
                    .iter()
                    .zip(&deltas)
                    .map(|(header, delta)| CommitBatch::new(header, delta))
                    .collect();
                self.store.commit_run(&batches, NonZeroUsize::MIN)?;
            }
            Way::Fresh => self.commit_fresh(&deltas)?,
            Way::Ahead => self.commit_ahead(&deltas)?,
        }
        Ok(Committed { updates: deltas.iter().map(|delta| delta.entries().len()).sum() })
    }
}

/// RocksDB without a tree.
pub(super) struct Floor(DB);

impl Floor {
    pub(super) fn fill(dir: &FilePath, initial: &Initial) -> Result<()> {
        let floor = Floor::open(dir)?;
        initial.deltas(FILL_ROWS).try_for_each(|delta| floor.write(&rows(&delta?), false))?;
        wait_until_quiet()?;
        Ok(floor.0.flush_wal(true)?)
    }

    pub(super) fn open(dir: &FilePath) -> Result<Floor> {
        Ok(Floor(plain_database(&config(true), dir)?))
    }

    fn write(&self, rows: &[(Path, Vec<u8>)], sync: bool) -> Result<()> {
        let family = self.0.cf_handle(STATE_COLUMN).context("the database lacks the state column")?;
        let mut batch = WriteBatch::default();
        for (path, row) in rows {
            batch.put_cf(family, path.0, row);
        }
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        Ok(self.0.write_opt(batch, &options)?)
    }
}

impl Contender for Floor {
    type Prepared = Vec<Vec<(Path, Vec<u8>)>>;

    fn prepare(&mut self, round: &Round) -> Result<Self::Prepared> {
        Ok(round.batches.iter().map(rows).collect())
    }

    fn commit(&mut self, prepared: Self::Prepared) -> Result<Committed> {
        prepared.iter().try_for_each(|rows| self.write(rows, true))?;
        Ok(Committed { updates: prepared.iter().map(Vec::len).sum() })
    }
}

fn genesis() -> Genesis {
    slipstream_testkit::genesis(&slipstream_testkit::keys([1]), 0)
}

pub(crate) fn next_header(parent: &BatchHeader, state_root: Digest) -> BatchHeader {
    BatchHeader {
        number: parent.number.next(),
        parent: parent.digest(),
        timestamp_ms: parent.timestamp_ms + 1,
        state_root,
        ..parent.clone()
    }
}
