//! What liars make of true answers. Pure functions.

use anyhow::Result;
use slipstream_sync::protocol::{ANSWER_BYTES_MAX, Range, RangeBatch, SNAPSHOTS_MAX, SnapshotOffer, Summary};
use slipstream_types::{BatchNumber, Blob, BlobKind, SecretKey, bounded::BoundedVec, codec};

use super::Lie;
use crate::altered::{self, RowLie};

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

/// A range with its batches changed, or what signs them; `None` if it has nothing to change.
pub(super) fn changed(answer: &[u8], lie: Lie, stranger: &SecretKey) -> Result<Option<Vec<u8>>> {
    let mut range: Range = codec::decode("range", answer, ANSWER_BYTES_MAX)?;
    let mut batches = range.batches.to_vec();
    let mut any = matches!(lie, Lie::StrangeSignatures | Lie::GraftedBatches);
    match lie {
        Lie::StrangeSignatures => range.certificate = altered::signed_by(stranger, &range.certificate)?,
        Lie::GraftedBatches => altered::graft(&mut batches),
        _ => {
            for (index, batch) in batches.iter_mut().enumerate() {
                any |= other_batch(index, batch, lie)?;
            }
        }
    }
    range.batches = BoundedVec::new(batches)?;
    let told = codec::encode("range", &range)?;
    Ok(any.then_some(told))
}

/// Changes one batch of a range; whether it did.
fn other_batch(index: usize, batch: &mut RangeBatch, lie: Lie) -> Result<bool> {
    match lie {
        Lie::Hints if index < HINTED_BATCHES => batch.hints = Some(noise()?),
        Lie::Literal => return altered::undo_compression(batch),
        Lie::Corrupt => {
            return altered::each_part(batch, |_, blob| {
                let mut bytes = blob.as_bytes().to_vec();
                if let Some(last) = bytes.last_mut() {
                    *last ^= 1;
                }
                Ok(Blob::from_bytes(bytes)?)
            });
        }
        Lie::ChangedMoney => return altered::give_money(batch),
        Lie::FalseHints => match altered::false_hints(batch)? {
            Some(hints) => batch.hints = Some(hints),
            None => return Ok(false),
        },
        _ => return Ok(false),
    }
    Ok(true)
}

/// A chunk of a snapshot with another row in its middle, or without it; `None` if it has no rows.
pub(super) fn other_row(chunk: &[u8], lie: Lie) -> Result<Option<Vec<u8>>> {
    let lie = if lie == Lie::HiddenRows { RowLie::Hidden } else { RowLie::Changed };
    altered::row(chunk, lie, |rows| rows / 2)
}

/// Hints of random bytes.
fn noise() -> Result<Blob> {
    let noise: Vec<u8> = (0..HINT_BYTES / 8).flat_map(|_| rand::random::<u64>().to_le_bytes()).collect();
    Ok(Blob::compress(BlobKind::Hints, &noise)?)
}

#[cfg(test)]
mod tests {
    use slipstream_testkit::{header, info, keys, next_header, sign};
    use slipstream_types::{Digest, accumulator::AccumulatorRangeProof};

    use super::*;

    fn range() -> Range {
        let first = header(5, Digest::ZERO);
        let second = next_header(&first, Digest::ZERO);
        let batch = |header| RangeBatch { header, body: None, receipts: None, delta: None, hints: None };
        Range {
            certificate: sign(info(0, 6), &keys(0..1)),
            proof: AccumulatorRangeProof::default(),
            batches: BoundedVec::new(vec![batch(first), batch(second)]).unwrap(),
        }
    }

    /// Goal: a lie about signatures or headers changes just these, and one about parts that are not there is not told.
    #[test]
    fn a_range_is_changed_where_the_lie_is() {
        let truth = range();
        let answer = codec::encode("range", &truth).unwrap();
        let told = |lie| {
            let told = changed(&answer, lie, &keys(9..10)[0]).unwrap();
            told.map(|told| codec::decode::<Range>("range", &told, ANSWER_BYTES_MAX).unwrap())
        };
        let strange = told(Lie::StrangeSignatures).unwrap();
        assert!(strange.certificate != truth.certificate && strange.batches == truth.batches);
        let grafted = told(Lie::GraftedBatches).unwrap();
        assert!(grafted.certificate == truth.certificate && grafted.batches != truth.batches);
        for lie in [Lie::ChangedMoney, Lie::FalseHints, Lie::Corrupt, Lie::Literal] {
            assert_eq!(told(lie), None, "{lie:?}");
        }
    }
}
