//! The changes to true answers that only these servers make; the others are in [`tell`].

use anyhow::Result;
use slipnet::scenario::fault::PeerLie;
use slipstream_sync::protocol::{EpochEnds, Range, Request, SNAPSHOTS_MAX, SnapshotOffer, Summary};
use slipstream_types::{BatchNumber, Blob, BlobKind, SecretKey, bounded::BoundedVec};

use crate::lies::{Reach, edited, signed_by, tell};

const HINT_BYTES: usize = 4 << 20;
const HINTED_BATCHES: usize = 8;

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

/// Turns a true answer into the lie; `None` if the answer has nothing that the lie changes.
pub(super) fn told(
    lie: PeerLie,
    request: &Request,
    truth: &[u8],
    stranger: &SecretKey,
) -> Result<Option<Vec<u8>>> {
    match (lie, request) {
        (PeerLie::UnaskedHints, Request::Range(_)) => edited("range", truth, |range: &mut Range| {
            let mut batches = range.batches.to_vec();
            for batch in batches.iter_mut().take(HINTED_BATCHES) {
                batch.hints = Some(noise()?);
            }
            range.batches = BoundedVec::new(batches)?;
            Ok(!range.batches.is_empty())
        }),
        (PeerLie::StrangeSignatures, Request::Range(_)) => edited("range", truth, |range: &mut Range| {
            range.certificate = signed_by(stranger, &range.certificate)?;
            Ok(true)
        }),
        (PeerLie::FalseValidators, Request::Epochs { .. }) => {
            edited("epoch ends", truth, |ends: &mut EpochEnds| seat(ends, stranger))
        }
        _ => tell(lie, request, truth, Reach::Everywhere),
    }
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

/// Returns hints of random bytes.
fn noise() -> Result<Blob> {
    let noise: Vec<u8> = (0..HINT_BYTES / 8).flat_map(|_| rand::random::<u64>().to_le_bytes()).collect();
    Ok(Blob::compress(BlobKind::Hints, &noise)?)
}

#[cfg(test)]
mod tests {
    use slipstream_sync::protocol::{ANSWER_BYTES_MAX, Parts, RangeBatch, RangeRequest};
    use slipstream_testkit::{header, info, keys, next_header, set, sign};
    use slipstream_types::{Digest, Epoch, LedgerInfo, accumulator::AccumulatorRangeProof, codec};

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

    /// Goal: a lie about signatures or headers changes only these, and a lie about missing parts changes nothing.
    #[test]
    fn a_range_is_changed_where_the_lie_is() {
        let truth = range();
        let answer = codec::encode("range", &truth).unwrap();
        let told = |lie, parts| {
            let told = super::told(lie, &asked(parts), &answer, &keys(9..10)[0]).unwrap();
            told.map(|told| codec::decode::<Range>("range", &told, ANSWER_BYTES_MAX).unwrap())
        };
        for lie in [PeerLie::StrangeSignatures, PeerLie::UnsignedRanges] {
            let strange = told(lie, Parts::BODY).unwrap();
            assert!(strange.certificate != truth.certificate && strange.batches == truth.batches, "{lie:?}");
        }
        for lie in [PeerLie::GraftedBatches, PeerLie::ChangedHeaders, PeerLie::EmptyRanges] {
            let grafted = told(lie, Parts::BODY).unwrap();
            assert!(grafted.certificate == truth.certificate && grafted.batches != truth.batches, "{lie:?}");
        }
        for lie in [
            PeerLie::ChangedMoney,
            PeerLie::FalseHints,
            PeerLie::CorruptAnswers,
            PeerLie::LiteralBlobs,
            PeerLie::MissingParts,
        ] {
            assert_eq!(told(lie, Parts::BODY), None, "{lie:?}");
        }
        for lie in [PeerLie::UselessHints, PeerLie::HugeHints] {
            assert_eq!(told(lie, Parts::BODY), None, "{lie:?}");
            let batches = told(lie, Parts::HINTS).unwrap().batches;
            assert!(batches.iter().any(|batch| batch.hints.is_some()), "{lie:?}");
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
        assert_eq!(head(PeerLie::ForgedHeads).info.number.get(), 1_006);
        assert_eq!(head(PeerLie::UnsignedHeads).signatures.len(), 1);
        let promises = told(PeerLie::EmptyPromises, &truth).unwrap();
        assert_eq!(promises.bodies_from, Some(BatchNumber::GENESIS));
        let offered: Vec<u64> = promises.snapshots.iter().map(|offer| offer.number.get()).collect();
        assert_eq!(offered, [6, 5, 4, 3]);
        for lie in [PeerLie::ForgedHeads, PeerLie::UnsignedHeads, PeerLie::EmptyPromises, PeerLie::HiddenRows]
        {
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
            let told = super::told(PeerLie::FalseValidators, &request, &answer, &keys(9..10)[0]).unwrap();
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
        assert_eq!(told(PeerLie::RepeatedEpochs, 2), Some([vec![0; 32], vec![1; 32]].concat()));
        assert_eq!(told(PeerLie::RepeatedEpochs, 64).unwrap()[..4], [0, 0, 1, 1]);
        assert_eq!(told(PeerLie::ReversedEpochs, 3), Some(vec![2, 1, 0]));
        assert_eq!([told(PeerLie::RepeatedEpochs, 0), told(PeerLie::ReversedEpochs, 1)], [None, None]);
    }
}
