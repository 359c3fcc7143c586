//! [`Snapshot`]: a frozen state that peers restore from, in chunks that each prove themselves.

use std::{ops::ControlFlow, sync::Arc};

use parking_lot::Mutex;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use slipstream_types::{
    BatchNumber, Bytes, Certificate, Digest, Path, StateKey, StateValue,
    bounded::BoundedVec,
    limits,
    tree::{Leaf, StateRangeProof},
};

use crate::{
    backend::{Column, Direction, Reader},
    error::{ChunkError, StorageError},
    schema::{self, HEAD_KEY, HeadRecord},
    state::Tree,
    store::{Current, Store, load_tree},
};

/// Most bytes of rows in one chunk: what is asked for by a peer must fit its blob's limit, with room for the proof.
const CHUNK_BYTES_MAX: usize = limits::DELTA_BYTES_MAX / 2;

/// What a snapshot is of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// The batch whose state it is.
    pub number: BatchNumber,
    /// The state's root.
    pub state_root: Digest,
    /// Certifies exactly this batch.
    pub certificate: Certificate,
}

/// A run of state rows with the proof that nothing between its ends is missing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StateChunk {
    /// Where it starts.
    pub first: Path,
    /// Where it ends, included; [`Path::MAX`] in the final chunk.
    pub last: Path,
    /// All rows between, sorted by path.
    pub rows: BoundedVec<(StateKey, StateValue), { limits::STATE_CHUNK_ROWS_MAX }>,
    /// The siblings beside both ends.
    pub proof: StateRangeProof,
}

impl StateChunk {
    /// Checks that the rows are exactly what the state with that root holds from `first` to `last`.
    pub fn verify(&self, root: Digest) -> Result<(), ChunkError> {
        self.verified_paths(root).map(|_| ())
    }

    /// As [`StateChunk::verify`]; returns the path of each row.
    pub(crate) fn verified_paths(&self, root: Digest) -> Result<Vec<Path>, ChunkError> {
        if let Some(index) = self.rows.iter().position(|(key, value)| !value.fits(key)) {
            return Err(ChunkError::BadValue { index });
        }
        let leaf =
            |(key, value): &(StateKey, StateValue)| Leaf { path: key.path(), value_hash: value.hash(key) };
        let leaves: Vec<Leaf> = self.rows.par_iter().map(leaf).collect();
        self.proof.verify(root, self.first, self.last, &leaves)?;
        Ok(leaves.into_iter().map(|leaf| leaf.path).collect())
    }
}

/// The state at one certified batch, kept while the head moves on.
pub struct Snapshot {
    info: SnapshotInfo,
    reader: Arc<dyn Reader>,
    column: Column,
    /// None after a restart, until the first chunk is asked for.
    tree: Mutex<Option<Tree>>,
}

impl Snapshot {
    /// What it is of.
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// The rows from `first` on: about `bytes_max` bytes of them, at least one.
    pub fn chunk(&self, first: Path, bytes_max: usize) -> Result<StateChunk, StorageError> {
        let bytes_max = bytes_max.min(CHUNK_BYTES_MAX);
        let mut rows: Vec<(StateKey, StateValue)> = Vec::new();
        let mut bytes = 0;
        let mut last = Path::MIN;
        let mut more = false;
        self.reader.scan(self.column, &first.0, Direction::Up, &mut |path, row| {
            if !rows.is_empty()
                && (bytes + row.len() > bytes_max || rows.len() == limits::STATE_CHUNK_ROWS_MAX)
            {
                more = true;
                return Ok(ControlFlow::Break(()));
            }
            bytes += row.len();
            last = Path(schema::decode_digest(path)?.0);
            rows.push(schema::decode_row(row)?);
            Ok(ControlFlow::Continue(()))
        })?;
        let last = if more { last } else { Path::MAX };
        let proof = self.tree()?.prove(&first, &last)?;
        Ok(StateChunk { first, last, rows: BoundedVec::new(rows)?, proof })
    }

    /// Contract code by its Keccak-256.
    pub fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        Ok(self.reader.get(Column::Codes, &hash.0)?.map(Bytes::from))
    }

    fn tree(&self) -> Result<Tree, StorageError> {
        let mut tree = self.tree.lock();
        if let Some(tree) = &*tree {
            return Ok(tree.clone());
        }
        let rebuilt = load_tree(&*self.reader, self.column)?;
        if rebuilt.root() != self.info.state_root {
            let number = self.info.number;
            return Err(StorageError::corrupt(format!(
                "the snapshot of batch {number} has another state root"
            )));
        }
        Ok(tree.insert(rebuilt).clone())
    }

    /// What a checkpoint of an earlier run holds, none if it is not a snapshot of that batch.
    fn load(number: BatchNumber, reader: Arc<dyn Reader>) -> Result<Option<Snapshot>, StorageError> {
        let Some(record) = reader.get(Column::Meta, HEAD_KEY)? else { return Ok(None) };
        let record: HeadRecord = schema::decode("head record", &record)?;
        let Some(certificate) = reader.get(Column::Certificates, &schema::number_key(number))? else {
            return Ok(None);
        };
        let certificate: Certificate = schema::decode("certificate", &certificate)?;
        let info = SnapshotInfo { number, state_root: certificate.info.state_root, certificate };
        let column = record.active.column();
        Ok((record.number == number).then_some(Snapshot { info, reader, column, tree: Mutex::new(None) }))
    }
}

impl Store {
    /// The snapshots that can be served, newest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.0.snapshots.lock().iter().rev().map(|snapshot| snapshot.info.clone()).collect()
    }

    /// The snapshot of exactly this batch. It stays readable while the handle is kept, even when newer ones replace it.
    pub fn snapshot(&self, number: BatchNumber) -> Result<Option<Arc<Snapshot>>, StorageError> {
        Ok(self.0.snapshots.lock().iter().find(|snapshot| snapshot.info.number == number).cloned())
    }

    /// Freezes the head's state if it is that batch's turn, and frees what is beyond the number kept. A snapshot serves
    /// others only, so its failure is logged and does not fail the commit. The caller holds the writer's lock.
    pub(crate) fn make_snapshot(&self, current: &Current, certificate: &Certificate) {
        let (config, number) = (&self.0.config, current.record.number);
        let due =
            config.snapshot_interval_batches > 0 && number.0.is_multiple_of(config.snapshot_interval_batches);
        if !due || config.snapshots_kept == 0 || matches!(self.snapshot(number), Ok(Some(_))) {
            return;
        }
        let reader = match self.0.backend.checkpoint(number.0) {
            Ok(reader) => reader,
            Err(error) => {
                tracing::warn!(%number, %error, "no snapshot was made; peers can still restore from older ones");
                return;
            }
        };
        let state_root = current.head.header.state_root;
        let info = SnapshotInfo { number, state_root, certificate: certificate.clone() };
        let (column, tree) = (current.record.active.column(), Mutex::new(Some(current.tree.clone())));
        self.0.snapshots.lock().push(Arc::new(Snapshot { info, reader, column, tree }));
        self.drop_old_snapshots();
    }

    /// Takes over the checkpoints of earlier runs.
    pub(crate) fn load_snapshots(&self, head: Option<BatchNumber>) -> Result<(), StorageError> {
        for (number, reader) in self.0.backend.checkpoints()? {
            match Snapshot::load(BatchNumber(number), reader) {
                Ok(Some(snapshot)) if Some(snapshot.info.number) <= head => {
                    self.0.snapshots.lock().push(Arc::new(snapshot));
                }
                Ok(_) => self.0.backend.remove_checkpoint(number)?,
                Err(error) => {
                    tracing::warn!(number, %error, "a snapshot cannot be read and is removed");
                    self.0.backend.remove_checkpoint(number)?;
                }
            }
        }
        self.drop_old_snapshots();
        Ok(())
    }

    fn drop_old_snapshots(&self) {
        let mut snapshots = self.0.snapshots.lock();
        let surplus = snapshots.len().saturating_sub(self.0.config.snapshots_kept);
        for snapshot in snapshots.drain(..surplus) {
            let number = snapshot.info.number;
            if let Err(error) = self.0.backend.remove_checkpoint(number.0) {
                tracing::warn!(%number, %error, "an old snapshot was not removed");
            }
        }
    }
}
