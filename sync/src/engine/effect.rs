//! The engine's requests to its driver, and the driver's reports.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use slipstream_network::PeerId;
use slipstream_storage::{RestoreTarget, Span, Store};
use slipstream_types::{
    BatchNumber, Certificate, Digest, Epoch, Totals, Waypoint, accumulator::AccumulatorRangeProof,
    schedule::Forks,
};

use crate::{
    error::{Fault, SyncError},
    plan::{COSTS_KEY, RangeMode, price::Costs},
    protocol::{Announcement, Headers, RangeRequest, Request},
    repair::{RepairRecord, RepairReport},
    trust::Trust,
    verify::VerifiedRange,
    work::{
        Alarm, Audit, Audited, Backfilled, Committed, Executed, PastRange, Prepared, ProvedEnds, Ready,
        Restored, ReverseAnswer, StatesAdded, gauge,
    },
};

/// Identifies a request in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// Identifies a job in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(pub u64);

/// The engine's requests, in the order in which the driver performs them.
pub(super) type Effects = VecDeque<Effect>;

/// A request to the driver, which may skip one only when the node stops.
#[derive(Debug)]
pub enum Effect {
    /// Ask a peer. [`super::Engine::handle_answer`] gets the outcome, including a missed deadline.
    Send {
        /// Identifies the request in the answer.
        id: RequestId,
        /// The peer to ask.
        peer: PeerId,
        /// The request to send.
        request: Request,
        /// How long the answer may take.
        deadline: Duration,
        /// Maximum bytes that the answer may have, as the request implies.
        bytes_max: usize,
    },
    /// Cancel a request: nobody waits for its answer any more.
    Cancel {
        /// Identifies the request.
        id: RequestId,
    },
    /// Run a job beside the engine. [`super::Engine::handle_done`] gets the result.
    Run {
        /// Identifies the job in its result.
        id: JobId,
        /// The work to do.
        job: Job,
    },
    /// Cut a peer off.
    Ban {
        /// The peer to ban.
        peer: PeerId,
        /// The reason, which the peer and the log get.
        reason: String,
        /// How long the ban lasts.
        duration: Duration,
    },
    /// Note a peer's schedule of forks to come. It is an unverified claim.
    Hear {
        /// The peer that claims it.
        peer: PeerId,
        /// The peer's whole schedule of forks.
        forks: Forks,
    },
}

/// Work that takes too long for the engine. The worker ([`crate::work::Worker`]) runs it, on any thread.
#[derive(Debug)]
pub enum Job {
    /// Check the answer to a range request.
    CheckRange {
        /// The answer's bytes, as the peer sent them.
        answer: Vec<u8>,
        /// The request that was sent.
        request: RangeRequest,
        /// Number of batches from the request's first one up to the peer's head.
        due: u64,
        /// The validators whose signatures count.
        trust: Arc<Trust>,
    },
    /// Check an announcement of the batch after the head.
    CheckAnnounced {
        /// Its certificate is checked already.
        announcement: Box<Announcement>,
        /// The validators whose signatures count.
        trust: Arc<Trust>,
    },
    /// Check the answer to a request for the ends of epochs.
    CheckEpochs {
        /// The answer's bytes, as the peer sent them.
        answer: Vec<u8>,
        /// The first epoch whose end was asked for.
        first: Epoch,
        /// The validators that are known.
        trust: Arc<Trust>,
    },
    /// Decode a checked range, so that only its state is missing.
    Prepare {
        /// The checked range.
        range: VerifiedRange,
        /// Whether to execute or to apply it.
        mode: RangeMode,
        /// The peer that sent it.
        from: PeerId,
    },
    /// Execute a prepared range behind the one before it.
    Execute {
        /// The prepared range.
        range: Box<Prepared>,
    },
    /// Commit ranges that follow each other and the head.
    Commit {
        /// The ranges, in order.
        ranges: Vec<Ready>,
        /// The newest batch that peers have.
        target: BatchNumber,
    },
    /// Part of a restore.
    Restore(RestoreJob),
    /// Execute again a batch that was applied by its delta.
    Audit(Audit),
    /// Store the certificates that end epochs.
    KeepEpochs(Vec<Certificate>),
    /// Check the answer to a range request of the backfill.
    CheckPast {
        /// The answer's bytes, as the peer sent them.
        answer: Vec<u8>,
        /// The request that was sent.
        request: RangeRequest,
        /// Number of batches from the request's first one up to the peer's head.
        due: u64,
        /// The validators whose signatures count.
        trust: Arc<Trust>,
    },
    /// Store a checked range below the stored ones; without a range, look up what is missing.
    Backfill(Option<Box<PastRange>>),
    /// Check a peer's reverse delta, and store the past states that it gives; without one, free the memory for past
    /// states.
    PastStates(Option<ReverseAnswer>),
}

impl Job {
    /// Whether the job computes for long and the head does not wait for it.
    pub(crate) fn stands_back(&self) -> bool {
        matches!(self, Job::CheckPast { .. } | Job::PastStates(_) | Job::Audit(_))
    }
}

/// Work on the state that comes from a snapshot, or from the range delta up to one.
#[derive(Debug)]
pub enum RestoreJob {
    /// Begin or resume a restore.
    Begin {
        /// The snapshot to restore.
        target: Box<RestoreTarget>,
        /// The ledger that ends with the snapshot.
        ancestry: Box<Ancestry>,
        /// Whether to restore by the changes since the head; otherwise by rows.
        range_delta: bool,
    },
    /// Check and add the rows, or the changes in them, of a range of paths.
    Chunk {
        /// The answer's bytes, as the peer sent them.
        answer: Vec<u8>,
        /// The request that was sent.
        request: Request,
    },
    /// Compare the rows of a range with the siblings that a peer sent for it.
    Siblings {
        /// The answer's bytes, as the peer sent them.
        answer: Vec<u8>,
        /// The range of paths.
        span: Span,
        /// The peer that sent it.
        from: PeerId,
    },
    /// Check and add code.
    Codes {
        /// The answer's bytes, as the peer sent them.
        answer: Vec<u8>,
        /// The hashes that were asked for.
        hashes: Vec<Digest>,
    },
    /// Make the restored state the node's state.
    Finish,
    /// Put the restore aside; what is restored stays.
    Drop,
}

/// The ledger up to a snapshot, checked against the snapshot's certificate.
#[derive(Clone, Debug)]
pub struct Ancestry {
    /// The headers up to the snapshot.
    pub headers: Headers,
    /// Proof that the ledger begins with this node's genesis.
    pub genesis_proof: AccumulatorRangeProof,
    /// The ledger's batch at the operator's waypoint, if that lies between this node's head and the snapshot.
    pub passes: Option<Waypoint>,
}

/// The result of a job.
#[derive(Debug)]
pub enum Done {
    /// Result of [`Job::CheckRange`].
    Range(Result<VerifiedRange, Fault>),
    /// Result of [`Job::CheckAnnounced`]; `None` if another batch is next by now.
    Announced(Result<Option<VerifiedRange>, Fault>),
    /// Result of [`Job::CheckEpochs`].
    Epochs(Box<ProvedEnds>),
    /// Result of [`Job::Prepare`].
    Prepared(Result<Box<Prepared>, SyncError>),
    /// Result of [`Job::Execute`].
    Executed(Result<Executed, SyncError>),
    /// Result of [`Job::Commit`].
    Committed(Result<Committed, SyncError>),
    /// Result of [`Job::Restore`].
    Restored(Result<Restored, SyncError>),
    /// Result of [`Job::Audit`].
    Audited(Result<Audited, SyncError>),
    /// Result of [`Job::KeepEpochs`].
    Kept(Result<(), SyncError>),
    /// Result of [`Job::CheckPast`].
    PastChecked(Result<PastRange, Fault>),
    /// Result of [`Job::Backfill`].
    Backfilled(Result<Backfilled, SyncError>),
    /// Result of [`Job::PastStates`].
    StatesAdded(Result<StatesAdded, SyncError>),
}

/// The node's own ledger at the engine's start.
#[derive(Clone, Debug)]
pub struct Local {
    /// Digest of batch 0.
    pub genesis: Digest,
    /// The last committed batch.
    pub head: BatchNumber,
    /// The snapshot of an unfinished restore.
    pub begun: Option<BatchNumber>,
    /// The totals of the first and the last batch, if their headers are here.
    pub totals: Vec<(BatchNumber, Totals)>,
    /// The costs of work on this machine, if they are known.
    pub costs: Option<Costs>,
    /// The validators whose signatures count.
    pub trust: Trust,
    /// An audit's alarm that an operator has to look into.
    pub alarm: Option<Alarm>,
    /// The report of the last repair of the state.
    pub repair: Option<RepairReport>,
}

impl Local {
    /// Reads the local ledger from an initialized store.
    ///
    /// # Errors
    /// If the store lacks a genesis or is unreadable.
    pub fn of(store: &Store) -> Result<Local, SyncError> {
        let (genesis, head) = (store.header(BatchNumber::GENESIS)?, store.head()?.header);
        let ends = genesis.iter().chain([&head]);
        Ok(Local {
            totals: ends.map(|header| (header.number, header.totals)).collect(),
            costs: store.record(COSTS_KEY)?.and_then(|record| Costs::of_record(&record)),
            genesis: genesis.map_or(Digest::ZERO, |header| header.digest()),
            head: head.number,
            begun: store.recorded_restore()?.map(|target| target.header.number),
            trust: Trust::of(store)?,
            alarm: Alarm::stored(store)?,
            repair: RepairRecord::of(store)?.report,
        })
    }

    /// Adds the costs of work on this machine of `cores` cores. If they are unknown, measures them in a few
    /// milliseconds. `now` returns the time since an arbitrary point.
    pub fn gauged(self, cores: f64, now: impl Fn() -> Duration) -> Local {
        Local { costs: self.costs.or_else(|| Some(gauge::measure(cores, now))), ..self }
    }
}
