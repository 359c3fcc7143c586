//! The worker's side of a takeover: checks and takes chunks beside the engine, in either of the two ways.

mod changes;
mod rows;

use std::{collections::BTreeSet, sync::Arc};

use slipstream_executor::Overlay;
use slipstream_network::PeerId;
use slipstream_storage::{
    self as storage, RESTORE_RANGES_BITS, RangeDeltaError, RestoreError, RestoreTarget, Span, StorageError,
    Takeover,
};
use slipstream_types::{BatchNumber, Digest, Path, codec, delta::Code, keccak256};

use self::{changes::Changes, rows::Rows};
use super::{Ancestry, RestoreJob, Worker, expect_waypoint};
use crate::{
    SyncError,
    error::{Fault, Violation},
    protocol::{ANSWER_BYTES_MAX, CODES_MAX, Codes, RangeDeltaRequest, Request},
};

/// Uncompressed bytes of a chunk: long enough that its proof is below 0.1 %, short enough that a failure costs little.
pub(crate) const CHUNK_BYTES: u32 = 1 << 20;
/// Maximum number of missing ranges that the engine learns of: all that a restore begins with.
const SPANS: usize = 1 << RESTORE_RANGES_BITS;
/// Maximum bytes of memory that a range delta takes until its end.
pub(crate) const RANGE_DELTA_BYTES_MAX: u64 = 512 << 20;
/// Number of ranges in which a range delta is requested, as a power of two, so that many peers can send at once.
pub(crate) const RANGE_DELTA_RANGES_BITS: u8 = 4;

/// The takeover in progress.
pub(super) struct ActiveTakeover {
    way: Arc<dyn TakeoverMethod>,
    ancestry: Box<Ancestry>,
}

/// A way to get the state: the part of a takeover that depends on the kind of peers' answers.
trait TakeoverMethod: Send + Sync {
    /// The store's side of the takeover.
    fn takeover(&self) -> &dyn Takeover;

    /// Checks an answer and takes its chunk.
    fn add(&self, answer: Vec<u8>, request: &Request) -> Result<ChunkResult, SyncError>;

    /// Compares rows of an older target with a peer's siblings of their range. Only a restore has such rows.
    fn compare(&self, _answer: &[u8], _span: Span, _from: PeerId) -> Result<Result<(), Fault>, SyncError> {
        Ok(Ok(()))
    }

    /// How far the rows of an older target are compared.
    fn older(&self) -> Result<OlderRows, SyncError> {
        Ok(OlderRows::default())
    }
}

/// The result of a chunk.
struct ChunkResult {
    /// The fault of the answer, if it has one.
    checked: Result<(), Fault>,
    /// A peer that sent siblings of this range earlier, and whether they were right.
    judged: Option<(PeerId, bool)>,
}

impl ChunkResult {
    fn checked(checked: Result<(), Fault>) -> ChunkResult {
        ChunkResult { checked, judged: None }
    }
}

/// Rows of an older target, and what they wait for.
#[derive(Default)]
struct OlderRows {
    /// A range of them to compare next.
    span: Option<Span>,
    /// Number of rows that were kept, and their bytes.
    kept: (u64, u64),
    /// Where ranges begin whose chunk shows which side is right.
    urgent: BTreeSet<Path>,
    /// See [`Progress::is_in_doubt`].
    is_in_doubt: bool,
}

/// The result of a job of a restore.
#[derive(Debug)]
pub struct RestoreResult {
    /// What the job did.
    pub step: RestoreOutcome,
    /// The missing parts; `None` without a restore.
    pub progress: Option<Progress>,
}

/// What one job did.
#[derive(Debug)]
pub enum RestoreOutcome {
    /// The restore began.
    Begun,
    /// Rows were added, or the answer was wrong.
    Chunk {
        /// Where its range begins.
        first: Path,
        /// The fault of the answer, if it has one.
        checked: Result<(), Fault>,
        /// A peer that sent siblings of this range earlier, and whether they were right.
        judged: Option<(PeerId, bool)>,
    },
    /// Siblings were compared, or they were wrong in themselves.
    Siblings {
        /// Where their range begins.
        first: Path,
        /// The fault of the siblings, if they have one.
        checked: Result<(), Fault>,
    },
    /// Code was added, or it is not the code that was asked for.
    Codes(Result<(), Fault>),
    /// The state is the node's; this is its head.
    Finished(BatchNumber),
    /// The restore was put aside.
    Dropped,
    /// The worker abandoned the restore itself: it cannot end.
    Abandoned {
        /// Why it cannot end.
        why: AbandonReason,
        /// The error in words, for operators.
        reason: String,
    },
}

/// The reason why a takeover cannot end. It is no failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AbandonReason {
    /// The range delta is too large for this node: another way leads on.
    TooLarge,
    /// Peers made it larger than the batches' changes, and nobody can tell which peer did: another way leads on.
    Padded,
    /// A validator's consensus moved the head meanwhile: the takeover no longer fits it.
    Overtaken,
}

impl AbandonReason {
    fn of(error: &StorageError) -> Option<AbandonReason> {
        match error {
            StorageError::RangeDelta(error) => match error {
                RangeDeltaError::OverBudget { .. } | RangeDeltaError::TooFar { .. } => {
                    Some(AbandonReason::TooLarge)
                }
                RangeDeltaError::Padded { .. } => Some(AbandonReason::Padded),
                RangeDeltaError::NotAhead { .. } | RangeDeltaError::HeadMoved { .. } => {
                    Some(AbandonReason::Overtaken)
                }
                _ => None,
            },
            StorageError::Restore(RestoreError::NotAhead { .. }) => Some(AbandonReason::Overtaken),
            _ => None,
        }
    }
}

/// A restore's progress, and what it still needs.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Counts up: jobs run side by side, and an earlier view may be reported later.
    pub sequence: u64,
    /// Number of the snapshot's batch.
    pub number: BatchNumber,
    /// Number of rows that are in so far.
    pub rows: u64,
    /// Share of the paths that is done, 0 to 1.
    pub share: f64,
    /// Rows kept from an older snapshot, and their bytes.
    pub kept: (u64, u64),
    /// A range of older rows to compare, if any.
    pub older: Option<Span>,
    /// Whether siblings of an unproven peer mismatched, and no chunk has yet shown who is right.
    pub is_in_doubt: bool,
    /// Ranges whose chunks are missing, the most urgent first.
    pub spans: Vec<Span>,
    /// Missing code: all of it once all rows are in, and before that the part that is known.
    pub codes: Vec<Digest>,
}

impl Progress {
    /// Whether only [`RestoreJob::Finish`] is left.
    pub fn is_complete(&self) -> bool {
        self.older.is_none() && self.spans.is_empty() && self.codes.is_empty()
    }

    fn of(way: &dyn TakeoverMethod, sequence: u64) -> Result<Progress, SyncError> {
        // Older rows are compared first, because rows that do not fit then count as missing.
        let OlderRows { span: older, kept, urgent, is_in_doubt } = way.older()?;
        let takeover = way.takeover();
        let mut spans = takeover.missing(SPANS);
        spans.sort_by_key(|span| !urgent.contains(&span.first));
        let rows_done = spans.is_empty() && older.is_none();
        let codes =
            if rows_done { takeover.missing_codes(CODES_MAX)? } else { takeover.early_codes(CODES_MAX) };
        let (number, rows, share) = (takeover.target().header.number, takeover.rows(), takeover.share());
        Ok(Progress { sequence, number, rows, share, kept, older, is_in_doubt, spans, codes })
    }
}

impl Worker {
    pub(super) fn restore(&self, job: RestoreJob) -> Result<RestoreResult, SyncError> {
        let step = match self.step(job) {
            Err(SyncError::Storage(error)) => {
                let reason = error.to_string();
                let why = AbandonReason::of(&error).ok_or(error)?;
                *self.active.lock() = None;
                RestoreOutcome::Abandoned { why, reason }
            }
            step => step?,
        };
        Ok(RestoreResult { step, progress: self.progress()? })
    }

    fn step(&self, job: RestoreJob) -> Result<RestoreOutcome, SyncError> {
        match job {
            RestoreJob::Begin { target, ancestry, range_delta } => self.begin(&target, ancestry, range_delta),
            RestoreJob::Chunk { answer, request } => self.chunk(answer, &request),
            RestoreJob::Siblings { answer, span, from } => self.siblings(&answer, span, from),
            RestoreJob::Codes { answer, hashes } => self.codes(&answer, &hashes),
            RestoreJob::Finish => self.finish(),
            RestoreJob::Drop => {
                // Dropping the takeover makes its last rows durable.
                *self.active.lock() = None;
                Ok(RestoreOutcome::Dropped)
            }
        }
    }

    fn active(&self) -> Option<Arc<dyn TakeoverMethod>> {
        self.active.lock().as_ref().map(|active| Arc::clone(&active.way))
    }

    /// Begins a takeover. Refuses a ledger that does not pass through the operator's waypoint.
    fn begin(
        &self,
        target: &RestoreTarget,
        ancestry: Box<Ancestry>,
        by_range_delta: bool,
    ) -> Result<RestoreOutcome, SyncError> {
        if let (Some(waypoint), Some(found)) = (self.waypoint, ancestry.passes) {
            expect_waypoint(&waypoint, found)?;
            tracing::info!(%waypoint, snapshot = %target.header.number, "the snapshot's ledger passes through the waypoint");
        }
        let way: Arc<dyn TakeoverMethod> = match by_range_delta {
            false => Arc::new(Rows::new(self.store.restore(target)?)),
            true => Arc::new(Changes::begin(&self.store, target, &ancestry, self.range_delta_bytes_max)?),
        };
        *self.active.lock() = Some(ActiveTakeover { way, ancestry });
        Ok(RestoreOutcome::Begun)
    }

    fn chunk(&self, answer: Vec<u8>, request: &Request) -> Result<RestoreOutcome, SyncError> {
        let (Request::Chunk { first, .. } | Request::RangeDelta(RangeDeltaRequest { first, .. })) = *request
        else {
            return Err(SyncError::Worker("an answer came for a request without a chunk".into()));
        };
        let added = self.active().map(|way| way.add(answer, request)).transpose()?;
        let ChunkResult { checked, judged } = added.unwrap_or_else(|| ChunkResult::checked(Ok(())));
        Ok(RestoreOutcome::Chunk { first, checked, judged })
    }

    fn siblings(&self, answer: &[u8], span: Span, from: PeerId) -> Result<RestoreOutcome, SyncError> {
        let compared = self.active().map(|way| way.compare(answer, span, from)).transpose()?;
        Ok(RestoreOutcome::Siblings { first: span.first, checked: compared.unwrap_or(Ok(())) })
    }

    fn codes(&self, answer: &[u8], hashes: &[Digest]) -> Result<RestoreOutcome, SyncError> {
        let codes = match open_codes(answer, hashes) {
            Ok(codes) => codes,
            Err(fault) => return Ok(RestoreOutcome::Codes(Err(fault))),
        };
        if let Some(way) = self.active() {
            codes.codes.iter().try_for_each(|code| way.takeover().add_code(code))?;
        }
        Ok(RestoreOutcome::Codes(Ok(())))
    }

    fn finish(&self) -> Result<RestoreOutcome, SyncError> {
        let active = self.active.lock().take();
        if let Some(ActiveTakeover { way, ancestry }) = active {
            let Ancestry { headers, genesis_proof, .. } = &*ancestry;
            let (headers, proof) = (&headers.headers[..], &headers.proof);
            if let Some(waypoint) = self.waypoint.filter(|_| ancestry.passes.is_some()) {
                self.store.note_waypoint(&waypoint, &way.takeover().target().header)?;
            }
            way.takeover().finish(&storage::Ancestry { headers, proof, genesis_proof })?;
            self.check_head_succession()?;
        }
        *self.executed.lock() = Overlay::default();
        self.session.forget();
        Ok(RestoreOutcome::Finished(self.store.head()?.header.number))
    }

    fn progress(&self) -> Result<Option<Progress>, SyncError> {
        let Some(way) = self.active() else { return Ok(None) };
        // Held during the look, so that a higher number is a later view.
        let mut sequence = self.looks.lock();
        *sequence += 1;
        Progress::of(&*way, *sequence).map(Some)
    }
}

fn open_codes(answer: &[u8], hashes: &[Digest]) -> Result<Codes, Fault> {
    let codes: Codes = codec::decode("codes", answer, ANSWER_BYTES_MAX)?;
    let same = |(code, hash): (&Code, &Digest)| keccak256(&code[..]).0 == hash.0;
    if codes.codes.len() != hashes.len() || !codes.codes.iter().zip(hashes).all(same) {
        return Err(Violation::Unrelated("it has code whose hash was not requested").into());
    }
    Ok(codes)
}
