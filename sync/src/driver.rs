//! [`Follower`]: the thin driver that gives the engine a network, a clock, threads and a store.
//!
//! One task owns the engine: it hands in what arrives and does what comes out. Requests and jobs run beside it as tasks of one
//! set, which ends with it. Jobs run to their end. Their writes are atomic.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::process::setpriority_process;
use slipstream_executor::{HintsMode, HotStats, Session, StallStats};
use slipstream_network::{
    FairLimits, FairQueue, MESSAGE_BYTES_MAX, PeerId, Protocol, RequestLimits, Transport,
};
use slipstream_storage::{StorageError, Store};
use slipstream_types::{BatchHeader, BatchNumber, Blob, Certificate, Waypoint, codec, schedule::Forks};
use tokio::{
    sync::{Notify, oneshot},
    task::{AbortHandle, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    SyncConfig, SyncError,
    engine::{Effect, Engine, JobId, Local, RequestId, Setup},
    peers::KEY,
    plan::COSTS_KEY,
    planted::Defences,
    protocol::{Request, announcement},
    secret,
    status::SyncStatus,
    work::{Done, Job, Worker},
};

/// Limits of the queue of batches that the mesh assembled. Limits per peer go by the peer to credit, which is often the
/// same for all batches. At most eight are ahead of the head; a batch that is lost here is fetched.
const ANNOUNCEMENTS: FairLimits =
    FairLimits { peer_items_max: 16, peer_bytes_max: MESSAGE_BYTES_MAX, bytes_max: 128 << 20 };
/// After a broadcast, the next one waits this many times as long as it took. So announcements get at most a quarter of
/// the engine's time, however many come; requested answers get the rest.
const BROADCAST_REST: u32 = 3;
/// The niceness of background threads: beside a thread of the head's work, one gets a tenth of a core. The node's end
/// waits for them.
const BACK_NICENESS: i32 = 10;
/// How often changed scores and costs are written: a crash costs at most what was learned since.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// The follower half of sync. See the module.
pub struct Follower {
    store: Store,
    transport: Arc<dyn Transport>,
    worker: Arc<Worker>,
    engine: Mutex<Engine>,
    broadcasts: FairQueue,
    /// Notifies the loop of effects that came from outside of it.
    poked: Notify,
}

/// The end of a task beside the loop.
enum Ended {
    Request(RequestId, Result<Vec<u8>, slipstream_network::NetworkError>),
    Job(JobId, Box<Done>, Duration),
    /// A save of scores and costs ended, well or not.
    Saved,
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

    /// Announces that others assemble a batch, which will come by [`Follower::announce`]. It is not fetched before
    /// `until`.
    pub fn expect(&self, number: BatchNumber, until: Instant) {
        self.engine.lock().handle_coming(number, until);
    }

    /// Reports that an expected batch does not come: it is fetched.
    pub fn give_up(&self, number: BatchNumber) {
        self.engine.lock().handle_not_coming(number, Instant::now());
        self.poked.notify_one();
    }

    /// Reports that the operator lifted a peer's ban: the peer is asked again once it is connected.
    pub fn unban(&self, peer: &PeerId) {
        self.engine.lock().handle_unbanned(peer, Instant::now());
        self.poked.notify_one();
    }

    /// Takes a peer's claim that it has a batch, or soon will. The peer is asked if that is news.
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

    /// Whether the node fetches missing history, because a connected peer keeps it.
    pub fn is_backfilling(&self) -> bool {
        self.engine.lock().is_backfilling(Instant::now())
    }

    /// The first batch whose past state is to be fetched, because a connected peer knows it; `None` without any.
    pub fn past_states_to_come(&self) -> Option<BatchNumber> {
        self.engine.lock().past_states_status(Instant::now()).map(|states| states.wanted_from)
    }

    /// Warns once about every fork that this node's schedule lacks, while there is time to do something about it.
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

    /// Returns what the hot cache of following holds, and how often it helped.
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
        let mut driver =
            Driver { follower: &self, beside: JoinSet::new(), requests: BTreeMap::new(), back: None };
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
    fn advice(&self, now: Instant) -> Option<Advice> {
        let mut engine = self.engine.lock();
        let advice = Advice { scores: engine.save_scores(now), costs: engine.save_costs() };
        (advice.scores.is_some() || advice.costs.is_some()).then_some(advice)
    }
}

/// An encoded record, to be stored.
type Record = Result<Vec<u8>, slipstream_types::CodecError>;

/// Records of what was learned. If writing them fails, the node logs it and goes on.
struct Advice {
    scores: Option<Record>,
    costs: Option<Record>,
}

impl Advice {
    fn write(self, store: &Store) {
        let scores = self.scores.map(|record| store.put_record(KEY, &record?));
        let costs = self.costs.map(|record| store.put_derived_record(COSTS_KEY, &record?));
        for written in scores.into_iter().chain(costs) {
            match written {
                // Commits fail for the same reason, and that stops the node with the whole story.
                Ok(()) | Err(StorageError::DiskLow { .. } | StorageError::Poisoned) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot save peer scores or costs; a restart measures them anew");
                }
            }
        }
    }
}

/// One run of a follower.
struct Driver<'a> {
    follower: &'a Follower,
    beside: JoinSet<Ended>,
    requests: BTreeMap<RequestId, AbortHandle>,
    /// The background threads, once a job needed them; `None` inside if the system grants none.
    back: Option<Option<ThreadPool>>,
}

/// Starts threads that give way to the threads of the head's work.
fn threads_that_stand_back() -> Option<ThreadPool> {
    let builder = ThreadPoolBuilder::new().thread_name(|index| format!("sync-back-{index}"));
    // If the system does not support this, the threads run like any other.
    let builder = builder.start_handler(|_| {
        let _ = setpriority_process(None, BACK_NICENESS);
    });
    // The task that waits for the job notices the panic.
    let pool = builder.panic_handler(|_| {}).build();
    pool.inspect_err(
        |error| tracing::warn!(%error, "cannot start threads for the missing history: it shares the head's threads"),
    )
    .ok()
}

impl Driver<'_> {
    async fn drive(&mut self) -> Result<(), SyncError> {
        let follower = self.follower;
        let mut head = follower.store.watch_head();
        let mut peer_watch = follower.transport.peer_changes().watch();
        let mut connected = Vec::new();
        let mut save_at = Instant::now() + SAVE_EVERY;
        let mut broadcast_at = Instant::now();
        loop {
            let now = Instant::now();
            let peers = follower.transport.peers();
            if peers != connected {
                follower.engine.lock().handle_peers(&peers, now);
                connected = peers;
            }
            if now >= save_at {
                self.save(now);
                save_at = now + SAVE_EVERY;
            }
            self.act();
            let timeout = follower.engine.lock().poll_timeout();
            let look_at = if now < broadcast_at { save_at.min(broadcast_at) } else { save_at };
            tokio::select! {
                Some(ended) = self.beside.join_next() => match ended {
                    Ok(ended) => self.take(ended)?,
                    // A request that was cancelled.
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => return Err(SyncError::Worker(error.to_string())),
                },
                (peer, payload) = follower.broadcasts.pop(), if broadcast_at <= now => {
                    let began = Instant::now();
                    follower.engine.lock().handle_broadcast(peer, payload, began);
                    let ended = Instant::now();
                    broadcast_at = ended + (ended - began) * BROADCAST_REST;
                }
                () = follower.poked.notified() => {}
                () = peer_watch.changed() => {}
                Ok(()) = head.changed() => {
                    let number = *head.borrow_and_update();
                    follower.engine.lock().handle_head(number, Instant::now());
                }
                () = tokio::time::sleep_until(timeout.map_or(look_at, |timeout| timeout.min(look_at))) => {
                    let now = Instant::now();
                    if timeout.is_some_and(|timeout| timeout <= now) {
                        follower.engine.lock().handle_timeout(now);
                    }
                }
            }
        }
    }

    fn take(&mut self, ended: Ended) -> Result<(), SyncError> {
        let now = Instant::now();
        let mut engine = self.follower.engine.lock();
        match ended {
            Ended::Request(id, answer) => {
                let bytes = answer.as_ref().map_or(0, Vec::len);
                tracing::trace!(id = id.0, bytes, "answered");
                self.requests.remove(&id);
                engine.handle_answer(id, answer, now);
            }
            Ended::Job(id, done, took) => {
                tracing::trace!(id = id.0, took_us = took.as_micros() as u64, "done");
                engine.handle_done(id, *done, took, now)?;
            }
            Ended::Saved => {}
        }
        Ok(())
    }

    /// Carries out the engine's effects.
    fn act(&mut self) {
        loop {
            let effect = self.follower.engine.lock().poll_effect();
            let Some(effect) = effect else { return };
            match effect {
                Effect::Send { id, peer, request, deadline, bytes_max } => {
                    let limits = RequestLimits { deadline, response_bytes_max: bytes_max };
                    self.send(id, peer, &request, limits);
                }
                Effect::Cancel { id } => {
                    if let Some(request) = self.requests.remove(&id) {
                        request.abort();
                    }
                }
                Effect::Run { id, job } => self.run(id, job),
                Effect::Ban { peer, reason, duration } => {
                    self.follower.transport.ban(peer, &reason, duration);
                }
                Effect::Hear { peer, forks } => self.follower.hear(peer, &forks),
            }
        }
    }

    /// Runs a job beside the engine. A job that the head does not wait for runs on background threads.
    fn run(&mut self, id: JobId, job: Job) {
        let worker = Arc::clone(&self.follower.worker);
        let back = job.stands_back().then(|| self.back.get_or_insert_with(threads_that_stand_back));
        let work = move || {
            let began = Instant::now();
            let done = worker.run(job);
            Ended::Job(id, Box::new(done), began.elapsed())
        };
        match back {
            Some(Some(threads)) => {
                let (tell, told) = oneshot::channel();
                threads.spawn(move || drop(tell.send(work())));
                self.beside.spawn(async move { told.await.expect("the job panicked") });
            }
            Some(None) | None => drop(self.beside.spawn_blocking(work)),
        }
    }

    /// Aborts the requests and waits for the jobs.
    async fn end(&mut self) -> Result<(), SyncError> {
        for request in std::mem::take(&mut self.requests).into_values() {
            request.abort();
        }
        let mut done = Ok(());
        while let Some(ended) = self.beside.join_next().await {
            match ended {
                Ok(ended @ Ended::Job(..)) => done = done.and(self.take(ended)),
                Err(error) if error.is_panic() => done = Err(SyncError::Worker(error.to_string())),
                _ => {}
            }
        }
        done
    }

    fn send(&mut self, id: RequestId, peer: PeerId, request: &Request, limits: RequestLimits) {
        let transport = Arc::clone(&self.follower.transport);
        tracing::trace!(id = id.0, peer = %peer.short(), ?request, "asked");
        let payload = codec::encode("sync request", request).expect("requests are within their bounds");
        let asked = self.beside.spawn(async move {
            Ended::Request(id, transport.request(peer, Protocol::SYNC, payload, limits).await)
        });
        self.requests.insert(id, asked);
    }

    fn save(&mut self, now: Instant) {
        if let Some(advice) = self.follower.advice(now) {
            let store = self.follower.store.clone();
            self.beside.spawn_blocking(move || {
                advice.write(&store);
                Ended::Saved
            });
        }
    }
}
