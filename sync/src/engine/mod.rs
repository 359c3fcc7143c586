//! [`Engine`]: the sync daemon's decisions, without I/O, threads or clock.
//!
//! # The protocol of a driver
//!
//! Events go in through `handle_…(event, now)`. Effects come out of [`Engine::poll_effect`], and the time of the next
//! call comes out of [`Engine::poll_timeout`]. So a simulator runs the same engine that ships, and the same events give
//! the same decisions.
//!
//! Call order: after every `handle_…` the driver takes and performs effects in order until [`Engine::poll_effect`]
//! returns `None`. Then it asks for the timeout. It calls [`Engine::handle_timeout`] at that time or later; an earlier
//! call changes nothing. `now` never decreases between calls, but it may stay the same. After
//! [`Engine::handle_timeout`] with `now`, the next timeout is later than `now`, so a driver never spins. Without a
//! timeout, only an event can change anything.
//!
//! # The parts
//!
//! ```text
//!            answers ─────────────▶ Streams ─ request ─▶ Effect::Send
//!  events ─▶ announcements ─▶ turn: plan ─▶ Pipeline (ranges) or Bootstrap (snapshot) ─ job ─▶ Effect::Run ─▶ Worker
//!            done jobs ─────▶ PeerBook, Stages ◀── what it cost ────────────────────────────────────┘
//! ```
//!
//! Bounds: [`SyncConfig::buffer_mib`] and the limits of `pipeline` bound the ranges in flight. Chunks and announcements
//! are bounded by count, and each peer's requests by its window.

mod answers;
mod backfill;
mod bootstrap;
mod claims;
mod effect;
mod epochs;
mod expected;
mod head;
mod ignored_offers;
mod jobs;
mod leap;
mod links;
mod mix;
mod outcomes;
mod pace;
mod pipeline;
mod ranges;
mod report;
#[cfg(test)]
mod rig;
mod rumours;
mod setup;
mod stages;
mod streams;
mod survey;
#[cfg(test)]
mod tests;
mod timers;
mod turn;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use slipstream_network::{NetworkError, PeerId};
use slipstream_types::{BatchNumber, Certificate, CodecError, Digest};
use tokio::time::Instant;

use self::{
    answers::CheckQueue, backfill::Backfill, bootstrap::Bootstrap, claims::Claim, effect::Effects,
    epochs::EpochAnswers, expected::ExpectedBatches, head::Announcements, ignored_offers::IgnoredOffers,
    jobs::Jobs, mix::Mix, pace::Pace, pipeline::Pipeline, rumours::Rumours, stages::Stages, streams::Streams,
    survey::PendingSurvey, timers::Timers,
};
pub use self::{
    effect::{Effect, JobId, RequestId},
    setup::{Local, Setup},
};
use crate::{
    SyncConfig, SyncError,
    error::Fault,
    peers::PeerBook,
    plan::{Course, Plan, RangeMode, Ratios, price::Costs},
    planted::{Defences, Planted},
    protocol::Summary,
    trust::Trust,
    work::{Audit, Done},
};

/// How often a node at the head asks its peers for their heads, in case a broadcast was lost.
const SUMMARY_AGE: Duration = Duration::from_millis(500);
/// How long a peer stays banned after proof that it was wrong.
pub(crate) const BAN: Duration = Duration::from_secs(3_600);

/// The follower half of sync. See the module.
#[derive(Debug)]
pub struct Engine {
    config: SyncConfig,
    /// Whether the node asks for hints.
    hints: bool,
    /// How long a new batch is left to others in this process (consensus, the mesh).
    patience: Duration,
    waypoint: BatchNumber,
    cores: f64,
    genesis: Digest,
    trust: Arc<Trust>,
    head: BatchNumber,
    /// When a batch after the head became known; `None` at the head.
    ahead_at: Option<Instant>,
    /// The highest certified batch that any peer has shown, even a peer that has since disconnected: a certified batch
    /// stays certified.
    newest: BatchNumber,
    begun: Option<BatchNumber>,
    book: PeerBook,
    /// Summaries of epochs that this node does not know yet.
    unproven: BTreeMap<PeerId, Summary>,
    /// Answers about epochs that wait for their check.
    epochs: EpochAnswers,
    /// Ranges whose epoch this node does not know yet.
    claims: BTreeMap<PeerId, Claim>,
    streams: Streams,
    pipeline: Pipeline,
    restore: Option<Bootstrap>,
    /// Proven epoch ends that wait for their predecessors before they are stored.
    epoch_ends: Vec<Certificate>,
    /// Snapshots that could not be fetched, and the peers that promised them.
    ignored_offers: IgnoredOffers,
    /// Upper bound on the batches of a range delta. The bound drops after a range delta proved too long for this node.
    range_delta_max: u64,
    /// When that bound grows again; `None` at its maximum.
    range_delta_grows: Option<Instant>,
    announcements: Announcements,
    expected: ExpectedBatches,
    rumours: Rumours,
    /// The work along the ledger, from the headers that are known.
    course: Course,
    /// The first batch and the head of each peer that keeps all parts that this node keeps.
    wholes: Vec<(BatchNumber, BatchNumber)>,
    /// Until this time, no peer counts as keeping all parts, because a range with all parts was late.
    wholes_rest: Option<Instant>,
    ratios: Ratios,
    stages: Stages,
    pace: Pace,
    mode: Option<RangeMode>,
    /// Which mode is next, while ranges are followed in both modes.
    mix: Option<Mix>,
    plan: Option<Plan>,
    /// Range answers that wait for their check.
    checking: CheckQueue,
    jobs: Jobs,
    /// The history below the state that the node began at.
    backfill: Backfill,
    /// Whether batches in flight were dropped for a leap that begins.
    drops_batches: bool,
    /// Batches drawn for an audit: they are executed again.
    audits: VecDeque<Audit>,
    effects: Effects,
    timers: Timers,
    /// The peers in the driver's last list; some may be banned.
    connected: Vec<PeerId>,
    counters: report::Counters,
    surveying: Option<PendingSurvey>,
    audit_seed: u64,
    /// Peers to ask for their summary at once.
    heard: BTreeSet<PeerId>,
    defences: Defences,
    /// Number of turns taken.
    #[cfg(test)]
    turns: u64,
}

impl Engine {
    /// Creates a node's engine. `scores` is the record that [`Engine::save_scores`] returned in an earlier run.
    pub fn new(
        config: SyncConfig,
        setup: &Setup,
        local: Local,
        scores: Option<&[u8]>,
        now: Instant,
    ) -> Engine {
        let mut book = PeerBook::new(setup.seed);
        if let Some(Err(error)) = scores.map(|record| book.restore(now, record)) {
            tracing::warn!(%error, "dropped the stored peer scores because they are damaged; measuring the peers anew");
        }
        let deadline = Duration::from_millis(config.request_deadline_ms.get());
        let mut counters = report::Counters::new(local.head, local.alarm.as_ref(), now);
        counters.repair = local.repair;
        let cores = setup.cores.max(1) as f64;
        let mut course = Course::default();
        local.totals.iter().for_each(|(number, totals)| course.mark(*number, *totals));
        Engine {
            hints: setup.hints,
            patience: setup.patience,
            waypoint: setup.waypoint,
            cores,
            genesis: local.genesis,
            trust: Arc::new(local.trust),
            head: local.head,
            ahead_at: None,
            newest: local.head,
            begun: local.begun,
            book,
            unproven: BTreeMap::new(),
            epochs: EpochAnswers::default(),
            claims: BTreeMap::new(),
            streams: Streams::new(deadline, setup.defences),
            pipeline: Pipeline::new(local.head),
            restore: None,
            epoch_ends: Vec::new(),
            ignored_offers: IgnoredOffers::new(setup.defences),
            range_delta_max: crate::plan::RANGE_DELTA_BATCHES_MAX,
            range_delta_grows: None,
            announcements: Announcements::default(),
            expected: ExpectedBatches::default(),
            rumours: Rumours::default(),
            course,
            wholes: Vec::new(),
            wholes_rest: None,
            ratios: Ratios::default(),
            stages: Stages::new(local.costs.unwrap_or(Costs::presumed(cores)), now),
            pace: Pace::default(),
            mode: None,
            mix: None,
            plan: None,
            checking: CheckQueue::default(),
            jobs: Jobs::default(),
            backfill: Backfill::default(),
            drops_batches: false,
            audits: VecDeque::new(),
            effects: Effects::new(),
            timers: Timers::default(),
            connected: Vec::new(),
            counters,
            surveying: None,
            audit_seed: setup.seed,
            heard: BTreeSet::new(),
            defences: setup.defences,
            #[cfg(test)]
            turns: 0,
            config,
        }
    }

    /// Takes the list of connected peers.
    pub fn handle_peers(&mut self, connected: &[PeerId], now: Instant) {
        self.connected = connected.to_vec();
        self.book.retain(now, connected);
        self.streams.links.retain(|peer| connected.contains(peer));
        self.unproven.retain(|peer, _| connected.contains(peer));
        self.epochs.retain(|peer| connected.contains(peer));
        self.claims.retain(|peer, _| connected.contains(peer));
        self.heard.retain(|peer| connected.contains(peer));
        self.rumours.retain(|peer, _| connected.contains(peer));
        self.turn(now);
    }

    /// Takes the news that the operator lifted a peer's ban.
    pub fn handle_unbanned(&mut self, peer: &PeerId, now: Instant) {
        self.book.unban(peer);
        self.book.retain(now, &self.connected);
        self.turn(now);
    }

    /// Takes the outcome of [`Effect::Send`]. Ignores late outcomes of cancelled requests.
    pub fn handle_answer(&mut self, id: RequestId, answer: Result<Vec<u8>, NetworkError>, now: Instant) {
        self.answered(id, answer, now);
        self.turn(now);
    }

    /// Takes a broadcast. Checks its certificate at once and the rest in its turn. A useless broadcast gets no turn.
    pub fn handle_broadcast(&mut self, from: PeerId, payload: Vec<u8>, now: Instant) {
        if self.heard_of(from, payload, now) {
            self.turn(now);
        }
    }

    /// Takes the news that others in this process assemble a batch and will hand it over through
    /// [`Engine::handle_broadcast`]. The engine does not fetch it before `until`.
    pub fn handle_expected(&mut self, number: BatchNumber, until: Instant) {
        if number > self.head {
            self.expected.add(number, until);
        }
    }

    /// Takes the news that the others gave an expected batch up.
    pub fn handle_given_up(&mut self, number: BatchNumber, now: Instant) {
        self.expected.end(number);
        self.turn(now);
    }

    /// Takes a peer's claim that it has a batch or soon will. Returns whether the engine asks the peer about it.
    pub fn handle_rumour(&mut self, from: PeerId, number: BatchNumber, now: Instant) -> bool {
        let is_news = number > self.head && self.book.knows(&from);
        if is_news {
            self.rumours.add(from, number, now);
            self.turn(now);
        }
        is_news
    }

    /// Takes the store's new head, which another component moved or noticed.
    pub fn handle_head(&mut self, head: BatchNumber, now: Instant) {
        if head > self.head {
            self.moved(head, now);
            self.turn(now);
        }
    }

    /// Takes the outcome of [`Effect::Run`], and how long the job took.
    ///
    /// # Errors
    /// Errors that no other peer can mend: a failed store, a divergence, a wrong waypoint. The node has to stop.
    pub fn handle_done(
        &mut self,
        id: JobId,
        done: Done,
        took: Duration,
        now: Instant,
    ) -> Result<(), SyncError> {
        self.finished(id, done, took, now)?;
        self.turn(now);
        Ok(())
    }

    /// Call when the time of [`Engine::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.turn(now);
    }

    /// Returns the next effect, or `None` until another event.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the time of the next [`Engine::handle_timeout`] if no event comes first. `None` if only an event can
    /// change anything.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next().map(|(at, _)| at)
    }

    /// Returns the record of the peers' scores, if it changed since the last call.
    pub fn save_scores(&mut self, now: Instant) -> Option<Result<Vec<u8>, CodecError>> {
        self.book.save(now)
    }

    /// Returns the record of the costs of work on this machine, if any was measured since the last call.
    pub fn save_costs(&mut self) -> Option<Result<Vec<u8>, CodecError>> {
        self.stages.measured.save()
    }

    /// Returns the last committed batch.
    pub fn head(&self) -> BatchNumber {
        self.head
    }

    /// Records a later head.
    fn moved(&mut self, head: BatchNumber, now: Instant) {
        if head > self.head {
            self.rest_for_head(head.since(self.head), now);
            self.head = head;
            self.ahead_at = None;
            self.expected.committed(head);
            self.counters.head_moved(head, now);
        }
        self.pipeline.advance(self.head);
        if self.pipeline.is_empty() && self.pipeline.next() != self.head.next() {
            self.pipeline = Pipeline::new(self.head);
        }
    }

    /// Acts on a fault: proven misbehaviour bans the peer, anything else pauses it.
    fn punish(&mut self, peer: PeerId, what: &str, fault: &Fault, now: Instant) {
        let reason = format!("{what}: {fault}");
        let bans_refusals = self.defences.lacks(Planted::RefusalBans);
        let is_proof = fault.is_proof() || (bans_refusals && fault.is_refusal());
        if is_proof {
            tracing::warn!(peer = %peer.short(), %reason, "banned");
            self.book.ban(peer, now + BAN, reason.clone());
            self.unproven.remove(&peer);
            self.effects.push_back(Effect::Ban { peer, reason, duration: BAN });
        } else if self.defences.lacks(Planted::EndlessPause) {
            self.book.ban(peer, now + BAN, reason);
        } else {
            if fault.is_refusal() {
                self.book.refute(&peer);
            }
            let pause = self.book.bench(&peer, now, reason.clone());
            tracing::debug!(peer = %peer.short(), %reason, pause_ms = pause.as_millis() as u64, "paused");
        }
    }
}
