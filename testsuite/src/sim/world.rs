//! [`World`]: one run: peers, nodes, a network and a clock, all of them from one seed.
//!
//! ```text
//!              ┌──────────── Queue: what happens when ◀───────────┐
//!              ▼                                                  │
//!  Grow, Crash, Flap …   Engine::handle_… ─▶ poll_effect ─▶ Send ─▶ Link ─▶ Server (or another node) ─▶ Link
//!              │                    ▲                      └▶ Run ─▶ Worker on a store on a MemoryDisk
//!              └────────────────────┴───────── oracle: after every answer, job and start
//! ```

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use rand::{Rng, rngs::StdRng};
use slipstream_network::{NetworkError, PeerId};
use slipstream_sync::engine::{Done, Job, JobId, RequestId};
use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{
    chain::{Chain, epoch},
    fault::{Fault, Fired},
    link::Link,
    node::Node,
    plan::{Plan, Scenario},
    queue::{Moment, Queue},
    server::{Habit, Server},
    trace::Trace,
};

/// All nodes are caught up this long after the last fault, whatever liars and stallers go on doing: the longest pause of a peer that kept
/// failing is 30 s, and a deadline 5 s.
pub(super) const CATCH_UP: Moment = 90_000_000;
/// What is done at a moment takes no time; this many events at one moment are a loop.
const EVENTS_PER_MOMENT_MAX: u32 = 50_000;

/// Names a participant: servers first, then nodes.
pub(super) type Place = usize;

/// Whom an event is for: a node, in one of its lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct To {
    pub(super) node: usize,
    pub(super) life: u32,
}

/// What happens.
pub(super) enum Event {
    /// The next batch is certified.
    Grow,
    /// The engine wanted to be called.
    Wake(To),
    /// A request arrives at a peer.
    Request { to: To, id: RequestId, peer: Place, payload: Vec<u8>, deadline_at: Moment },
    /// An answer arrives, or its deadline.
    Answer { to: To, id: RequestId, peer: Place, answer: Result<Vec<u8>, NetworkError>, is_lie: bool },
    /// An announcement arrives.
    Broadcast { to: To, from: Place, payload: Vec<u8> },
    /// A job ends, which may be when its effect shows.
    Work { to: To, id: JobId, work: Box<Work>, took: Moment },
    /// The store says that its head moved.
    Head { to: To, number: BatchNumber },
    /// A node's scores are written.
    Save(To),
    /// A node prunes.
    Prune(To),
    /// A node dies.
    Crash(usize),
    /// And comes back.
    Start(usize),
    /// The connections of a flapping server end, or are there again.
    Flap { server: usize, is_cut: bool },
    /// The network falls apart, or is whole again.
    Partition(bool),
    /// Who is connected with whom changed.
    Peers,
    /// Nothing goes wrong any more.
    Quiet,
}

/// A job between its start and its end.
pub(super) enum Work {
    /// It takes effect at its end.
    Due(Job),
    /// It took effect at its start.
    Done(Done),
}

/// One run.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) rng: StdRng,
    pub(super) now: Moment,
    base: Instant,
    pub(super) queue: Queue<Event>,
    pub(super) servers: Vec<Server>,
    pub(super) nodes: Vec<Node>,
    links: BTreeMap<(Place, Place), Link>,
    /// Servers whose connections are cut.
    cut: Vec<bool>,
    /// On which side each participant is, while the network is apart.
    sides: Option<Vec<bool>>,
    pub(super) certified: BatchNumber,
    pub(super) is_quiet: bool,
    pub(super) trace: Trace,
    pub(super) fired: Fired,
}

/// What a run that went well leaves.
pub(super) struct Outcome {
    pub(super) trace: [u8; 32],
    pub(super) fired: Fired,
    /// Virtual time.
    pub(super) took: Duration,
}

impl World {
    pub(super) fn new(
        scenario: Scenario,
        seed: u64,
        planted: Option<slipstream_sync::Planted>,
        verbose: bool,
    ) -> Result<World> {
        let mut rng = super::plan::rng(seed);
        let mut plan = Plan::draw(scenario, &mut rng);
        let servers = std::mem::take(&mut plan.servers);
        let defences = slipstream_sync::Defences::without(planted)?;
        let nodes: Vec<Node> =
            plan.nodes.iter().map(|plan| Node::new(plan, defences)).collect::<Result<_>>()?;
        let places = servers.len() + nodes.len();
        let mut links = BTreeMap::new();
        for one in 0..places {
            for other in servers.len().max(one + 1)..places {
                links.insert((one, other), Link::new(&mut rng, plan.loss));
                links.insert((other, one), Link::new(&mut rng, plan.loss));
            }
        }
        let mut world = World {
            rng,
            now: 0,
            base: Instant::now(),
            queue: Queue::new(),
            cut: vec![false; servers.len()],
            servers,
            nodes,
            links,
            sides: None,
            certified: plan.certified,
            is_quiet: false,
            trace: Trace::new(verbose),
            fired: Fired::new(),
            plan,
        };
        world.begin();
        Ok(world)
    }

    fn begin(&mut self) {
        for index in 0..self.nodes.len() {
            self.queue.push(0, Event::Start(index));
            for at in self.nodes[index].plan.crashes.clone() {
                self.queue.push(at, Event::Crash(index));
            }
        }
        self.queue.push(self.plan.batch_interval, Event::Grow);
        if let Some((from, to)) = self.plan.partition {
            self.queue.push(from, Event::Partition(true));
            self.queue.push(to, Event::Partition(false));
        }
        for server in 0..self.servers.len() {
            if self.servers[server].habit == Habit::Flapping {
                let at = self.rng.random_range(0..self.plan.flap_interval);
                self.queue.push(at, Event::Flap { server, is_cut: true });
            }
        }
        self.queue.push(self.plan.quiet_at, Event::Quiet);
    }

    /// The engine's idea of now.
    pub(super) fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    /// The participant's name.
    pub(super) fn id(&self, place: Place) -> PeerId {
        match place.checked_sub(self.servers.len()) {
            None => self.servers[place].id,
            Some(node) => self.nodes[node].plan.id,
        }
    }

    /// Where a node stands among the participants.
    pub(super) fn place_of(&self, node: usize) -> Place {
        self.servers.len() + node
    }

    /// Where a participant of that name stands.
    pub(super) fn place(&self, id: &PeerId) -> Result<Place> {
        let places = 0..self.servers.len() + self.nodes.len();
        places.into_iter().find(|place| self.id(*place) == *id).context("nobody has this name")
    }

    /// The node at a place, if it is one.
    pub(super) fn node_at(&self, place: Place) -> Option<usize> {
        place.checked_sub(self.servers.len())
    }

    /// Whether a message between a node and another participant gets through.
    pub(super) fn is_connected(&self, node: usize, peer: Place) -> bool {
        let here = self.place_of(node);
        let apart = self.sides.as_ref().is_some_and(|sides| sides[here] != sides[peer]);
        let cut = self.cut.get(peer).copied().unwrap_or_default();
        let bans = |node: usize, place: Place| self.nodes[node].bans(&self.id(place));
        let other = self.node_at(peer);
        let is_up = other.is_none_or(|other| self.nodes[other].up.is_some());
        let banned = bans(node, peer) || other.is_some_and(|other| bans(other, here));
        here != peer && is_up && !apart && !cut && !banned
    }

    /// When a message that leaves now arrives.
    pub(super) fn carry(&mut self, from: Place, to: Place, bytes: usize) -> Option<Moment> {
        let lossy = !self.is_quiet;
        let link = self.links.get_mut(&(from, to))?;
        link.carry(self.now, bytes, lossy, &mut self.rng, &mut self.fired)
    }

    /// Runs until all nodes are caught up and nothing goes wrong any more.
    ///
    /// # Errors
    /// What an oracle says.
    pub(super) fn run(mut self) -> (Result<()>, Outcome) {
        let done = self.drive();
        let done = done.and_then(|()| self.check_end()).map_err(|error| match self.statuses() {
            text if text.is_empty() => error,
            text => error.context(text),
        });
        let took = Duration::from_micros(self.now);
        (done, Outcome { trace: self.trace.finish(), fired: self.fired, took })
    }

    fn drive(&mut self) -> Result<()> {
        let mut at_once = 0;
        while !(self.is_quiet && self.is_caught_up()) {
            let (at, event) =
                self.queue.pop().context("nothing happens any more, and nobody is caught up")?;
            at_once = if at == self.now { at_once + 1 } else { 0 };
            ensure!(at_once < EVENTS_PER_MOMENT_MAX, "time stands still");
            self.now = at;
            let end = self.plan.quiet_at + CATCH_UP;
            ensure!(
                at < end,
                "liveness: {} s after the last fault a node is not caught up with batch {}",
                CATCH_UP / 1_000_000,
                self.certified
            );
            self.happen(event)?;
        }
        Ok(())
    }

    fn is_caught_up(&self) -> bool {
        let all_certified = self.certified == self.plan.end;
        all_certified && self.nodes.iter().all(|node| node.is_done(self.certified))
    }

    fn happen(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Grow => self.grow()?,
            Event::Wake(to) => self.with_engine(to, |engine, now| {
                engine.handle_timeout(now);
                Ok(())
            })?,
            Event::Request { to, id, peer, payload, deadline_at } => {
                self.requested(to, id, peer, &payload, deadline_at)?;
            }
            Event::Answer { to, id, peer, answer, is_lie } => self.answered(to, id, peer, answer, is_lie)?,
            Event::Broadcast { to, from, payload } => self.heard(to, from, payload)?,
            Event::Work { to, id, work, took } => self.worked(to, id, *work, took)?,
            Event::Head { to, number } => self.with_engine(to, |engine, now| {
                engine.handle_head(number, now);
                Ok(())
            })?,
            Event::Save(to) => self.save(to)?,
            Event::Prune(to) => self.prune(to)?,
            Event::Crash(node) => self.crash(node, Fault::RandomCrash)?,
            Event::Start(node) => self.start(node)?,
            Event::Flap { server, is_cut } => self.flap(server, is_cut)?,
            Event::Partition(begins) => self.part(begins)?,
            Event::Peers => self.refresh_peers()?,
            Event::Quiet => self.quiet()?,
        }
        Ok(())
    }

    fn grow(&mut self) -> Result<()> {
        self.certified = self.certified.next();
        self.trace.note(self.now, format_args!("batch {} is certified", self.certified), &[]);
        if self.nodes.iter().any(|node| node.seen.0 + 1 < self.certified.0) {
            self.fired.insert(Fault::MovingTarget);
        }
        if epoch(self.certified) != epoch(self.certified.next()) {
            self.fired.insert(Fault::NewValidators);
        }
        if self.certified < self.plan.end {
            self.queue.push(self.now + self.plan.batch_interval, Event::Grow);
        }
        self.announce()
    }

    fn flap(&mut self, server: usize, is_cut: bool) -> Result<()> {
        let is_cut = is_cut && !self.is_quiet;
        self.cut[server] = is_cut;
        self.trace.note(self.now, format_args!("server {server} is cut off: {is_cut}"), &[]);
        if is_cut {
            self.fired.insert(Fault::Flapping);
        }
        if !self.is_quiet {
            let pause = self.rng.random_range(self.plan.flap_interval / 4..2 * self.plan.flap_interval);
            self.queue.push(self.now + pause, Event::Flap { server, is_cut: !is_cut });
        }
        self.refresh_peers()
    }

    fn part(&mut self, begins: bool) -> Result<()> {
        self.trace.note(self.now, format_args!("the network is apart: {begins}"), &[]);
        if begins {
            let places = self.servers.len() + self.nodes.len();
            self.sides = Some((0..places).map(|_| self.rng.random()).collect());
            self.fired.insert(Fault::Partition);
        } else {
            self.sides = None;
        }
        self.refresh_peers()
    }

    fn quiet(&mut self) -> Result<()> {
        self.trace.note(self.now, format_args!("nothing goes wrong any more"), &[]);
        self.is_quiet = true;
        self.sides = None;
        self.cut.fill(false);
        self.refresh_peers()
    }

    /// Tells every node whom it is connected with now.
    pub(super) fn refresh_peers(&mut self) -> Result<()> {
        for node in 0..self.nodes.len() {
            self.refresh_peers_of(node)?;
        }
        Ok(())
    }

    /// An honest server announces its new head; a liar something else.
    fn announce(&mut self) -> Result<()> {
        let chain = Chain::canonical();
        for server in 0..self.servers.len() {
            let number = self.servers[server].head(self.certified);
            let Some(made) = chain.batch(number) else { continue };
            let payload = match &self.servers[server].habit {
                Habit::Honest | Habit::Flapping => made.announcement.clone(),
                Habit::Lying(_) | Habit::Colluding { .. } if self.rng.random_ratio(1, 4) => {
                    self.fired.insert(Fault::FalseAnnouncement);
                    super::lie::announcement(number, &mut self.rng)?
                }
                _ => continue,
            };
            for node in 0..self.nodes.len() {
                self.broadcast(server, node, payload.clone());
            }
        }
        Ok(())
    }

    /// Sends an announcement on its way, if there is one.
    pub(super) fn broadcast(&mut self, from: Place, node: usize, payload: Vec<u8>) {
        if self.nodes[node].up.is_none() || !self.is_connected(node, from) {
            return;
        }
        let to = To { node, life: self.nodes[node].life };
        if let Some(at) = self.carry(from, self.place_of(node), payload.len()) {
            self.queue.push(at, Event::Broadcast { to, from, payload });
        }
    }

    /// What each node says of itself, for who has to find out why a run failed.
    fn statuses(&self) -> String {
        let now = self.instant();
        let status = |node: &Node| match &node.up {
            Some(up) => serde_json::to_string_pretty(&up.engine.status(now)).unwrap_or_default(),
            None => "it is down".into(),
        };
        let nodes = self.nodes.iter().enumerate();
        let text = nodes.map(|(index, node)| format!("node {index}: {}", status(node)));
        text.collect::<Vec<_>>().join("\n")
    }

    /// Fails a run.
    pub(super) fn fail<T>(&self, what: &str) -> Result<T> {
        bail!("{what} (at {:.3} s)", self.now as f64 / 1e6)
    }
}
