//! [`CommitBatch`].

use slipstream_types::{B256, BatchHeader, BatchNumber, Blob, BlobKind, Certificate, Delta};

/// A batch with the parts of it that are to be stored. Parts that are left out cannot be served.
#[derive(Clone, Copy, Debug)]
pub struct CommitBatch<'a> {
    /// The header, whose digest names the batch.
    pub header: &'a BatchHeader,
    /// Its effect on the state.
    pub delta: &'a Delta,
    /// Its transactions; for batch 0 the genesis.
    pub body: Option<&'a Blob>,
    /// The receipts of its transactions, if available.
    pub receipts: Option<&'a Blob>,
    /// The encoded delta, as it is served.
    pub delta_blob: Option<&'a Blob>,
    /// The hints of its maker, if there are any.
    pub hints: Option<&'a Blob>,
    /// Hashes of the body's transactions in order, for the index; empty if there is no body.
    pub transaction_hashes: &'a [B256],
    /// A certificate for exactly this batch.
    pub certificate: Option<&'a Certificate>,
}

impl<'a> CommitBatch<'a> {
    /// A batch whose header and state alone are stored.
    pub fn new(header: &'a BatchHeader, delta: &'a Delta) -> Self {
        Self {
            header,
            delta,
            body: None,
            receipts: None,
            delta_blob: None,
            hints: None,
            transaction_hashes: &[],
            certificate: None,
        }
    }

    pub(crate) fn blobs(&self) -> [(BlobKind, Option<&'a Blob>); 4] {
        let body =
            if self.header.number == BatchNumber::GENESIS { BlobKind::Genesis } else { BlobKind::Body };
        [
            (body, self.body),
            (BlobKind::Receipts, self.receipts),
            (BlobKind::Delta, self.delta_blob),
            (BlobKind::Hints, self.hints),
        ]
    }
}
