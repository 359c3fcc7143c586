//! Range deltas: the changes between two batches, each key once with its last value, in chunks that each prove themselves.
//!
//! ```text
//!   server: delta blobs of a+1..=b ─▶ RangeDelta ─▶ RangeDeltaChunk: changes of a path range + its siblings at b
//!   client: chunk, any order ─▶ CheckedRangeDelta ─▶ RangeDeltaTakeover: head's tree with the changes, root of b ─▶ one write: head = b
//! ```
//!
//! A chunk omits unchanged rows, because the client has them. The client applies the changes to its own tree; between the chunk's
//! ends, tree and siblings must then hash to the root of `b`. So a missing, surplus or false change shows at once, whoever sent it.
//! Keys that changed before the client's head do no harm, because their values are those at `b`. A client may therefore ask from any
//! batch at or below its head, and many clients share the same answers.

mod chunk;
mod takeover;

use std::collections::HashMap;

use rayon::prelude::*;
use slipstream_types::{BatchNumber, Blob, BlobKind, Delta, Path, StateKey, delta::DeltaEntry, state::Paths};

use crate::{
    error::{RangeDeltaError, StorageError},
    store::Store,
};

pub use chunk::{CheckedRangeDelta, RangeDeltaChunk};
pub use takeover::{RANGE_DELTA_BATCHES_MAX, RangeDeltaTakeover};

/// Bytes of decompressed deltas that are decoded in parallel: enough for all cores, and little beside the result.
const DECODE_BYTES: usize = 8 << 20;
/// Maximum number of decompressed bytes that one merge reads: at most seconds of work, however much the result shrinks.
const MERGE_READ_BYTES_MAX: u64 = 1 << 30;
/// Keys whose paths one thread computes at a time.
const PATHS_AT_ONCE: usize = 4_096;

/// The changes of a range of batches, each key once with its last value. It is only as good as the store that made
/// it; each chunk proves its own part.
#[derive(Debug)]
pub struct RangeDelta {
    from: BatchNumber,
    to: BatchNumber,
    /// Sorted by path.
    changes: Vec<(Path, DeltaEntry)>,
}

impl RangeDelta {
    /// The batch before the first that it covers.
    pub fn from(&self) -> BatchNumber {
        self.from
    }

    /// The last batch that it covers, whose values it has.
    pub fn to(&self) -> BatchNumber {
        self.to
    }

    /// Number of keys that changed.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> u64 {
        (self.changes.capacity() * size_of::<(Path, DeltaEntry)>()) as u64
    }

    /// All changes, sorted by path.
    pub(crate) fn into_changes(self) -> Vec<(Path, DeltaEntry)> {
        self.changes
    }

    /// The changes between two paths, both included.
    fn within(&self, first: &Path, last: &Path) -> &[(Path, DeltaEntry)] {
        let start = self.changes.partition_point(|(path, _)| path < first);
        let end = self.changes.partition_point(|(path, _)| path <= last);
        &self.changes[start..end.max(start)]
    }
}

impl Store {
    /// Merges the stored deltas after batch `from` up to batch `to`. The result takes at most `bytes_max` bytes, and
    /// the merge up to four times that. It leaves out new code; clients ask for missing code by hash.
    ///
    /// # Errors
    /// [`RangeDeltaError::EmptyRange`], [`RangeDeltaError::NotKept`], [`RangeDeltaError::TooLarge`]; or errors of the
    /// disk.
    pub fn range_delta(
        &self,
        from: BatchNumber,
        to: BatchNumber,
        bytes_max: u64,
    ) -> Result<RangeDelta, StorageError> {
        if from >= to {
            return Err(RangeDeltaError::EmptyRange { from, to }.into());
        }
        let count = usize::try_from(to.since(from)).unwrap_or(usize::MAX);
        let mut merge =
            Merge { from, to, keys_max: keys_max(bytes_max), places: HashMap::new(), entries: Vec::new() };
        let (mut due, mut read) = (from.next(), 0);
        let (mut page, mut page_bytes) = (Vec::new(), 0);
        for found in self.blobs(BlobKind::Delta, due, count) {
            let (number, blob) = found?;
            if number != due {
                break;
            }
            due = due.next();
            page_bytes += blob.content_len(BlobKind::Delta)?;
            page.push(blob);
            if page_bytes >= DECODE_BYTES {
                read += std::mem::take(&mut page_bytes) as u64;
                merge.add(&std::mem::take(&mut page))?;
                merge.check_read(read)?;
            }
        }
        if due <= to {
            return Err(RangeDeltaError::NotKept { number: due }.into());
        }
        merge.add(&page)?;
        Ok(merge.finish())
    }
}

/// Returns how many keys fit into `bytes` bytes.
fn keys_max(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX) / size_of::<(Path, DeltaEntry)>()
}

/// A merge in progress, batch after batch.
struct Merge {
    from: BatchNumber,
    to: BatchNumber,
    keys_max: usize,
    /// Index of each key's entry.
    places: HashMap<StateKey, usize>,
    entries: Vec<DeltaEntry>,
}

impl Merge {
    fn add(&mut self, blobs: &[Blob]) -> Result<(), StorageError> {
        let damaged = |error: slipstream_types::CodecError| StorageError::corrupt(error.to_string());
        let deltas: Vec<Delta> =
            blobs.par_iter().map(|blob| Delta::open(blob).map_err(damaged)).collect::<Result<_, _>>()?;
        for entry in deltas.iter().flat_map(Delta::entries) {
            let next = self.entries.len();
            let place = *self.places.entry(entry.key).or_insert(next);
            if place < next {
                self.entries[place].value = entry.value;
            } else if next < self.keys_max {
                self.entries.push(*entry);
            } else {
                return Err(self.too_large(self.keys_max as u64, "keys"));
            }
        }
        Ok(())
    }

    fn check_read(&self, bytes: u64) -> Result<(), StorageError> {
        match bytes > MERGE_READ_BYTES_MAX {
            true => Err(self.too_large(MERGE_READ_BYTES_MAX, "bytes")),
            false => Ok(()),
        }
    }

    fn too_large(&self, max: u64, of: &'static str) -> StorageError {
        RangeDeltaError::TooLarge { from: self.from, to: self.to, max, of }.into()
    }

    /// Sorts by path.
    fn finish(self) -> RangeDelta {
        let Merge { from, to, mut entries, places, .. } = self;
        drop(places);
        // Neighbours share the account's part of the path.
        entries.par_sort_unstable_by_key(|entry| entry.key);
        let with_paths = |entries: &[DeltaEntry]| {
            let mut paths = Paths::default();
            entries.iter().map(|entry| (paths.path(&entry.key), *entry)).collect::<Vec<_>>()
        };
        let mut changes: Vec<_> = entries.par_chunks(PATHS_AT_ONCE).flat_map_iter(with_paths).collect();
        changes.par_sort_unstable_by_key(|(path, _)| *path);
        changes.shrink_to_fit();
        RangeDelta { from, to, changes }
    }
}
