//! Audits: some batches that were applied by their deltas are executed again, on the state before them.
//!
//! A quorum signed the delta, so applying it needs no execution. An audit finds a wrong quorum, or a defect of this program. The
//! certified state stays, and the alarm carries what is needed to look into it.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use slipstream_executor::{
    BatchContext, Difference, HintsMode, Overlay, State, decode_body, difference, execute, seal,
};
use slipstream_storage::{RECORD_BYTES_MAX, StorageError, Store, View};
use slipstream_types::{BatchHeader, BatchNumber, Blob, BlobKind, Body, CodecError, Delta, Digest, codec};

use super::{
    Worker,
    commit::ReadyRange,
    opened::OpenedRange,
    prepare::{OpenedBatch, PreparedKind, unreadable},
    replay::{execute_error, gap},
};
use crate::SyncError;

/// The store's record of the last alarm: kept until an operator removes it.
pub const ALARM_RECORD: &str = "sync/alarm";

/// A batch to execute again.
#[derive(Debug)]
pub struct Audit {
    applied: Arc<AppliedRun>,
    index: usize,
}

/// Batches that were committed together, and the state before them.
#[derive(Debug)]
struct AppliedRun {
    base: View,
    batches: Vec<AppliedBatch>,
}

/// One batch of [`AppliedRun`].
#[derive(Debug)]
struct AppliedBatch {
    header: BatchHeader,
    delta: Delta,
    /// The body of a batch that may be audited: one that was applied, and came with its body.
    body: Option<Blob>,
}

/// The result of an audit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditResult {
    /// Number of the batch.
    pub number: BatchNumber,
    /// `None` if execution reproduces the certified batch.
    pub alarm: Option<Alarm>,
}

/// A certified batch that execution does not reproduce.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Alarm {
    /// Number of the batch.
    pub number: BatchNumber,
    /// The difference, or the reason why execution fails.
    pub what: String,
    /// Digest of the certified header.
    pub certified: Digest,
    /// Digest of the header that execution gives; zero if it gives none.
    pub executed: Digest,
}

impl Alarm {
    /// Reads the record [`ALARM_RECORD`].
    ///
    /// # Errors
    /// If it is damaged.
    pub fn decode(record: &[u8]) -> Result<Alarm, CodecError> {
        codec::decode("alarm", record, RECORD_BYTES_MAX)
    }

    /// The alarm that an earlier run left in a store.
    pub(crate) fn stored(store: &Store) -> Result<Option<Alarm>, StorageError> {
        let record = store.record(ALARM_RECORD)?;
        Ok(record.and_then(|record| Alarm::decode(&record).ok()))
    }
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Alarm { number, what, certified, executed } = self;
        write!(
            f,
            "batch {number}: {what}; the certified header is {certified}, the header executed here is {executed}"
        )
    }
}

/// Whether a batch is audited: drawn by its number and a seed of this node, so that no peer knows which batches are
/// audited.
pub(crate) fn is_drawn(seed: u64, share: f64, number: BatchNumber) -> bool {
    let mut bytes = seed.to_le_bytes().to_vec();
    bytes.extend(number.get().to_le_bytes());
    let digest = Digest::tagged("slipstream/audit/1", &bytes).0;
    let draw = u64::from_le_bytes(digest.first_chunk().copied().unwrap_or_default());
    (draw as f64) < share * u64::MAX as f64
}

impl Worker {
    /// The batches to audit among those just applied. `base` is the state before all of them.
    pub(super) fn draw_audits(&self, base: View, ranges: Vec<ReadyRange>) -> Vec<Audit> {
        if self.audit_share <= 0.0 {
            return Vec::new();
        }
        let mut batches: Vec<AppliedBatch> = Vec::new();
        for ready in ranges {
            match ready {
                // Executed batches need no audit.
                ReadyRange::Executed(range) => batches.extend(range.batches.into_iter().map(|executed| {
                    AppliedBatch { header: executed.batch.header, delta: executed.delta, body: None }
                })),
                ReadyRange::Opened(prepared) => {
                    let PreparedKind::Delta(range) = prepared.kind else { break };
                    let of = |opened: OpenedBatch| AppliedBatch {
                        header: opened.batch.header,
                        delta: opened.delta,
                        body: opened.batch.body,
                    };
                    batches.extend(OpenedRange::into_batches(range).into_iter().map(of));
                }
            }
        }
        batches.retain(|step| step.header.number > base.head().number);
        let is_audited = |step: &AppliedBatch| {
            step.body.is_some() && is_drawn(self.audit_seed, self.audit_share, step.header.number)
        };
        let drawn: Vec<usize> = (0..batches.len()).filter(|index| is_audited(&batches[*index])).collect();
        let applied = Arc::new(AppliedRun { base, batches });
        drawn.into_iter().map(|index| Audit { applied: Arc::clone(&applied), index }).collect()
    }

    /// Executes a batch again. Stores an alarm before anyone learns of it.
    pub(super) fn audit(&self, audit: &Audit) -> Result<AuditResult, SyncError> {
        let certified_header = &audit.applied.batches[audit.index].header;
        let (number, certified) = (certified_header.number, certified_header.digest());
        let alarm = match self.execute_again(audit) {
            Ok(executed) => difference(certified_header, &executed).map(|Difference { field, .. }| Alarm {
                number,
                what: format!("execution gives another {field}"),
                certified,
                executed: executed.digest(),
            }),
            Err(SyncError::Storage(error)) => return Err(error.into()),
            Err(error) => Some(Alarm { number, what: error.to_string(), certified, executed: Digest::ZERO }),
        };
        if let Some(alarm) = &alarm {
            let record =
                codec::encode("alarm", alarm).map_err(|error| SyncError::Worker(error.to_string()))?;
            self.store.put_record(ALARM_RECORD, &record)?;
        }
        Ok(AuditResult { number, alarm })
    }

    fn execute_again(&self, audit: &Audit) -> Result<BatchHeader, SyncError> {
        let AppliedRun { base, batches } = &*audit.applied;
        let (before, AppliedBatch { header, body, .. }) = (&batches[..audit.index], &batches[audit.index]);
        let number = header.number;
        let blob = body.as_ref().ok_or_else(|| unreadable(number, "the body is missing"))?;
        let body: Body = blob.open(BlobKind::Body).map_err(|error| unreadable(number, error))?;
        let transactions = decode_body(&body, &*self.chain).map_err(|error| unreadable(number, error))?;
        let mut overlay = Overlay::default();
        before.iter().for_each(|step| overlay.extend(&step.header, None, &step.delta));
        let state = State::on(base, &overlay).ok_or_else(|| gap(number))?;
        let parent = before.last().map_or(base.head(), |step| &step.header);
        let basis = BatchContext::of(parent, header);
        let outcome = execute(&state.reader(), &basis.env(&self.chain), &transactions)
            .map_err(|source| execute_error(number, source))?;
        let sealed = seal(HintsMode::Keys, &basis, &transactions, &outcome, header.state_root);
        Ok(sealed.map_err(|error| unreadable(number, error))?.header)
    }
}
