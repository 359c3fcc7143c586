//! [`Follower`]: the thin driver that gives the engine a network, a clock, threads and a store.
//!
//! One task owns the engine: it hands arriving events to the engine and carries out the engine's effects. Requests and
//! jobs run beside that task, as tasks of one set, which ends with it. Jobs run to their end. Their writes are atomic.

mod run;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipstream_executor::{HintsMode, HotStats, Session, StallStats};
use slipstream_network::{FairLimits, FairQueue, MESSAGE_BYTES_MAX, PeerId, Transport};
use slipstream_storage::{StorageError, Store};
use slipstream_types::{BatchHeader, BatchNumber, Blob, Certificate, Waypoint, schedule::Forks};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use self::run::Driver;
use crate::{
    SyncConfig, SyncError,
    engine::{Engine, Local, Setup},
    peers::KEY,
    plan::COSTS_KEY,
    planted::Defences,
    protocol::announcement,
    secret,
    status::SyncStatus,
    work::Worker,
};

/// Limits of the queue of batches that the mesh assembled. The per-peer limits charge a batch to the peer that is
/// credited with it, often the same peer for all batches. At most eight batches are ahead of the head; a batch that this queue
/// drops is fetched.
const ANNOUNCEMENTS: FairLimits =
    FairLimits { peer_items_max: 16, peer_bytes_max: MESSAGE_BYTES_MAX, bytes_max: 128 << 20 };

/// The follower half of sync. See the module.
pub struct Follower {
    store: Store,
    transport: Arc<dyn Transport>,
    worker: Arc<Worker>,
    engine: Mutex<Engine>,
    broadcasts: FairQueue,
    /// Notifies the loop that a call from outside the loop gave the engine something to do.
    poked: Notify,
}

impl Follower {
    /// Creates a follower of an initialized store.
    ///
    /// `patience` is how long a new batch is left to others in this process (a validator's consensus) before the follower
    /// fetches it. It is zero for a fullnode.
    ///
    /// # Errors
    /// If the store has no genesis, or passed the waypoint's batch on another ledger.
    pub fn new(
        config: SyncConfig,
        store: Store,
        transport: Arc<dyn Transport>,
        session: Arc<Session>,
        waypoint: Option<Waypoint>,
        patience: Duration,
    ) -> Result<Arc<Follower>, SyncError> {
        let seed = secret::seed(&store)?;
        let setup = Setup {
            hints: session.hints() != HintsMode::Off,
            patience,
            waypoint: waypoint.map_or(BatchNumber::GENESIS, |waypoint| waypoint.number),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            seed,
            defences: Defences::default(),
        };
        let worker = Worker::new(store.clone(), &config, session, waypoint, seed)?;
        let began = Instant::now();
        let local = Local::of(&store)?.gauged(setup.cores as f64, || began.elapsed());
        let scores = store.record(KEY)?;
        let engine = Engine::new(config, &setup, local, scores.as_deref(), Instant::now());
        Ok(Arc::new(Follower {
            store,
            transport,
            worker: Arc::new(worker),
            engine: Mutex::new(engine),
            broadcasts: FairQueue::new(ANNOUNCEMENTS),
            poked: Notify::new(),
        }))
    }

    /// Announces a batch that others in this process assemble and hand to [`Follower::announce`]. The engine does not
    /// fetch the batch before `until`.
    pub fn expect(&self, number: BatchNumber, until: Instant) {
        self.engine.lock().handle_expected(number, until);
    }

    /// Reports that an expected batch will not come, so that the engine fetches it.
    pub fn give_up(&self, number: BatchNumber) {
        self.engine.lock().handle_given_up(number, Instant::now());
        self.poked.notify_one();
    }

    /// Reports that the operator lifted a peer's ban: the peer is asked again once it is connected.
    pub fn unban(&self, peer: &PeerId) {
        self.engine.lock().handle_unbanned(peer, Instant::now());
        self.poked.notify_one();
    }

    /// Takes a peer's claim that it has a batch, or soon will. Asks the peer if the claim is news.
    pub fn hear_of(&self, peer: PeerId, number: BatchNumber) {
        if self.engine.lock().handle_rumour(peer, number, Instant::now()) {
            self.poked.notify_one();
        }
    }

    /// Takes a new batch that a peer announced. If too many of one peer's batches wait, the oldest is dropped and
    /// fetched later.
    pub fn announce(
        &self,
        peer: PeerId,
        header: BatchHeader,
        certificate: Certificate,
        body: Blob,
        hints: Option<Blob>,
    ) {
        // A decoded batch can be encoded.
        let Ok(payload) = announcement(header, certificate, body, hints) else { return };
        let dropped = self.broadcasts.push(peer, payload);
        if dropped > 0 {
            tracing::debug!(peer = %peer.short(), dropped, "dropped announcements: too many were waiting");
        }
    }

    /// Sets how long the follower leaves a new batch to others in this process: a validator commits its own batches.
    pub fn set_patience(&self, patience: Duration) {
        self.engine.lock().set_patience(patience);
    }

    /// Reports the daemon's present state.
    pub fn status(&self) -> SyncStatus {
        self.engine.lock().status(Instant::now())
    }

    /// Whether a connected peer keeps some of the missing history, which the node then fetches.
    pub fn is_backfilling(&self) -> bool {
        self.engine.lock().is_backfilling(Instant::now())
    }

    /// The first batch whose past state is wanted; `None` while no connected peer knows a missing state.
    pub fn past_states_to_come(&self) -> Option<BatchNumber> {
        self.engine.lock().past_states_status(Instant::now()).map(|states| states.wanted_from)
    }

    /// Warns once about every fork that this node's schedule lacks, while there is still time to act.
    fn hear(&self, peer: PeerId, forks: &Forks) {
        match self.store.hear_forks(forks) {
            Ok(unknown) => unknown.iter().for_each(|fork| {
                tracing::warn!(
                    peer = %peer.short(), %fork,
                    "a peer's schedule has a fork that this node's schedule lacks: this node stops there if the \
                    validators have the fork; add it to the file that `schedule` in the configuration names"
                );
            }),
            Err(error) => tracing::warn!(%error, "cannot compare the forks that a peer announces"),
        }
    }

    /// Returns the size of the follower's hot cache, and its hits and misses.
    pub fn hot_stats(&self) -> HotStats {
        self.worker.hot_stats()
    }

    /// Returns how long execution waited for rows and code, in sync and in consensus.
    pub fn stall_stats(&self) -> StallStats {
        self.worker.stall_stats()
    }

    /// Follows until `shutdown`, and then ends after the running jobs.
    ///
    /// # Errors
    /// Errors that no other peer can mend: a failed store, a divergence, a wrong waypoint.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) -> Result<(), SyncError> {
        let mut driver = Driver::new(&self);
        let done = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            done = driver.drive() => done,
        };
        let ended = driver.end().await;
        self.save_now().await;
        done.and(ended)
    }

    async fn save_now(&self) {
        let Some(advice) = self.advice(Instant::now()) else { return };
        let store = self.store.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || advice.write(&store)).await {
            tracing::warn!(%error, "cannot save peer scores and costs");
        }
    }

    /// The scores and costs learned since the last save.
    fn advice(&self, now: Instant) -> Option<LearnedRecords> {
        let mut engine = self.engine.lock();
        let advice = LearnedRecords { scores: engine.save_scores(now), costs: engine.save_costs() };
        (advice.scores.is_some() || advice.costs.is_some()).then_some(advice)
    }
}

/// An encoded record, to be stored.
type Record = Result<Vec<u8>, slipstream_types::CodecError>;

/// Records of what was learned. If writing them fails, the node logs it and goes on.
struct LearnedRecords {
    scores: Option<Record>,
    costs: Option<Record>,
}

impl LearnedRecords {
    fn write(self, store: &Store) {
        let scores = self.scores.map(|record| store.put_record(KEY, &record?));
        let costs = self.costs.map(|record| store.put_derived_record(COSTS_KEY, &record?));
        for written in scores.into_iter().chain(costs) {
            match written {
                // The next commit fails for the same reason, and its error stops the node.
                Ok(()) | Err(StorageError::DiskLow { .. } | StorageError::Poisoned) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot save peer scores or costs; a restart measures them anew");
                }
            }
        }
    }
}
