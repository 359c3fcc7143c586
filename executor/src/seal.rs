//! [`seal`]: from an outcome to a header and the blobs that it commits to.

use alloy_primitives::Address;
use slipstream_types::{
    BatchHeader, Blob, BlobKind, CodecError, Digest, Epoch, batch::content_digest, bounded::BoundedVec,
    codec, limits,
};

use crate::{hinting::seal_hints, outcome::Outcome, transaction::Transaction};

/// A whole batch, as it is stored and sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sealed {
    /// Commits to everything below but the hints.
    pub header: BatchHeader,
    /// The transactions.
    pub body: Blob,
    /// What they did.
    pub receipts: Blob,
    /// What changed.
    pub delta: Blob,
    /// What was read; none if there is nothing to tell or it passes the limits.
    pub hints: Option<Blob>,
}

/// Seals the batch after `parent`. Every node that executed the same transactions on the same state gets the same header.
///
/// # Errors
/// If a part passes its limit.
pub fn seal(
    parent: &BatchHeader,
    epoch: Epoch,
    timestamp_ms: u64,
    proposer: Address,
    transactions: &[Transaction],
    outcome: &Outcome,
    state_root: Digest,
) -> Result<Sealed, CodecError> {
    // Hints take about as long as the rest, and the header does not wait for them.
    let (hints, rest) = rayon::join(
        || seal_hints(outcome, proposer, transactions),
        || seal_rest(parent, epoch, timestamp_ms, proposer, transactions, outcome, state_root),
    );
    Ok(Sealed { hints, ..rest? })
}

/// A batch without its hints.
fn seal_rest(
    parent: &BatchHeader,
    epoch: Epoch,
    timestamp_ms: u64,
    proposer: Address,
    transactions: &[Transaction],
    outcome: &Outcome,
    state_root: Digest,
) -> Result<Sealed, CodecError> {
    let body_content = body_content(transactions)?;
    let receipts_content = codec::encode("receipts", &outcome.receipts)?;
    let delta_content = outcome.delta.content()?;
    // Compressing checks each length against a limit that is far below u32::MAX.
    let sealed_body = Blob::compress(BlobKind::Body, &body_content)?;
    let sealed_receipts = Blob::compress(BlobKind::Receipts, &receipts_content)?;
    let sealed_delta = Blob::compress(BlobKind::Delta, &delta_content)?;
    let header = BatchHeader {
        number: parent.number.next(),
        parent: parent.digest(),
        epoch,
        timestamp_ms,
        proposer,
        tx_count: transactions.len() as u32,
        tx_bytes: body_content.len() as u32,
        gas_used: outcome.gas_used,
        delta_bytes: delta_content.len() as u32,
        transactions_root: content_digest(BlobKind::Body, &body_content),
        receipts_root: content_digest(BlobKind::Receipts, &receipts_content),
        delta_digest: content_digest(BlobKind::Delta, &delta_content),
        state_root,
    };
    Ok(Sealed { header, body: sealed_body, receipts: sealed_receipts, delta: sealed_delta, hints: None })
}

/// What a [`slipstream_types::Body`] of these transactions encodes to, without the copies that making one takes.
fn body_content(transactions: &[Transaction]) -> Result<Vec<u8>, CodecError> {
    let raws = transactions.iter().map(|transaction| &transaction.raw).collect();
    let raws: BoundedVec<_, { limits::BATCH_TRANSACTIONS_MAX }> = BoundedVec::new(raws)?;
    codec::encode("body", &raws)
}
