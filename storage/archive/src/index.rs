//! [`Index`]: the snapshots of an archive, for clients that cannot list it. It is advice: clients miss snapshots that
//! it omits, and fail to read those that are gone.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use slipstream_types::{BatchNumber, Digest, bounded::BoundedVec, codec};

use crate::{entry::ArchiveEntry, error::ArchiveError, names::SnapshotName};

const VERSION: u32 = 1;
/// Maximum number of snapshots in the index, which has the newest ones. Readers of older ones list the bucket.
const ENTRIES_MAX: usize = 256;
/// Maximum bytes of an index.
pub(crate) const INDEX_BYTES_MAX: usize = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Index {
    version: u32,
    snapshots: BoundedVec<IndexEntry, ENTRIES_MAX>,
}

#[derive(Serialize, Deserialize)]
struct IndexEntry {
    number: BatchNumber,
    /// Hash of the snapshot's waypoint.
    hash: Digest,
    /// Bytes of its manifest.
    len: u64,
    modified_ms: u64,
}

/// Encodes the index of snapshots that are sorted newest first.
pub(crate) fn encode(entries: &[ArchiveEntry]) -> Result<Vec<u8>, ArchiveError> {
    let entry = |entry: &ArchiveEntry| {
        let SnapshotName { number, hash } = entry.name;
        IndexEntry { number, hash, len: entry.manifest_bytes, modified_ms: entry.modified_ms }
    };
    let snapshots = BoundedVec::new(entries.iter().take(ENTRIES_MAX).map(entry).collect())?;
    Ok(codec::encode("index", &Index { version: VERSION, snapshots })?)
}

/// Decodes the entries of an index, and sorts them newest first.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<ArchiveEntry>, String> {
    let index: Index = codec::decode("index", bytes, INDEX_BYTES_MAX).map_err(|error| error.to_string())?;
    if index.version != VERSION {
        return Err(format!("it has format {}, but this program reads format {VERSION}", index.version));
    }
    let entry = |entry: IndexEntry| ArchiveEntry {
        name: SnapshotName { number: entry.number, hash: entry.hash },
        manifest_bytes: entry.len,
        modified_ms: entry.modified_ms,
    };
    let mut entries: Vec<ArchiveEntry> = index.snapshots.into_inner().into_iter().map(entry).collect();
    entries.sort_by_key(|entry| Reverse(entry.name));
    Ok(entries)
}
