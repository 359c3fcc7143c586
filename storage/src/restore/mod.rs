//! [`Restore`]: the [`Takeover`] of all rows. It fills the unused state column with the state of a certified batch,
//! then makes that batch the head.
//!
//! ```text
//!   chunks, any order ─▶ verified alone ─▶ one sorted file per range ─▶ sealed ─▶ linked into the column ─▶ record
//!                              └─ its nodes ─▶ the file's tree ──────────────────▶ joined into the target's tree
//! ```
//!
//! The record lists the paths that are still to do. It is written after the rows that it counts are durable, so a
//! kill costs at most the open files. Rows that were linked in before their record are fetched and written again. A
//! restore that gets another target keeps its rows, as *unchecked*: see [`retarget`].

mod finish;
mod retarget;
mod rows;

use std::{collections::BTreeMap, ops::ControlFlow, sync::atomic::Ordering};

use parking_lot::Mutex;
use slipstream_types::{BatchNumber, Digest, Path, keccak256};

use crate::{
    backend::{Column, Direction, WriteBatch},
    error::{RestoreError, StorageError},
    schema::{self, RESTORE_KEY, RestoreRecord, Retargeted},
    shared::HeadState,
    span::Span,
    spans::Spans,
    state::Tree,
    store::Store,
    takeover::{Ancestry, RestoreTarget, Takeover},
    writer::Writer,
};
pub use retarget::RangeCheck;
use rows::OpenFile;

/// Ranges that a new restore begins with ([`Span::divided`]), as a power of two. They outnumber the cores of a machine and
/// the peers of a node, so all stay busy until the end. They are few enough that each range's file is worth its fsync.
pub const RESTORE_RANGES_BITS: u8 = 6;

/// A restore in progress, for many threads at once. Dropping it keeps what was stored; [`Store::restore`] continues
/// from there.
pub struct Restore {
    store: Store,
    target: RestoreTarget,
    column: Column,
    generation: u64,
    progress: Mutex<Progress>,
}

struct Progress {
    /// The record as it is stored.
    record: RestoreRecord,
    /// Paths that are neither stored nor in an open file.
    todo: Spans,
    /// Open files by the path at which they continue.
    open_files: BTreeMap<Path, OpenFile>,
    /// Rows in `open_files` and in files that are being written.
    rows_open: u64,
    /// The tree of the rows that this handle stored, as their chunks proved it.
    tree: Tree,
    /// The paths whose rows the tree lacks: an earlier handle stored them.
    not_in_tree: Spans,
}

impl Store {
    /// Continues the recorded restore if there is one. If the recorded target is another one, its rows are kept, to be
    /// checked against `target` ([`Restore::unchecked`]). Handles from earlier calls become invalid.
    ///
    /// # Errors
    /// [`RestoreError::NotAhead`]; [`StorageError::WrongCertificate`] if header and certificate do not belong together;
    /// [`RestoreError::DamagedRows`], after which the same call begins anew.
    pub fn restore(&self, target: &RestoreTarget) -> Result<Restore, StorageError> {
        target.check()?;
        self.check_rules(&target.header)?;
        let RestoreTarget { header, certificate } = target;
        let number = header.number;
        let writer = self.writer();
        let current = self.current()?;
        check_ahead(&current, number)?;
        let generation = writer.end_restores();
        let column = current.record.active.other();
        let recorded = self.restore_record()?.filter(|record| record.column == column);
        let record = match recorded {
            Some(record) if record.header == *header => record,
            Some(record) => writer.retarget(record, target)?,
            None => {
                let record = RestoreRecord {
                    header: header.clone(),
                    certificate: certificate.clone(),
                    column,
                    todo: Spans::divided(RESTORE_RANGES_BITS),
                    unchecked: Spans::default(),
                    rows: 0,
                    kept: Retargeted::default(),
                };
                self.reclaim(column.column())?;
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
                open_files: BTreeMap::new(),
                rows_open: 0,
                tree: Tree::default(),
                not_in_tree: Spans::divided(0),
            }),
        })
    }

    /// Returns the target of the recorded, unfinished restore, if there is one, so that a restarted node can continue
    /// it.
    pub fn recorded_restore(&self) -> Result<Option<RestoreTarget>, StorageError> {
        let record = self.restore_record()?;
        Ok(record.map(|RestoreRecord { header, certificate, .. }| RestoreTarget { header, certificate }))
    }

    fn restore_record(&self) -> Result<Option<RestoreRecord>, StorageError> {
        let bytes = self.0.backend.get(Column::Meta, RESTORE_KEY)?;
        bytes.map(|bytes| schema::decode("restore record", &bytes)).transpose()
    }
}

impl Writer<'_> {
    /// If the error is damage to a restore's rows, abandons the restore and returns [`RestoreError::DamagedRows`].
    /// Data in use does not depend on these rows, and the next restore drops their files unread.
    fn give_up_damaged(&self, target: BatchNumber, error: StorageError) -> StorageError {
        let StorageError::Corrupt { what } = error else { return error };
        let mut writes = WriteBatch::default();
        writes.clear(Column::MissingCodes);
        writes.delete(Column::Meta, RESTORE_KEY);
        if let Err(error) = self.store.write_unguarded(writes, true) {
            return error;
        }
        // Invalidates the handle, which would write the record again.
        self.end_restores();
        RestoreError::DamagedRows { target, what: what.to_string() }.into()
    }

    /// Frees the rows of a restore that is useless because the node caught up in another way. Also frees the rows
    /// that a finished restore put out of use.
    pub(crate) fn discard_overtaken_restore(&self) -> Result<(), StorageError> {
        let Ok(current) = self.store.current() else { return Ok(()) };
        if let Some(record) = self.store.restore_record()? {
            if check_ahead(&current, record.header.number).is_ok() {
                return Ok(());
            }
            let mut writes = WriteBatch::default();
            writes.clear(Column::MissingCodes);
            writes.delete(Column::Meta, RESTORE_KEY);
            // Allowed on a nearly full disk too, because it makes room.
            self.store.write_unguarded(writes, self.store.0.config.fsync)?;
        }
        self.store.reclaim(current.record.active.other().column())
    }
}

fn check_ahead(current: &HeadState, target: BatchNumber) -> Result<(), RestoreError> {
    let head = current.record.number;
    if head < target { Ok(()) } else { Err(RestoreError::NotAhead { head, target }) }
}

impl Takeover for Restore {
    fn target(&self) -> &RestoreTarget {
        &self.target
    }

    fn missing(&self, max: usize) -> Vec<Span> {
        self.progress.lock().todo.iter().take(max).collect()
    }

    fn rows(&self) -> u64 {
        let progress = self.progress.lock();
        progress.record.rows + progress.rows_open
    }

    fn share(&self) -> f64 {
        let progress = self.progress.lock();
        (1.0 - progress.todo.share() - progress.record.unchecked.share()).clamp(0.0, 1.0)
    }

    fn missing_codes(&self, max: usize) -> Result<Vec<Digest>, StorageError> {
        self.commit_files()?;
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

    fn add_code(&self, code: &[u8]) -> Result<(), StorageError> {
        self.commit_files()?;
        let hash = Digest::from(keccak256(code));
        let _writer = self.writer()?;
        if self.store.0.backend.get(Column::MissingCodes, &hash.0)?.is_none() {
            return Err(RestoreError::UnwantedCode { hash }.into());
        }
        let mut writes = WriteBatch::default();
        writes.delete(Column::MissingCodes, hash.0);
        writes.put(Column::Codes, hash.0, code);
        self.store.write(writes, false)
    }

    /// Checks the root of the whole tree, and that the certified ledger contains the headers and the store's genesis.
    /// Then switches state and head in one write. The store keeps `genesis_proof`, and later commits extend it, so it
    /// can prove its genesis in every later ledger. After a failure the rows stay, and other headers can finish the
    /// restore; only [`RestoreError::DamagedRows`] makes it begin anew.
    fn finish(&self, ancestry: &Ancestry<'_>) -> Result<(), StorageError> {
        self.become_head(ancestry)
    }
}

impl Restore {
    /// Returns the writer, unless a later restore took over. Holding it keeps later ones out.
    fn writer(&self) -> Result<Writer<'_>, RestoreError> {
        let writer = self.store.writer();
        self.check_generation()?;
        Ok(writer)
    }

    /// Checks that no later restore took over so far.
    fn check_generation(&self) -> Result<(), RestoreError> {
        match self.store.0.restore_generation.load(Ordering::Acquire) == self.generation {
            true => Ok(()),
            false => Err(RestoreError::Superseded { target: self.target.header.number }),
        }
    }
}
