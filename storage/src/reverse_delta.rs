//! Reverse deltas: the rows that a range of batches changed, as they were before it. They restore states from before
//! the first known one.
//!
//! ```text
//!   server: deltas of to+1..=from ─▶ changed keys ─▶ their rows after `to` ─▶ reverse delta
//!   client: reverse delta ─▶ the tree of `from` with these rows, root of `to` ─▶ rows before to+1..=from ─▶ history
//! ```
//! The client has the deltas of the range. Of each changed key, these deltas have all values but the one before the
//! range; the reverse delta has that one. A reverse delta needs no proof: with a false or missing row, the tree's root
//! differs from the header of `to`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use slipstream_types::{BatchNumber, BlobKind, Delta, Digest, Path, StateKey, StateValue, delta::DeltaEntry};

use crate::{
    backend::{Column, WriteBatch},
    changes::{code_of, named_codes, prepare, with_paths},
    error::{RangeDeltaError, StorageError},
    history::{past_rows::recorded_from, seal::link},
    history_log::LogEntry,
    past_states::row_of,
    schema::{self, HISTORY_KEY, SEALED_KEY},
    state::Tree,
    store::Store,
};

/// Maximum number of batches that one reverse delta spans.
pub const REVERSE_DELTA_BATCHES_MAX: u64 = 256;
/// Maximum number of uncompressed bytes of the deltas that one reverse delta spans, unless it spans one batch. A commit
/// waits while the reverse delta's rows are written.
pub(crate) const REVERSE_DELTA_BYTES_MAX: u64 = 2 << 20;
/// Memory for the merge that finds the changed keys of a range.
const MERGE_BYTES_MAX: u64 = 64 << 20;

/// The past states that the window wants and the store does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateBacklog {
    /// The states after this batch and all later ones are known.
    pub lowest: BatchNumber,
    /// The first batch whose state the window wants, and after which all deltas are stored.
    pub wanted_from: BatchNumber,
    /// The batch that the next reverse delta leads to; `None` if nothing is missing.
    pub next: Option<BatchNumber>,
}

/// Grows the past states of a store backwards. While it lives, the rows of the head that it began at are not freed.
pub struct StateBackfill {
    store: Store,
    /// Leaves in memory of the head's tree.
    base_resident: u64,
    /// The tree of the first known state.
    tree: Tree,
    lowest: BatchNumber,
    changes: u64,
    bytes_max: u64,
}

impl Store {
    /// Returns the rows that batches after `to` up to `from` changed, as they were after `to`, with the code that
    /// only these rows name.
    ///
    /// # Errors
    /// [`RangeDeltaError::TooLarge`] if the range is longer than one reverse delta may be;
    /// [`RangeDeltaError::EmptyRange`] and [`RangeDeltaError::NotKept`]; [`StorageError::StateNotKept`] if the state
    /// after `to` is not known.
    pub fn reverse_delta(&self, from: BatchNumber, to: BatchNumber) -> Result<Delta, StorageError> {
        if self.reverse_delta_to(from, to)? != Some(to) {
            let (max, of) = (REVERSE_DELTA_BYTES_MAX, "bytes of a reverse delta");
            return Err(RangeDeltaError::TooLarge { from: to, to: from, max, of }.into());
        }
        self.rows_behind(from, to)
    }

    /// Returns which past states are missing, and the range to begin with.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`], or errors of the disk.
    pub fn state_backlog(&self) -> Result<StateBacklog, StorageError> {
        let current = self.current()?;
        let (head, lowest) = (current.record.number, self.first_state(&current)?);
        let deltas_from = self.lowest(BlobKind::Delta)?.unwrap_or(head.next());
        // A node that began at a snapshot lacks the header before its first delta.
        let before = deltas_from.before(1);
        let leads_from = if self.header(before)?.is_some() { before } else { deltas_from };
        let wanted_from = self.0.config.state_history.first(head).max(leads_from).min(lowest);
        Ok(StateBacklog { lowest, wanted_from, next: self.reverse_delta_to(lowest, wanted_from)? })
    }

    /// Begins to grow the past states backwards. `bytes_max` bounds the memory of the tree that proves them.
    ///
    /// # Errors
    /// [`RangeDeltaError::OverBudget`] or [`RangeDeltaError::TooLarge`] if too much changed since the first known
    /// state; or errors of the disk.
    pub fn past_states(&self, bytes_max: u64) -> Result<StateBackfill, StorageError> {
        let (base, tree) = self.current_with_tree()?;
        let (head, lowest) = (base.record.number, self.first_state(&base)?);
        let (store, base_resident) = (self.clone(), tree.resident());
        let mut states = StateBackfill { store, base_resident, tree, lowest: head, changes: 0, bytes_max };
        if lowest < head {
            let own = self.rows_behind(head, lowest)?;
            states.tree = states.proved(lowest, &own)?;
            states.lowest = lowest;
        }
        Ok(states)
    }

    /// Returns the first batch, not below `to`, that one reverse delta from `from` can lead to; `None` if there is
    /// none.
    fn reverse_delta_to(
        &self,
        from: BatchNumber,
        to: BatchNumber,
    ) -> Result<Option<BatchNumber>, StorageError> {
        if to >= from {
            return Ok(None);
        }
        let first = to.max(from.before(REVERSE_DELTA_BATCHES_MAX));
        let headers = self.headers(first, from.since(first) as usize + 1)?;
        let Some(last) = headers.last().filter(|last| last.number == from) else { return Ok(None) };
        let is_short = |number: BatchNumber, bytes: u64| {
            number.next() == from || last.totals.delta_bytes.saturating_sub(bytes) <= REVERSE_DELTA_BYTES_MAX
        };
        let fits = headers.iter().find(|header| is_short(header.number, header.totals.delta_bytes));
        Ok(fits.map(|header| header.number).filter(|number| *number < from))
    }

    fn rows_behind(&self, from: BatchNumber, to: BatchNumber) -> Result<Delta, StorageError> {
        let changes = self.range_delta(to, from, MERGE_BYTES_MAX)?.into_changes();
        let view = self.view_of(to)?.ok_or(StorageError::StateNotKept { number: to })?;
        let keys: Vec<StateKey> = changes.iter().map(|(_, entry)| entry.key).collect();
        let before = view.rows(&keys)?;
        let entries = keys.into_iter().zip(before).map(|(key, value)| DeltaEntry { key, value });
        let entries: Vec<DeltaEntry> = entries.collect();
        let replaced = |(before, (_, after)): (&DeltaEntry, &(Path, DeltaEntry))| {
            let (before, after) = (code_of(before)?.0, code_of(after).map(|(hash, _)| hash));
            (after != Some(before)).then_some(before)
        };
        let hashes: BTreeSet<Digest> = entries.iter().zip(&changes).filter_map(replaced).collect();
        let hashes: Vec<Digest> = hashes.into_iter().collect();
        let codes = view.codes(&hashes)?.into_iter().flatten().map(|code| code.to_vec()).collect();
        Delta::new(entries, codes).map_err(|error| StorageError::corrupt(error.to_string()))
    }
}

impl StateBackfill {
    /// The states after this batch and all later ones are known.
    pub fn lowest(&self) -> BatchNumber {
        self.lowest
    }

    /// Adds the states from `to` on, by the reverse delta from the first known state to `to`, in one write.
    ///
    /// # Errors
    /// [`StorageError::StateRootMismatch`], [`RangeDeltaError::Padded`] and [`RangeDeltaError::CodeMissing`] if the
    /// reverse delta is false, which is its sender's fault; [`RangeDeltaError::OverBudget`];
    /// [`RangeDeltaError::NotKept`] or [`StorageError::StateNotKept`] if the store was pruned meanwhile. Nothing is
    /// written then.
    pub fn extend(&mut self, to: BatchNumber, reverse: &Delta) -> Result<(), StorageError> {
        if to >= self.lowest {
            return Err(StorageError::StateNotKept { number: to });
        }
        let Before { mut rows, codes } = self.before_each(to, reverse)?;
        let tree = self.proved(to, reverse)?;
        rows.sort_unstable_by_key(|(path, number, _)| (*path, *number));
        self.write(to, &rows, codes)?;
        (self.tree, self.lowest) = (tree, to);
        self.changes += reverse.entries().len() as u64;
        Ok(())
    }

    /// Returns the tree of the state after `to`, and checks its root.
    fn proved(&self, to: BatchNumber, reverse: &Delta) -> Result<Tree, StorageError> {
        let header = self.store.header(to)?.ok_or(RangeDeltaError::NotKept { number: to })?;
        let (_, updates) = prepare(with_paths(reverse.entries()));
        let tree = self.tree.clone().apply(&updates)?;
        let (expected, found) = (header.state_root, tree.root());
        if found != expected {
            return Err(StorageError::StateRootMismatch { number: to, expected, found });
        }
        let changes = self.changes + updates.len() as u64;
        let (bytes, max) = (tree.bytes_beside(self.base_resident, changes), self.bytes_max);
        match bytes > max {
            true => Err(RangeDeltaError::OverBudget { target: to, bytes, max }.into()),
            false => Ok(tree),
        }
    }

    /// Returns the rows before each batch after `to` up to the first known state, and the code that these rows name and
    /// the store lacks.
    fn before_each(&self, to: BatchNumber, reverse: &Delta) -> Result<Before, StorageError> {
        let mut values: HashMap<StateKey, Option<StateValue>> =
            reverse.entries().iter().map(|entry| (entry.key, entry.value)).collect();
        let mut given: BTreeMap<Digest, Vec<u8>> = named_codes(reverse).collect();
        let mut changes = Vec::new();
        let mut due = to.next();
        for found in self.store.blobs(BlobKind::Delta, due, self.lowest.since(to) as usize) {
            let (number, blob) = found?;
            if number != due {
                break;
            }
            due = due.next();
            let delta = Delta::open(&blob).map_err(|error| StorageError::corrupt(error.to_string()))?;
            for (path, entry) in with_paths(delta.entries()) {
                changes.push((path, number, entry.key, values.insert(entry.key, entry.value)));
            }
            given.extend(named_codes(&delta));
        }
        if due <= self.lowest {
            return Err(RangeDeltaError::NotKept { number: due }.into());
        }
        // True rows of unchanged keys pass the proof, and would fill the memory for the tree.
        let changed: BTreeSet<StateKey> = changes.iter().map(|(_, _, key, _)| *key).collect();
        let surplus = reverse.entries().iter().filter(|entry| !changed.contains(&entry.key)).count();
        if surplus > 0 {
            let (bytes, max) = ((surplus * size_of::<DeltaEntry>()) as u64, 0);
            return Err(RangeDeltaError::Padded { target: to, bytes, max }.into());
        }
        let (mut rows, mut hashes) = (Vec::with_capacity(changes.len()), BTreeSet::new());
        for (path, number, key, before) in changes {
            // A key that the reverse delta leaves out had its last value from the start; otherwise the root would
            // differ.
            let value = before.unwrap_or_else(|| values[&key]);
            let entry = DeltaEntry { key, value };
            let mut row = Vec::new();
            row_of(&entry, &mut row);
            rows.push((path, number, row));
            hashes.extend(code_of(&entry).map(|(hash, _)| hash));
        }
        let codes = self.store.unknown_codes(&hashes)?.into_iter().map(|hash| match given.remove(&hash) {
            Some(code) => Ok((hash, code)),
            None => Err(RangeDeltaError::CodeMissing { target: to, hash }),
        });
        Ok(Before { rows, codes: codes.collect::<Result<_, _>>()? })
    }

    fn write(
        &self,
        to: BatchNumber,
        rows: &[(Path, BatchNumber, Vec<u8>)],
        codes: Vec<(Digest, Vec<u8>)>,
    ) -> Result<(), StorageError> {
        let (store, history) = (&self.store, &self.store.0.history);
        let bytes: usize = rows.iter().map(|(path, _, row)| path.0.len() + row.len()).sum();
        store.check_room(bytes as u64)?;
        let writer = store.writer();
        let current = store.current()?;
        let known = recorded_from(&*current.reader)?.unwrap_or(current.record.number);
        if known != self.lowest {
            // The window moved past the first known state, or the history began anew.
            return Err(StorageError::StateNotKept { number: self.lowest });
        }
        // The compaction's floor is lowered before the rows are written, because a compaction would drop them again.
        // The readers' floor is lowered afterwards.
        store.0.backend.forget_history_up_to(history.past_rows.floor().min(to).get());
        let entries = rows.iter().map(|(path, batch, row)| LogEntry { path: &path.0, batch: *batch, row });
        store.guard(|backend| link(backend, entries))?;
        let mut writes = WriteBatch::default();
        for (hash, code) in codes {
            writes.put(Column::Codes, hash.0, code);
        }
        writes.put(Column::Meta, HISTORY_KEY, schema::encode(&to));
        history.past_rows.seal(self.lowest, |sealed| {
            if let Some(sealed) = sealed {
                writes.put(Column::Meta, SEALED_KEY, schema::encode(&sealed));
            }
            store.write(writes, true)
        })?;
        history.past_rows.lower_floor(to);
        writer.replace_record(&current, current.record);
        Ok(())
    }
}

/// The data that a range of batches replaced.
struct Before {
    /// The rows before the batches that changed them; empty if there was none.
    rows: Vec<(Path, BatchNumber, Vec<u8>)>,
    codes: Vec<(Digest, Vec<u8>)>,
}
