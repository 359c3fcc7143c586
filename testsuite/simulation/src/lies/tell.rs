//! [`tell`]: each lie's change to an honest answer.

use std::ops::Range as Places;

use anyhow::Result;
use serde::{Serialize, de::DeserializeOwned};
use slipnet::scenario::fault::PeerLie;
use slipstream_sync::protocol::{
    ANSWER_BYTES_MAX, Codes, EPOCH_ENDS_MAX, EpochEnds, Headers, Offer, Parts, Range, RangeBatch, Request,
    Summary,
};
use slipstream_types::{
    Blob, BlobKind, bounded::BoundedVec, codec, hints::HINTS_VERSION, tree::StateRangeProof,
};

use super::{
    RowLie, each_part, false_hints, foreign, give_money, graft, huge_hints, other_code, promise_everything,
    row, swap_siblings, under_signed, undo_compression,
};

/// How far a forged head is ahead of the true one.
const FORGED_BATCHES: u64 = 1_000;

/// The part of an answer that a lie changes.
pub enum Reach<'a> {
    /// Every batch; of headers and rows, the middle one.
    Everywhere,
    /// The batch, header or row that this function draws, given their number, which is not 0.
    Drawn(&'a mut dyn FnMut(usize) -> usize),
}

impl Reach<'_> {
    fn one(&mut self, count: usize) -> usize {
        match self {
            Reach::Drawn(draw) if count > 0 => draw(count),
            _ => count / 2,
        }
    }

    fn batches(&mut self, count: usize) -> Places<usize> {
        match self {
            Reach::Drawn(draw) if count > 0 => {
                let place = draw(count);
                place..place + 1
            }
            _ => 0..count,
        }
    }
}

/// Turns an honest answer into the lie; `None` if the answer has nothing that the lie changes, or if making the lie
/// needs more than the answer.
pub fn tell(lie: PeerLie, request: &Request, honest: &[u8], mut reach: Reach<'_>) -> Result<Option<Vec<u8>>> {
    match (lie, request) {
        (_, Request::Summary) => {
            edited("summary", honest, |summary: &mut Summary| false_summary(summary, lie))
        }
        (_, Request::Range(asked)) => {
            edited("range", honest, |range: &mut Range| false_range(range, lie, asked.parts, reach))
        }
        (PeerLie::HiddenRows, Request::Chunk { .. }) => row(honest, RowLie::Hidden, |rows| reach.one(rows)),
        (PeerLie::ChangedRows, Request::Chunk { .. }) => row(honest, RowLie::Changed, |rows| reach.one(rows)),
        (PeerLie::CorruptAnswers, Request::Chunk { .. })
        | (PeerLie::CorruptRangeDeltas, Request::RangeDelta(_)) => {
            let mut answer = honest.to_vec();
            Ok(answer.last_mut().map(|last| *last ^= 1).map(|()| answer))
        }
        (PeerLie::FalseOffers, Request::Offer { .. }) => edited("offer", honest, |offer: &mut Offer| {
            offer.header.state_root.0[0] ^= 1;
            Ok(true)
        }),
        (PeerLie::SubtleOffers, Request::Offer { .. }) => edited("offer", honest, |offer: &mut Offer| {
            offer.header.gas_used += 1;
            Ok(true)
        }),
        (PeerLie::ChangedAncestry, Request::Headers { .. }) => {
            edited("headers", honest, |answer: &mut Headers| {
                let mut headers = answer.headers.to_vec();
                let place = reach.one(headers.len());
                let Some(header) = headers.get_mut(place) else { return Ok(false) };
                header.gas_used += 1;
                answer.headers = BoundedVec::new(headers)?;
                Ok(true)
            })
        }
        (PeerLie::SwappedSiblings, Request::RangeProof { .. }) => {
            edited("proof", honest, |proof: &mut StateRangeProof| {
                swap_siblings(proof);
                Ok(true)
            })
        }
        (PeerLie::OtherCode, Request::Codes { .. }) => {
            edited("codes", honest, |answer: &mut Codes| other_code(answer).map(|()| true))
        }
        (PeerLie::RepeatedEpochs | PeerLie::ReversedEpochs, Request::Epochs { .. }) => {
            edited("epoch ends", honest, |ends: &mut EpochEnds| disorder(ends, lie))
        }
        _ => Ok(None),
    }
}

/// Returns a decoded answer with a change; `None` if the change finds nothing to change.
pub(crate) fn edited<T: Serialize + DeserializeOwned>(
    what: &'static str,
    honest: &[u8],
    change: impl FnOnce(&mut T) -> Result<bool>,
) -> Result<Option<Vec<u8>>> {
    let mut answer: T = codec::decode(what, honest, ANSWER_BYTES_MAX)?;
    let any = change(&mut answer)?;
    let told = codec::encode(what, &answer)?;
    Ok(any.then_some(told))
}

/// Changes the head of a summary, or its promises; returns whether it did.
fn false_summary(summary: &mut Summary, lie: PeerLie) -> Result<bool> {
    match (lie, &mut summary.head) {
        (PeerLie::ForgedHeads, Some(head)) => head.info.number = head.info.number.after(FORGED_BATCHES),
        (PeerLie::UnsignedHeads, Some(head)) => *head = under_signed(head)?,
        (PeerLie::EmptyPromises, Some(head)) => {
            let head = head.info.number;
            promise_everything(summary, head)?;
        }
        (PeerLie::ForeignGenesis, _) => foreign(summary),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Repeats each epoch end, or reverses their order; returns whether the answer has enough epoch ends for that.
fn disorder(ends: &mut EpochEnds, lie: PeerLie) -> Result<bool> {
    let mut certificates = ends.certificates.to_vec();
    if lie == PeerLie::ReversedEpochs {
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

/// Changes the batches of a range, or its certificate; returns false if the range has nothing to change.
fn false_range(range: &mut Range, lie: PeerLie, parts: Parts, mut reach: Reach<'_>) -> Result<bool> {
    let mut batches = range.batches.to_vec();
    let count = batches.len();
    let mut any = true;
    match lie {
        PeerLie::UnsignedRanges => range.certificate = under_signed(&range.certificate)?,
        PeerLie::GraftedBatches => graft(&mut batches),
        PeerLie::EmptyRanges => batches.clear(),
        PeerLie::ShortRanges => {
            batches.truncate(count / 2 + 1);
            any = batches.len() < count;
        }
        PeerLie::ChangedHeaders => {
            batches.iter_mut().skip(reach.one(count)).take(1).for_each(|batch| batch.header.gas_used += 1);
        }
        // Hints that were not requested are another lie.
        PeerLie::UselessHints | PeerLie::HugeHints if !parts.has(Parts::HINTS) => any = false,
        PeerLie::HugeHints => {
            let hints = huge_hints()?;
            batches
                .iter_mut()
                .skip(reach.one(count))
                .take(1)
                .for_each(|batch| batch.hints = Some(hints.clone()));
        }
        _ => {
            any = false;
            for batch in &mut batches[reach.batches(count)] {
                any |= false_batch(batch, lie)?;
            }
        }
    }
    range.batches = BoundedVec::new(batches)?;
    Ok(any)
}

/// Changes one batch of a range; returns whether it did.
fn false_batch(batch: &mut RangeBatch, lie: PeerLie) -> Result<bool> {
    match lie {
        PeerLie::UselessHints => batch.hints = Some(Blob::compress(BlobKind::Hints, &[HINTS_VERSION])?),
        PeerLie::MissingParts => {
            let had = batch.body.take().is_some();
            return Ok(batch.delta.take().is_some() || had);
        }
        PeerLie::LiteralBlobs => return undo_compression(batch),
        PeerLie::CorruptAnswers => {
            return each_part(batch, |_, blob| {
                let mut bytes = blob.as_bytes().to_vec();
                if let Some(last) = bytes.last_mut() {
                    *last ^= 1;
                }
                Ok(Blob::from_bytes(bytes)?)
            });
        }
        PeerLie::ChangedMoney => return give_money(batch),
        PeerLie::FalseHints => match false_hints(batch)? {
            Some(hints) => batch.hints = Some(hints),
            None => return Ok(false),
        },
        _ => return Ok(false),
    }
    Ok(true)
}
