//! [`Job`]: the work that the engine orders, and [`Done`]: its result.

use std::sync::Arc;

use slipstream_network::PeerId;
use slipstream_storage::{RestoreTarget, Span};
use slipstream_types::{
    BatchNumber, Certificate, Digest, Epoch, Waypoint, accumulator::AccumulatorRangeProof,
};

use super::{
    Audit, AuditResult, BackfillResult, CommitResult, ExecutionResult, PastRange, PastStatesResult,
    PreparedRange, ProvedEnds, ReadyRange, RestoreResult, ReverseAnswer,
};
use crate::{
    error::{Fault, SyncError},
    plan::RangeMode,
    protocol::{Announcement, Headers, RangeRequest, Request},
    trust::Trust,
    verify::VerifiedRange,
};

/// Work that takes too long for the engine. [`Worker::run`](super::Worker::run) does it, on any thread.
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
        range: Box<PreparedRange>,
    },
    /// Commit ranges that follow each other and the head.
    Commit {
        /// The ranges, in order.
        ranges: Vec<ReadyRange>,
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
    Prepared(Result<Box<PreparedRange>, SyncError>),
    /// Result of [`Job::Execute`].
    Executed(Result<ExecutionResult, SyncError>),
    /// Result of [`Job::Commit`].
    Committed(Result<CommitResult, SyncError>),
    /// Result of [`Job::Restore`].
    Restored(Result<RestoreResult, SyncError>),
    /// Result of [`Job::Audit`].
    Audited(Result<AuditResult, SyncError>),
    /// Result of [`Job::KeepEpochs`].
    Kept(Result<(), SyncError>),
    /// Result of [`Job::CheckPast`].
    PastChecked(Result<PastRange, Fault>),
    /// Result of [`Job::Backfill`].
    Backfilled(Result<BackfillResult, SyncError>),
    /// Result of [`Job::PastStates`].
    StatesAdded(Result<PastStatesResult, SyncError>),
}
