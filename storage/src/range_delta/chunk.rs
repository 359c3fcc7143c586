//! [`RangeDeltaChunk`]: the changes in a path range, with the siblings that prove them to a client that has the
//! unchanged rows.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use slipstream_types::{
    Digest, Path, StateKey, StateValue,
    bounded::BoundedVec,
    delta::DeltaEntry,
    limits,
    state::ROW_BYTES_MAX,
    tree::{StateRangeError, StateRangeProof},
};

use super::RangeDelta;
use crate::{
    backend::Rows,
    changes::{prepare, with_paths},
    chunk::{ACCOUNT_BYTES, CHUNK_BYTES_MAX, SLOT_BYTES},
    error::{ChunkError, RangeDeltaError, StorageError},
    snapshot::Snapshot,
    span::Span,
    state::Update,
};

/// All changes of a range delta between two paths, and a proof of the state between these paths at the last batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RangeDeltaChunk {
    /// The chunk's first path.
    pub first: Path,
    /// The chunk's last path, included.
    pub last: Path,
    /// The changes in between, sorted by path; a change without a value deletes the row.
    pub entries: BoundedVec<DeltaEntry, { limits::STATE_CHUNK_ROWS_MAX }>,
    /// The siblings beside both ends.
    pub proof: StateRangeProof,
}

/// A well-formed chunk: its paths and hashes are computed, but not yet verified. See
/// [`super::RangeDeltaTakeover::add`].
#[derive(Debug)]
pub struct CheckedRangeDelta {
    pub(super) span: Span,
    pub(super) rows: Rows,
    pub(super) updates: Vec<Update>,
    /// Hashes of the code that its accounts have.
    pub(super) codes: BTreeSet<Digest>,
    pub(super) proof: StateRangeProof,
    /// Encoded bytes of its changes.
    pub(super) bytes: u64,
}

impl RangeDeltaChunk {
    /// Returns the encoded bytes of the changes alone.
    pub fn entry_bytes(&self) -> usize {
        self.entries.iter().map(entry_bytes).sum()
    }

    /// Whether the chunk may end before the requested range, because one more change might exceed `bytes_max`.
    pub fn is_full(&self, bytes_max: usize) -> bool {
        self.entry_bytes() + 1 + ROW_BYTES_MAX > bytes_max
            || self.entries.len() == limits::STATE_CHUNK_ROWS_MAX
    }

    /// Checks everything that needs no unchanged rows, and hashes the changes.
    ///
    /// # Errors
    /// The first fault: a value that its key cannot have, changes out of order or outside the ends, or misplaced siblings.
    pub fn check(&self) -> Result<CheckedRangeDelta, ChunkError> {
        let misfit = |entry: &DeltaEntry| entry.value.is_some_and(|value| !value.fits(&entry.key));
        if let Some(index) = self.entries.iter().position(misfit) {
            return Err(ChunkError::BadValue { index });
        }
        self.proof.check_places(self.first, self.last)?;
        let (rows, updates) = prepare(with_paths(&self.entries));
        let inside = |(path, _): &Update| self.first <= *path && *path <= self.last;
        if !updates.is_sorted_by(|a, b| a.0 < b.0) || !updates.iter().all(inside) {
            return Err(StateRangeError::BadOrder.into());
        }
        let codes = self.entries.iter().filter_map(code_hash).collect();
        let span = Span { first: self.first, last: self.last };
        let bytes = self.entry_bytes() as u64;
        Ok(CheckedRangeDelta { span, rows, updates, codes, proof: self.proof.clone(), bytes })
    }
}

impl CheckedRangeDelta {
    /// The paths whose changes the chunk has.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Encoded bytes of the changes.
    pub fn entry_bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of changes in the chunk.
    pub fn len(&self) -> usize {
        self.updates.len()
    }

    /// Whether nothing changed between its ends.
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }
}

impl Snapshot {
    /// Returns the changes from `first` on, with their proof at this snapshot. A chunk takes about `bytes_max` bytes,
    /// has at least one change if there is any, and ends at `last` at the latest.
    ///
    /// # Errors
    /// [`RangeDeltaError::OtherSnapshot`] if the range delta does not end at this snapshot's batch; or errors of the
    /// disk.
    pub fn range_delta_chunk(
        &self,
        range_delta: &RangeDelta,
        first: Path,
        last: Path,
        bytes_max: usize,
    ) -> Result<RangeDeltaChunk, StorageError> {
        let (snapshot, to) = (self.info().number, range_delta.to());
        if snapshot != to {
            return Err(RangeDeltaError::OtherSnapshot { snapshot, to }.into());
        }
        let changes = range_delta.within(&first, &last);
        let (mut entries, mut left) = (Vec::new(), bytes_max.min(CHUNK_BYTES_MAX));
        for (_, entry) in changes.iter().take(limits::STATE_CHUNK_ROWS_MAX) {
            match left.checked_sub(entry_bytes(entry)) {
                None if !entries.is_empty() => break,
                rest => left = rest.unwrap_or(0),
            }
            entries.push(*entry);
        }
        let last = match changes.get(entries.len()) {
            // The next chunk begins right after the last change, so that all servers divide a range alike.
            Some(_) => changes[entries.len() - 1].0,
            None => last,
        };
        let proof = self.range_proof(first, last)?;
        Ok(RangeDeltaChunk { first, last, entries: BoundedVec::new(entries)?, proof })
    }
}

/// Encoded bytes of a change: its row, or its key alone, and one more tag.
fn entry_bytes(entry: &DeltaEntry) -> usize {
    1 + match (entry.key, entry.value) {
        (StateKey::Account(_), Some(_)) => ACCOUNT_BYTES + code_hash(entry).map_or(0, |hash| hash.0.len()),
        (StateKey::Slot(..), Some(_)) => SLOT_BYTES,
        (StateKey::Account(_), None) => 1 + 20,
        (StateKey::Slot(..), None) => 1 + 20 + 32,
    }
}

fn code_hash(entry: &DeltaEntry) -> Option<Digest> {
    match entry.value {
        Some(StateValue::Account(account)) => account.code_hash,
        _ => None,
    }
}
