//! [`Engine`]: the sync daemon's decisions, without I/O, threads or clock.
//!
//! Events go in by `handle_…(event, now)`. Effects come out of [`Engine::poll_effect`], and the time of the next call out of
//! [`Engine::poll_timeout`]. So the shipped engine is the simulated one, and the same events give the same decisions.
//!
//! The order: after every `handle_…` the driver takes effects until there is none, does them in that order, and then asks for the
//! timeout. [`Engine::handle_timeout`] is called at that time or later; earlier it changes nothing. `now` never goes back from one call to the
//! next; that it stands still is allowed. After [`Engine::handle_timeout`] with `now` the next timeout is later than `now`, so a driver
//! never spins. Where there is no timeout, only an event can change anything.
//!
//! ```text
//!            answers ─────────────▶ Streams ─ request ─▶ Effect::Send
//!  events ─▶ announcements ─▶ turn: plan ─▶ Tail (ranges) or Bootstrap (snapshot) ─ job ─▶ Effect::Run ─▶ Worker
//!            done jobs ─────▶ PeerBook, Stages ◀── what it cost ────────────────────────────────┘
//! ```
//!
//! Bounds: ranges under way by [`SyncConfig::buffer_mib`] and the limits of `tail`, chunks and announcements by number, requests
//! per peer by its window.

mod answers;
mod backfill;
mod bootstrap;
mod claims;
mod coming;
mod effect;
mod epochs;
mod given_up;
mod head;
mod jobs;
mod leap;
mod links;
mod mix;
mod outcomes;
mod pace;
mod ranges;
mod report;
#[cfg(test)]
mod rig;
mod rumours;
mod stages;
mod streams;
mod survey;
mod tail;
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
    answers::Checking, backfill::Backfill, bootstrap::Bootstrap, claims::Claim, coming::Coming,
    effect::Effects, epochs::EpochAnswers, given_up::GivenUp, head::Announcements, jobs::Jobs, mix::Mix,
    pace::Pace, rumours::Rumours, stages::Stages, streams::Streams, survey::Surveying, tail::Tail,
    timers::Timers,
};
pub use self::{
    effect::{Ancestry, Done, Effect, Job, JobId, Local, RequestId, RestoreJob},
    stages::{Stage, StageStatus},
};
use crate::{
    SyncConfig, SyncError,
    error::Fault,
    peers::PeerBook,
    plan::{Course, Plan, RangeMode, Ratios, price::Costs},
    planted::{Defences, Planted},
    protocol::Summary,
    trust::Trust,
    work::Audit,
};

/// How often a node at the head asks peers for theirs, should a broadcast be lost.
const SUMMARY_AGE: Duration = Duration::from_millis(500);
/// How long a peer that proved itself wrong is kept out.
pub(crate) const BAN: Duration = Duration::from_secs(3_600);

/// The following side of sync. See the module.
#[derive(Debug)]
pub struct Engine {
    config: SyncConfig,
    /// Whether hints are asked for.
    hints: bool,
    /// How long a new batch is left to others in this process.
    patience: Duration,
    waypoint: BatchNumber,
    cores: f64,
    genesis: Digest,
    trust: Arc<Trust>,
    head: BatchNumber,
    /// Since when a batch after the head is known; none at the head.
    ahead_at: Option<Instant>,
    /// The highest certified batch that any peer has shown, also one that has gone since: what is certified stays.
    newest: BatchNumber,
    begun: Option<BatchNumber>,
    book: PeerBook,
    /// Summaries of an epoch that is not known yet.
    unproven: BTreeMap<PeerId, Summary>,
    /// Answers about epochs that wait for their check.
    epochs: EpochAnswers,
    /// Epochs of ranges that are not known yet.
    claims: BTreeMap<PeerId, Claim>,
    streams: Streams,
    tail: Tail,
    restore: Option<Bootstrap>,
    /// Proved, and to be kept when those before them are.
    epoch_ends: Vec<Certificate>,
    /// Snapshots that failed to come, and the peers that promised them.
    given_up: GivenUp,
    /// Most batches that a range delta may pass: fewer once one was too large for this node.
    range_delta_max: u64,
    /// When that grows again; none while it is as high as it gets.
    range_delta_grows: Option<Instant>,
    announcements: Announcements,
    coming: Coming,
    rumours: Rumours,
    /// The work along the ledger, by the headers that are known.
    course: Course,
    /// Of each peer that keeps all that this node does: from which batch on, and its head.
    wholes: Vec<(BatchNumber, BatchNumber)>,
    /// Until when nobody is believed to keep all that: a range that was asked for so was late.
    wholes_rest: Option<Instant>,
    ratios: Ratios,
    stages: Stages,
    pace: Pace,
    mode: Option<RangeMode>,
    /// Whose turn it is, if ranges are followed in both modes.
    mix: Option<Mix>,
    plan: Option<Plan>,
    /// Answers of ranges that wait to be checked, and those that are.
    checking: Checking,
    jobs: Jobs,
    /// The history below the state that the node began at.
    backfill: Backfill,
    /// Whether batches under way were dropped for a leap that begins.
    drops_batches: bool,
    /// Batches that were drawn to be executed again.
    audits: VecDeque<Audit>,
    effects: Effects,
    timers: Timers,
    /// The peers that the driver named last: some may be banned.
    connected: Vec<PeerId>,
    counters: report::Counters,
    surveying: Option<Surveying>,
    audit_seed: u64,
    /// Peers to be asked for their summary at once.
    heard: BTreeSet<PeerId>,
    defences: Defences,
    /// How often it thought about everything.
    #[cfg(test)]
    turns: u64,
}

/// The inputs of a new engine, beside its configuration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Whether hints are asked for.
    pub hints: bool,
    /// How long a new batch is left to others in this process (a validator's consensus) before it is fetched; zero for a
    /// fullnode.
    pub patience: Duration,
    /// The operator's waypoint; batch 0 if there is none.
    pub waypoint: BatchNumber,
    /// Cores that work may use.
    pub cores: usize,
    /// Draws which requests explore, and which batches are audited: the worker has the same.
    pub seed: u64,
    /// All defences, but for a simulator that leaves one out.
    #[doc(hidden)]
    pub defences: Defences,
}

impl Engine {
    /// An engine of a node. `scores` is the record of [`Engine::save_scores`] of an earlier run.
    pub fn new(
        config: SyncConfig,
        setup: &Setup,
        local: Local,
        scores: Option<&[u8]>,
        now: Instant,
    ) -> Engine {
        let mut book = PeerBook::new(setup.seed);
        if let Some(Err(error)) = scores.map(|record| book.restore(now, record)) {
            tracing::warn!(%error, "the stored peer scores are damaged and were dropped; peers are measured anew");
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
            begun: local.begun.filter(|_| !setup.defences.lacks(Planted::ForgottenRestore)),
            book,
            unproven: BTreeMap::new(),
            epochs: EpochAnswers::default(),
            claims: BTreeMap::new(),
            streams: Streams::new(deadline, setup.defences),
            tail: Tail::new(local.head),
            restore: None,
            epoch_ends: Vec::new(),
            given_up: GivenUp::new(setup.defences),
            range_delta_max: crate::plan::RANGE_DELTA_BATCHES_MAX,
            range_delta_grows: None,
            announcements: Announcements::default(),
            coming: Coming::default(),
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
            checking: Checking::default(),
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

    /// The peers that are connected now.
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

    /// The operator lifted the ban of a peer.
    pub fn handle_unbanned(&mut self, peer: &PeerId, now: Instant) {
        self.book.unban(peer);
        self.book.retain(now, &self.connected);
        self.turn(now);
    }

    /// The outcome of [`Effect::Send`]. Late ones of cancelled requests are ignored.
    pub fn handle_answer(&mut self, id: RequestId, answer: Result<Vec<u8>, NetworkError>, now: Instant) {
        self.answered(id, answer, now);
        self.turn(now);
    }

    /// A broadcast. Its certificate is checked at once; the rest in its turn. A useless broadcast gets no turn.
    pub fn handle_broadcast(&mut self, from: PeerId, payload: Vec<u8>, now: Instant) {
        if self.heard_of(from, payload, now) {
            self.turn(now);
        }
    }

    /// Others in this process put a batch together, and will hand it over by [`Engine::handle_broadcast`]: until then it is not fetched.
    pub fn handle_coming(&mut self, number: BatchNumber, until: Instant) {
        if number > self.head {
            self.coming.add(number, until);
        }
    }

    /// They gave it up.
    pub fn handle_not_coming(&mut self, number: BatchNumber, now: Instant) {
        self.coming.end(number);
        self.turn(now);
    }

    /// A peer says that it has a batch, or soon will. True if it is to be asked.
    pub fn handle_rumour(&mut self, from: PeerId, number: BatchNumber, now: Instant) -> bool {
        let is_news = number > self.head && self.book.knows(&from);
        if is_news {
            self.rumours.add(from, number, now);
            self.turn(now);
        }
        is_news
    }

    /// Somebody else moved the head of the store, or noticed that it moved.
    pub fn handle_head(&mut self, head: BatchNumber, now: Instant) {
        if head > self.head {
            self.moved(head, now);
            self.turn(now);
        }
    }

    /// The outcome of [`Effect::Run`], and how long the job took.
    ///
    /// # Errors
    /// Only what no other peer can mend: a failed store, a divergence, a wrong waypoint. The node has to stop.
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

    /// The time of [`Engine::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.turn(now);
    }

    /// The next effect, or `None` until something happens.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When it wants to be called again if nothing happens before. `None` if only an event can change anything.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next().map(|(at, _)| at)
    }

    /// The record of the peers' scores, if there is anything new since the last one.
    pub fn save_scores(&mut self, now: Instant) -> Option<Result<Vec<u8>, CodecError>> {
        self.book.save(now)
    }

    /// The record of what work costs on this machine, if anything was measured since the last one.
    pub fn save_costs(&mut self) -> Option<Result<Vec<u8>, CodecError>> {
        self.stages.measured.save()
    }

    /// The batch after which nothing is committed.
    pub fn head(&self) -> BatchNumber {
        self.head
    }

    /// Notes that the head is a later batch.
    fn moved(&mut self, head: BatchNumber, now: Instant) {
        if head > self.head {
            self.rest_for_head(head.since(self.head), now);
            self.head = head;
            self.ahead_at = None;
            self.coming.committed(head);
            self.counters.head_moved(head, now);
        }
        self.tail.advance(self.head);
        if self.tail.is_empty() && self.tail.next() != self.head.next() {
            self.tail = Tail::new(self.head);
        }
    }

    /// Acts on a fault: a proof of wrong bans, anything else pauses.
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
