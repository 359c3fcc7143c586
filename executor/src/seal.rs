//! [`seal`]: from an outcome to a header and the blobs that it commits to.

use alloy_primitives::Address;
use slipstream_types::{
    BatchHeader, Blob, BlobKind, Body, CodecError, Digest, Epoch, batch::content_digest, codec,
};

use crate::outcome::Outcome;

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

/// Seals the batch after `parent`. Every node that executed the same body on the same state gets the same header.
///
/// # Errors
/// If a part passes its limit.
pub fn seal(
    parent: &BatchHeader,
    epoch: Epoch,
    timestamp_ms: u64,
    proposer: Address,
    body: &Body,
    outcome: &Outcome,
    state_root: Digest,
) -> Result<Sealed, CodecError> {
    let body_content = body.content()?;
    let receipts_content = codec::encode("receipts", &outcome.receipts)?;
    let delta_content = outcome.delta.content()?;
    // Compressing checks each length against a limit that is far below u32::MAX.
    let sealed_body = Blob::compress(BlobKind::Body, &body_content)?;
    let sealed_receipts = Blob::compress(BlobKind::Receipts, &receipts_content)?;
    let sealed_delta = Blob::compress(BlobKind::Delta, &delta_content)?;
    let has_hints = !outcome.hints.accounts.is_empty();
    let hints = has_hints.then(|| Blob::seal(BlobKind::Hints, &outcome.hints).ok()).flatten();
    let header = BatchHeader {
        number: parent.number.next(),
        parent: parent.digest(),
        epoch,
        timestamp_ms,
        proposer,
        tx_count: body.transactions.len() as u32,
        tx_bytes: body_content.len() as u32,
        gas_used: outcome.gas_used,
        delta_bytes: delta_content.len() as u32,
        transactions_root: content_digest(BlobKind::Body, &body_content),
        receipts_root: content_digest(BlobKind::Receipts, &receipts_content),
        delta_digest: content_digest(BlobKind::Delta, &delta_content),
        state_root,
    };
    Ok(Sealed { header, body: sealed_body, receipts: sealed_receipts, delta: sealed_delta, hints })
}
