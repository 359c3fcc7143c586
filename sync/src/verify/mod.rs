//! Pure checks of peers' answers. A quorum's signatures cover everything that passes here.

use std::collections::BTreeMap;

use rayon::prelude::*;
use slipstream_storage::Head;
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, BlobKind, Certificate, CodecError, Digest, LedgerInfo, PublicKey,
    ValidatorSet, Waypoint,
    accumulator::{Accumulator, AccumulatorError},
    batch::content_digest,
    hints,
};

use crate::{
    error::{TrustError, Violation},
    planted::{Defences, Planted},
    protocol::{Announcement, Headers, Offer, Parts, PassedBatch, Range, RangeBatch, RangeRequest, Survey},
    trust::Trust,
};

/// Batches whose headers, bodies, receipts and deltas are certified. Only [`range`] and [`announced`] create it.
#[derive(Debug)]
pub struct VerifiedRange {
    certificate: Certificate,
    batches: Vec<RangeBatch>,
    /// For each batch, the validator that vouches for its hints, if one does.
    makers: Vec<Option<PublicKey>>,
}

impl VerifiedRange {
    /// The certificate, which covers all of the batches.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The batches in order, at least one.
    pub fn batches(&self) -> &[RangeBatch] {
        &self.batches
    }

    /// Whether each of its batches has all of these parts.
    pub(crate) fn has(&self, parts: Parts) -> bool {
        self.batches.iter().all(|batch| batch.parts().has(parts))
    }

    /// Takes it apart: each batch comes with the validator that vouches for its hints, if one does.
    pub(crate) fn into_parts(self) -> (Certificate, Vec<(RangeBatch, Option<PublicKey>)>) {
        (self.certificate, self.batches.into_iter().zip(self.makers).collect())
    }

    /// Puts verified batches together again.
    pub(crate) fn again(
        certificate: Certificate,
        batches: Vec<(RangeBatch, Option<PublicKey>)>,
    ) -> VerifiedRange {
        let (batches, makers) = batches.into_iter().unzip();
        VerifiedRange { certificate, batches, makers }
    }

    /// Compressed bytes of all parts that are here, hints included: the memory that they take.
    pub fn held_bytes(&self) -> usize {
        self.batches.iter().map(RangeBatch::held_bytes).sum()
    }

    /// Compressed bytes of the verified parts.
    pub fn certified_bytes(&self) -> usize {
        self.batches.iter().map(RangeBatch::certified_bytes).sum()
    }
}

/// Checks a range answer: signatures, accumulator proof, order, parent, length, and the digest of every part.
///
/// `due` is the number of batches that the peer's head allows. The batches before the first one may be missing here:
/// the accumulator binds its place, and the store its parent.
pub fn range(
    answer: Range,
    request: &RangeRequest,
    due: u64,
    trust: &Trust,
) -> Result<VerifiedRange, TrustError> {
    range_but(answer, request, due, trust, Defences::default())
}

/// As [`range`], without the check that `defences` lacks; a node lacks none.
pub(crate) fn range_but(
    answer: Range,
    request: &RangeRequest,
    due: u64,
    trust: &Trust,
    defences: Defences,
) -> Result<VerifiedRange, TrustError> {
    let Range { certificate, proof, batches } = answer;
    let mut batches = batches.into_inner();
    if !defences.lacks(Planted::UnsignedRange) {
        trust.verify(&certificate)?;
    }
    check_length(&batches, request, due)?;
    check_asked(&batches, request.parts)?;
    let mut parent = None;
    let mut digests = Vec::with_capacity(batches.len());
    for (batch, number) in batches.iter().zip(request.first.through(BatchNumber::MAX)) {
        let header = &batch.header;
        check_follows(header, number, parent.unwrap_or(header.parent))?;
        digests.push(*parent.insert(header.digest()));
    }
    let leaves = certificate.info.number.leaves();
    if !defences.lacks(Planted::UnprovenRange) {
        let proved = proof.verify(certificate.info.accumulator_root, leaves, request.first.get(), &digests);
        proved.map_err(Violation::from)?;
    }
    if let Some(last) = batches.last().filter(|last| last.header.number == certificate.info.number) {
        check_agrees(&last.header, &certificate)?;
    }
    let makers = batches.par_iter().zip(&digests).map(|(batch, digest)| -> Result<_, Violation> {
        check_parts(batch, request.parts, defences)?;
        Ok(hints_maker(batch, digest, trust))
    });
    let makers: Vec<Option<PublicKey>> = makers.collect::<Result<_, Violation>>()?;
    if request.parts.has(Parts::DELTA) {
        // Nothing is executed that would show what these hints are worth.
        for (batch, maker) in batches.iter_mut().zip(&makers) {
            if !is_kept(batch, maker.as_ref()) {
                batch.hints = None;
            }
        }
    }
    Ok(VerifiedRange { certificate, batches, makers })
}

/// Checks what an announcement can show without a ledger: a quorum signed it, and it is about this header.
pub fn announcement(announcement: &Announcement, trust: &Trust) -> Result<(), TrustError> {
    announcement_agrees(announcement)?;
    trust.verify(&announcement.certificate)
}

/// As [`announcement`], without the signatures.
pub(crate) fn announcement_agrees(announcement: &Announcement) -> Result<(), Violation> {
    let Announcement { header, certificate, .. } = announcement;
    check_number(header.number, certificate.info.number)?;
    check_agrees(header, certificate)
}

/// Checks an announcement of the batch after `head` completely.
pub fn announced(
    announcement: Announcement,
    head: &Head,
    trust: &Trust,
) -> Result<VerifiedRange, TrustError> {
    self::announcement(&announcement, trust)?;
    let Announcement { header, certificate, body, hints } = announcement;
    check_follows(&header, head.header.number.next(), head.digest)?;
    let mut accumulator = head.accumulator.clone();
    accumulator.append(header.digest());
    if accumulator.root() != certificate.info.accumulator_root {
        return Err(Violation::Disagreement { number: header.number, field: "accumulator root" }.into());
    }
    let batch = RangeBatch { header, body: Some(body), receipts: None, delta: None, hints };
    check_parts(&batch, Parts::BODY, Defences::default())?;
    let maker = hints_maker(&batch, &batch.header.digest(), trust);
    Ok(VerifiedRange { certificate, batches: vec![batch], makers: vec![maker] })
}

/// Checks the beginning of a snapshot, and that its ledger begins with the genesis of this digest. Returns the waypoint
/// that the ledger has at `passing`, a batch up to the snapshot, if one is given.
pub fn offer(
    offer: &Offer,
    number: BatchNumber,
    passing: Option<BatchNumber>,
    genesis: Digest,
    trust: &Trust,
) -> Result<Option<Waypoint>, TrustError> {
    trust.verify(&offer.certificate)?;
    let info = &offer.certificate.info;
    for found in [offer.header.number, info.number] {
        check_number(number, found)?;
    }
    check_agrees(&offer.header, &offer.certificate)?;
    let leaves = number.leaves();
    let proved = offer.genesis_proof.verify(info.accumulator_root, leaves, 0, &[genesis]);
    proved.map_err(Violation::from)?;
    match (passing, &offer.passed) {
        (None, _) => Ok(None),
        (Some(passing), _) if passing == number => Ok(Some(Waypoint::of(info))),
        (Some(passing), Some(passed)) => Ok(Some(passed_waypoint(passed, passing, info, trust)?)),
        (Some(_), None) => {
            Err(Violation::Unrelated("the proof of a batch's place in the ledger is missing").into())
        }
    }
}

/// The waypoint of a batch in a certified later ledger.
fn passed_waypoint(
    passed: &PassedBatch,
    number: BatchNumber,
    later: &LedgerInfo,
    trust: &Trust,
) -> Result<Waypoint, Violation> {
    let PassedBatch { header, proof } = passed;
    check_number(number, header.number)?;
    let leaves = later.number.leaves();
    let nodes = proof.verify(later.accumulator_root, leaves, number.get(), &[header.digest()])?;
    let nodes: BTreeMap<_, _> = nodes.into_iter().collect();
    // The siblings on the left of a leaf, together with the leaf, are the ledger that ends with it.
    let accumulator = Accumulator::load(number.leaves(), |position| nodes.get(&position).copied());
    let accumulator = accumulator.ok_or(AccumulatorError::WrongLength)?;
    Ok(waypoint_of(header, &accumulator, trust.end_of(header.epoch, number).cloned()))
}

/// Checks headers that end with the batch of a verified certificate.
pub fn headers(answer: &Headers, first: BatchNumber, certificate: &Certificate) -> Result<(), Violation> {
    let last = certificate.info.number;
    if answer.headers.len() as u64 != last.since(first) + 1 {
        return Err(Violation::Unrelated("it has another number of headers"));
    }
    for (header, number) in answer.headers.iter().zip(first.through(last)) {
        check_number(number, header.number)?;
    }
    let digests: Vec<_> = answer.headers.iter().map(BatchHeader::digest).collect();
    answer.proof.verify(certificate.info.accumulator_root, last.leaves(), first.get(), &digests)?;
    Ok(())
}

/// Checks a survey. Its headers must be requested ones, in order, with the last requested one. The proofs must show
/// each header at its place in the certified ledger, which ends with the last header.
///
/// # Errors
/// The rule that the answer breaks.
pub fn survey(answer: &Survey, numbers: &[BatchNumber], certificate: &Certificate) -> Result<(), Violation> {
    let last = certificate.info.number;
    let mut asked = numbers.iter();
    for PassedBatch { header, proof } in answer.headers.iter() {
        if !asked.any(|number| *number == header.number) {
            return Err(Violation::Unrelated("it has headers that were not requested"));
        }
        let place = header.number.get();
        proof.verify(certificate.info.accumulator_root, last.leaves(), place, &[header.digest()])?;
    }
    match answer.headers.last() {
        Some(placed) if placed.header.number == last => Ok(()),
        _ => Err(Violation::Unrelated("the survey lacks the last header")),
    }
}

/// The waypoint that a ledger has at a batch, given the accumulator that ends with it.
pub fn waypoint_at(header: &BatchHeader, accumulator: &Accumulator, certificate: &Certificate) -> Waypoint {
    match certificate.info.number == header.number {
        true => Waypoint::of(&certificate.info),
        false => waypoint_of(header, accumulator, None),
    }
}

fn waypoint_of(
    header: &BatchHeader,
    accumulator: &Accumulator,
    next_validators: Option<ValidatorSet>,
) -> Waypoint {
    Waypoint::of(&LedgerInfo::of(header, accumulator.root(), next_validators))
}

fn check_length(batches: &[RangeBatch], request: &RangeRequest, due: u64) -> Result<(), Violation> {
    let wanted = u64::from(request.batches_max).min(due) as usize;
    let bytes: usize = batches.iter().map(RangeBatch::certified_bytes).sum();
    let full = bytes >= request.bytes_max as usize;
    let short = Violation::ShortRange { first: request.first, found: batches.len(), wanted };
    if batches.is_empty() || (batches.len() < wanted && !full) {
        return Err(short);
    }
    if batches.len() > request.batches_max as usize {
        return Err(Violation::Unrelated("it has more batches than requested"));
    }
    Ok(())
}

fn check_number(expected: BatchNumber, found: BatchNumber) -> Result<(), Violation> {
    match found == expected {
        true => Ok(()),
        false => Err(Violation::WrongNumber { expected, found }),
    }
}

fn check_follows(header: &BatchHeader, number: BatchNumber, parent: Digest) -> Result<(), Violation> {
    check_number(number, header.number)?;
    if header.parent != parent {
        return Err(Violation::WrongParent { number });
    }
    Ok(())
}

/// Refuses parts that were not asked for, above all hints, whose bytes no header bounds.
fn check_asked(batches: &[RangeBatch], asked: Parts) -> Result<(), Violation> {
    match batches.iter().all(|batch| asked.has(batch.parts())) {
        true => Ok(()),
        false => Err(Violation::Unrelated("it has parts of a batch that were not requested")),
    }
}

/// Compares the fields that the ledger info repeats. The accumulator binds the rest of the header.
fn check_agrees(header: &BatchHeader, certificate: &Certificate) -> Result<(), Violation> {
    let info = &certificate.info;
    let field = if info.state_root != header.state_root {
        "state root"
    } else if info.epoch != header.epoch {
        "epoch"
    } else if info.timestamp_ms != header.timestamp_ms {
        "timestamp"
    } else {
        return Ok(());
    };
    Err(Violation::Disagreement { number: header.number, field })
}

fn check_parts(batch: &RangeBatch, parts: Parts, defences: Defences) -> Result<(), Violation> {
    let header = &batch.header;
    let checked = [
        (Parts::BODY, BlobKind::Body, &batch.body, header.transactions_root, Some(header.tx_bytes)),
        (Parts::RECEIPTS, BlobKind::Receipts, &batch.receipts, header.receipts_root, None),
        (Parts::DELTA, BlobKind::Delta, &batch.delta, header.delta_digest, Some(header.delta_bytes)),
    ];
    for (part, kind, blob, expected, len) in checked {
        match blob {
            Some(_) if part == Parts::BODY && defences.lacks(Planted::UnhashedBody) => {}
            Some(_) if part == Parts::DELTA && defences.lacks(Planted::UnhashedDelta) => {}
            Some(blob) => check_blob(header.number, kind, blob, expected, len)?,
            None if parts.has(part) && !defences.lacks(Planted::MissingPart) => {
                return Err(Violation::MissingPart { part: kind.name(), number: header.number });
            }
            None => {}
        }
    }
    Ok(())
}

/// Returns the validator that vouches for a batch's hints, and answers for them.
fn hints_maker(batch: &RangeBatch, digest: &Digest, trust: &Trust) -> Option<PublicKey> {
    let RangeBatch { header, hints, .. } = batch;
    let hints = hints.as_ref().filter(|hints| is_at_most(hints, hints::signed_bytes_max(header.gas_used)))?;
    let content = hints.content(BlobKind::Hints).ok()?;
    hints::vouched_by(&content, digest, trust.set_of(header.epoch)?).copied()
}

/// Whether a node that does not execute the batch may keep its hints: others would fill disks and answers.
fn is_kept(batch: &RangeBatch, maker: Option<&PublicKey>) -> bool {
    let RangeBatch { header, hints, .. } = batch;
    let most = hints::kept_bytes_max(header.tx_bytes, header.delta_bytes);
    maker.is_some() && hints.as_ref().is_none_or(|hints| is_at_most(hints, most))
}

fn is_at_most(hints: &Blob, bytes: usize) -> bool {
    hints.content_len(BlobKind::Hints).is_ok_and(|len| len <= bytes)
}

fn check_blob(
    number: BatchNumber,
    kind: BlobKind,
    blob: &Blob,
    expected: Digest,
    len: Option<u32>,
) -> Result<(), Violation> {
    // The header's size is certified: a blob that announces another size is refused before it is decompressed.
    let announced = blob.content_len(kind)?;
    if len.is_some_and(|len| len as usize != announced) {
        return Err(CodecError::Invalid {
            what: kind.name(),
            rule: "its length must be the one in its header",
        }
        .into());
    }
    let found = content_digest(kind, &blob.content(kind)?);
    if found != expected {
        return Err(Violation::WrongDigest { part: kind.name(), number, found, expected });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
