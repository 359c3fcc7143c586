//! [`seal`]: turns an outcome into a header and the blobs that the header commits to.

use alloy_primitives::{Address, B256};
use slipstream_storage::CommitBatch;
use slipstream_types::{
    BatchHeader, Blob, BlobKind, ChainConfig, CodecError, Delta, Digest, Epoch, SecretKey, Totals,
    batch::content_digest, bounded::BoundedVec, codec, hints, limits,
};

use crate::{
    body::is_few,
    config::HintsMode,
    evm::BatchEnv,
    hinting::{seal_hints, seal_hints_with_values},
    outcome::Outcome,
    transaction::Transaction,
};

/// Maximum gas of a batch that one thread seals: the gas of some 200 transfers. That sealing is done before another
/// thread is awake.
const LIGHT_GAS_MAX: u64 = 5_000_000;

/// The parts of a batch that are settled before it executes.
#[derive(Clone, Copy, Debug)]
pub struct BatchContext<'a> {
    /// The header before this batch.
    pub parent: &'a BatchHeader,
    /// The epoch whose validators certify the batch.
    pub epoch: Epoch,
    /// Timestamp in milliseconds since 1970, which the proposer sets.
    pub timestamp_ms: u64,
    /// The account that receives the fees.
    pub proposer: Address,
}

impl<'a> BatchContext<'a> {
    /// The context of a batch whose header is known.
    pub fn of(parent: &'a BatchHeader, header: &BatchHeader) -> BatchContext<'a> {
        let BatchHeader { epoch, timestamp_ms, proposer, .. } = *header;
        BatchContext { parent, epoch, timestamp_ms, proposer }
    }

    /// The environment that the EVM sees.
    pub fn env(&self, chain: &ChainConfig) -> BatchEnv {
        BatchEnv::new(chain, self.parent, self.timestamp_ms, self.proposer)
    }
}

/// A whole batch, as it is stored and sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealedBatch {
    /// Commits to all parts below except the hints.
    pub header: BatchHeader,
    /// The batch's transactions, encoded as a body.
    pub body: Blob,
    /// Receipts of the batch's transactions.
    pub receipts: Blob,
    /// The net changes of the state.
    pub delta: Blob,
    /// The keys that were read, or `None` if the hints are empty or pass the limits.
    pub hints: Option<Blob>,
}

impl SealedBatch {
    /// Adds the signature of a validator, named by its index in the batch's epoch, to the hints. Does nothing if hints
    /// are missing, or would exceed their limit. Compresses the hints again, which takes some 20 us for 16 KiB.
    pub fn vouch(&mut self, validator: u16, key: &SecretKey) {
        let content = self.hints.as_ref().and_then(|hints| hints.content(BlobKind::Hints).ok());
        let Some(mut content) = content else { return };
        hints::vouch(&mut content, &self.header.digest(), validator, key);
        if let Ok(vouched) = Blob::compress(BlobKind::Hints, &content) {
            self.hints = Some(vouched);
        }
    }

    /// Adopts signed hints if their content equals the hints made here. Then other nodes see which validator vouches
    /// for the hints.
    pub fn keep_voucher(&mut self, signed: &Blob) {
        let content = |blob: &Blob| blob.content(BlobKind::Hints).ok();
        let own = self.hints.as_ref().and_then(content);
        if let (Some(own), Some(theirs)) = (own, content(signed))
            && hints::without_voucher(&theirs) == own
        {
            self.hints = Some(signed.clone());
        }
    }

    /// Returns the batch in the form that the store takes, without a certificate; `hashes` are its transactions'
    /// hashes, in order.
    pub fn commit_batch<'a>(&'a self, delta: &'a Delta, hashes: &'a [B256]) -> CommitBatch<'a> {
        CommitBatch {
            header: &self.header,
            delta,
            body: Some(&self.body),
            receipts: Some(&self.receipts),
            delta_blob: Some(&self.delta),
            hints: self.hints.as_ref(),
            transaction_hashes: hashes,
            certificate: None,
        }
    }
}

/// Seals a batch. Every node that executed the same transactions on the same state gets the same header. `mode` is the
/// node's own mode for using hints, and also decides which hints are made: [`HintsMode::Values`] adds the rows' values
/// before the batch.
///
/// # Errors
/// If a part exceeds its limit. Hints that exceed theirs are left out, or only the hints' values.
pub fn seal(
    mode: HintsMode,
    basis: &BatchContext<'_>,
    transactions: &[Transaction],
    outcome: &Outcome,
    state_root: Digest,
) -> Result<SealedBatch, CodecError> {
    let BatchContext { parent, epoch, timestamp_ms, proposer } = *basis;
    let seal_hints = match mode {
        HintsMode::Off | HintsMode::Keys | HintsMode::Conflicts => seal_hints,
        HintsMode::Values => seal_hints_with_values,
    };
    let hints = || seal_hints(outcome, proposer, transactions);
    let parts = || -> Result<_, CodecError> {
        Ok([
            Part::seal(BlobKind::Body, &body_content(transactions)?)?,
            Part::seal(BlobKind::Receipts, &codec::encode("receipts", &outcome.receipts)?)?,
            Part::seal(BlobKind::Delta, &outcome.delta.content()?)?,
        ])
    };
    // Encoding the hints takes about as long as the rest, and the header does not depend on them.
    let is_light = is_few(transactions.len()) && outcome.gas_used <= LIGHT_GAS_MAX;
    let (hints, parts) = if is_light { (hints(), parts()) } else { rayon::join(hints, parts) };
    let [body, receipts, delta] = parts?;
    let more = Totals {
        transactions: transactions.len() as u64,
        gas: outcome.gas_used,
        body_bytes: body.bytes.into(),
        receipts_bytes: receipts.bytes.into(),
        delta_bytes: delta.bytes.into(),
    };
    let header = BatchHeader {
        number: parent.number.next(),
        parent: parent.digest(),
        epoch,
        rules: outcome.rules,
        timestamp_ms,
        proposer,
        tx_count: transactions.len() as u32,
        tx_bytes: body.bytes,
        gas_used: outcome.gas_used,
        delta_bytes: delta.bytes,
        transactions_root: body.digest,
        receipts_root: receipts.digest,
        delta_digest: delta.digest,
        state_root,
        totals: parent.totals.plus(more),
    };
    Ok(SealedBatch { header, body: body.blob, receipts: receipts.blob, delta: delta.blob, hints })
}

/// A blob, and the header's fields about it.
struct Part {
    blob: Blob,
    /// Length of the content in bytes.
    bytes: u32,
    digest: Digest,
}

impl Part {
    fn seal(kind: BlobKind, content: &[u8]) -> Result<Part, CodecError> {
        // Compressing checks the length against a limit that is far below u32::MAX.
        let blob = Blob::compress(kind, content)?;
        Ok(Part { blob, bytes: content.len() as u32, digest: content_digest(kind, content) })
    }
}

/// Encodes the [`slipstream_types::Body`] of these transactions without copying them.
fn body_content(transactions: &[Transaction]) -> Result<Vec<u8>, CodecError> {
    let raws = transactions.iter().map(|transaction| &transaction.raw).collect();
    let raws: BoundedVec<_, { limits::BATCH_TRANSACTIONS_MAX }> = BoundedVec::new(raws)?;
    codec::encode("body", &raws)
}
