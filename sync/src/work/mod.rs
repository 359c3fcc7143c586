//! [`Worker`]: the stages of the pipeline behind the network. Each job is a function of its input and of the node's store. The
//! engine orders the jobs, and the worker runs them on any thread.
//!
//! ```text
//!  answer ─▶ check ─▶ prepare (bodies, senders, rows ahead │ deltas) ─▶ execute on layers ─▶ commit in groups ─▶ audit
//!  chunk  ─▶ check and add ─────────────────────────────────────────────────────────────────▶ finish
//!  answer of the backfill ─▶ check ─▶ store below what is stored
//! ```

mod ahead;
mod audit;
mod backfill;
mod commit;
mod epochs;
pub(crate) mod gauge;
mod job;
mod opened;
mod past_states;
mod prepare;
mod replay;
mod succession;
mod takeover;

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use slipstream_executor::{HotStats, Overlay, Session, StallStats};
use slipstream_network::PeerId;
use slipstream_storage::{Head, StateBackfill, StorageError, Store};
use slipstream_types::{Address, BatchNumber, Certificate, ChainConfig, Genesis, Waypoint};

pub(crate) use self::audit::is_drawn;
use self::opened::OpenedRanges;
pub use self::{
    audit::{ALARM_RECORD, Alarm, Audit, AuditResult},
    backfill::{BackfillResult, PastRange},
    commit::{CommitResult, HintUse, ReadyRange},
    epochs::ProvedEnds,
    job::{Ancestry, Done, Job, RestoreJob},
    past_states::{PastStatesResult, ReverseAnswer},
    prepare::PreparedRange,
    replay::{ExecutedRange, ExecutionResult},
    takeover::{AbandonReason, Progress, RestoreOutcome, RestoreResult},
};
use crate::{
    SyncConfig, SyncError,
    error::Fault,
    planted::Defences,
    protocol::{ANSWER_BYTES_MAX, Announcement, Range, RangeRequest},
    trust::Trust,
    verify::{self, VerifiedRange},
};
use slipstream_types::codec;
#[cfg(test)]
pub(crate) use takeover::RANGE_DELTA_BYTES_MAX;
pub(crate) use takeover::{CHUNK_BYTES, RANGE_DELTA_RANGES_BITS};

/// Maximum number of peers remembered for wrong values. Beyond this all are forgotten: an attacker with this many identities gains
/// as many executions.
const DISBELIEVED_MAX: usize = 1_024;

/// Runs jobs on one node's store.
pub struct Worker {
    store: Store,
    chain: Arc<ChainConfig>,
    /// The contract that names the next epoch's validators, if the genesis names one.
    validators_contract: Option<Address>,
    /// Shared with consensus, if this node is a validator.
    session: Arc<Session>,
    history: bool,
    waypoint: Option<Waypoint>,
    audit_share: f64,
    audit_seed: u64,
    /// The last executed ranges, and the applied ones between them; each is a layer.
    executed: Mutex<Overlay>,
    /// Held by every range that is prepared for execution.
    waiting: Arc<()>,
    /// Ranges that wait to be applied.
    opened: OpenedRanges,
    /// The ledger's head behind the last announced batch that passed its checks. The next one is checked before that
    /// batch is committed.
    announced: Mutex<Option<Head>>,
    /// Peers whose hints had wrong values since this node started: each costs one execution at most. At most
    /// [`DISBELIEVED_MAX`].
    disbelieved: Mutex<BTreeSet<PeerId>>,
    active: Mutex<Option<takeover::ActiveTakeover>>,
    /// The past states that are being extended backwards.
    past_states: Mutex<Option<StateBackfill>>,
    range_delta_bytes_max: u64,
    /// Number of looks at the progress of takeovers; orders their reports.
    looks: Mutex<u64>,
    defences: Defences,
}

impl Worker {
    /// A worker on an initialized store. The seed draws the batches that are audited.
    ///
    /// # Errors
    /// If the store lacks a genesis, or passed the waypoint's batch on another ledger or without a comparison.
    /// [`SyncError::WrongSuccession`] if its epoch has other validators than its state wants.
    pub fn new(
        store: Store,
        config: &SyncConfig,
        session: Arc<Session>,
        waypoint: Option<Waypoint>,
        audit_seed: u64,
    ) -> Result<Worker, SyncError> {
        let chain = store.chain()?;
        let Genesis { validators_contract, .. } = store.genesis()?;
        if let Some(waypoint) = &waypoint {
            check_stored_waypoint(&store, waypoint)?;
        }
        succession::check_head(&store, validators_contract)?;
        Ok(Worker {
            store,
            chain,
            validators_contract,
            session,
            history: config.history,
            waypoint,
            audit_share: config.audit,
            audit_seed,
            executed: Mutex::default(),
            waiting: Arc::default(),
            opened: OpenedRanges::default(),
            announced: Mutex::new(None),
            disbelieved: Mutex::default(),
            active: Mutex::new(None),
            past_states: Mutex::new(None),
            range_delta_bytes_max: takeover::RANGE_DELTA_BYTES_MAX,
            looks: Mutex::new(0),
            defences: Defences::default(),
        })
    }

    /// Replaces the defences; the default is all of them.
    #[doc(hidden)]
    pub fn with_defences(self, defences: Defences) -> Worker {
        Worker { defences, ..self }
    }

    /// Sets the bytes of memory that a range delta may take until its end; the default is 512 MiB.
    #[doc(hidden)]
    pub fn with_range_delta_bytes(self, range_delta_bytes_max: u64) -> Worker {
        Worker { range_delta_bytes_max, ..self }
    }

    /// Returns the hot cache's size, and its hits and misses.
    pub(crate) fn hot_stats(&self) -> HotStats {
        self.session.hot_stats()
    }

    /// Returns how long execution waited for rows and code.
    pub(crate) fn stall_stats(&self) -> StallStats {
        self.session.stall_stats()
    }

    /// Runs a job. Blocks for the disk, and for as long as the work takes.
    pub fn run(&self, job: Job) -> Done {
        match job {
            Job::CheckRange { answer, request, due, trust } => {
                Done::Range(self.check_range(&answer, &request, due, &trust))
            }
            Job::CheckAnnounced { announcement, trust } => {
                Done::Announced(self.check_announced(*announcement, &trust))
            }
            Job::CheckEpochs { answer, first, trust } => {
                Done::Epochs(Box::new(epochs::check(&answer, first, &trust)))
            }
            Job::Prepare { range, mode, from } => Done::Prepared(self.prepare(range, mode, from)),
            Job::Execute { range } => Done::Executed(self.execute(*range)),
            Job::Commit { ranges, target } => Done::Committed(self.commit(ranges, target)),
            Job::Restore(job) => Done::Restored(self.restore(job)),
            Job::Audit(audit) => Done::Audited(self.audit(&audit)),
            Job::KeepEpochs(ends) => Done::Kept(self.keep_epochs(&ends)),
            Job::CheckPast { answer, request, due, trust } => {
                Done::PastChecked(self.check_past(&answer, &request, due, &trust))
            }
            Job::Backfill(range) => Done::Backfilled(self.backfill(range.as_deref())),
            Job::PastStates(answer) => Done::StatesAdded(self.past_states(answer)),
        }
    }

    fn check_range(
        &self,
        answer: &[u8],
        request: &RangeRequest,
        due: u64,
        trust: &Trust,
    ) -> Result<VerifiedRange, Fault> {
        let range: Range = codec::decode("sync answer", answer, ANSWER_BYTES_MAX)?;
        Ok(verify::range_but(range, request, due, trust, self.defences)?)
    }

    fn keep_epochs(&self, ends: &[Certificate]) -> Result<(), SyncError> {
        Ok(ends.iter().try_for_each(|end| self.store.put_epoch_end(end))?)
    }

    fn check_announced(
        &self,
        announcement: Announcement,
        trust: &Trust,
    ) -> Result<Option<VerifiedRange>, Fault> {
        let Some(parent) = self.parent(announcement.header.number) else { return Ok(None) };
        let header = announcement.header.clone();
        let range = verify::announced(announcement, &parent, trust)?;
        let (digest, mut accumulator) = (header.digest(), parent.accumulator);
        accumulator.append(digest);
        *self.announced.lock() = Some(Head { header, digest, accumulator });
        Ok(Some(range))
    }

    /// The parent that a batch must have: the store's head, or the one announced before it.
    fn parent(&self, number: BatchNumber) -> Option<Head> {
        let is_parent = |head: &Head| head.header.number.next() == number;
        self.store.head().ok().filter(is_parent).or_else(|| self.announced.lock().clone().filter(is_parent))
    }
}

/// Checks a ledger that has already passed the waypoint.
fn check_stored_waypoint(store: &Store, waypoint: &Waypoint) -> Result<(), SyncError> {
    match store.passes_waypoint(waypoint) {
        Err(StorageError::WrongWaypoint { waypoint, found }) => {
            Err(SyncError::WrongWaypoint { waypoint, number: waypoint.number, found })
        }
        passes => Ok(passes.map(|_| ())?),
    }
}

fn expect_waypoint(waypoint: &Waypoint, found: Waypoint) -> Result<(), SyncError> {
    if found == *waypoint {
        return Ok(());
    }
    Err(SyncError::WrongWaypoint { waypoint: *waypoint, number: waypoint.number, found })
}
