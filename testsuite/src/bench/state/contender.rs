//! Who is measured: the store, and RocksDB with no tree.

use std::{fs, num::NonZeroUsize, path::Path as FilePath};

use anyhow::{Context, Result};
use rocksdb::{DB, WriteBatch, WriteOptions};
use slipstream_storage::{CommitBatch, StateHistory, StorageConfig, Store, plain_database};
use slipstream_types::{
    Address, BatchHeader, ChainConfig, Delta, Digest, Genesis, Path, SecretKey, Validator,
    bounded::BoundedVec,
};

use super::workload::{Round, Workload, rows};
use crate::progress::Progress;

/// Rows of one batch while a store is filled.
const FILL_ROWS: u64 = 250_000;
/// The column that a store keeps its state in; see docs/formats.md.
pub(super) const STATE_COLUMN: &str = "state_a";

/// Somebody who makes batches durable.
pub(super) trait Contender {
    /// A round as it is when the clock starts.
    type Prepared;

    fn prepare(&mut self, round: &Round) -> Result<Self::Prepared>;

    /// Makes batch after batch durable. Only this is timed.
    fn commit(&mut self, prepared: Self::Prepared) -> Result<Committed>;
}

/// What was made durable.
pub(super) struct Committed {
    pub(super) updates: usize,
}

/// The same for everybody, and a state's working set in the cache: what is measured is committing, not reading.
pub(super) fn config(fsync: bool) -> StorageConfig {
    // What is kept of the past is no part of it.
    let state_history = StateHistory::Batches(0);
    StorageConfig { snapshot_interval_batches: 0, fsync, state_history, ..StorageConfig::default() }
}

/// The store.
pub(super) struct Ours(Store);

impl Ours {
    pub(super) fn fill(dir: &FilePath, workload: &Workload, progress: Progress) -> Result<()> {
        fs::create_dir_all(dir)?;
        let store = Store::open(&config(false), dir)?;
        store.initialize(&genesis())?;
        let mut task = progress.task("keys", workload.keys());
        for (index, delta) in workload.initial(FILL_ROWS).enumerate() {
            let delta = delta?;
            let speculation = store.speculate(&delta)?;
            let header = next_header(&store.head()?.header, speculation.root());
            store.commit(CommitBatch::new(&header, &delta), Some(speculation))?;
            task.update(FILL_ROWS * (index as u64 + 1), "");
        }
        store.close();
        Ok(())
    }

    pub(super) fn open(dir: &FilePath) -> Result<Ours> {
        Ok(Ours(Store::open(&config(true), dir)?))
    }
}

impl Contender for Ours {
    type Prepared = Vec<(BatchHeader, Delta)>;

    /// The headers' roots are those of the runs of deltas up to each.
    fn prepare(&mut self, round: &Round) -> Result<Self::Prepared> {
        let mut parent = self.0.head()?.header;
        let mut prepared = Vec::new();
        for end in 1..=round.batches.len() {
            let run: Vec<&Delta> = round.batches[..end].iter().collect();
            parent = next_header(&parent, self.0.speculate_run(&run)?);
            prepared.push((parent.clone(), round.batches[end - 1].clone()));
        }
        Ok(prepared)
    }

    fn commit(&mut self, prepared: Self::Prepared) -> Result<Committed> {
        let batches: Vec<_> =
            prepared.iter().map(|(header, delta)| CommitBatch::new(header, delta)).collect();
        self.0.commit_run(&batches, NonZeroUsize::MIN)?;
        Ok(Committed { updates: prepared.iter().map(|(_, delta)| delta.entries().len()).sum() })
    }
}

/// RocksDB with no tree.
pub(super) struct Floor(DB);

impl Floor {
    pub(super) fn fill(dir: &FilePath, workload: &Workload) -> Result<Floor> {
        fs::create_dir_all(dir)?;
        let floor = Floor(plain_database(&config(true), dir)?);
        for delta in workload.initial(FILL_ROWS) {
            floor.write(&rows(&delta?), false)?;
        }
        Ok(floor)
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
    let public_key = SecretKey::from_seed([1; 32]).public();
    let validator = Validator { public_key, fee_recipient: Address::ZERO };
    Genesis {
        chain: ChainConfig::default(),
        timestamp_ms: 0,
        validators: BoundedVec::new(vec![validator]).expect("one validator is within the limit"),
        accounts: Default::default(),
        ..Genesis::default()
    }
}

fn next_header(parent: &BatchHeader, state_root: Digest) -> BatchHeader {
    BatchHeader {
        number: parent.number.next(),
        parent: parent.digest(),
        timestamp_ms: parent.timestamp_ms + 1,
        state_root,
        ..parent.clone()
    }
}
