//! Lies under valid signatures of validators whose epoch is over, and whose keys may have leaked.
//!
//! Only nodes that know that the epoch is over get these lies. A node that has just the genesis accepts any ledger that
//! its validators signed; waypoints guard against that.

use anyhow::{Context, Result};
use slipstream_sync::protocol::{ANSWER_BYTES_MAX, Announcement, Range, Summary};
use slipstream_types::{
    BatchHeader, BatchNumber, Certificate, Epoch, LedgerInfo, accumulator::Accumulator, bounded::BoundedVec,
    codec,
};

use super::super::chain::{Chain, epoch, signers};

/// Returns the last epoch that is over, both for a node that knows the validators of `known` and for a batch; `None`
/// before the first.
fn over(known: Epoch, number: BatchNumber) -> Option<Epoch> {
    known.min(epoch(number)).0.checked_sub(1).map(Epoch)
}

fn sign(info: LedgerInfo) -> Certificate {
    let signers = signers(info.epoch);
    slipstream_testkit::sign(info, &signers)
}

/// Replaces a batch's header, and returns the certificate of the ledger that ends with the new header.
fn replace(header: &mut BatchHeader, over: Epoch) -> Result<Certificate> {
    header.epoch = over;
    header.gas_used += 1;
    let mut accumulator = Accumulator::default();
    for number in (0..header.number.get()).map(BatchNumber::new) {
        accumulator.append(Chain::canonical().header(number)?.digest());
    }
    accumulator.append(header.digest());
    Ok(sign(LedgerInfo::of(header, accumulator.root(), None)))
}

/// Forges a head far ahead.
pub(super) fn summary(honest: &[u8], known: Epoch) -> Result<Option<Vec<u8>>> {
    let mut summary: Summary = codec::decode("summary", honest, ANSWER_BYTES_MAX)?;
    let Some(head) = &mut summary.head else { return Ok(None) };
    let Some(over) = over(known, head.info.number) else { return Ok(None) };
    let mut info = head.info.clone();
    info.number = info.number.after(1_000);
    (info.epoch, info.next_validators) = (over, None);
    *head = sign(info);
    Ok(Some(codec::encode("summary", &summary)?))
}

/// Forges a range: replaces its last batch, in a ledger that ends with the replacement.
pub(super) fn range(honest: &[u8], known: Epoch) -> Result<Option<Vec<u8>>> {
    let mut range: Range = codec::decode("range", honest, ANSWER_BYTES_MAX)?;
    let mut batches = range.batches.to_vec();
    let (count, first) = (batches.len(), batches.first().context("ranges have batches")?.header.number);
    let last = &mut batches.last_mut().context("ranges have batches")?.header;
    let Some(over) = over(known, last.number) else { return Ok(None) };
    range.certificate = replace(last, over)?;
    // The part to the left of a range is the same for every last batch.
    range.proof = Chain::canonical().store.header_range_proof(last.number.leaves(), first, count)?;
    range.batches = BoundedVec::new(batches)?;
    Ok(Some(codec::encode("range", &range)?))
}

/// Replaces an announced batch. Returns false if no epoch is over for that batch.
pub(super) fn announce(announcement: &mut Announcement, known: Epoch) -> Result<bool> {
    let Some(over) = over(known, announcement.header.number) else { return Ok(false) };
    announcement.certificate = replace(&mut announcement.header, over)?;
    Ok(true)
}
