//! Batches from before the node's state: checked like any range, opened for the index, and stored below the stored
//! ones.

use rayon::prelude::*;
use slipstream_storage::{Backlog, PastBatch, PastRun, StateBacklog, StorageError};
use slipstream_types::{
    B256, BatchNumber, BlobKind, Body, Certificate, CodecError, accumulator::AccumulatorRangeProof, codec,
    keccak256, limits,
};

use super::{Worker, prepare::recompress};
use crate::{
    SyncError,
    error::{Fault, Violation},
    protocol::{ANSWER_BYTES_MAX, Range, RangeBatch, RangeRequest},
    trust::Trust,
    verify,
};

/// A range whose batches and place in the certified ledger are checked. Only the check of an answer creates one.
#[derive(Debug)]
pub struct PastRange {
    certificate: Certificate,
    proof: AccumulatorRangeProof,
    /// Each batch with the hashes of its transactions, if its body is here.
    batches: Vec<(RangeBatch, Vec<B256>)>,
}

impl PastRange {
    /// Its last batch.
    pub(crate) fn last(&self) -> Option<BatchNumber> {
        self.batches.last().map(|(batch, _)| batch.header.number)
    }

    /// Number of batches.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.len() as u64
    }

    /// Compressed bytes of all parts that are here.
    pub(crate) fn bytes(&self) -> u64 {
        self.batches.iter().map(|(batch, _)| batch.held_bytes() as u64).sum()
    }
}

/// The result of storing a range, or of looking up what is missing.
#[derive(Debug)]
pub struct BackfillResult {
    /// What is missing afterwards.
    pub backlog: [Backlog; 4],
    /// The past states that are missing afterwards.
    pub states: StateBacklog,
    /// Why the range was refused, if it does not belong to the node's ledger.
    pub refused: Option<Violation>,
}

impl Worker {
    /// Checks the answer to a request for batches from before the node's state.
    pub(super) fn check_past(
        &self,
        answer: &[u8],
        request: &RangeRequest,
        due: u64,
        trust: &Trust,
    ) -> Result<PastRange, Fault> {
        let range: Range = codec::decode("sync answer", answer, ANSWER_BYTES_MAX)?;
        let proof = range.proof.clone();
        let verified = verify::range_but(range, request, due, trust, self.defences)?;
        let (certificate, batches) = verified.into_parts();
        let opened = batches.into_par_iter().map(|(batch, _)| open(batch));
        Ok(PastRange { certificate, proof, batches: opened.collect::<Result<_, CodecError>>()? })
    }

    /// Stores a range, if one is given, below the stored ones. Returns what is missing afterwards.
    pub(super) fn backfill(&self, range: Option<&PastRange>) -> Result<BackfillResult, SyncError> {
        let refused = match range.map_or(Ok(()), |range| self.store_past(range)) {
            Err(StorageError::WrongParent { number, .. }) => Some(Violation::WrongParent { number }),
            // The store was pruned or leapt meanwhile. The result reports what is missing now.
            Err(StorageError::NotBelow { .. }) => None,
            stored => {
                stored?;
                None
            }
        };
        Ok(BackfillResult { backlog: self.store.backlog()?, states: self.store.state_backlog()?, refused })
    }

    fn store_past(&self, range: &PastRange) -> Result<(), StorageError> {
        let PastRange { certificate, proof, batches } = range;
        let batches: Vec<PastBatch<'_>> = batches
            .iter()
            .map(|(batch, hashes)| PastBatch {
                header: &batch.header,
                body: batch.body.as_ref(),
                receipts: batch.receipts.as_ref(),
                delta: batch.delta.as_ref(),
                hints: batch.hints.as_ref(),
                transaction_hashes: hashes,
            })
            .collect();
        self.store.backfill(&PastRun { certificate, proof, batches: &batches })
    }
}

/// Recompresses the parts in this node's way, and hashes the transactions.
fn open(mut batch: RangeBatch) -> Result<(RangeBatch, Vec<B256>), CodecError> {
    recompress(BlobKind::Hints, &mut batch.hints)?;
    recompress(BlobKind::Delta, &mut batch.delta)?;
    recompress(BlobKind::Receipts, &mut batch.receipts)?;
    let body = recompress(BlobKind::Body, &mut batch.body)?;
    let body =
        body.map(|content| codec::decode::<Body>("body", &content, limits::BODY_BYTES_MAX)).transpose()?;
    let hashes = body.iter().flat_map(|body| body.transactions.iter()).map(|raw| keccak256(&raw[..]));
    let hashes = hashes.collect();
    Ok((batch, hashes))
}
