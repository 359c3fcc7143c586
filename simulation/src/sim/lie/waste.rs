//! An answer that is true and costs more than it has to.

use std::collections::BTreeSet;

use anyhow::Result;
use slipstream_storage::RangeDeltaChunk;
use slipstream_sync::protocol::RangeDeltaRequest;
use slipstream_types::{
    Blob, BlobKind, bounded::BoundedVec, delta::DeltaEntry, limits::STATE_CHUNK_ROWS_MAX,
};

use super::super::chain::Chain;

/// A range delta that also names unchanged rows, with their values; `None` if every row has changed.
pub(super) fn padded(honest: &[u8], request: &RangeDeltaRequest) -> Result<Option<Vec<u8>>> {
    let mut chunk: RangeDeltaChunk = Blob::from_bytes(honest.to_vec())?.open(BlobKind::RangeDelta)?;
    let mut entries = chunk.entries.to_vec();
    let told: BTreeSet<_> = entries.iter().map(|entry| entry.key).collect();
    let rows = Chain::canonical().state(request.to).iter();
    let unchanged = rows.filter(|(key, _)| {
        let path = key.path();
        !told.contains(key) && chunk.first <= path && path <= chunk.last
    });
    entries.extend(unchanged.map(|(key, value)| DeltaEntry { key: *key, value: Some(*value) }));
    if entries.len() == told.len() || entries.len() > STATE_CHUNK_ROWS_MAX {
        return Ok(None);
    }
    entries.sort_by_key(|entry| entry.key.path());
    chunk.entries = BoundedVec::new(entries)?;
    Ok(Some(Blob::seal(BlobKind::RangeDelta, &chunk)?.into_bytes()))
}
