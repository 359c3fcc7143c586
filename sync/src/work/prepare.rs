//! Prepares a checked range: decodes bodies and recovers their senders, opens deltas, and starts to read hinted or
//! foretold keys ahead.

use std::sync::Arc;

use rayon::prelude::*;
use slipstream_executor::{Ahead, Layer, OrderedBatch, Overlay, Transaction, Trust};
use slipstream_network::PeerId;
use slipstream_storage::View;
use slipstream_types::{
    B256, BatchNumber, Blob, BlobKind, Body, Certificate, CodecError, Delta, PublicKey, codec, keccak256,
    limits,
};

use super::{Worker, opened::OpenedRange};
use crate::{SyncError, plan::RangeMode, protocol::RangeBatch, verify::VerifiedRange};

/// A range that lacks only the state before it.
#[derive(Debug)]
pub struct PreparedRange {
    pub(super) from: PeerId,
    pub(super) certificate: Certificate,
    pub(super) kind: PreparedKind,
}

#[derive(Debug)]
pub(super) enum PreparedKind {
    /// To execute on the committed state `base`, or on layers above it. `applied` has the layers of applied ranges
    /// between the two.
    Replay { base: View, applied: Vec<Arc<Layer>>, batches: Vec<PreparedBatch>, _waits: Arc<()> },
    /// To apply.
    Delta(Arc<OpenedRange>),
}

/// A decoded body, and the rows that it will probably need, which may still be on their way.
#[derive(Debug)]
pub(super) struct PreparedBatch {
    /// The batch, without hints that are useless and unvouched.
    pub(super) batch: RangeBatch,
    /// The validator that vouches for the hints.
    pub(super) maker: Option<PublicKey>,
    pub(super) transactions: Vec<Transaction>,
    pub(super) ahead: Ahead,
}

/// A delta, and what the index needs from the body beside it.
#[derive(Clone, Debug)]
pub(super) struct OpenedBatch {
    pub(super) batch: RangeBatch,
    pub(super) delta: Delta,
    pub(super) hashes: Vec<B256>,
}

impl PreparedRange {
    /// The peer that sent the range.
    pub(crate) fn from(&self) -> PeerId {
        self.from
    }

    /// Whether it has to be executed before it is committed.
    pub fn is_replay(&self) -> bool {
        matches!(self.kind, PreparedKind::Replay { .. })
    }

    /// Number of transactions to execute before it is committed.
    pub fn transactions(&self) -> usize {
        match &self.kind {
            PreparedKind::Replay { batches, .. } => {
                batches.iter().map(|batch| batch.transactions.len()).sum()
            }
            PreparedKind::Delta(_) => 0,
        }
    }
}

/// Runs `work` for each item, on all cores. A single item, as at the head, wakes no other core.
fn each<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> Result<R, SyncError> + Sync + Send,
) -> Result<Vec<R>, SyncError> {
    if items.len() <= 1 {
        items.into_iter().map(work).collect()
    } else {
        items.into_par_iter().map(work).collect()
    }
}

impl Worker {
    /// Decodes a checked range. Every batch is work of its own, so all cores take part.
    pub(super) fn prepare(
        &self,
        range: VerifiedRange,
        mode: RangeMode,
        from: PeerId,
    ) -> Result<Box<PreparedRange>, SyncError> {
        let (certificate, batches) = range.into_parts();
        for (batch, _) in &batches {
            // Executing without knowing the batch's rules would give another result, which would look like a defect of
            // this program.
            self.store.check_rules(&batch.header)?;
        }
        let kind = match mode {
            RangeMode::Replay => {
                let waits = Arc::clone(&self.waiting);
                // Read before the view, so that whatever is committed meanwhile is in one of the two.
                let opened = self.opened.all();
                let first = batches.first().map(|(batch, _)| batch.header.number);
                let (base, executed) = (self.store.view()?, self.executed.lock().clone());
                let committed = base.head().number;
                let prepare = |(batch, maker)| self.prepare_body(batch, maker, from, &base, &executed);
                // Skips batches that others committed meanwhile.
                let left = batches.into_iter().filter(|(batch, _)| batch.header.number > committed);
                let batches = each(left.collect(), prepare)?;
                // Ranges behind this one are of no use to it.
                let is_below = |range: &&Arc<OpenedRange>| {
                    range.last().is_some_and(|last| last > committed && Some(last) < first)
                };
                let applied = opened.iter().filter(is_below).filter_map(|range| range.layer());
                let applied = applied.map(Arc::clone).collect();
                PreparedKind::Replay { base, applied, batches, _waits: waits }
            }
            RangeMode::Delta => {
                let opened = each(batches, |(batch, maker)| self.open_delta(batch, maker))?;
                let range = Arc::new(OpenedRange::new(opened));
                self.opened.note(&range);
                PreparedKind::Delta(range)
            }
        };
        Ok(Box::new(PreparedRange { from, certificate, kind }))
    }

    fn prepare_body(
        &self,
        mut batch: RangeBatch,
        maker: Option<PublicKey>,
        from: PeerId,
        base: &View,
        executed: &Overlay,
    ) -> Result<PreparedBatch, SyncError> {
        let number = batch.header.number;
        let blob = batch.body.as_ref().ok_or_else(|| unreadable(number, "the body is missing"))?;
        let body: Body = blob.open(BlobKind::Body).map_err(|error| unreadable(number, error))?;
        let transactions = self.session.decode(&body).map_err(|error| unreadable(number, error))?;
        let ordered = OrderedBatch::of(&batch.header, &transactions, batch.hints.as_ref());
        let trust = if self.believes(maker.unwrap_or(from)) { Trust::Values } else { Trust::Keys };
        let ahead = self.session.prepare(&ordered, base, executed, trust)?;
        if maker.is_some() {
            recompress(BlobKind::Hints, &mut batch.hints).map_err(|error| unreadable(number, error))?;
        } else if !ahead.is_hinted() {
            batch.hints = None;
        }
        Ok(PreparedBatch { batch, maker, transactions, ahead })
    }

    /// Whether batches are executed on the values in the hints of a peer or validator.
    fn believes(&self, peer: PeerId) -> bool {
        !self.disbelieved.lock().contains(&peer)
    }

    /// Opens a delta. Recompresses the parts to store in this node's way, which costs about as much as hashing them.
    fn open_delta(&self, mut batch: RangeBatch, maker: Option<PublicKey>) -> Result<OpenedBatch, SyncError> {
        let number = batch.header.number;
        let recompress = |kind, place: &mut Option<Blob>| {
            recompress(kind, place).map_err(|error| unreadable(number, error))
        };
        // Nothing is executed here, so nothing would show how useful unvouched hints are.
        batch.hints = batch.hints.filter(|_| self.history && maker.is_some());
        recompress(BlobKind::Hints, &mut batch.hints)?;
        let content = recompress(BlobKind::Delta, &mut batch.delta)?;
        let content = content.ok_or_else(|| unreadable(number, "the delta is missing"))?;
        let delta = Delta::decode(&content).map_err(|error| unreadable(number, error))?;
        let mut hashes = Vec::new();
        if self.history {
            recompress(BlobKind::Receipts, &mut batch.receipts)?;
            if let Some(content) = recompress(BlobKind::Body, &mut batch.body)? {
                let body: Body = codec::decode("body", &content, limits::BODY_BYTES_MAX)
                    .map_err(|error| unreadable(number, error))?;
                hashes = body.transactions.iter().map(|raw| keccak256(&raw[..])).collect();
            }
        }
        Ok(OpenedBatch { batch, delta, hashes })
    }
}

/// Replaces a blob that is longer than it has to be. Returns its content.
pub(super) fn recompress(kind: BlobKind, place: &mut Option<Blob>) -> Result<Option<Vec<u8>>, CodecError> {
    let Some(blob) = place.take() else { return Ok(None) };
    let content = blob.content(kind)?;
    *place = Some(blob.shortest(kind, &content)?);
    Ok(Some(content))
}

pub(super) fn unreadable(number: BatchNumber, reason: impl ToString) -> SyncError {
    SyncError::Unreadable { number, reason: reason.to_string() }
}
