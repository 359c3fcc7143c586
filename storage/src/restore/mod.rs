//! [`Restore`]: fills the unused state column with the state of a certified batch, then makes it the head.
//!
//! ```text
//!   chunks, any order ─▶ verified alone ─▶ one sorted run per place ─▶ SST file ─▶ linked into the column ─▶ record
//!                              └─ its nodes ─▶ the run's tree ────────────────────▶ joined into the target's tree
//! ```
//!
//! The record says which paths are still to do. It is written after the rows that it counts have become durable, so a kill
//! costs at most the open runs, and rows that were linked in before their record are simply fetched and put again. A restore that
//! gets another target keeps its rows, as *unchecked*: see [`retarget`].

mod finish;
mod retarget;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::atomic::Ordering,
};

use parking_lot::Mutex;
use slipstream_types::{BatchHeader, BatchNumber, Certificate, Digest, Path, keccak256};

use crate::{
    backend::{Column, Direction, SortedRun, WriteBatch},
    chunk::{self, StateChunk, VerifiedChunk},
    error::{ChunkError, RestoreError, StorageError},
    schema::{self, RESTORE_KEY, RestoreRecord},
    spans::{Span, Spans},
    state::Tree,
    store::{Current, Store},
};
pub(crate) use finish::follow_each_other;
#[cfg(test)]
pub(crate) use retarget::SPANS_MAX;
pub use retarget::{Checked, Retargeted};

/// Most headers that come with a restored state: as far as BLOCKHASH looks back.
pub const RESTORE_HEADERS_MAX: usize = 256;
/// Ranges that a restore begins with, as a power of two. More than a machine has cores and a node has peers, so that
/// all of them are busy until the end; few enough that a file of one is worth its fsync.
const RANGES_BITS: u8 = 6;
/// Bytes of rows after which a run becomes durable: what a kill costs, against the number of files. Tests have little
/// states and want to see many runs.
const RUN_BYTES_MAX: usize = if cfg!(test) { 1 << 10 } else { 32 << 20 };

/// The batch whose state is restored. The caller has verified the certificate's signatures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RestoreTarget {
    /// Its header.
    pub header: BatchHeader,
    /// Certifies exactly this batch.
    pub certificate: Certificate,
}

/// A restore in progress, for many threads at once. Dropping it keeps what was stored; [`Store::restore`] goes on from there.
pub struct Restore {
    store: Store,
    target: RestoreTarget,
    column: Column,
    generation: u64,
    progress: Mutex<Progress>,
}

struct Progress {
    /// As it is stored.
    record: RestoreRecord,
    /// What is neither stored nor in a run.
    todo: Spans,
    /// Runs by the path at which they go on.
    runs: BTreeMap<Path, Run>,
    /// Rows in `runs` and in those that are being written to.
    rows_open: u64,
    /// Of the rows that this handle stored, as their chunks proved it.
    tree: Tree,
    /// The paths whose rows the tree lacks: an earlier handle stored them.
    not_in_tree: Spans,
}

/// Chunks that follow each other, on their way into one file.
struct Run {
    writer: Box<dyn SortedRun>,
    spans: Vec<Span>,
    rows: u64,
    bytes: usize,
    codes: BTreeSet<Digest>,
    /// Of the rows from `in_tree`, which are those of whole chunks.
    tree: Tree,
    in_tree: Vec<Span>,
}

impl Store {
    /// Goes on with the recorded restore if there is one. If that has another target, its rows are kept and wait to be checked
    /// against this one ([`Restore::unchecked`]). Handles from earlier calls end here.
    ///
    /// # Errors
    /// [`RestoreError::NotAhead`]; [`StorageError::WrongCertificate`] if header and certificate do not belong together;
    /// [`RestoreError::DamagedRows`], after which the same call begins anew.
    pub fn restore(&self, target: &RestoreTarget) -> Result<Restore, StorageError> {
        let RestoreTarget { header, certificate } = target;
        let number = certificate.info.number;
        if header.number != number || header.state_root != certificate.info.state_root {
            let reason = "it is not about the header that is to be restored";
            return Err(StorageError::WrongCertificate { number, reason });
        }
        let _writer = self.0.writer.lock();
        let current = self.current()?;
        check_ahead(&current, number)?;
        let generation = self.0.restore_generation.fetch_add(1, Ordering::AcqRel) + 1;
        let column = current.record.active.other();
        let recorded = self.restore_record()?.filter(|record| record.column == column);
        let record = match recorded {
            Some(record) if record.header == *header => record,
            Some(record) => self.retarget(record, target)?,
            None => {
                let record = RestoreRecord {
                    header: header.clone(),
                    certificate: certificate.clone(),
                    column,
                    todo: Spans::divided(RANGES_BITS),
                    unchecked: Spans::default(),
                    rows: 0,
                    kept: Retargeted::default(),
                };
                self.guard(|backend| backend.reclaim(column.column()))?;
                let mut writes = WriteBatch::default();
                writes.clear(Column::MissingCodes);
                writes.put(Column::Meta, RESTORE_KEY, schema::encode(&record));
                self.write(writes, true)?;
                record
            }
        };
        Ok(Restore {
            store: self.clone(),
            target: target.clone(),
            column: column.column(),
            generation,
            progress: Mutex::new(Progress {
                todo: record.todo.clone(),
                record,
                runs: BTreeMap::new(),
                rows_open: 0,
                tree: Tree::default(),
                not_in_tree: Spans::divided(0),
            }),
        })
    }

    /// The target of the restore that is recorded but not finished, if there is one: what a restarted node may go on with.
    pub fn recorded_restore(&self) -> Result<Option<RestoreTarget>, StorageError> {
        let record = self.restore_record()?;
        Ok(record.map(|RestoreRecord { header, certificate, .. }| RestoreTarget { header, certificate }))
    }

    fn restore_record(&self) -> Result<Option<RestoreRecord>, StorageError> {
        let bytes = self.0.backend.get(Column::Meta, RESTORE_KEY)?;
        bytes.map(|bytes| schema::decode("restore record", &bytes)).transpose()
    }

    /// Gives a restore up if the error is damage to its rows, with that as the answer: nothing in use depends on them, and the next
    /// restore drops their files without reading them. The caller holds the writer's lock.
    fn give_up_damaged(&self, target: BatchNumber, error: StorageError) -> StorageError {
        let StorageError::Corrupt { what } = error else { return error };
        let mut writes = WriteBatch::default();
        writes.clear(Column::MissingCodes);
        writes.delete(Column::Meta, RESTORE_KEY);
        if let Err(error) = self.write_unguarded(writes, true) {
            return error;
        }
        // Ends the handle, which would write the record again.
        self.0.restore_generation.fetch_add(1, Ordering::AcqRel);
        RestoreError::DamagedRows { target, what: what.to_string() }.into()
    }

    /// Frees the rows of a restore that was given up because the node caught up in another way, and those that a finished one
    /// put out of use.
    pub(crate) fn discard_overtaken_restore(&self) -> Result<(), StorageError> {
        let Ok(current) = self.current() else { return Ok(()) };
        if let Some(record) = self.restore_record()? {
            if check_ahead(&current, record.header.number).is_ok() {
                return Ok(());
            }
            let mut writes = WriteBatch::default();
            writes.clear(Column::MissingCodes);
            writes.delete(Column::Meta, RESTORE_KEY);
            // On a disk that is nearly full too: this makes room.
            self.write_unguarded(writes, self.0.config.fsync)?;
        }
        self.guard(|backend| backend.reclaim(current.record.active.other().column()))
    }
}

fn check_ahead(current: &Current, target: BatchNumber) -> Result<(), RestoreError> {
    let head = current.record.number;
    if head < target { Ok(()) } else { Err(RestoreError::NotAhead { head, target }) }
}

impl Restore {
    /// What is restored.
    pub fn target(&self) -> &RestoreTarget {
        &self.target
    }

    /// Where the first chunk that is missing starts; none when all rows are in.
    pub fn next_path(&self) -> Option<Path> {
        self.progress.lock().todo.first().map(|span| span.first)
    }

    /// Up to `max` ranges whose rows are missing, from the first path on. A chunk is due at the start of each; they may be
    /// fetched and added at the same time and in any order. What is under way is still among them: the caller knows.
    pub fn next_ranges(&self, max: usize) -> Vec<Span> {
        self.progress.lock().todo.iter().take(max).collect()
    }

    /// Rows of this target so far.
    pub fn rows(&self) -> u64 {
        let progress = self.progress.lock();
        progress.record.rows + progress.rows_open
    }

    /// Share of the state's paths that is done, 0 to 1: paths are hashes, so this is the share of the rows too.
    pub fn share(&self) -> f64 {
        let progress = self.progress.lock();
        (1.0 - progress.todo.share() - progress.record.unchecked.share()).clamp(0.0, 1.0)
    }

    /// Verifies a chunk against the target's state root and adds it.
    ///
    /// # Errors
    /// [`RestoreError::WrongStart`], [`RestoreError::Chunk`]; nothing of the chunk is stored then.
    pub fn add_chunk(&self, chunk: &StateChunk) -> Result<(), StorageError> {
        let content = slipstream_types::codec::encode("state chunk", chunk)?;
        let root = self.target.header.state_root;
        let verified = VerifiedChunk::open(content, root).map_err(RestoreError::Chunk)?;
        self.add_verified(verified)
    }

    /// Adds a chunk that starts where a range of [`Restore::next_ranges`] does. Its rows are durable some chunks later, or
    /// when this handle is dropped.
    ///
    /// # Errors
    /// [`RestoreError::WrongStart`], [`RestoreError::OtherRoot`]; nothing of the chunk is stored then.
    pub fn add_verified(&self, chunk: VerifiedChunk) -> Result<(), StorageError> {
        let found = chunk.first();
        self.add(chunk, |todo| match todo.starting_at(found) {
            Some(_) => Ok(()),
            None => Err(RestoreError::WrongStart { expected: todo.first().map(|span| span.first), found }),
        })
    }

    /// Whether rows between two paths are missing.
    pub(crate) fn is_missing(&self, span: Span) -> bool {
        !self.progress.lock().todo.within(span).is_empty()
    }

    /// Adds those rows of a chunk that are missing, wherever it starts.
    pub(crate) fn fill(&self, chunk: VerifiedChunk) -> Result<(), StorageError> {
        self.add(chunk, |_| Ok(()))
    }

    /// Adds what is missing of a chunk if it is admitted by what is to do. From then on the paths are this call's alone.
    fn add(
        &self,
        chunk: VerifiedChunk,
        admit: impl FnOnce(&Spans) -> Result<(), RestoreError>,
    ) -> Result<(), StorageError> {
        self.check_generation()?;
        let (expected, found) = (self.target.header.state_root, chunk.root());
        if expected != found {
            return Err(RestoreError::OtherRoot { expected, found }.into());
        }
        self.store.check_room(chunk.stored_bytes())?;
        let covered = Span { first: chunk.first(), last: chunk.last() };
        let (spans, run) = {
            let mut progress = self.progress.lock();
            admit(&progress.todo)?;
            let spans = progress.todo.within(covered);
            if spans.is_empty() {
                return Ok(());
            }
            progress.todo.remove(covered);
            (spans, progress.runs.remove(&covered.first))
        };
        let mut run = match run {
            Some(run) => run,
            None => Run::begin(self.store.0.backend.sorted_run(self.column)?),
        };
        let added = self.store.guard(|_| run.append(chunk, spans))?;

        let mut progress = self.progress.lock();
        progress.rows_open += added;
        let goes_on = covered.last.successor().filter(|next| progress.todo.starting_at(*next).is_some());
        match goes_on.filter(|_| run.bytes < RUN_BYTES_MAX) {
            Some(next) => {
                progress.runs.insert(next, run);
                Ok(())
            }
            None => {
                drop(progress);
                self.commit_run(run)
            }
        }
    }

    /// Up to `max` hashes of code that restored accounts have and the store does not.
    pub fn missing_codes(&self, max: usize) -> Result<Vec<Digest>, StorageError> {
        self.commit_runs()?;
        let mut hashes = Vec::new();
        if max == 0 {
            return Ok(hashes);
        }
        self.store.0.backend.scan(Column::MissingCodes, &[], Direction::Up, &mut |key, _| {
            hashes.push(schema::decode_digest(key)?);
            Ok(if hashes.len() == max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(hashes)
    }

    /// Stores code under its Keccak-256.
    ///
    /// # Errors
    /// [`RestoreError::UnwantedCode`] if it is not one of the missing ones.
    pub fn add_code(&self, code: &[u8]) -> Result<(), StorageError> {
        self.commit_runs()?;
        let hash = Digest::from(keccak256(code));
        let _writer = self.store.0.writer.lock();
        self.check_generation()?;
        if self.store.0.backend.get(Column::MissingCodes, &hash.0)?.is_none() {
            return Err(RestoreError::UnwantedCode { hash }.into());
        }
        let mut writes = WriteBatch::default();
        writes.delete(Column::MissingCodes, hash.0);
        writes.put(Column::Codes, hash.0, code);
        self.store.write(writes, false)
    }

    /// Makes all open runs durable.
    fn commit_runs(&self) -> Result<(), StorageError> {
        let runs = std::mem::take(&mut self.progress.lock().runs);
        runs.into_values().try_for_each(|run| self.commit_run(run))
    }

    /// Ends a run: its file becomes part of the column, then the record says so.
    fn commit_run(&self, mut run: Run) -> Result<(), StorageError> {
        self.store.guard(|_| run.writer.seal())?;
        let _writer = self.store.0.writer.lock();
        self.check_generation()?;
        let mut writes = WriteBatch::default();
        self.put_missing_codes(&run.codes, &mut writes)?;
        self.store.guard(|_| run.writer.ingest())?;

        let mut progress = self.progress.lock();
        let mut record = progress.record.clone();
        run.spans.iter().for_each(|span| record.todo.remove(*span));
        run.in_tree.iter().for_each(|span| progress.not_in_tree.remove(*span));
        progress.tree.join(run.tree)?;
        record.rows += run.rows;
        writes.put(Column::Meta, RESTORE_KEY, schema::encode(&record));
        // Not refused on a disk that is nearly full: the rows are there already.
        self.store.write_unguarded(writes, false)?;
        progress.record = record;
        progress.rows_open -= run.rows;
        Ok(())
    }

    fn put_missing_codes(
        &self,
        hashes: &BTreeSet<Digest>,
        writes: &mut WriteBatch,
    ) -> Result<(), StorageError> {
        let keys: Vec<&[u8]> = hashes.iter().map(|hash| &hash.0[..]).collect();
        let stored = self.store.0.backend.multi_get(Column::Codes, &keys)?;
        for (hash, _) in hashes.iter().zip(stored).filter(|(_, code)| code.is_none()) {
            writes.put(Column::MissingCodes, hash.0, []);
        }
        Ok(())
    }

    /// Binding only for who holds the writer's lock.
    fn check_generation(&self) -> Result<(), RestoreError> {
        match self.store.0.restore_generation.load(Ordering::Acquire) == self.generation {
            true => Ok(()),
            false => Err(RestoreError::Superseded { target: self.target.header.number }),
        }
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        let committed = self.commit_runs();
        if let Err(error) = committed
            && !matches!(error, StorageError::Restore(RestoreError::Superseded { .. }))
        {
            tracing::warn!(%error, "the last rows of a restore were not kept; they are fetched again");
        }
    }
}

impl Run {
    fn begin(writer: Box<dyn SortedRun>) -> Run {
        Run {
            writer,
            spans: Vec::new(),
            rows: 0,
            bytes: 0,
            codes: BTreeSet::new(),
            tree: Tree::default(),
            in_tree: Vec::new(),
        }
    }

    /// Appends those rows of a chunk that are in the spans; returns how many.
    fn append(&mut self, chunk: VerifiedChunk, spans: Vec<Span>) -> Result<u64, StorageError> {
        let before = self.rows;
        let mut due = spans.iter().copied().peekable();
        for (path, row) in chunk.stored_rows() {
            while due.next_if(|span| span.last < *path).is_some() {}
            if due.peek().is_none_or(|span| *path < span.first) {
                continue;
            }
            self.writer.put(&path.0, row)?;
            self.rows += 1;
            self.bytes += row.len() + path.0.len();
            self.codes.extend(chunk::code_hash(row));
        }
        let covered = chunk.span();
        if covers(&spans, covered) {
            self.tree.join(chunk.into_tree())?;
            self.in_tree.push(covered);
        }
        self.spans.extend(spans);
        Ok(self.rows - before)
    }
}

/// Whether parts of a span, in order, are all of it.
fn covers(parts: &[Span], span: Span) -> bool {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return false };
    let gapless = parts.windows(2).all(|pair| pair[0].last.successor() == Some(pair[1].first));
    gapless && first.first == span.first && last.last == span.last
}

impl From<ChunkError> for StorageError {
    fn from(error: ChunkError) -> Self {
        StorageError::Restore(RestoreError::Chunk(error))
    }
}
