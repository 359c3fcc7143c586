//! [`Changes`]: deltas as rows and updates of the tree; [`Next`]: the state that they lead to.

use std::collections::BTreeMap;

use rayon::prelude::*;
use slipstream_types::{
    Address, Delta, Digest, Path, StateKey, StateValue, delta::DeltaEntry, keccak256, state::RowHashes,
};

use crate::{
    backend::{Column, Rows, WriteBatch},
    error::StorageError,
    state::{Tree, Update},
};

/// Entries that one thread prepares at a time; fewer are not worth another thread.
const PREPARE_ENTRIES: usize = 512;

/// The net effect of one batch, or of several that follow each other, as it is written.
pub(crate) struct Changes {
    /// In parts, as they were prepared.
    rows: Vec<Rows>,
    /// New code by its hash.
    pub(crate) codes: BTreeMap<Digest, Vec<u8>>,
    /// Code that accounts have, with the first of them: which batch of the several gives it, and to whom.
    pub(crate) referenced: BTreeMap<Digest, (usize, Address)>,
}

impl Changes {
    /// Of deltas that follow each other: of each key the last value.
    pub(crate) fn of(deltas: &[&Delta]) -> (Changes, Vec<Update>) {
        let parts = match deltas {
            [delta] => in_parts(delta.entries(), |part| prepare(with_paths(part))),
            _ => in_parts(&merged(deltas), |part| prepare(part.iter().copied())),
        };
        let mut updates = Vec::with_capacity(parts.iter().map(|(_, updates)| updates.len()).sum());
        let mut rows = Vec::with_capacity(parts.len());
        for (part_rows, part_updates) in parts {
            updates.extend(part_updates);
            rows.push(part_rows);
        }
        let (mut codes, mut referenced) = (BTreeMap::new(), BTreeMap::new());
        for (index, delta) in deltas.iter().enumerate() {
            codes
                .extend(delta.codes().iter().map(|code| (Digest::from(keccak256(&code[..])), code.to_vec())));
            for (hash, address) in delta.entries().iter().filter_map(code_of) {
                referenced.entry(hash).or_insert((index, address));
            }
        }
        (Changes { rows, codes, referenced }, updates)
    }

    pub(crate) fn apply(self, column: Column, batch: &mut WriteBatch) {
        for rows in self.rows {
            batch.rows(column, rows);
        }
        for (hash, code) in self.codes {
            batch.put(Column::Codes, hash.0, code);
        }
    }
}

fn code_of(entry: &DeltaEntry) -> Option<(Digest, Address)> {
    match (entry.key, entry.value) {
        (StateKey::Account(address), Some(StateValue::Account(account))) => {
            account.code_hash.map(|hash| (hash, address))
        }
        _ => None,
    }
}

/// Several threads share the work where there is enough of it.
fn in_parts<T: Sync, R: Send>(items: &[T], work: impl Fn(&[T]) -> R + Send + Sync) -> Vec<R> {
    if items.len() <= PREPARE_ENTRIES {
        items.chunks(PREPARE_ENTRIES).map(work).collect()
    } else {
        items.par_chunks(PREPARE_ENTRIES).map(work).collect()
    }
}

pub(crate) fn with_paths(entries: &[DeltaEntry]) -> impl ExactSizeIterator<Item = (Path, &DeltaEntry)> {
    let keys: Vec<StateKey> = entries.iter().map(|entry| entry.key).collect();
    StateKey::paths(&keys).into_iter().zip(entries)
}

/// The last entry of each key, sorted by path.
fn merged<'a>(deltas: &[&'a Delta]) -> Vec<(Path, &'a DeltaEntry)> {
    let parts: Vec<Vec<_>> = deltas.par_iter().map(|delta| with_paths(delta.entries()).collect()).collect();
    let mut merged = parts.concat();
    // The stable sort merges what is sorted already, and keeps the entries of a key in the order of their batches.
    merged.sort_by_key(|(path, _)| *path);
    merged.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 = later.1;
        }
        same
    });
    merged
}

/// Bytes and hash of each row, computed once.
pub(crate) fn prepare<'a>(
    entries: impl ExactSizeIterator<Item = (Path, &'a DeltaEntry)>,
) -> (Rows, Vec<Update>) {
    let mut rows = Rows::with_capacity(entries.len());
    let (mut paths, mut hashes) = (Vec::with_capacity(entries.len()), RowHashes::default());
    for (path, entry) in entries {
        let write = entry.value.map(|value| move |row: &mut Vec<u8>| value.append_row(&entry.key, row));
        let row = rows.push(path, write);
        paths.push((path, row.is_some()));
        row.into_iter().for_each(|row| hashes.push(row));
    }
    let mut hashes = hashes.finish().into_iter();
    let update = |(path, is_there): (Path, bool)| (path, if is_there { hashes.next() } else { None });
    (rows, paths.into_iter().map(update).collect())
}

/// The state after one or several batches, with its root computed and nothing checked.
pub(crate) struct Next {
    pub(crate) tree: Tree,
    pub(crate) changes: Changes,
    /// Where the tree was changed in place: what to put back if the batch is refused. None where it is a copy.
    pub(crate) updates: Option<Vec<Update>>,
}

impl Next {
    /// Changes a tree that nobody else needs.
    ///
    /// # Errors
    /// If rows that the tree stands on cannot be read. The tree is gone then.
    pub(crate) fn of(tree: Tree, deltas: &[&Delta]) -> Result<Next, StorageError> {
        let (changes, updates) = Changes::of(deltas);
        Ok(Next { tree: tree.apply(&updates)?, changes, updates: Some(updates) })
    }
}
