//! [`Changes`]: deltas as rows and updates of the tree; [`NextState`]: the state that they lead to.

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

/// The net effect of one batch, or of several consecutive ones, as it is written.
pub(crate) struct Changes {
    /// The rows, in the parts that they were prepared in.
    rows: Vec<Rows>,
    /// New code by its hash.
    pub(crate) codes: BTreeMap<Digest, Vec<u8>>,
    /// Code that accounts have, with the first account of each: the index of its batch, and its address.
    pub(crate) referenced: BTreeMap<Digest, (usize, Address)>,
    /// Every change, sorted by path and then by batch.
    pub(crate) touched: Vec<RowChange>,
}

/// Locates one change of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowChange {
    pub(crate) path: Path,
    /// Index of the delta among consecutive ones.
    pub(crate) delta: u32,
    /// Index of the entry in that delta.
    pub(crate) entry: u32,
}

impl RowChange {
    /// Returns the entry. `delta` looks up a delta by its index.
    pub(crate) fn entry<'a>(&self, delta: impl FnOnce(usize) -> &'a Delta) -> &'a DeltaEntry {
        &delta(self.delta as usize).entries()[self.entry as usize]
    }
}

impl Changes {
    /// Computes the changes of consecutive deltas: the last value of each key.
    pub(crate) fn of(deltas: &[&Delta]) -> (Changes, Vec<Update>) {
        let touched = match deltas {
            [_] => None,
            _ => Some(sorted(deltas)),
        };
        let parts = match (deltas, &touched) {
            ([delta], None) => in_parts(delta.entries(), |part| prepare(with_paths(part))),
            (_, touched) => {
                let last = last_of_each(deltas, touched.as_deref().unwrap_or_default());
                in_parts(&last, |part| prepare(part.iter().copied()))
            }
        };
        let mut updates = Vec::with_capacity(parts.iter().map(|(_, updates)| updates.len()).sum());
        let mut rows = Vec::with_capacity(parts.len());
        for (part_rows, part_updates) in parts {
            updates.extend(part_updates);
            rows.push(part_rows);
        }
        // Each entry of a single delta is an update.
        let touched = touched.unwrap_or_else(|| {
            (0..).zip(&updates).map(|(entry, (path, _))| RowChange { path: *path, delta: 0, entry }).collect()
        });
        let (mut codes, mut referenced) = (BTreeMap::new(), BTreeMap::new());
        for (index, delta) in deltas.iter().enumerate() {
            codes.extend(named_codes(delta));
            for (hash, address) in delta.entries().iter().filter_map(code_of) {
                referenced.entry(hash).or_insert((index, address));
            }
        }
        (Changes { rows, codes, referenced, touched }, updates)
    }

    /// Adds the changes to a write. Returns the location of each change.
    pub(crate) fn apply(self, column: Column, batch: &mut WriteBatch) -> Vec<RowChange> {
        for rows in self.rows {
            batch.rows(column, rows);
        }
        for (hash, code) in self.codes {
            batch.put(Column::Codes, hash.0, code);
        }
        self.touched
    }
}

/// Returns the code in a delta, by its hash.
pub(crate) fn named_codes(delta: &Delta) -> impl Iterator<Item = (Digest, Vec<u8>)> {
    delta.codes().iter().map(|code| (Digest::from(keccak256(&code[..])), code.to_vec()))
}

/// Returns the hash of the code that an account's row has, and the account's address.
pub(crate) fn code_of(entry: &DeltaEntry) -> Option<(Digest, Address)> {
    match (entry.key, entry.value) {
        (StateKey::Account(address), Some(StateValue::Account(account))) => {
            account.code_hash.map(|hash| (hash, address))
        }
        _ => None,
    }
}

/// Works on parts of the items, on several threads if there is enough work.
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

/// Returns all changes of consecutive deltas, sorted by path and then by batch.
fn sorted(deltas: &[&Delta]) -> Vec<RowChange> {
    let of_delta = |(index, delta): (usize, &&Delta)| -> Vec<RowChange> {
        let paths = with_paths(delta.entries()).map(|(path, _)| path);
        (0..).zip(paths).map(|(entry, path)| RowChange { path, delta: index as u32, entry }).collect()
    };
    let mut touched = match deltas {
        // Nothing to share: rayon would only wake its threads.
        [delta] => of_delta((0, delta)),
        _ => deltas.par_iter().enumerate().map(of_delta).collect::<Vec<_>>().concat(),
    };
    // The stable sort merges runs that are sorted already, and keeps the changes of a row in the order of their
    // batches.
    touched.sort_by_key(|touched| touched.path);
    touched
}

/// The last entry of each key, sorted by path.
fn last_of_each<'a>(deltas: &[&'a Delta], touched: &[RowChange]) -> Vec<(Path, &'a DeltaEntry)> {
    let of_path = touched.chunk_by(|a, b| a.path == b.path);
    of_path.map(|same| &same[same.len() - 1]).map(|last| (last.path, last.entry(|i| deltas[i]))).collect()
}

/// Computes the bytes and the hash of each row once.
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

/// The state after one or several batches. Its root is computed, but nothing is checked.
pub(crate) struct NextState {
    pub(crate) tree: Tree,
    pub(crate) changes: Changes,
    /// If the tree was changed in place: the updates to undo if the batch is refused. `None` for a copy.
    pub(crate) updates: Option<Vec<Update>>,
}

impl NextState {
    /// Changes a tree that nobody else needs.
    ///
    /// # Errors
    /// If rows that the tree needs cannot be read. The tree is lost then.
    pub(crate) fn of(tree: Tree, deltas: &[&Delta]) -> Result<NextState, StorageError> {
        let (changes, updates) = Changes::of(deltas);
        Ok(NextState { tree: tree.apply(&updates)?, changes, updates: Some(updates) })
    }
}
