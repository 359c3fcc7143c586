//! The liars' changes to true answers, as pure functions.

use anyhow::Result;
use serde::{Serialize, de::DeserializeOwned};
use slipstream_sync::protocol::{
    ANSWER_BYTES_MAX, Codes, EPOCH_ENDS_MAX, EpochEnds, Headers, Offer, Parts, Range, RangeBatch, Request,
    SNAPSHOTS_MAX, SnapshotOffer, Summary,
};
use slipstream_types::{
    BatchNumber, Blob, BlobKind, SecretKey, bounded::BoundedVec, codec, hints::HINTS_VERSION,
    tree::StateRangeProof,
};

use super::Lie;
use crate::altered::{self, RowLie};

const HINT_BYTES: usize = 4 << 20;
const HINTED_BATCHES: usize = 8;
/// How far a forged head is ahead of the true one.
const FORGED_BATCHES: u64 = 1_000;

/// Returns offers of snapshots of the newest batches, which no other peer has: free to fetch, and with endless rows.
pub(super) fn lures(summary: &Summary) -> Vec<SnapshotOffer> {
    let head = summary.head.as_ref().map_or(BatchNumber::GENESIS, |head| head.info.number);
    let newest = (0..SNAPSHOTS_MAX as u64).map(|behind| head.before(behind));
    newest.map(|number| SnapshotOffer { number, rows: u64::MAX, bytes: 0 }).collect()
}

/// Returns the true offers, at a size of one byte.
pub(super) fn bargains(summary: &Summary) -> Vec<SnapshotOffer> {
    summary.snapshots.iter().map(|offer| SnapshotOffer { bytes: 1, ..*offer }).collect()
}

/// Turns a true answer into the lie; `None` if the answer has no place for it.
pub(super) fn told(
    lie: Lie,
    request: &Request,
    truth: &[u8],
    stranger: &SecretKey,
) -> Result<Option<Vec<u8>>> {
    match (lie, request) {
        (_, Request::Summary) => {
            edited("summary", truth, |summary: &mut Summary| other_summary(summary, lie))
        }
        (_, Request::Range(range)) if lie.is_about_ranges() => changed(truth, lie, range.parts, stranger),
        (Lie::HiddenRows | Lie::ChangedRows, Request::Chunk { .. }) => other_row(truth, lie),
        (Lie::Corrupt, Request::Chunk { .. }) | (Lie::CorruptRangeDeltas, Request::RangeDelta(_)) => {
            let mut answer = truth.to_vec();
            Ok(answer.last_mut().map(|last| *last ^= 1).map(|()| answer))
        }
        (Lie::FalseOffers, Request::Offer { .. }) => edited("offer", truth, |offer: &mut Offer| {
            offer.header.state_root.0[0] ^= 1;
            Ok(true)
        }),
        (Lie::SubtleOffers, Request::Offer { .. }) => edited("offer", truth, |offer: &mut Offer| {
            offer.header.gas_used += 1;
            Ok(true)
        }),
        (Lie::ChangedAncestry, Request::Headers { .. }) => {
            edited("headers", truth, |answer: &mut Headers| {
                let mut headers = answer.headers.to_vec();
                let Some(header) = headers.first_mut() else { return Ok(false) };
                header.gas_used += 1;
                answer.headers = BoundedVec::new(headers)?;
                Ok(true)
            })
        }
        (Lie::SwappedSiblings, Request::RangeProof { .. }) => {
            edited("proof", truth, |proof: &mut StateRangeProof| {
                altered::swap_siblings(proof);
                Ok(true)
            })
        }
        (Lie::OtherCode, Request::Codes { .. }) => {
            edited("codes", truth, |answer: &mut Codes| altered::other_code(answer).map(|()| true))
        }
        (Lie::FalseValidators, Request::Epochs { .. }) => {
            edited("epoch ends", truth, |ends: &mut EpochEnds| seat(ends, stranger))
        }
        (Lie::RepeatedEpochs | Lie::ReversedEpochs, Request::Epochs { .. }) => {
            edited("epoch ends", truth, |ends: &mut EpochEnds| disorder(ends, lie))
        }
        _ => Ok(None),
    }
}

/// Returns a decoded answer with a change; `None` if the change finds nothing to change.
fn edited<T: Serialize + DeserializeOwned>(
    what: &'static str,
    truth: &[u8],
    change: impl FnOnce(&mut T) -> Result<bool>,
) -> Result<Option<Vec<u8>>> {
    let mut answer: T = codec::decode(what, truth, ANSWER_BYTES_MAX)?;
    let any = change(&mut answer)?;
    let told = codec::encode(what, &answer)?;
    Ok(any.then_some(told))
}

/// Changes the head of a summary, or its promises; returns whether it did.
fn other_summary(summary: &mut Summary, lie: Lie) -> Result<bool> {
    match (lie, &mut summary.head) {
        (Lie::Forged, Some(head)) => head.info.number = head.info.number.after(FORGED_BATCHES),
        (Lie::UnsignedHeads, Some(head)) => *head = altered::under_signed(head)?,
        (Lie::EmptyPromises, Some(head)) => {
            let head = head.info.number;
            altered::promise_everything(summary, head)?;
        }
        (Lie::ForeignGenesis, _) => altered::foreign(summary),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Puts a stranger into the first seat of the validators that the last of these epoch ends names; returns whether it
/// names any.
fn seat(ends: &mut EpochEnds, stranger: &SecretKey) -> Result<bool> {
    let mut certificates = ends.certificates.to_vec();
    let Some(next) = certificates.last_mut().and_then(|end| end.info.next_validators.as_mut()) else {
        return Ok(false);
    };
    let mut validators = next.validators.to_vec();
    let Some(first) = validators.first_mut() else { return Ok(false) };
    first.public_key = stranger.public();
    next.validators = BoundedVec::new(validators)?;
    ends.certificates = BoundedVec::new(certificates)?;
    Ok(true)
}

/// Repeats each epoch end, or reverses their order; returns whether there are enough for that.
fn disorder(ends: &mut EpochEnds, lie: Lie) -> Result<bool> {
    let mut certificates = ends.certificates.to_vec();
    if lie == Lie::ReversedEpochs {
        certificates.reverse();
    } else {
        let times = EPOCH_ENDS_MAX.checked_div(certificates.len()).unwrap_or_default().max(2);
        let each = certificates.into_iter().flat_map(|end| std::iter::repeat_n(end, times));
        certificates = each.take(EPOCH_ENDS_MAX).collect();
    }
    let is_other = certificates != ends.certificates.to_vec();
    ends.certificates = BoundedVec::new(certificates)?;
    Ok(is_other)
}

/// Changes the batches of a range, or its certificate; returns `None` if it has nothing to change.
fn changed(answer: &[u8], lie: Lie, parts: Parts, stranger: &SecretKey) -> Result<Option<Vec<u8>>> {
    let mut range: Range = codec::decode("range", answer, ANSWER_BYTES_MAX)?;
    let mut batches = range.batches.to_vec();
    let mut any = true;
    match lie {
        Lie::StrangeSignatures => range.certificate = altered::signed_by(stranger, &range.certificate)?,
        Lie::UnsignedRanges => range.certificate = altered::under_signed(&range.certificate)?,
        Lie::GraftedBatches => altered::graft(&mut batches),
        Lie::EmptyRanges => batches.clear(),
        Lie::ChangedHeaders => {
            let middle = batches.len() / 2;
            batches.iter_mut().skip(middle).take(1).for_each(|batch| batch.header.gas_used += 1);
        }
        // Hints that were not requested are another lie.
        Lie::UselessHints | Lie::HugeHints if !parts.has(Parts::HINTS) => any = false,
        _ => {
            any = false;
            for (index, batch) in batches.iter_mut().enumerate() {
                any |= other_batch(index, batch, lie)?;
            }
        }
    }
    range.batches = BoundedVec::new(batches)?;
    let told = codec::encode("range", &range)?;
    Ok(any.then_some(told))
}

/// Changes one batch of a range; returns whether it did.
fn other_batch(index: usize, batch: &mut RangeBatch, lie: Lie) -> Result<bool> {
    match lie {
        Lie::Hints if index < HINTED_BATCHES => batch.hints = Some(noise()?),
        Lie::HugeHints if index == 0 => batch.hints = Some(altered::huge_hints()?),
        Lie::UselessHints => batch.hints = Some(Blob::compress(BlobKind::Hints, &[HINTS_VERSION])?),
        Lie::MissingParts => {
            let had = batch.body.take().is_some();
            return Ok(batch.delta.take().is_some() || had);
        }
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

/// Returns a snapshot's chunk whose middle row is changed or left out; `None` if it has no rows.
fn other_row(chunk: &[u8], lie: Lie) -> Result<Option<Vec<u8>>> {
    let lie = if lie == Lie::HiddenRows { RowLie::Hidden } else { RowLie::Changed };
    altered::row(chunk, lie, |rows| rows / 2)
}

/// Returns hints of random bytes.
fn noise() -> Result<Blob> {
    let noise: Vec<u8> = (0..HINT_BYTES / 8).flat_map(|_| rand::random::<u64>().to_le_bytes()).collect();
    Ok(Blob::compress(BlobKind::Hints, &noise)?)
}

#[cfg(test)]
mod tests {
    use slipstream_sync::protocol::RangeRequest;
    use slipstream_testkit::{header, info, keys, next_header, set, sign};
    use slipstream_types::{Digest, Epoch, LedgerInfo, accumulator::AccumulatorRangeProof};

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

    fn asked(parts: Parts) -> Request {
        let first = BatchNumber::new(5);
        Request::Range(RangeRequest { first, batches_max: 2, bytes_max: 1 << 20, parts })
    }

    /// Goal: a lie about signatures or headers changes only these, and a lie about missing parts is not told.
    #[test]
    fn a_range_is_changed_where_the_lie_is() {
        let truth = range();
        let answer = codec::encode("range", &truth).unwrap();
        let told = |lie, parts| {
            let told = super::told(lie, &asked(parts), &answer, &keys(9..10)[0]).unwrap();
            told.map(|told| codec::decode::<Range>("range", &told, ANSWER_BYTES_MAX).unwrap())
        };
        for lie in [Lie::StrangeSignatures, Lie::UnsignedRanges] {
            let strange = told(lie, Parts::BODY).unwrap();
            assert!(strange.certificate != truth.certificate && strange.batches == truth.batches, "{lie:?}");
        }
        for lie in [Lie::GraftedBatches, Lie::ChangedHeaders, Lie::EmptyRanges] {
            let grafted = told(lie, Parts::BODY).unwrap();
            assert!(grafted.certificate == truth.certificate && grafted.batches != truth.batches, "{lie:?}");
        }
        for lie in [Lie::ChangedMoney, Lie::FalseHints, Lie::Corrupt, Lie::Literal, Lie::MissingParts] {
            assert_eq!(told(lie, Parts::BODY), None, "{lie:?}");
        }
        for lie in [Lie::UselessHints, Lie::HugeHints] {
            assert_eq!(told(lie, Parts::BODY), None, "{lie:?}");
            assert!(told(lie, Parts::HINTS).unwrap().batches[0].hints.is_some(), "{lie:?}");
        }
    }

    /// Goal: a summary gets another head, fewer signatures or more promises; without a head it stays as it is.
    #[test]
    fn summaries_are_changed_where_the_lie_is() {
        let summary = |head| Summary {
            genesis: Digest::ZERO,
            head,
            bodies_from: None,
            receipts_from: None,
            deltas_from: None,
            states_from: None,
            snapshots: BoundedVec::new(vec![SnapshotOffer::new(BatchNumber::new(4), 7)]).unwrap(),
            forks: BoundedVec::default(),
        };
        let told = |lie, truth: &Summary| {
            let answer = codec::encode("summary", truth).unwrap();
            let told = super::told(lie, &Request::Summary, &answer, &keys(9..10)[0]).unwrap();
            told.map(|told| codec::decode::<Summary>("summary", &told, ANSWER_BYTES_MAX).unwrap())
        };
        let truth = summary(Some(sign(info(0, 6), &keys(0..3))));
        let head = |lie| told(lie, &truth).unwrap().head.unwrap();
        assert_eq!(head(Lie::Forged).info.number.get(), 1_006);
        assert_eq!(head(Lie::UnsignedHeads).signatures.len(), 1);
        let promises = told(Lie::EmptyPromises, &truth).unwrap();
        assert_eq!(promises.bodies_from, Some(BatchNumber::GENESIS));
        let offered: Vec<u64> = promises.snapshots.iter().map(|offer| offer.number.get()).collect();
        assert_eq!(offered, [6, 5, 4, 3]);
        for lie in [Lie::Forged, Lie::UnsignedHeads, Lie::EmptyPromises, Lie::HiddenRows] {
            assert_eq!(told(lie, &summary(None)), None, "{lie:?}");
        }
    }

    /// Goal: the end of an epoch names a stranger in a validator's seat; an answer without such an end stays as it is.
    #[test]
    fn a_stranger_is_seated() {
        let validators = keys(0..4);
        let told = |next_validators| {
            let end = sign(LedgerInfo { next_validators, ..info(0, 6) }, &validators);
            let ends = EpochEnds { certificates: BoundedVec::new(vec![end]).unwrap() };
            let answer = codec::encode("epoch ends", &ends).unwrap();
            let request = Request::Epochs { first: Epoch(0) };
            let told = super::told(Lie::FalseValidators, &request, &answer, &keys(9..10)[0]).unwrap();
            told.map(|told| codec::decode::<EpochEnds>("epoch ends", &told, ANSWER_BYTES_MAX).unwrap())
        };
        let ends = told(Some(set(1, &validators, Default::default()))).unwrap();
        let next = ends.certificates[0].info.next_validators.as_ref().unwrap();
        assert_eq!(next.validators[0].public_key, keys(9..10)[0].public());
        assert_eq!(next.validators.len(), 4);
        assert_eq!(told(None), None);
    }
    /// Goal: repeated or reversed epoch ends are each true but out of order; too few ends stay as they are.
    #[test]
    fn ends_of_epochs_are_told_out_of_order() {
        let validators = keys(0..1);
        let end = |epoch| {
            let next_validators = Some(set(epoch + 1, &validators, Default::default()));
            sign(LedgerInfo { epoch: Epoch(epoch), next_validators, ..info(0, 6 + epoch) }, &validators)
        };
        let told = |lie, epochs| {
            let ends = EpochEnds { certificates: BoundedVec::new((0..epochs).map(end).collect()).unwrap() };
            let answer = codec::encode("epoch ends", &ends).unwrap();
            let told =
                super::told(lie, &Request::Epochs { first: Epoch(0) }, &answer, &keys(9..10)[0]).unwrap();
            let told: EpochEnds = codec::decode("epoch ends", &told?, ANSWER_BYTES_MAX).unwrap();
            Some(told.certificates.iter().map(|end| end.info.epoch.0).collect::<Vec<_>>())
        };
        assert_eq!(told(Lie::RepeatedEpochs, 2), Some([vec![0; 32], vec![1; 32]].concat()));
        assert_eq!(told(Lie::RepeatedEpochs, 64).unwrap()[..4], [0, 0, 1, 1]);
        assert_eq!(told(Lie::ReversedEpochs, 3), Some(vec![2, 1, 0]));
        assert_eq!([told(Lie::RepeatedEpochs, 0), told(Lie::ReversedEpochs, 1)], [None, None]);
    }
}
