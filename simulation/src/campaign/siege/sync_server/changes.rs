//! What liars make of true answers. Pure functions.

use anyhow::Result;
use slipstream_sync::protocol::{ANSWER_BYTES_MAX, Range, RangeBatch, SNAPSHOTS_MAX, SnapshotOffer, Summary};
use slipstream_types::{BatchNumber, Blob, BlobKind, bounded::BoundedVec, codec};

use super::Lie;

const HINT_BYTES: usize = 4 << 20;
const HINTED_BATCHES: usize = 8;

/// Snapshots of the newest batches, which only the liar has: they are free to fetch and endless.
pub(super) fn lures(summary: &Summary) -> Vec<SnapshotOffer> {
    let head = summary.head.as_ref().map_or(BatchNumber::GENESIS, |head| head.info.number);
    let newest = (0..SNAPSHOTS_MAX as u64).map(|behind| head.before(behind));
    newest.map(|number| SnapshotOffer { number, rows: u64::MAX, bytes: 0 }).collect()
}

/// The true ones, for nothing.
pub(super) fn bargains(summary: &Summary) -> Vec<SnapshotOffer> {
    summary.snapshots.iter().map(|offer| SnapshotOffer { bytes: 1, ..*offer }).collect()
}

/// A range with its batches changed.
pub(super) fn changed(answer: &[u8], lie: Lie) -> Result<Vec<u8>> {
    let mut range: Range = codec::decode("range", answer, ANSWER_BYTES_MAX)?;
    let mut batches = range.batches.to_vec();
    for (index, batch) in batches.iter_mut().enumerate() {
        match lie {
            Lie::Hints if index < HINTED_BATCHES => batch.hints = Some(noise()?),
            Lie::Literal => each_part(batch, |kind, blob| literal(kind, &blob.content(kind)?))?,
            Lie::Corrupt => each_part(batch, |_, blob| {
                let mut bytes = blob.as_bytes().to_vec();
                if let Some(last) = bytes.last_mut() {
                    *last ^= 1;
                }
                Ok(Blob::from_bytes(bytes)?)
            })?,
            _ => {}
        }
    }
    range.batches = BoundedVec::new(batches)?;
    Ok(codec::encode("range", &range)?)
}

fn each_part(batch: &mut RangeBatch, change: impl Fn(BlobKind, &Blob) -> Result<Blob>) -> Result<()> {
    let parts = [
        (BlobKind::Body, &mut batch.body),
        (BlobKind::Receipts, &mut batch.receipts),
        (BlobKind::Delta, &mut batch.delta),
    ];
    for (kind, part) in parts {
        if let Some(blob) = part {
            *part = Some(change(kind, blob)?);
        }
    }
    Ok(())
}

/// Hints of random bytes.
fn noise() -> Result<Blob> {
    let noise: Vec<u8> = (0..HINT_BYTES / 8).flat_map(|_| rand::random::<u64>().to_le_bytes()).collect();
    Ok(Blob::compress(BlobKind::Hints, &noise)?)
}

/// A blob as long as its content: one LZ4 sequence of literals alone.
fn literal(kind: BlobKind, content: &[u8]) -> Result<Blob> {
    let mut bytes = vec![kind as u8];
    bytes.extend(u32::try_from(content.len())?.to_le_bytes());
    if let Some(mut more) = content.len().checked_sub(15) {
        bytes.push(0xf0);
        while more >= 255 {
            bytes.push(255);
            more -= 255;
        }
        bytes.push(more as u8);
    } else {
        bytes.push((content.len() as u8) << 4);
    }
    bytes.extend(content);
    Ok(Blob::from_bytes(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an honest decoder takes the blobs, and they are longer than compressed ones.
    #[test]
    fn literal_blobs_hold_the_truth() {
        for length in [0, 1, 14, 15, 16, 269, 270, 271, 100_000] {
            let content = vec![7; length];
            let blob = literal(BlobKind::Body, &content).unwrap();
            assert_eq!(blob.content(BlobKind::Body).unwrap(), content, "{length}");
            assert!(blob.len() >= length);
        }
    }
}
