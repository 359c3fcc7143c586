//! What the engine asks of its driver, and what the driver tells it.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use slipstream_network::PeerId;
use slipstream_storage::{RestoreTarget, Span, Store};
use slipstream_types::{
    BatchNumber, Certificate, Digest, Waypoint, accumulator::AccumulatorRangeProof, schedule::Forks,
};

use crate::{
    error::{Fault, SyncError},
    plan::RangeMode,
    protocol::{Announcement, Headers, RangeRequest, Request},
    repair::{RepairRecord, RepairReport},
    trust::Trust,
    verify::VerifiedRange,
    work::{Alarm, Audit, Audited, Committed, Executed, Prepared, Ready, Restored},
};

/// Names a request that is under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// Names a job that is under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(pub u64);

/// What the engine asks for, in the order in which it is to be done.
pub(super) type Effects = VecDeque<Effect>;

/// What the driver does for the engine. None of it may be left out but for the reason that the node stops.
#[derive(Debug)]
pub enum Effect {
    /// Ask a peer; [`super::Engine::handle_answer`] gets the outcome, a missed deadline included.
    Send {
        /// Names it.
        id: RequestId,
        /// Whom.
        peer: PeerId,
        /// What.
        request: Request,
        /// How long the answer may take.
        deadline: Duration,
        /// Bytes that the answer may have, by what is asked for.
        bytes_max: usize,
    },
    /// Nobody waits for this answer any more.
    Cancel {
        /// Which.
        id: RequestId,
    },
    /// Run a job beside the engine; [`super::Engine::handle_done`] gets what came of it.
    Run {
        /// Names it.
        id: JobId,
        /// What to do.
        job: Job,
    },
    /// Cut a peer off.
    Ban {
        /// Whom.
        peer: PeerId,
        /// Told to the peer and logged.
        reason: String,
        /// For so long.
        duration: Duration,
    },
    /// Note what a peer says of the forks to come. It is a claim.
    Hear {
        /// Who says so.
        peer: PeerId,
        /// Its whole schedule.
        forks: Forks,
    },
}

/// Work that takes long enough not to be done in the engine. The worker ([`crate::work::Worker`]) runs it, on any thread.
#[derive(Debug)]
pub enum Job {
    /// Check the answer to a range request.
    CheckRange {
        /// The bytes.
        answer: Vec<u8>,
        /// What was asked for.
        request: RangeRequest,
        /// Batches from the first on that the peer's head allows.
        due: u64,
        /// Whose signatures count.
        trust: Arc<Trust>,
    },
    /// Check an announcement of the batch after the head.
    CheckAnnounced {
        /// Its certificate is checked already.
        announcement: Box<Announcement>,
        /// Whose signatures count.
        trust: Arc<Trust>,
    },
    /// Decode a checked range, so that only its state is missing.
    Prepare {
        /// What.
        range: VerifiedRange,
        /// To execute or to apply it.
        mode: RangeMode,
        /// Whom it came from.
        from: PeerId,
    },
    /// Execute a prepared range behind the one before it.
    Execute {
        /// What.
        range: Box<Prepared>,
    },
    /// Commit ranges that follow each other and the head.
    Commit {
        /// What.
        ranges: Vec<Ready>,
        /// The newest batch that peers have.
        target: BatchNumber,
    },
    /// Part of a restore.
    Restore(RestoreJob),
    /// Execute a batch again that was applied by its delta.
    Audit(Audit),
    /// Keep the certificates that end epochs.
    KeepEpochs(Vec<Certificate>),
}

/// Work on the state that a snapshot, or the range delta up to one, gives.
#[derive(Debug)]
pub enum RestoreJob {
    /// Begin or take up a restore.
    Begin {
        /// What to restore.
        target: Box<RestoreTarget>,
        /// Its ledger.
        ancestry: Box<Ancestry>,
        /// Whether by what changed since the head, else by rows.
        range_delta: bool,
    },
    /// Check and add rows, or what changed in them, of a range of paths.
    Chunk {
        /// The peer's bytes.
        answer: Vec<u8>,
        /// What was asked for.
        request: Request,
    },
    /// Compare the rows of a range with a peer's siblings of it.
    Siblings {
        /// The peer's bytes.
        answer: Vec<u8>,
        /// The range.
        span: Span,
        /// Whom it came from.
        from: PeerId,
    },
    /// Check and add code.
    Codes {
        /// The peer's bytes.
        answer: Vec<u8>,
        /// What was asked for.
        hashes: Vec<Digest>,
    },
    /// Make it the node's state.
    Finish,
    /// Put it down; what is restored stays.
    Drop,
}

/// The ledger that a snapshot ends, checked against its certificate.
#[derive(Clone, Debug)]
pub struct Ancestry {
    /// The headers up to the snapshot.
    pub headers: Headers,
    /// That it begins with this node's genesis.
    pub genesis_proof: AccumulatorRangeProof,
    /// What it has where the operator's waypoint is, if that lies between this node's head and the snapshot.
    pub passes: Option<Waypoint>,
}

/// What came of a job.
#[derive(Debug)]
pub enum Done {
    /// Of [`Job::CheckRange`].
    Range(Result<VerifiedRange, Fault>),
    /// Of [`Job::CheckAnnounced`]; none if its batch is not the next any more.
    Announced(Result<Option<VerifiedRange>, Fault>),
    /// Of [`Job::Prepare`].
    Prepared(Result<Box<Prepared>, SyncError>),
    /// Of [`Job::Execute`].
    Executed(Result<Executed, SyncError>),
    /// Of [`Job::Commit`].
    Committed(Result<Committed, SyncError>),
    /// Of [`Job::Restore`].
    Restored(Result<Restored, SyncError>),
    /// Of [`Job::Audit`].
    Audited(Result<Audited, SyncError>),
    /// Of [`Job::KeepEpochs`].
    Kept(Result<(), SyncError>),
}

/// What the engine knows of the node's own ledger when it begins.
#[derive(Clone, Debug)]
pub struct Local {
    /// Digest of batch 0.
    pub genesis: Digest,
    /// The last committed batch.
    pub head: BatchNumber,
    /// The snapshot of a restore that did not finish.
    pub begun: Option<BatchNumber>,
    /// Whose signatures count.
    pub trust: Trust,
    /// An alarm of an audit that somebody has to look into.
    pub alarm: Option<Alarm>,
    /// What the last repair of the state did.
    pub repair: Option<RepairReport>,
}

impl Local {
    /// What an initialized store holds.
    ///
    /// # Errors
    /// If it has no genesis, or cannot be read.
    pub fn of(store: &Store) -> Result<Local, SyncError> {
        Ok(Local {
            genesis: store.header(BatchNumber::GENESIS)?.map_or(Digest::ZERO, |header| header.digest()),
            head: store.head()?.header.number,
            begun: store.recorded_restore()?.map(|target| target.header.number),
            trust: Trust::of(store)?,
            alarm: Alarm::stored(store)?,
            repair: RepairRecord::of(store)?.report,
        })
    }
}
