//! [`Setup`] and [`Local`]: what a new engine begins with.

use std::time::Duration;

use slipstream_storage::Store;
use slipstream_types::{BatchNumber, Digest, Totals};

use crate::{
    error::SyncError,
    plan::{COSTS_KEY, price::Costs},
    planted::Defences,
    repair::{RepairRecord, RepairReport},
    trust::Trust,
    work::{Alarm, gauge},
};

/// The inputs of a new engine, besides its configuration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Whether the node asks for hints.
    pub hints: bool,
    /// How long a new batch is left to others in this process (a validator's consensus) before the engine fetches it;
    /// zero for a fullnode.
    pub patience: Duration,
    /// The operator's waypoint; batch 0 if none is set.
    pub waypoint: BatchNumber,
    /// Number of cores that work may use.
    pub cores: usize,
    /// Seed that decides which requests explore and which batches are audited. The worker has the same seed.
    pub seed: u64,
    /// All defences, unless a simulator leaves one out.
    #[doc(hidden)]
    pub defences: Defences,
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
