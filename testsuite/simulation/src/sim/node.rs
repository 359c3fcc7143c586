//! [`Node`]: a simulated machine: a disk that outlives the process, and the process, which has the engine and the
//! worker that ship.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rand::Rng;
use slipstream_executor::{HintsMode, Session};
use slipstream_network::PeerId;
use slipstream_storage::{CommitBatch, Faults, MemoryDisk, Store};
use slipstream_sync::{
    Defences, SyncError,
    engine::{Engine, Local, RequestId, Setup},
    protocol::Request,
    work::Worker,
};
use slipstream_types::{BatchNumber, BlobKind, Delta, Path};
use tokio::time::Instant;

use super::{
    chain::Chain,
    explain::Kind,
    fault::Fault,
    plan::NodePlan,
    planted,
    queue::{Moment, Ticket},
    world::{Event, Place, To, World},
};

/// The record that stores the peers' scores.
const SCORES: &str = "sync/scores";
/// The time between two writes of scores: short enough that a restart in a short run finds some.
const SAVE_EVERY: Moment = 3_000_000;
/// The longest time until a process restarts.
const DOWN_MAX: Moment = 1_500_000;
/// The time that one piece of the gauge's work takes on a fast machine.
const GAUGED: Duration = Duration::from_micros(50);

/// A machine with its disk.
pub(super) struct Node {
    pub(super) plan: NodePlan,
    pub(super) defences: Defences,
    disk: MemoryDisk,
    /// Counts the node's processes; an event is for one of them.
    pub(super) life: u32,
    /// The process, if one runs.
    pub(super) up: Option<Up>,
    /// Whether the node refused to go on, and was right: its operator gave it a waypoint of another ledger.
    pub(super) has_refused: bool,
    /// The highest head that this node ever had.
    pub(super) seen: BatchNumber,
    /// How many more times the node's power fails right after a commit.
    pub(super) cuts: u32,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRequest {
    pub(super) place: Place,
    /// The key that the peer had when it was asked.
    pub(super) key: PeerId,
    pub(super) at: Moment,
    /// Whether the request is for a summary.
    pub(super) is_summary: bool,
    /// The requested subject; `None` if the request is about its peer.
    pub(super) thing: Option<RequestSubject>,
}

/// A subject that can be requested of more than one peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum RequestSubject {
    /// Batches from this one on.
    Range(BatchNumber),
    /// The beginning of a snapshot.
    Offer(BatchNumber),
    /// Headers up to this one.
    Headers(BatchNumber),
    /// Rows of a snapshot, their siblings, or changes up to it, from this path on.
    Rows(BatchNumber, Path),
    /// Code of a snapshot.
    Codes(BatchNumber),
}

impl RequestSubject {
    pub(super) fn of(request: &Request) -> Option<RequestSubject> {
        match request {
            Request::Summary
            | Request::Epochs { .. }
            | Request::Origin { .. }
            | Request::Subtrees(_)
            | Request::Survey { .. }
            | Request::ReverseDelta { .. } => None,
            Request::Range(range) => Some(RequestSubject::Range(range.first)),
            Request::Offer { number, .. } => Some(RequestSubject::Offer(*number)),
            Request::Headers { last, .. } => Some(RequestSubject::Headers(*last)),
            Request::Chunk { number, first, .. } | Request::RangeProof { number, first, .. } => {
                Some(RequestSubject::Rows(*number, *first))
            }
            Request::RangeDelta(request) => Some(RequestSubject::Rows(request.to, request.first)),
            Request::Codes { number, .. } => Some(RequestSubject::Codes(*number)),
        }
    }
}

/// A running process of a node.
pub(super) struct Up {
    pub(super) engine: Engine,
    pub(super) worker: Worker,
    pub(super) store: Store,
    /// Requests in flight.
    pub(super) requests: BTreeMap<RequestId, PendingRequest>,
    /// Since when no request to the first server, which has everything, is pending; `None` unless that server's last
    /// answer was good.
    pub(super) free_since: Option<Moment>,
    /// When each subject was last received.
    pub(super) came: BTreeMap<RequestSubject, Moment>,
    pub(super) wake: Option<Ticket>,
    pub(super) peers: Vec<PeerId>,
    pub(super) banned: BTreeSet<PeerId>,
    /// Bytes of answers, by peer, that a check may have accepted and credited.
    pub(super) creditable: BTreeMap<PeerId, u64>,
    /// The head and the snapshots in the first server's last summary.
    pub(super) offered: (BatchNumber, Vec<BatchNumber>),
    /// Whether a fault is still to come, so that the node's store may fail.
    pub(super) is_armed: bool,
    /// The restore that was recorded when the process started, until it asks for that snapshot again.
    pub(super) begun: Option<BatchNumber>,
    /// The last restore that was recorded.
    pub(super) restoring: Option<BatchNumber>,
}

impl Up {
    /// Whether the store failed as planned: the process stops when it next needs the store.
    pub(super) fn has_failed(&self) -> bool {
        self.is_armed && (self.store.view().is_err() || self.store.speculate(&Delta::default()).is_err())
    }
}

impl Node {
    pub(super) fn new(plan: &NodePlan, defences: Defences) -> Result<Node> {
        let disk = MemoryDisk::default();
        let store = Store::memory_on(&disk, &plan.storage, &Faults::none())?;
        fill(&store, plan.head)?;
        Ok(Node {
            plan: plan.clone(),
            defences,
            disk,
            life: 0,
            up: None,
            has_refused: false,
            seen: plan.head,
            cuts: plan.cuts,
        })
    }

    /// Whether the running process, if any, bans a peer.
    pub(super) fn bans(&self, peer: &PeerId) -> bool {
        self.up.as_ref().is_some_and(|up| up.banned.contains(peer))
    }

    /// Whether the node is at the head, or rightly refused to go there.
    pub(super) fn is_done(&self, certified: BatchNumber) -> bool {
        self.has_refused || self.up.as_ref().is_some_and(|up| up.engine.head() == certified)
    }

    /// Returns a clock for the gauge: each reading advances it by the time of one piece of work on this machine.
    fn clock(&self) -> impl Fn() -> Duration {
        let (read, step) = (Cell::new(Duration::ZERO), GAUGED.mul_f64(self.plan.slowness));
        move || read.replace(read.get() + step)
    }

    fn open(&self, faults: &Faults, now: Instant) -> Result<(Store, Worker, Engine), SyncError> {
        let NodePlan { sync, storage, executor, waypoint, id, .. } = &self.plan;
        let store = Store::memory_on(&self.disk, storage, faults)?;
        let seed = u64::from(id.0[0]);
        let session = Session::new(executor, (*store.chain()?).clone())
            .map_err(|error| SyncError::Worker(error.to_string()))?;
        let session = Arc::new(session);
        let worker = |waypoint| Worker::new(store.clone(), sync, Arc::clone(&session), waypoint, seed);
        let worker = planted::worker(self.defences, *waypoint, worker)?.with_defences(self.defences);
        let setup = Setup {
            hints: executor.hints != HintsMode::Off,
            patience: Duration::ZERO,
            waypoint: waypoint.map_or(BatchNumber::GENESIS, |waypoint| waypoint.number),
            cores: 2,
            seed,
            defences: self.defences,
        };
        let scores = store.record(SCORES)?;
        let local = Local::of(&store)?.gauged(setup.cores as f64, self.clock());
        let local = planted::local(self.defences, local);
        let engine = Engine::new(sync.clone(), &setup, local, scores.as_deref(), now);
        Ok((store, worker, engine))
    }
}

/// Stores the first batches, for a node that does not begin from scratch.
fn fill(store: &Store, head: BatchNumber) -> Result<()> {
    let chain = Chain::canonical();
    store.initialize(&chain.genesis)?;
    for number in BatchNumber::new(1).through(head) {
        let made = chain.batch(number).context("a node begins ahead of the ledger")?;
        let blob = |kind| chain.store.blob(kind, number);
        let (body, receipts) = (blob(BlobKind::Body)?, blob(BlobKind::Receipts)?);
        let (delta_blob, hints) = (blob(BlobKind::Delta)?, blob(BlobKind::Hints)?);
        let commit = CommitBatch {
            body: body.as_ref(),
            receipts: receipts.as_ref(),
            delta_blob: delta_blob.as_ref(),
            hints: hints.as_ref(),
            certificate: Some(&made.certificate),
            ..CommitBatch::new(&made.header, &made.delta)
        };
        store.commit(commit, None)?;
    }
    Ok(())
}

impl World {
    /// Starts a process, on the store that the previous process left.
    pub(super) fn start(&mut self, index: usize) -> Result<()> {
        let now = self.instant();
        let node = &mut self.nodes[index];
        if node.up.is_some() || node.has_refused {
            return Ok(());
        }
        node.life += 1;
        let life = node.life;
        let point = (!self.is_quiet).then(|| node.plan.points.get(life as usize - 1).copied()).flatten();
        let faults = point.map_or_else(Faults::none, |(point, passing)| Faults::fail_at(point, passing));
        let planned = point.map_or_else(String::new, |(point, _)| format!("; its store fails at {point:?}"));
        self.trace.mark(self.now, Kind::World, format_args!("node {index} starts, life {life}{planned}"));
        let (store, worker, engine) = match node.open(&faults, now) {
            Ok(opened) => opened,
            Err(SyncError::Storage(error)) if point.is_some() => {
                self.trace.mark(self.now, Kind::World, format_args!("node {index} does not start: {error}"));
                return self.fall(index, Fault::CrashPoint);
            }
            Err(error) => return self.fail(&format!("node {index} does not start: {error}")),
        };
        let begun = store.recorded_restore()?.map(|target| target.header.number);
        let head = engine.head();
        let up = Up {
            engine,
            worker,
            store,
            requests: BTreeMap::new(),
            free_since: None,
            came: BTreeMap::new(),
            offered: Default::default(),
            wake: None,
            peers: Vec::new(),
            banned: BTreeSet::new(),
            creditable: BTreeMap::new(),
            is_armed: point.is_some(),
            begun,
            restoring: begun,
        };
        let lost = node.seen > head;
        node.up = Some(up);
        ensure!(!lost, "safety: node {index} had committed batch {} and lost it", self.nodes[index].seen);
        self.check_state(index)?;
        let to = To { node: index, life };
        self.queue.push(self.now + SAVE_EVERY, Event::Save(to));
        if let Some(interval) = self.nodes[index].plan.prune_interval {
            self.queue.push(self.now + interval, Event::Prune(to));
        }
        self.refresh_peers()?;
        self.act(index)
    }

    /// Kills a node's process, unless the world is quiet.
    pub(super) fn crash(&mut self, index: usize, fault: Fault) -> Result<()> {
        if self.is_quiet || self.nodes[index].up.is_none() {
            return Ok(());
        }
        self.trace.mark(self.now, Kind::World, format_args!("node {index} dies"));
        self.fall(index, fault)
    }

    /// Cuts the power right after a commit: acknowledged batches must be on disk.
    pub(super) fn cut_power(&mut self, to: To) -> Result<()> {
        if self.is_quiet || self.process(to).is_none() {
            return Ok(());
        }
        self.trace.mark(self.now, Kind::World, format_args!("node {} loses power after a commit", to.node));
        self.fall(to.node, Fault::CutAfterCommit)
    }

    /// Drops the process; a power cut also loses writes that were not synced.
    pub(super) fn fall(&mut self, index: usize, fault: Fault) -> Result<()> {
        let unsynced = self.nodes[index].disk.unsynced();
        let kept = match self.rng.random_range(0..4) {
            _ if fault == Fault::CutAfterCommit => 0,
            0 => usize::MAX,
            1 => 0,
            _ => self.rng.random_range(0..=unsynced),
        };
        self.fired.insert(fault);
        if kept < unsynced {
            self.fired.insert(Fault::PowerCut);
        }
        let node = &mut self.nodes[index];
        // The disk crashes before the handles are dropped, so that their later writes do not reach it.
        node.disk.crash(kept);
        if let Some(ticket) = node.up.take().and_then(|up| up.wake) {
            self.queue.cancel(ticket);
        }
        let pause = self.rng.random_range(10_000..DOWN_MAX);
        self.queue.push(self.now + pause, Event::Start(index));
        self.refresh_peers()
    }

    /// Returns the process that an event is for, if it still runs.
    pub(super) fn process(&mut self, to: To) -> Option<&mut Up> {
        let node = &mut self.nodes[to.node];
        if node.life == to.life { node.up.as_mut() } else { None }
    }

    /// Passes an input to an engine, and carries out its effects.
    pub(super) fn with_engine(
        &mut self,
        to: To,
        take: impl FnOnce(&mut Engine, Instant) -> Result<(), SyncError>,
    ) -> Result<()> {
        let now = self.instant();
        let Some(up) = self.process(to) else { return Ok(()) };
        match take(&mut up.engine, now) {
            Ok(()) => self.act(to.node),
            Err(error) => self.stopped(to.node, &error),
        }
    }

    /// Handles an engine's stop: right if its store failed as planned, or if its operator misled it.
    fn stopped(&mut self, index: usize, error: &SyncError) -> Result<()> {
        let node = &mut self.nodes[index];
        let is_armed = node.up.as_ref().is_some_and(|up| up.is_armed);
        self.trace.mark(self.now, Kind::World, format_args!("node {index} stops: {error}"));
        match error {
            SyncError::Storage(_) if is_armed => self.fall(index, Fault::CrashPoint),
            SyncError::WrongWaypoint { waypoint, .. } if node.plan.is_misled => {
                ensure!(
                    node.seen < waypoint.number,
                    "safety: node {index} stored batch {} beyond a waypoint that its ledger does not pass",
                    node.seen
                );
                node.has_refused = true;
                node.up = None;
                self.fired.insert(Fault::WrongWaypoint);
                self.refresh_peers()
            }
            error => self.fail(&format!("safety: node {index} gives up: {error}")),
        }
    }

    pub(super) fn save(&mut self, to: To) -> Result<()> {
        let now = self.instant();
        let Some(up) = self.process(to) else { return Ok(()) };
        if let Some(record) = up.engine.save_scores(now) {
            // Scores are advisory: a failed write stops nothing.
            let written = up.store.put_record(SCORES, &record?).is_ok();
            self.trace.note(
                self.now,
                format_args!("node {} saves its scores, succeeded: {written}", to.node),
                &[],
            );
        }
        self.queue.push(self.now + SAVE_EVERY, Event::Save(to));
        Ok(())
    }

    pub(super) fn prune(&mut self, to: To) -> Result<()> {
        let interval = self.nodes[to.node].plan.prune_interval;
        let (Some(up), Some(interval)) = (self.process(to), interval) else { return Ok(()) };
        let pruned = up.store.prune();
        let (is_armed, failed) = (up.is_armed, pruned.is_err());
        self.trace.note(self.now, format_args!("node {} prunes, failed: {failed}", to.node), &[]);
        if failed && is_armed {
            return self.fall(to.node, Fault::CrashPoint);
        }
        pruned?;
        self.check_pruned(to)?;
        self.queue.push(self.now + interval, Event::Prune(to));
        Ok(())
    }
}
