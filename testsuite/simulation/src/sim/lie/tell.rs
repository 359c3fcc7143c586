//! Each lie's change to an honest answer. Those that need nothing but the answer are told by [`lies::tell`].

use anyhow::Result;
use rand::{Rng, rngs::StdRng, seq::IndexedMutRandom};
use slipnet::scenario::fault::PeerLie;
use slipstream_sync::{
    answer,
    protocol::{ANSWER_BYTES_MAX, EpochEnds, Offer, Range, RangeRequest, Request, Summary, Survey},
};
use slipstream_types::{
    AccountValue, BatchNumber, Blob, BlobKind, Certificate, Delta, StateValue, bounded::BoundedVec, codec,
    hints::HINTS_VERSION,
};

use super::{super::chain::Chain, Lie, Question, expired};
use crate::lies::{self, Reach, edited, huge_hints};

impl Lie {
    /// Turns an honest answer into the lie; `None` if the answer has nothing that the lie changes.
    pub(in super::super) fn tell(self, question: Question<'_>, rng: &mut StdRng) -> Result<Option<Vec<u8>>> {
        let Question { request, honest, known } = question;
        match (self, request) {
            (Lie::Expired, Request::Summary) => expired::summary(honest, known),
            (Lie::Expired, _) => expired::range(honest, known),
            (Lie::Peer(PeerLie::PaddedRangeDeltas), Request::RangeDelta(request)) => {
                let rows = Chain::canonical().state(request.to).iter();
                lies::pad(honest, rows.map(|(key, value)| (*key, *value)))
            }
            (Lie::Peer(PeerLie::GarbageAnswers), _) => {
                let len = rng.random_range(0..300);
                Ok(Some((0..len).map(|_| rng.random()).collect()))
            }
            (Lie::Peer(PeerLie::UnsignedHeads), Request::Summary) => {
                edited("summary", honest, |summary: &mut Summary| {
                    let Some(head) = &mut summary.head else { return Ok(false) };
                    *head = one_signature_less(head)?;
                    Ok(true)
                })
            }
            (Lie::Peer(PeerLie::ShiftedRanges), Request::Range(range)) => {
                let later = RangeRequest { first: range.first.next(), ..*range };
                Ok(other_answer(&Chain::canonical().store, &Request::Range(later)))
            }
            (Lie::Peer(PeerLie::StrangeSignatures), Request::Range(_)) => {
                Ok(other_answer(&Chain::forged().store, request))
            }
            (_, Request::Range(_)) => self.range(request, honest, rng),
            (Lie::Peer(PeerLie::FalseOffers), Request::Offer { .. }) => {
                edited("offer", honest, |offer: &mut Offer| {
                    match &mut offer.passed {
                        Some(passed) if rng.random() => passed.header.gas_used += 1,
                        passed @ Some(_) if rng.random() => *passed = None,
                        _ if rng.random() => offer.genesis_proof = Default::default(),
                        _ => offer.header.state_root.0[0] ^= 1,
                    }
                    Ok(true)
                })
            }
            (_, Request::Survey { .. }) => edited("survey", honest, |answer: &mut Survey| {
                let mut headers = answer.headers.to_vec();
                if let Some(placed) = headers.choose_mut(rng) {
                    placed.header.totals.gas /= 2;
                }
                answer.headers = BoundedVec::new(headers)?;
                Ok(true)
            }),
            (_, Request::ReverseDelta { .. }) => {
                let mut entries = Delta::open(&Blob::from_bytes(honest.to_vec())?)?.entries().to_vec();
                let Some(entry) = entries.choose_mut(rng) else { return Ok(None) };
                entry.value = match entry.value {
                    Some(StateValue::Account(account)) => {
                        Some(StateValue::Account(AccountValue { nonce: account.nonce + 1, ..account }))
                    }
                    _ => None,
                };
                let content = Delta::new(entries, Vec::new())?.content()?;
                Ok(Some(Blob::compress(BlobKind::Delta, &content)?.into_bytes()))
            }
            (_, Request::Epochs { .. }) => edited("epoch ends", honest, |ends: &mut EpochEnds| {
                let mut certificates = ends.certificates.to_vec();
                if let Some(end) = certificates.last_mut() {
                    let strangers = Chain::forged().store.epoch_ends(end.info.epoch, 1)?;
                    end.info.next_validators =
                        strangers.into_iter().next().and_then(|end| end.info.next_validators);
                }
                ends.certificates = BoundedVec::new(certificates)?;
                Ok(true)
            }),
            (Lie::Peer(lie), _) => {
                lies::tell(lie, request, honest, Reach::Drawn(&mut |count| rng.random_range(0..count)))
            }
            (Lie::Body | Lie::Delta | Lie::Receipts, _) => Ok(None),
        }
    }

    fn range(self, request: &Request, honest: &[u8], rng: &mut StdRng) -> Result<Option<Vec<u8>>> {
        let mut range: Range = codec::decode("range", honest, ANSWER_BYTES_MAX)?;
        let mut batches = range.batches.to_vec();
        let at = rng.random_range(0..batches.len());
        match self {
            Lie::Body => batches[at].body = batches[at].body.take().map(flip),
            Lie::Receipts => {
                let batch = &mut batches[at];
                let Some(others) = receipts_of_another(batch.header.number, batch.receipts.as_ref())? else {
                    return Ok(None);
                };
                batch.receipts = Some(others);
            }
            Lie::Delta => batches[at].delta = batches[at].delta.take().map(flip),
            Lie::Peer(PeerLie::UnsignedRanges) => {
                range.certificate = one_signature_less(&range.certificate)?;
            }
            Lie::Peer(PeerLie::GraftedBatches) => {
                let Some(forged) = other_answer(&Chain::forged().store, request) else { return Ok(None) };
                let forged: Range = codec::decode("range", &forged, ANSWER_BYTES_MAX)?;
                let last = forged.batches.last().map(|batch| batch.header.number);
                // The certificate of a later batch: the last batch's own certificate repeats fields that would reveal
                // the forgery.
                let chain = Chain::canonical();
                let later = last.and_then(|last| chain.batch(last.next()));
                let Some(later) = later else { return Ok(None) };
                range.certificate = later.certificate.clone();
                batches = forged.batches.into_inner();
            }
            Lie::Peer(PeerLie::UselessHints) => {
                let hints = useless_hints(rng)?;
                let none = rng.random();
                batches
                    .iter_mut()
                    .for_each(|batch| batch.hints = if none { None } else { Some(hints.clone()) });
            }
            Lie::Peer(PeerLie::UnaskedHints) => batches[at].hints = Some(huge_hints()?),
            Lie::Peer(PeerLie::FalseHints) => {
                for batch in &mut batches {
                    let made = Chain::canonical().batch(batch.header.number);
                    batch.hints = made.and_then(|made| made.false_hints.clone());
                }
            }
            Lie::Peer(PeerLie::LiteralBlobs) => {
                return lies::tell(PeerLie::LiteralBlobs, request, honest, Reach::Everywhere);
            }
            Lie::Peer(lie) => return lies::tell(lie, request, honest, Reach::Drawn(&mut |_| at)),
            Lie::Expired => return Ok(None),
        }
        range.batches = BoundedVec::new(batches)?;
        Ok(Some(codec::encode("range", &range)?))
    }
}

/// Returns hints that name nothing, or hints of an unknown version.
fn useless_hints(rng: &mut StdRng) -> Result<Blob> {
    let version = if rng.random() { HINTS_VERSION } else { rng.random() };
    Ok(Blob::compress(BlobKind::Hints, &[version])?)
}

/// Drops one signature, which breaks the quorum: these ledgers have the fewest signers that make one.
fn one_signature_less(certificate: &Certificate) -> Result<Certificate> {
    let mut signatures = certificate.signatures.to_vec();
    signatures.pop();
    Ok(Certificate { signatures: BoundedVec::new(signatures)?, ..certificate.clone() })
}

/// Returns the next receipts that differ from `own`; `None` if all are equal. Batches with the same number of similar
/// transactions have equal receipts.
fn receipts_of_another(number: BatchNumber, own: Option<&Blob>) -> Result<Option<Blob>> {
    let store = &Chain::canonical().store;
    for other in number.next().through(store.head()?.header.number) {
        let receipts = store.blob(BlobKind::Receipts, other)?;
        if receipts.as_ref() != own {
            return Ok(receipts);
        }
    }
    Ok(None)
}

/// Returns another store's answer.
fn other_answer(store: &slipstream_storage::Store, request: &Request) -> Option<Vec<u8>> {
    answer(store, &codec::encode("sync request", request).ok()?).ok()
}

pub(super) fn flip(blob: Blob) -> Blob {
    let mut bytes = blob.as_bytes().to_vec();
    if let Some(byte) = bytes.last_mut() {
        *byte ^= 0x10;
    }
    Blob::from_bytes(bytes).unwrap_or(blob)
}
