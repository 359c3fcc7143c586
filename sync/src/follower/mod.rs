//! [`Follower`]: one task that plans, fetches, verifies and commits until it is told to stop.
//!
//! A turn of the loop plans one step by the peers' summaries, which are renewed beside it, and takes it. While a range is fetched, the one
//! before it executes; nothing else overlaps, so every failure has one place where it is handled.

mod apply;
mod fetch;
mod head;
mod scores;
mod snapshot;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipstream_executor::{ExecutorConfig, HintsMode};
use slipstream_network::{PeerId, Transport};
use slipstream_storage::Store;
use slipstream_types::{BatchNumber, ChainConfig, Digest, ValidatorSet, Waypoint};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    SyncError,
    config::{Mode, SyncConfig},
    error::Fault,
    peers::PeerBook,
    plan::{self, RangeMode, Step},
    status::{SnapshotStatus, SyncStatus},
};
use head::Announced;

/// How often an idle node asks peers for their heads, should a broadcast be lost.
const SUMMARY_AGE: Duration = Duration::from_millis(500);
/// How long a peer that proved itself wrong is kept out.
const BAN: Duration = Duration::from_secs(3_600);
/// Announcements that wait for the loop; when full the newest is dropped and its batch is fetched later.
const ANNOUNCED_MAX: usize = 8;
/// A node that leaves new batches to consensus does so while it is at most this far behind: further, consensus cannot help it.
const PATIENCE_BATCHES: u64 = 2;
/// Verified ranges that wait for execution: one, and one in the making.
const RANGES_AHEAD: usize = 1;

/// The following side of sync. See the module.
pub struct Follower {
    config: SyncConfig,
    store: Store,
    transport: Arc<dyn Transport>,
    applier: Arc<apply::Applier>,
    waypoint: Option<Waypoint>,
    genesis: Digest,
    set: ValidatorSet,
    patience: Duration,
    hints: bool,
    state: Arc<Mutex<State>>,
    /// There is something new to plan with.
    wake: Notify,
    /// A peer probably has more than its summary says.
    heard: Notify,
    announced: mpsc::Sender<Announced>,
    inbox: tokio::sync::Mutex<mpsc::Receiver<Announced>>,
}

struct State {
    book: PeerBook,
    phase: &'static str,
    target: BatchNumber,
    counters: Counters,
    active_since: Option<Instant>,
    snapshot: Option<SnapshotStatus>,
    last_head: (BatchNumber, Instant),
}

#[derive(Default)]
struct Counters {
    batches: u64,
    batches_replayed: u64,
    transactions: u64,
    bytes_received: u64,
    active: Duration,
    hinted_reads: u64,
    reads: u64,
}

impl Follower {
    /// A follower of an initialized store.
    ///
    /// `patience` is how long a new batch is left to others in this process (a validator's consensus) before the follower
    /// fetches it; zero for a fullnode.
    ///
    /// # Errors
    /// If the store has no genesis, or passed the waypoint's batch on another ledger.
    pub fn new(
        config: SyncConfig,
        store: Store,
        transport: Arc<dyn Transport>,
        executor: ExecutorConfig,
        waypoint: Option<Waypoint>,
        patience: Duration,
    ) -> Result<Arc<Follower>, SyncError> {
        let genesis = store.genesis()?;
        let chain: ChainConfig = genesis.chain.clone();
        let head = store.head()?;
        if let Some(waypoint) = waypoint {
            apply::check_stored_waypoint(&store, &waypoint)?;
        }
        let first = store.header(BatchNumber(0))?.map_or(Digest::ZERO, |header| header.digest());
        let (announced, inbox) = mpsc::channel(ANNOUNCED_MAX);
        let book = scores::restored_book(&store, transport.local())?;
        Ok(Arc::new(Follower {
            hints: executor.hints != HintsMode::Off,
            applier: Arc::new(apply::Applier::new(store.clone(), chain, executor, config.history, waypoint)),
            config,
            store,
            transport,
            waypoint,
            genesis: first,
            set: genesis.validator_set(),
            patience,
            state: Arc::new(Mutex::new(State {
                book,
                phase: "waiting for peers",
                target: head.header.number,
                counters: Counters::default(),
                active_since: None,
                snapshot: None,
                last_head: (head.header.number, Instant::now()),
            })),
            wake: Notify::new(),
            heard: Notify::new(),
            announced,
            inbox: tokio::sync::Mutex::new(inbox),
        }))
    }

    /// Follows until `shutdown`; then ends after the commit that is under way.
    ///
    /// # Errors
    /// Only what no other peer can mend: a failed store, a divergence, a wrong waypoint.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) -> Result<(), SyncError> {
        let done = tokio::select! {
            done = self.follow(&shutdown) => done,
            never = self.keep_scores() => match never {},
            // Beside the loop: a peer that takes its time with a summary must not hold up the others' batches.
            never = self.keep_summaries() => match never {},
        };
        self.save_scores().await;
        done
    }

    async fn follow(&self, shutdown: &CancellationToken) -> Result<(), SyncError> {
        let mut inbox = self.inbox.lock().await;
        let mut pending = head::Pending::default();
        while !shutdown.is_cancelled() {
            match self.plan()? {
                Step::Idle | Step::Stuck { .. } => tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = tokio::time::sleep(SUMMARY_AGE) => {}
                    () = self.wake.notified() => {}
                    Some(announced) = inbox.recv() => pending.add(announced),
                },
                Step::Range { mode, target, .. } => self.catch_up(mode, target, shutdown).await?,
                Step::Snapshot { number, peers } => match self.bootstrap(number, peers, shutdown).await {
                    // The disk lost what was restored, and it was given up: the next turn begins anew.
                    Err(SyncError::Storage(error)) if error.is_retryable() => {
                        tracing::warn!(%error, "the restore begins anew");
                    }
                    done => done?,
                },
            }
            while let Ok(announced) = inbox.try_recv() {
                pending.add(announced);
            }
            self.take_pending(&mut pending, shutdown).await?;
        }
        Ok(())
    }

    /// What the daemon is doing.
    pub fn status(&self) -> SyncStatus {
        let head = self.store.head().map_or(BatchNumber(0), |head| head.header.number);
        let now = Instant::now();
        let state = self.state.lock();
        let counters = &state.counters;
        let active =
            counters.active + state.active_since.map_or(Duration::ZERO, |since| now.duration_since(since));
        SyncStatus {
            mode: self.config.mode,
            phase: state.phase,
            head,
            target: state.target.max(head),
            batches: counters.batches,
            batches_replayed: counters.batches_replayed,
            transactions: counters.transactions,
            bytes_received: counters.bytes_received,
            active_seconds: active.as_secs_f64(),
            hint_recall: (counters.reads > 0).then(|| counters.hinted_reads as f64 / counters.reads as f64),
            snapshot: state.snapshot.clone(),
            peers: state.book.statuses(now),
        }
    }

    /// Plans the next step and notes it for the status.
    fn plan(&self) -> Result<Step, SyncError> {
        let head = self.store.head()?.header.number;
        let begun = self.store.recorded_restore()?.map(|target| target.header.number);
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut candidates = state.book.candidates(now, self.config.history);
        if let Some(waypoint) = self.waypoint {
            // A snapshot below the waypoint would be a ledger that the operator did not vouch for.
            for candidate in &mut candidates {
                candidate.snapshots.retain(|number| *number >= waypoint.number);
            }
        }
        if state.last_head.0 != head {
            state.last_head = (head, now);
        }
        let mut step = plan::next_step(&self.config, head, head.0 == 0, begun, &candidates);
        state.target = candidates.iter().map(|peer| peer.head).max().unwrap_or(state.target);
        let close = state.target.0.saturating_sub(head.0) <= PATIENCE_BATCHES;
        if close && now.duration_since(state.last_head.1) < self.patience {
            step = Step::Idle;
        }
        let phase = match &step {
            Step::Idle if candidates.is_empty() => "waiting for peers",
            Step::Idle => "idle",
            Step::Stuck { .. } => "stuck",
            Step::Range { mode: RangeMode::Replay, .. } => "replay",
            Step::Range { mode: RangeMode::Delta, .. } => "delta",
            Step::Snapshot { .. } => "snapshot",
        };
        if phase != state.phase {
            tracing::info!(phase, batch = head.0, target = state.target.0, "sync");
        }
        state.phase = phase;
        let active = !matches!(step, Step::Idle | Step::Stuck { .. });
        state.mark_active(active, now);
        Ok(step)
    }

    /// Whether announced batches are executed as they come.
    fn replays_head(&self) -> bool {
        self.config.mode != Mode::Delta
    }

    /// Acts on a fault: a proof of wrong bans, anything else pauses.
    fn punish(&self, peer: PeerId, what: &str, fault: &Fault) {
        let reason = format!("{what}: {fault}");
        if fault.is_proof() {
            tracing::warn!(peer = %peer.short(), %reason, "banned");
            self.state.lock().book.ban(peer, Instant::now() + BAN, reason.clone());
            self.transport.ban(peer, &reason, BAN);
        } else {
            let pause = self.state.lock().book.bench(&peer, Instant::now(), reason.clone());
            tracing::debug!(peer = %peer.short(), %reason, pause_ms = pause.as_millis() as u64, "paused");
        }
    }
}

impl Counters {
    fn add(&mut self, batch: &apply::Applied) {
        self.batches += 1;
        self.batches_replayed += u64::from(batch.replayed);
        self.transactions += batch.transactions;
        self.hinted_reads += batch.hinted_reads;
        self.reads += batch.reads;
    }
}

impl State {
    fn mark_active(&mut self, active: bool, now: Instant) {
        match (active, self.active_since) {
            (true, None) => self.active_since = Some(now),
            (false, Some(since)) => {
                self.counters.active += now.duration_since(since);
                self.active_since = None;
            }
            _ => {}
        }
    }
}
