//! Rows of verified chunks on their way to the disk: an [`OpenFile`] per run of adjacent chunks, which becomes part of
//! the column. Few rows are written like those of a commit instead, because a file costs some milliseconds of syncs. A
//! small state is divided into as many ranges as a large one.

use std::collections::BTreeSet;

use slipstream_types::Digest;

use super::Restore;
use crate::{
    backend::{Column, Rows, SortedFile, WriteBatch},
    chunk::{self, StateChunk, VerifiedChunk},
    error::{RestoreError, StorageError},
    schema::{self, RESTORE_KEY},
    span::Span,
    spans::Spans,
    state::Tree,
};

/// Chunks that follow each other, on their way into one file.
#[derive(Default)]
pub(super) struct OpenFile {
    /// `None` while the rows are few.
    writer: Option<Box<dyn SortedFile>>,
    /// The rows until there is a file.
    first_rows: Rows,
    spans: Vec<Span>,
    rows: u64,
    bytes: usize,
    codes: BTreeSet<Digest>,
    /// The tree of the rows in `in_tree`, which come from whole chunks.
    tree: Tree,
    in_tree: Vec<Span>,
}

impl Restore {
    /// Verifies a chunk against the target's state root and adds it.
    ///
    /// # Errors
    /// [`RestoreError::WrongStart`], [`RestoreError::Chunk`]; nothing of the chunk is stored then.
    pub fn add_chunk(&self, chunk: &StateChunk) -> Result<(), StorageError> {
        let content = slipstream_types::codec::encode("state chunk", chunk)?;
        let root = self.target.header.state_root;
        let verified = VerifiedChunk::open(content, root).map_err(RestoreError::Chunk)?;
        self.add(verified)
    }

    /// Adds a chunk that starts where a range of [`crate::Takeover::missing`] does. Its rows become durable some
    /// chunks later, or when this handle is dropped.
    ///
    /// # Errors
    /// [`RestoreError::WrongStart`], [`RestoreError::OtherRoot`]; nothing of the chunk is stored then.
    pub fn add(&self, chunk: VerifiedChunk) -> Result<(), StorageError> {
        let found = chunk.first();
        self.admit(chunk, |todo| match todo.starting_at(found) {
            Some(_) => Ok(()),
            None => Err(RestoreError::WrongStart { expected: todo.first().map(|span| span.first), found }),
        })
    }

    /// Whether any part of a span is still missing.
    pub fn is_missing(&self, span: Span) -> bool {
        !self.progress.lock().todo.within(span).is_empty()
    }

    /// Adds the missing rows of a chunk, wherever it starts.
    ///
    /// # Errors
    /// [`RestoreError::OtherRoot`]; nothing of the chunk is stored then.
    pub fn fill(&self, chunk: VerifiedChunk) -> Result<(), StorageError> {
        self.admit(chunk, |_| Ok(()))
    }

    /// Adds the missing rows of a chunk if `check` admits it; `check` gets the paths that are still to do. Once
    /// admitted, the chunk's paths belong to this call alone.
    fn admit(
        &self,
        chunk: VerifiedChunk,
        check: impl FnOnce(&Spans) -> Result<(), RestoreError>,
    ) -> Result<(), StorageError> {
        self.check_generation()?;
        let (expected, found) = (self.target.header.state_root, chunk.root());
        if expected != found {
            return Err(RestoreError::OtherRoot { expected, found }.into());
        }
        self.store.check_room(chunk.stored_bytes())?;
        let covered = Span { first: chunk.first(), last: chunk.last() };
        let density = chunk.density();
        let (spans, file) = {
            let mut progress = self.progress.lock();
            check(&progress.todo)?;
            let spans = progress.todo.within(covered);
            if spans.is_empty() {
                return Ok(());
            }
            progress.todo.remove_chunk(covered, density);
            (spans, progress.open_files.remove(&covered.first))
        };
        let mut file = file.unwrap_or_default();
        let tuning = &self.store.0.config.tuning;
        let added = self.store.guard(|backend| {
            let file_bytes_min = backend.file_bytes_min(tuning.file_bytes_min);
            file.append(chunk, spans, file_bytes_min, || backend.sorted_file(self.column))
        })?;

        let mut progress = self.progress.lock();
        progress.rows_open += added;
        let goes_on = covered.last.successor().filter(|next| progress.todo.starting_at(*next).is_some());
        match goes_on.filter(|_| file.bytes < tuning.file_bytes_max) {
            Some(next) => {
                progress.open_files.insert(next, file);
                Ok(())
            }
            None => {
                drop(progress);
                self.commit_file(file)
            }
        }
    }

    /// Makes all open files durable.
    pub(super) fn commit_files(&self) -> Result<(), StorageError> {
        let files = std::mem::take(&mut self.progress.lock().open_files);
        files.into_values().try_for_each(|file| self.commit_file(file))
    }

    /// Completes a file: makes it part of the column, then records it.
    fn commit_file(&self, mut file: OpenFile) -> Result<(), StorageError> {
        if let Some(writer) = &mut file.writer {
            self.store.guard(|_| writer.seal())?;
        }
        let _writer = self.writer()?;
        let mut writes = WriteBatch::default();
        self.put_missing_codes(&file.codes, &mut writes)?;
        match file.writer {
            Some(writer) => self.store.guard(|_| writer.ingest())?,
            None => writes.rows(self.column, file.first_rows),
        }

        let mut progress = self.progress.lock();
        let mut record = progress.record.clone();
        file.spans.iter().for_each(|span| record.todo.remove(*span));
        file.in_tree.iter().for_each(|span| progress.not_in_tree.remove(*span));
        progress.tree.join(file.tree)?;
        record.rows += file.rows;
        writes.put(Column::Meta, RESTORE_KEY, schema::encode(&record));
        // Allowed on a nearly full disk too: the rows are there already.
        self.store.write_unguarded(writes, false)?;
        progress.record = record;
        progress.rows_open -= file.rows;
        Ok(())
    }

    pub(super) fn put_missing_codes(
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
}

impl Drop for Restore {
    fn drop(&mut self) {
        let committed = self.commit_files();
        if let Err(error) = committed
            && !matches!(error, StorageError::Restore(RestoreError::Superseded { .. }))
        {
            tracing::warn!(%error, "cannot save the last rows of a restore; the node fetches them again");
        }
    }
}

impl OpenFile {
    /// Appends the rows of a chunk that are in the spans; returns their number. Begins a file once there are
    /// `file_bytes_min` bytes of rows.
    fn append(
        &mut self,
        chunk: VerifiedChunk,
        spans: Vec<Span>,
        file_bytes_min: usize,
        begin: impl Fn() -> Result<Box<dyn SortedFile>, StorageError>,
    ) -> Result<u64, StorageError> {
        let before = self.rows;
        let mut due = spans.iter().copied().peekable();
        for (path, row) in chunk.stored_rows() {
            while due.next_if(|span| span.last < *path).is_some() {}
            if due.peek().is_none_or(|span| *path < span.first) {
                continue;
            }
            match &mut self.writer {
                Some(writer) => writer.put(&path.0, row)?,
                None => {
                    _ = self.first_rows.push(*path, Some(|bytes: &mut Vec<u8>| bytes.extend_from_slice(row)))
                }
            }
            if self.writer.is_none() && self.first_rows.byte_len() >= file_bytes_min {
                let mut writer = begin()?;
                for (path, row) in std::mem::take(&mut self.first_rows).iter() {
                    writer.put(&path.0, row.unwrap_or_default())?;
                }
                self.writer = Some(writer);
            }
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

/// Whether parts of a span, in order, cover all of it.
fn covers(parts: &[Span], span: Span) -> bool {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return false };
    let gapless = parts.windows(2).all(|pair| pair[0].last.successor() == Some(pair[1].first));
    gapless && first.first == span.first && last.last == span.last
}
