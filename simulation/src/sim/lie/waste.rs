//! Answers that are true and cost more than they have to.

use std::collections::BTreeSet;

use anyhow::Result;
use slipstream_storage::RangeDeltaChunk;
use slipstream_sync::protocol::{RangeBatch, RangeDeltaRequest};
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

/// Parts that are not compressed, in the form of compressed ones. False if there is none.
pub(super) fn literal(batches: &mut [RangeBatch]) -> Result<bool> {
    let mut any = false;
    for batch in batches {
        let parts = [
            (BlobKind::Body, &mut batch.body),
            (BlobKind::Receipts, &mut batch.receipts),
            (BlobKind::Delta, &mut batch.delta),
        ];
        for (kind, part) in parts {
            if let Some(blob) = part {
                *blob = literal_blob(kind, blob)?;
                any = true;
            }
        }
    }
    Ok(any)
}

/// LZ4: one sequence that has literals only, whose length follows its token in bytes of 255 and a last one.
fn literal_blob(kind: BlobKind, blob: &Blob) -> Result<Blob> {
    const SHORT: usize = 15;
    let content = blob.content(kind)?;
    let mut bytes = vec![kind as u8];
    bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
    bytes.push((content.len().min(SHORT) as u8) << 4);
    if let Some(mut more) = content.len().checked_sub(SHORT) {
        while more >= 255 {
            bytes.push(255);
            more -= 255;
        }
        bytes.push(more as u8);
    }
    bytes.extend_from_slice(&content);
    Ok(Blob::from_bytes(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: opening such a blob gives the content.
    #[test]
    fn literal_blobs_open() {
        for len in [0, 1, 14, 15, 16, 269, 270, 271, 600] {
            let content: Vec<u8> = (0..len).map(|at| (at % 7) as u8).collect();
            let blob =
                literal_blob(BlobKind::Body, &Blob::compress(BlobKind::Body, &content).unwrap()).unwrap();
            assert_eq!(blob.content(BlobKind::Body).unwrap(), content, "{len} bytes");
            assert!(blob.len() > content.len());
        }
    }
}
