//! [`Jobs`]: the work that runs beside the engine, each job with the data kept for its result.
//!
//! Each kind of job has one field here, with one type for the data kept while it runs and one for its result. This
//! table is the only record of running jobs.

use std::collections::BTreeMap;

use slipstream_network::PeerId;
use slipstream_types::{BatchNumber, Epoch, Path};
use tokio::time::Instant;

use super::{
    Engine,
    effect::{Effect, JobId},
    streams::{Flight, Key},
};
use crate::{
    SyncError,
    error::Fault,
    plan::Load,
    protocol::Request,
    verify::VerifiedRange,
    work::{
        AuditResult, BackfillResult, CommitResult, Done, ExecutionResult, Job, PastRange, PastStatesResult,
        PreparedRange, ProvedEnds, RestoreResult,
    },
};

/// Check of an answer to a range request.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) first: BatchNumber,
    pub(super) flight: Flight,
    /// When the answer arrived.
    pub(super) at: Instant,
}

/// Check of an announcement.
#[derive(Debug)]
pub(super) struct CheckAnnounced {
    pub(super) from: PeerId,
    pub(super) number: BatchNumber,
}

/// Check of an answer about the ends of epochs.
#[derive(Debug)]
pub(super) struct CheckEpochs {
    pub(super) peer: PeerId,
    /// The first epoch whose end was asked for.
    pub(super) first: Epoch,
}

/// Preparation of a range.
#[derive(Debug)]
pub(super) struct Prepare {
    pub(super) first: BatchNumber,
    /// The work that is still ahead for this range.
    pub(super) load: Load,
    pub(super) bytes: u64,
}

/// Execution of a range.
#[derive(Debug)]
pub(super) struct Execute {
    pub(super) first: BatchNumber,
    /// The work that is still ahead for this range.
    pub(super) load: Load,
    pub(super) bytes: u64,
    pub(super) from: PeerId,
}

/// Commit of ranges.
#[derive(Debug)]
pub(super) struct Commit {
    /// The work that is still ahead for these ranges.
    pub(super) load: Load,
    pub(super) bytes: u64,
}

/// A job of a restore.
#[derive(Debug)]
pub(super) enum RestoreTask {
    /// It begins or resumes.
    Begin,
    /// An answer is checked and added.
    Answer(Box<RestoreAnswer>),
    /// It becomes the node's state.
    Finish,
    /// It is put aside: its results no longer count.
    Drop,
}

/// An answer that a restore adds.
#[derive(Debug)]
pub(super) struct RestoreAnswer {
    pub(super) key: Key,
    pub(super) flight: Flight,
    /// When the answer arrived.
    pub(super) at: Instant,
    pub(super) bytes: usize,
    pub(super) request: Request,
}

/// Second execution of an applied batch.
#[derive(Debug)]
pub(super) struct AuditTask;

/// Check of an answer of the backfill.
#[derive(Debug)]
pub(super) struct CheckPast {
    pub(super) first: BatchNumber,
    pub(super) flight: Flight,
    /// When the answer arrived.
    pub(super) at: Instant,
}

/// Store of backfill batches. `from` is `None` if the job only looks at what is missing.
#[derive(Debug, Default)]
pub(super) struct StorePast {
    pub(super) from: Option<PeerId>,
    pub(super) batches: u64,
    pub(super) bytes: u64,
    /// Number of leaps of the head when the job began.
    pub(super) leaps: u64,
}

/// Check and store of a reverse delta of the backfill; without one, the job frees the memory for past states.
#[derive(Debug)]
pub(super) struct StoreStates {
    /// The reverse delta's request, its arrival and its bytes; `None` without one.
    pub(super) from: Option<(Flight, Instant, usize)>,
    /// Number of leaps of the head when the job began.
    pub(super) leaps: u64,
}

/// Store of epoch ends.
#[derive(Debug)]
pub(super) struct StoreEpochs;

/// The running jobs of one kind.
#[derive(Debug)]
pub(super) struct Running<K>(BTreeMap<JobId, K>);

impl<K> Default for Running<K> {
    fn default() -> Self {
        Running(BTreeMap::new())
    }
}

impl<K> Running<K> {
    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.values()
    }

    /// Ends a job and returns its data.
    fn end(&mut self, id: JobId) -> Result<K, SyncError> {
        let strange = || SyncError::Worker(format!("job {} ended with the result of another kind", id.0));
        self.0.remove(&id).ok_or_else(strange)
    }
}

impl Running<RestoreTask> {
    /// The answers that the worker has.
    pub(super) fn answers(&self) -> impl Iterator<Item = &RestoreAnswer> {
        self.iter().filter_map(|restoring| match restoring {
            RestoreTask::Answer(answer) => Some(&**answer),
            RestoreTask::Begin | RestoreTask::Finish | RestoreTask::Drop => None,
        })
    }

    /// Whether the worker has an answer of this key. The worker has at most one answer with siblings, and one with
    /// code.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.answers().any(|answer| match (key, &answer.key) {
            (Key::Siblings(_), Key::Siblings(_)) => true,
            (key, other) => key == other,
        })
    }

    /// Whether the worker has the chunk that begins at `first`.
    pub(super) fn has_chunk(&self, first: &Path) -> bool {
        self.has(&Key::Chunk(*first))
    }

    /// Bytes of the chunks that the worker has.
    pub(super) fn chunk_bytes(&self) -> u64 {
        let chunks = self.answers().filter(|answer| matches!(answer.key, Key::Chunk(_)));
        chunks.map(|answer| answer.bytes as u64).sum()
    }

    /// Whether a running job advances the restore.
    pub(super) fn is_working(&self) -> bool {
        self.iter().any(|restoring| !matches!(restoring, RestoreTask::Drop))
    }
}

/// All running jobs.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    next: u64,
    pub(super) checks: Running<Check>,
    pub(super) announced: Running<CheckAnnounced>,
    pub(super) epochs: Running<CheckEpochs>,
    pub(super) prepare: Running<Prepare>,
    pub(super) execute: Running<Execute>,
    pub(super) commit: Running<Commit>,
    pub(super) restore: Running<RestoreTask>,
    pub(super) audit: Running<AuditTask>,
    pub(super) keep: Running<StoreEpochs>,
    pub(super) check_past: Running<CheckPast>,
    pub(super) store_past: Running<StorePast>,
    pub(super) store_states: Running<StoreStates>,
}

/// The data kept for a job while it runs; its type is the kind of the job.
pub(super) trait JobData: Sized {
    /// This kind's field in the table.
    fn place(jobs: &mut Jobs) -> &mut Running<Self>;
}

macro_rules! places {
    ($($kept:ty => $place:ident),* $(,)?) => {
        $(impl JobData for $kept {
            fn place(jobs: &mut Jobs) -> &mut Running<Self> {
                &mut jobs.$place
            }
        })*
    };
}

places! {
    Check => checks,
    CheckAnnounced => announced,
    CheckEpochs => epochs,
    Prepare => prepare,
    Execute => execute,
    Commit => commit,
    RestoreTask => restore,
    AuditTask => audit,
    StoreEpochs => keep,
    CheckPast => check_past,
    StorePast => store_past,
    StoreStates => store_states,
}

/// A finished job: its kept data, and its result.
#[derive(Debug)]
pub(super) enum FinishedJob {
    Check(Check, Result<VerifiedRange, Fault>),
    Announced(CheckAnnounced, Result<Option<VerifiedRange>, Fault>),
    Epochs(CheckEpochs, Box<ProvedEnds>),
    Prepare(Prepare, Result<Box<PreparedRange>, SyncError>),
    Execute(Execute, Result<ExecutionResult, SyncError>),
    Commit(Commit, Result<CommitResult, SyncError>),
    Restore(RestoreTask, Result<RestoreResult, SyncError>),
    Audit(AuditTask, Result<AuditResult, SyncError>),
    Keep(StoreEpochs, Result<(), SyncError>),
    CheckPast(CheckPast, Result<PastRange, Fault>),
    StorePast(StorePast, Result<BackfillResult, SyncError>),
    StoreStates(StoreStates, Result<PastStatesResult, SyncError>),
}

impl Jobs {
    /// Records that a job begins.
    fn begin<K: JobData>(&mut self, kept: K) -> JobId {
        let id = JobId(self.next);
        self.next += 1;
        K::place(self).0.insert(id, kept);
        id
    }

    /// Ends the job that a result belongs to.
    ///
    /// # Errors
    /// [`SyncError::Worker`] if no job of that kind has the id.
    pub(super) fn end(&mut self, id: JobId, done: Done) -> Result<FinishedJob, SyncError> {
        Ok(match done {
            Done::Range(result) => FinishedJob::Check(self.checks.end(id)?, result),
            Done::Announced(result) => FinishedJob::Announced(self.announced.end(id)?, result),
            Done::Epochs(proved) => FinishedJob::Epochs(self.epochs.end(id)?, proved),
            Done::Prepared(result) => FinishedJob::Prepare(self.prepare.end(id)?, result),
            Done::Executed(result) => FinishedJob::Execute(self.execute.end(id)?, result),
            Done::Committed(result) => FinishedJob::Commit(self.commit.end(id)?, result),
            Done::Restored(result) => FinishedJob::Restore(self.restore.end(id)?, result),
            Done::Audited(result) => FinishedJob::Audit(self.audit.end(id)?, result),
            Done::Kept(result) => FinishedJob::Keep(self.keep.end(id)?, result),
            Done::PastChecked(result) => FinishedJob::CheckPast(self.check_past.end(id)?, result),
            Done::Backfilled(result) => FinishedJob::StorePast(self.store_past.end(id)?, result),
            Done::StatesAdded(result) => FinishedJob::StoreStates(self.store_states.end(id)?, result),
        })
    }

    /// Whether a job runs that the node waits for. Audits and the backfill do not count: they use its spare time.
    pub(super) fn is_working(&self) -> bool {
        self.checks.is_any()
            || self.announced.is_any()
            || self.epochs.is_any()
            || self.prepare.is_any()
            || self.execute.is_any()
            || self.commit.is_any()
            || self.restore.is_any()
            || self.keep.is_any()
    }
}

impl Engine {
    /// Begins a job and keeps its data.
    pub(super) fn run<K: JobData>(&mut self, kept: K, job: Job) {
        let id = self.jobs.begin(kept);
        self.effects.push_back(Effect::Run { id, job });
    }
}
