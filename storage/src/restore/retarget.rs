//! Gives a restore whose target is no longer served a newer target, and keeps the rows that are still right.
//!
//! Most of a state is the same some thousand batches later. The rows of the older target therefore stay, and a range proof at the
//! newer root checks each range of them. A peer sends the siblings beside the range; the rows are this store's own. If both give
//! the root, these rows are exactly the newer state's. A peer that sends wrong siblings can make this node fetch a range again,
//! but never keep a wrong one.

use std::{collections::BTreeSet, ops::ControlFlow};

use slipstream_types::{
    Digest, Path,
    tree::{Leaf, Leaves, StateRangeProof},
};

use super::Restore;
use crate::{
    backend::{Column, Direction, Reader, WriteBatch},
    chunk,
    error::{RestoreError, StorageError},
    schema::{self, RESTORE_KEY, RestoreRecord, Retargeted},
    span::Span,
    spans::Spans,
    takeover::RestoreTarget,
    tuning::Tuning,
    writer::Writer,
};

/// Parts of [`Tuning::check_rows_max`] rows that a wrong range is divided into. Each has the rows of about one chunk, so
/// that fetching it costs no more than further checks.
const PARTS: usize = 8;

/// The result of checking a range of unchecked rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeCheck {
    /// The rows are right, and are kept.
    Kept,
    /// Something in the range changed: it was divided, and its parts wait to be checked.
    Divided,
    /// Something in the range changed: its rows are gone, and it is fetched again.
    Refetch,
}

/// The rows of one range, reduced to what checking needs.
struct LocalRange {
    leaves: Vec<Leaf>,
    codes: BTreeSet<Digest>,
    bytes: u64,
}

impl Writer<'_> {
    /// Moves a restore's record to a newer target.
    pub(super) fn retarget(
        &self,
        old: RestoreRecord,
        target: &RestoreTarget,
    ) -> Result<RestoreRecord, StorageError> {
        let column = old.column.column();
        let mut writes = WriteBatch::default();
        // Deletes rows that were linked in just before a kill, because nothing would ever check them.
        for span in old.todo.iter() {
            let local = scan_local(&*self.store.0.backend, column, span, 1)
                .map_err(|error| self.give_up_damaged(old.header.number, error))?;
            if !local.leaves.is_empty() {
                writes.clear_range(column, span.first.0, span.last.0);
            }
        }
        let record = RestoreRecord {
            header: target.header.clone(),
            certificate: target.certificate.clone(),
            column: old.column,
            unchecked: old.todo.complement(),
            todo: old.todo,
            rows: 0,
            kept: Retargeted::default(),
        };
        // Checking the kept rows finds out again which code is missing.
        writes.clear(Column::MissingCodes);
        writes.put(Column::Meta, RESTORE_KEY, schema::encode(&record));
        self.store.write(writes, true)?;
        let (from, to) = (old.header.number, target.header.number);
        tracing::info!(%from, %to, rows = old.rows, "the restore moves to a newer target; checking the restored rows against it");
        Ok(record)
    }
}

impl Restore {
    /// Returns up to `max` ranges of rows that an older target left. For each, [`Restore::check_range`] needs a proof
    /// from a peer that has this target's state.
    ///
    /// # Errors
    /// [`RestoreError::DamagedRows`], after which the restore begins anew.
    pub fn unchecked(&self, max: usize) -> Result<Vec<Span>, StorageError> {
        let spans: Vec<Span> = self.progress.lock().record.unchecked.iter().take(max).collect();
        // Cut to what one check takes; the rest of a long span comes later.
        let shortened: Result<_, StorageError> = spans.into_iter().map(|span| self.shortened(span)).collect();
        shortened.or_else(|error| {
            let writer = self.writer()?;
            Err(writer.give_up_damaged(self.target.header.number, error))
        })
    }

    /// Returns the rows of an older target that were kept so far.
    pub fn retargeted(&self) -> Retargeted {
        self.progress.lock().record.kept
    }

    /// Checks the rows of a range against the target's root, by the siblings beside it. Keeps them, divides the
    /// range, or deletes them.
    ///
    /// # Errors
    /// [`RestoreError::NotUnchecked`] if the range is not part of one of [`Restore::unchecked`];
    /// [`RestoreError::DamagedRows`], after which the restore begins anew.
    pub fn check_range(&self, span: Span, proof: &StateRangeProof) -> Result<RangeCheck, StorageError> {
        let writer = self.writer()?;
        let mut progress = self.progress.lock();
        let mut record = progress.record.clone();
        if !record.unchecked.contains(span) {
            let target = self.target.header.number;
            return Err(RestoreError::NotUnchecked { target, first: span.first }.into());
        }
        let Tuning { check_rows_max, restore_spans_max, .. } = self.store.0.config.tuning;
        let local = scan_local(&*self.store.0.backend, self.column, span, check_rows_max + 1)
            .map_err(|error| writer.give_up_damaged(self.target.header.number, error))?;
        let root = self.target.header.state_root;
        let is_whole = local.leaves.len() <= check_rows_max;
        let is_right = is_whole && proof.verify(root, span.first, span.last, &local.leaves).is_ok();
        let is_short = record.unchecked.len() + record.todo.len() < restore_spans_max;
        let part_rows = check_rows_max / PARTS;
        let many = local.leaves.len() > part_rows && is_short;

        record.unchecked.remove(span);
        let mut writes = WriteBatch::default();
        let checked = if is_right {
            record.rows += local.leaves.len() as u64;
            record.kept.rows += local.leaves.len() as u64;
            record.kept.bytes += local.bytes;
            self.put_missing_codes(&local.codes, &mut writes)?;
            RangeCheck::Kept
        } else if many {
            divide(span, &local.leaves, part_rows, &mut record.unchecked);
            RangeCheck::Divided
        } else {
            writes.clear_range(self.column, span.first.0, span.last.0);
            match is_short {
                true => record.todo.insert(span),
                false => record.todo.insert_joined(span),
            }
            RangeCheck::Refetch
        };
        writes.put(Column::Meta, RESTORE_KEY, schema::encode(&record));
        self.store.write(writes, false)?;
        if checked == RangeCheck::Refetch {
            progress.todo.insert(span);
        }
        if record.unchecked.is_empty() {
            let Retargeted { rows, bytes } = record.kept;
            tracing::info!(batch = %self.target.header.number, rows, bytes, "checked the rows of an older restore; keeping the valid ones");
        }
        progress.record = record;
        Ok(checked)
    }

    fn shortened(&self, span: Span) -> Result<Span, StorageError> {
        let rows_max = self.store.0.config.tuning.check_rows_max;
        let local = scan_keys(&*self.store.0.backend, self.column, span, rows_max)?;
        Ok(match local {
            Some(last) => Span { last, ..span },
            None => span,
        })
    }
}

/// Cuts a span after every `part_rows` rows.
fn divide(span: Span, leaves: &[Leaf], part_rows: usize, into: &mut Spans) {
    let mut first = Some(span.first);
    for rows in leaves.chunks(part_rows) {
        let (Some(start), Some(end)) = (first, rows.last()) else { return };
        first = end.path.successor().filter(|next| *next <= span.last);
        into.insert(Span { first: start, last: end.path });
    }
    if let Some(first) = first {
        into.insert(Span { first, last: span.last });
    }
}

/// Reads the rows of a span, at most `max`.
fn scan_local(
    reader: &dyn Reader,
    column: Column,
    span: Span,
    max: usize,
) -> Result<LocalRange, StorageError> {
    let mut leaves = Leaves::default();
    let mut local = LocalRange { leaves: Vec::new(), codes: BTreeSet::new(), bytes: 0 };
    reader.scan(column, &span.first.0, Direction::Up, &mut |key, row| {
        let path = Path(schema::decode_digest(key)?.0);
        if path > span.last {
            return Ok(ControlFlow::Break(()));
        }
        leaves.push(path, row);
        local.codes.extend(chunk::code_hash(row));
        local.bytes += (key.len() + row.len()) as u64;
        Ok(if leaves.len() == max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    local.leaves = leaves.finish();
    Ok(local)
}

/// Returns the path of the `max`-th row of a span, or `None` if the span has at most `max` rows.
fn scan_keys(
    reader: &dyn Reader,
    column: Column,
    span: Span,
    max: usize,
) -> Result<Option<Path>, StorageError> {
    let (mut count, mut last) = (0, None);
    reader.scan(column, &span.first.0, Direction::Up, &mut |key, _| {
        let path = Path(schema::decode_digest(key)?.0);
        if path > span.last || count > max {
            return Ok(ControlFlow::Break(()));
        }
        count += 1;
        if count == max {
            last = Some(path);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(last.filter(|_| count > max))
}
