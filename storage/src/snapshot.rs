//! [`Snapshot`]: a frozen state that peers restore from, in chunks that each prove themselves.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use slipstream_types::{
    BatchNumber, Bytes, Certificate, Digest, Path, codec,
    tree::{Leaves, StateRangeProof},
};

use crate::{
    backend::{Column, Direction, Reader},
    chunk::{ChunkBuilder, EncodedChunk, StateChunk},
    error::StorageError,
    frontier,
    schema::{self, HEAD_KEY, HeadRecord},
    span::Span,
    state::{
        Tree,
        load::{ColumnRows, load_tree},
    },
};

/// Receives a row with its path, and returns whether to continue.
type VisitRow<'a> = dyn FnMut(Path, &[u8]) -> Result<ControlFlow<()>, StorageError> + 'a;

/// Describes a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// The batch whose state it is.
    pub number: BatchNumber,
    /// The root that its rows must give.
    pub state_root: Digest,
    /// Certifies exactly this batch.
    pub certificate: Certificate,
    /// Number of rows of the state. For a snapshot of an earlier process, it is the head's count at start, which is
    /// about equal; 0 if that is unknown.
    pub rows: u64,
}

/// The state at one certified batch, kept while the head moves on.
pub struct Snapshot {
    info: SnapshotInfo,
    reader: Arc<dyn Reader>,
    column: Column,
    tree_memory_mib: u64,
    /// The directory of [`crate::frontier`]; `None` for a store in memory.
    frontiers: Option<PathBuf>,
    /// Missing after a restart, until it is loaded.
    tree: OnceLock<Tree>,
    /// Whether some of its rows were not compared with the tree.
    unread: AtomicBool,
    /// Held while the tree is loaded. Callers that find the tree take no lock.
    loading: Mutex<()>,
}

impl Snapshot {
    pub(crate) fn new(
        info: SnapshotInfo,
        reader: Arc<dyn Reader>,
        column: Column,
        tree_memory_mib: u64,
        frontiers: Option<PathBuf>,
        tree: Option<Tree>,
        unread: bool,
    ) -> Snapshot {
        let tree = tree.map_or_else(OnceLock::new, OnceLock::from);
        let (unread, loading) = (AtomicBool::new(unread), Mutex::new(()));
        Snapshot { info, reader, column, tree_memory_mib, frontiers, tree, unread, loading }
    }

    /// The whole database as it was.
    pub(crate) fn reader(&self) -> &dyn Reader {
        &*self.reader
    }

    /// Returns the snapshot's description.
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// Returns the rows from `first` on: about `bytes_max` bytes of them, at least one row.
    pub fn chunk(&self, first: Path, bytes_max: usize) -> Result<StateChunk, StorageError> {
        let chunk = self.encoded_chunk(first, Path::MAX, bytes_max)?;
        Ok(codec::decode("state chunk", &chunk.content, usize::MAX)?)
    }

    /// As [`Snapshot::chunk`], but encoded as it is sent, and ending at `last` at the latest.
    pub fn encoded_chunk(
        &self,
        first: Path,
        last: Path,
        bytes_max: usize,
    ) -> Result<EncodedChunk, StorageError> {
        let mut found = None;
        self.chunks(first, last, bytes_max, &mut |chunk| {
            found = Some(chunk);
            Ok(ControlFlow::Break(()))
        })?;
        found.ok_or_else(|| self.damaged("a scan of the state ended without a chunk"))
    }

    /// Makes all chunks from `first` to `last`, in order, in one scan. Nothing is decoded or hashed: rows are passed
    /// on as they are stored, and the proofs come from the tree.
    pub fn chunks(
        &self,
        first: Path,
        last: Path,
        bytes_max: usize,
        visit: &mut dyn FnMut(EncodedChunk) -> Result<ControlFlow<()>, StorageError>,
    ) -> Result<(), StorageError> {
        self.own(self.scan_chunks(first, last, bytes_max, visit))
    }

    fn scan_chunks(
        &self,
        first: Path,
        last: Path,
        bytes_max: usize,
        visit: &mut dyn FnMut(EncodedChunk) -> Result<ControlFlow<()>, StorageError>,
    ) -> Result<(), StorageError> {
        let tree = self.tree()?;
        let is_unread = self.unread.load(Ordering::Acquire);
        // Nobody compared this tree with its rows yet. So the chunk's rows are compared; otherwise the receiver might
        // refuse what is served.
        let mut leaves = Leaves::default();
        let finish = |chunk: ChunkBuilder, end: Path, leaves: &mut Leaves| {
            chunk.finish(end, |first, last| {
                let proof = tree.prove(first, last)?;
                if is_unread {
                    proof
                        .verify(self.info.state_root, *first, *last, &std::mem::take(leaves).finish())
                        .map_err(|error| self.damaged(error.to_string()))?;
                }
                Ok(proof)
            })
        };
        let mut building = Some(ChunkBuilder::new(first, bytes_max));
        self.reader.scan(self.column, &first.0, Direction::Up, &mut |path, row| {
            let path = Path(schema::decode_digest(path)?.0);
            if path > last {
                return Ok(ControlFlow::Break(()));
            }
            if let Some(full) = building.take_if(|chunk| chunk.is_full(row.len())) {
                let end = full.last();
                if visit(finish(full, end, &mut leaves)?)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                let next = end.successor().unwrap_or(Path::MAX);
                building = Some(ChunkBuilder::new(next, bytes_max));
            }
            if let Some(chunk) = &mut building {
                chunk.push(path, row);
                if is_unread {
                    leaves.push(path, row);
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if let Some(rest) = building {
            // Nothing comes after the last chunk, so the visitor's answer does not matter.
            let _ = visit(finish(rest, last, &mut leaves)?)?;
        }
        Ok(())
    }

    /// Visits the rows of a span as they are stored, by ascending path.
    pub(crate) fn scan_rows(&self, span: Span, visit: &mut VisitRow<'_>) -> Result<(), StorageError> {
        self.own(self.reader.scan(self.column, &span.first.0, Direction::Up, &mut |path, row| {
            let path = Path(schema::decode_digest(path)?.0);
            if path > span.last { Ok(ControlFlow::Break(())) } else { visit(path, row) }
        }))
    }

    /// Proves the state's content from `first` to `last` to a peer that has these rows.
    pub fn range_proof(&self, first: Path, last: Path) -> Result<StateRangeProof, StorageError> {
        self.own(self.tree()?.prove(&first, &last))
    }

    /// Returns a row as it is stored.
    pub(crate) fn row(&self, path: &Path) -> Result<Option<Vec<u8>>, StorageError> {
        self.own(self.reader.get(self.column, &path.0))
    }

    /// Returns contract code by its Keccak-256.
    pub fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        Ok(self.own(self.reader.get(Column::Codes, &hash.0))?.map(Bytes::from))
    }

    /// Whether chunks and proofs can be made at once. The tree of an earlier process' snapshot is not in memory, and
    /// loading it reads all rows: seconds to minutes. This never waits, not even while another thread loads.
    pub fn is_ready(&self) -> bool {
        self.tree.get().is_some()
    }

    /// Loads the tree if it is missing. One thread loads it. Other threads that call this, or ask for a chunk or a
    /// proof, wait for that thread.
    ///
    /// # Errors
    /// [`StorageError::DamagedSnapshot`] if its rows do not match its root; or errors of the disk.
    pub fn load(&self) -> Result<(), StorageError> {
        self.tree().map(|_| ())
    }

    pub(crate) fn tree(&self) -> Result<&Tree, StorageError> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let _loading = self.loading.lock();
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let found = self.frontiers.as_deref().and_then(|dir| {
            let (number, state_root) = (self.info.number, self.info.state_root);
            let rows = ColumnRows::new(Arc::clone(&self.reader), self.column);
            let resident_max = Tree::resident_max(self.tree_memory_mib);
            frontier::load(dir, (number, self.column, state_root), rows, resident_max)
        });
        let rebuilt = match found {
            Some((tree, _)) => {
                self.unread.store(true, Ordering::Release);
                tree
            }
            None => self.own(load_tree(&self.reader, self.column, self.tree_memory_mib))?,
        };
        if rebuilt.root() != self.info.state_root {
            return Err(self.damaged("its rows give another state root"));
        }
        Ok(self.tree.get_or_init(|| rebuilt))
    }

    /// The error for damage to this snapshot alone.
    pub(crate) fn damaged(&self, what: impl Into<String>) -> StorageError {
        StorageError::DamagedSnapshot { number: self.info.number, what: what.into() }
    }

    /// Converts an error of reading the snapshot: its damage is not damage to the store.
    pub(crate) fn own<T>(&self, read: Result<T, StorageError>) -> Result<T, StorageError> {
        read.map_err(|error| match error {
            StorageError::Corrupt { what } => self.damaged(what.to_string()),
            other => other,
        })
    }

    /// Opens a checkpoint of an earlier process as a snapshot; `None` if it is not a snapshot of that batch.
    pub(crate) fn of_checkpoint(
        number: BatchNumber,
        rows: u64,
        reader: Arc<dyn Reader>,
        tree_memory_mib: u64,
        frontiers: Option<PathBuf>,
    ) -> Result<Option<Snapshot>, StorageError> {
        let Some(record) = reader.get(Column::Meta, HEAD_KEY)? else { return Ok(None) };
        let record: HeadRecord = schema::decode("head record", &record)?;
        let Some(certificate) = reader.get(Column::Certificates, &schema::number_key(number))? else {
            return Ok(None);
        };
        let certificate: Certificate = schema::decode("certificate", &certificate)?;
        let info = SnapshotInfo { number, state_root: certificate.info.state_root, certificate, rows };
        let column = record.active.column();
        let snapshot = Snapshot::new(info, reader, column, tree_memory_mib, frontiers, None, false);
        Ok((record.number == number).then_some(snapshot))
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::{BatchNumber, Path};

    use crate::{
        StorageConfig,
        tests::{Fixture, Ledger, config},
    };

    /// Goal: a load of minutes delays only callers that need the tree. They can tell a running load from a finished one
    /// without waiting.
    #[test]
    fn only_who_needs_the_load_waits_for_it() {
        let config = StorageConfig { snapshot_interval_batches: 10, ..config() };
        let mut fixture = Fixture::initialized(&config, true);
        Ledger::new().commit_up_to(fixture.store(), 20);
        let made = fixture.store().snapshot(BatchNumber::new(20)).unwrap().unwrap();
        assert!(made.is_ready(), "a new snapshot has the head's tree");
        let loading = made.loading.lock();
        made.chunk(Path::MIN, 300).unwrap();
        drop(loading);
        drop(made);

        fixture.reopen();
        let of_before = fixture.store().snapshot(BatchNumber::new(20)).unwrap().unwrap();
        let loading = of_before.loading.lock();
        assert!(!of_before.is_ready());
        drop(loading);
        of_before.load().unwrap();
        assert!(of_before.is_ready());
        let loading = of_before.loading.lock();
        of_before.load().unwrap();
        of_before.range_proof(Path::MIN, Path::MAX).unwrap();
        drop(loading);
    }
}
