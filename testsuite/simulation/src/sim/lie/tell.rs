//! Each lie's change to an honest answer.

use anyhow::Result;
use rand::{Rng, rngs::StdRng, seq::IndexedMutRandom};
use slipstream_sync::{
    answer,
    protocol::{ANSWER_BYTES_MAX, Codes, EpochEnds, Headers, Offer, Range, Request, Summary, Survey},
};
use slipstream_types::{
    AccountValue, BatchNumber, Blob, BlobKind, Certificate, Delta, StateValue, bounded::BoundedVec, codec,
    hints::HINTS_VERSION, tree::StateRangeProof,
};

use super::{super::chain::Chain, Lie, Question, expired, waste};
use crate::altered::{self, RowLie};

impl Lie {
    /// Turns an honest answer into the lie; `None` if the answer has no place for it.
    pub(in super::super) fn tell(self, question: Question<'_>, rng: &mut StdRng) -> Result<Option<Vec<u8>>> {
        let Question { request, honest, head, known } = question;
        match (self, request) {
            (Lie::Expired, Request::Summary) => expired::summary(honest, known),
            (Lie::Expired, _) => expired::range(honest, known),
            (Lie::Padded, Request::RangeDelta(request)) => waste::padded(honest, request),
            (Lie::Garbage, _) => {
                let len = rng.random_range(0..300);
                Ok(Some((0..len).map(|_| rng.random()).collect()))
            }
            (_, Request::Summary) => self.summary(honest, head).map(Some),
            (Lie::Shifted, Request::Range(range)) => {
                let later = slipstream_sync::protocol::RangeRequest { first: range.first.next(), ..*range };
                Ok(other_answer(&Chain::canonical().store, &Request::Range(later)))
            }
            (Lie::Stranger, Request::Range(_)) => Ok(other_answer(&Chain::forged().store, request)),
            (_, Request::Range(_)) => self.range(request, honest, rng),
            (_, Request::Offer { .. }) => {
                let mut offer: Offer = codec::decode("offer", honest, ANSWER_BYTES_MAX)?;
                match (self, &mut offer.passed) {
                    (Lie::Offer, Some(passed)) if rng.random() => passed.header.gas_used += 1,
                    (Lie::Offer, passed @ Some(_)) if rng.random() => *passed = None,
                    (Lie::Offer, _) if rng.random() => offer.genesis_proof = Default::default(),
                    (Lie::Offer, _) => offer.header.state_root.0[0] ^= 1,
                    _ => offer.header.gas_used += 1,
                }
                Ok(Some(codec::encode("offer", &offer)?))
            }
            (_, Request::Headers { .. }) => {
                let mut answer: Headers = codec::decode("headers", honest, ANSWER_BYTES_MAX)?;
                let mut headers = answer.headers.to_vec();
                if let Some(header) = headers.choose_mut(rng) {
                    header.gas_used += 1;
                }
                answer.headers = BoundedVec::new(headers)?;
                Ok(Some(codec::encode("headers", &answer)?))
            }
            (_, Request::Survey { .. }) => {
                let mut answer: Survey = codec::decode("survey", honest, ANSWER_BYTES_MAX)?;
                let mut headers = answer.headers.to_vec();
                if let Some(placed) = headers.choose_mut(rng) {
                    placed.header.totals.gas /= 2;
                }
                answer.headers = BoundedVec::new(headers)?;
                Ok(Some(codec::encode("survey", &answer)?))
            }
            (_, Request::Chunk { .. }) => self.chunk(honest, rng),
            (_, Request::RangeProof { .. }) => {
                let mut proof: StateRangeProof = codec::decode("proof", honest, ANSWER_BYTES_MAX)?;
                altered::swap_siblings(&mut proof);
                Ok(Some(codec::encode("proof", &proof)?))
            }
            (_, Request::Codes { .. }) => {
                let mut answer: Codes = codec::decode("codes", honest, ANSWER_BYTES_MAX)?;
                altered::other_code(&mut answer)?;
                Ok(Some(codec::encode("codes", &answer)?))
            }
            (_, Request::RangeDelta(_)) => Ok(Some(flip(Blob::from_bytes(honest.to_vec())?).into_bytes())),
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
            (_, Request::Epochs { .. }) => {
                let mut ends: EpochEnds = codec::decode("epoch ends", honest, ANSWER_BYTES_MAX)?;
                let mut certificates = ends.certificates.to_vec();
                if let Some(end) = certificates.last_mut() {
                    let strangers = Chain::forged().store.epoch_ends(end.info.epoch, 1)?;
                    end.info.next_validators =
                        strangers.into_iter().next().and_then(|end| end.info.next_validators);
                }
                ends.certificates = BoundedVec::new(certificates)?;
                Ok(Some(codec::encode("epoch ends", &ends)?))
            }
            (_, Request::Subtrees(_)) => {
                let mut answer = honest.to_vec();
                if let Some(byte) = answer.choose_mut(rng) {
                    *byte ^= 1;
                }
                Ok(Some(answer))
            }
            (_, Request::Origin { .. }) => Ok(None),
        }
    }

    fn summary(self, honest: &[u8], head: BatchNumber) -> Result<Vec<u8>> {
        let mut summary: Summary = codec::decode("summary", honest, ANSWER_BYTES_MAX)?;
        match (self, &mut summary.head) {
            (Lie::ForgedHead, Some(certificate)) => {
                certificate.info.number = certificate.info.number.after(1_000);
            }
            (Lie::NoQuorum, Some(certificate)) => {
                *certificate = one_signature_less(certificate)?;
            }
            (Lie::ForeignChain, _) => altered::foreign(&mut summary),
            _ => altered::promise_everything(&mut summary, head)?,
        }
        Ok(codec::encode("summary", &summary)?)
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
            Lie::Money => {
                altered::give_money(&mut batches[at])?;
            }
            Lie::Short => batches.truncate(batches.len() / 2 + 1),
            Lie::Empty => batches.clear(),
            Lie::Missing => (batches[at].body, batches[at].delta) = (None, None),
            Lie::Header => batches[at].header.gas_used += 1,
            Lie::RangeNoQuorum => {
                range.certificate = one_signature_less(&range.certificate)?;
            }
            Lie::Grafted => {
                let Some(forged) = other_answer(&Chain::forged().store, request) else { return Ok(None) };
                let forged: Range = codec::decode("range", &forged, ANSWER_BYTES_MAX)?;
                let last = forged.batches.last().map(|batch| batch.header.number);
                // Not under its last batch's own certificate: the fields that a certificate repeats would reveal it.
                let chain = Chain::canonical();
                let later = last.and_then(|last| chain.batch(last.next()));
                let Some(later) = later else { return Ok(None) };
                range.certificate = later.certificate.clone();
                batches = forged.batches.into_inner();
            }
            Lie::UselessHints => {
                let hints = useless_hints(rng)?;
                let none = rng.random();
                batches
                    .iter_mut()
                    .for_each(|batch| batch.hints = if none { None } else { Some(hints.clone()) });
            }
            Lie::Literal => {
                let mut any = false;
                for batch in &mut batches {
                    any |= altered::undo_compression(batch)?;
                }
                if !any {
                    return Ok(None);
                }
            }
            Lie::HugeHints | Lie::UnaskedHints => {
                batches[at].hints = Some(altered::huge_hints()?);
            }
            Lie::FalseValues => {
                for batch in &mut batches {
                    let made = Chain::canonical().batch(batch.header.number);
                    batch.hints = made.and_then(|made| made.false_hints.clone());
                }
            }
            _ => return Ok(None),
        }
        range.batches = BoundedVec::new(batches)?;
        Ok(Some(codec::encode("range", &range)?))
    }

    fn chunk(self, honest: &[u8], rng: &mut StdRng) -> Result<Option<Vec<u8>>> {
        let lie = if self == Lie::ChangedRow { RowLie::Changed } else { RowLie::Hidden };
        altered::row(honest, lie, |rows| rng.random_range(0..rows))
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
