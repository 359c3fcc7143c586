//! [`Effect`]: the engine's requests to its driver; [`Local`]: what the engine begins with.

use std::{collections::VecDeque, time::Duration};

use slipstream_network::PeerId;
use slipstream_storage::Store;
use slipstream_types::{BatchNumber, Digest, Totals, schedule::Forks};

use crate::{
    error::SyncError,
    plan::{COSTS_KEY, price::Costs},
    protocol::Request,
    repair::{RepairRecord, RepairReport},
    trust::Trust,
    work::{Alarm, Job, gauge},
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
