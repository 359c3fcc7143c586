//! [`World`]: one run: peers, nodes, a network and a clock, all drawn from one seed.
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
use slipstream_sync::{
    Mode,
    engine::{JobId, RequestId},
    work::{Done, Job},
};
use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{
    explain::{EndState, Recording, Thoughts},
    fault::Fired,
    link::Link,
    node::Node,
    pace::Due,
    plan::{Plan, Scenario},
    queue::{Moment, Queue},
    server::{Habit, Server},
    trace::Trace,
};

/// The time after the last fault in which all nodes must catch up, whatever liars and stallers still do. A peer that
/// keeps failing is paused for 30 s at most, and a deadline is 5 s at most.
pub(super) const CATCH_UP: Moment = 90_000_000;
/// The time between two floods of a peer.
pub(super) const FLOOD_INTERVAL: Moment = 400_000;
/// How long a renaming peer keeps a key that no node bans: less than a deadline.
pub(super) const RENAME_INTERVAL: Moment = 800_000;
/// The number of events at one moment that counts as a loop; work within a moment takes no time.
const EVENTS_PER_MOMENT_MAX: u32 = 50_000;

/// A participant's index: servers first, then nodes.
pub(super) type Place = usize;

/// The receiver of an event: a node, in one of its lives (processes).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct To {
    pub(super) node: usize,
    pub(super) life: u32,
}

/// The kinds of events.
pub(super) enum Event {
    /// The next batch is certified.
    Grow,
    /// The engine asked to be called now.
    Wake(To),
    /// A request arrives at a peer.
    Request { to: To, id: RequestId, peer: Place, payload: Vec<u8>, deadline_at: Moment },
    /// An answer or its deadline arrives.
    Answer { to: To, id: RequestId, peer: Place, answer: Result<Vec<u8>, NetworkError>, is_lie: bool },
    /// An announcement arrives at a node.
    Broadcast { to: To, from: Place, payload: Vec<u8> },
    /// A job ends; its effect may show only now.
    Work { to: To, id: JobId, work: Box<Work>, took: Moment },
    /// The store reports that its head moved.
    Head { to: To, number: BatchNumber },
    /// A node writes its scores.
    Save(To),
    /// A node prunes its store.
    Prune(To),
    /// A node's process dies.
    Crash(usize),
    /// A node's power fails, and all unsynced writes are lost.
    Cut(To),
    /// Checks whether a request has waited too long.
    Waited { to: To, id: RequestId },
    /// A peer that still has this key takes another key.
    Rename { server: usize, key: PeerId },
    /// A peer sends a round of useless announcements.
    Flood(usize),
    /// A node's process starts again.
    Start(usize),
    /// A flapping server's connections end or come back.
    Flap { server: usize, is_cut: bool },
    /// The network splits, or is whole again.
    Partition(bool),
    /// The connections between participants changed.
    Peers,
    /// No new faults occur from here on.
    Quiet,
}

/// A job between its start and its end.
pub(super) enum Work {
    /// The job takes effect at its end.
    Due(Job),
    /// The job took effect at its start.
    Done(Done),
}

/// The world of one run.
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
    pub(super) cut: Vec<bool>,
    /// The side of each participant, while the network is split.
    pub(super) sides: Option<Vec<bool>>,
    pub(super) certified: BatchNumber,
    /// The deadline for all nodes, in a world that has one.
    pub(super) due: Option<Due>,
    pub(super) is_quiet: bool,
    pub(super) trace: Trace,
    pub(super) fired: Fired,
    /// Each node's last thought, while a recording runs.
    pub(super) thoughts: Thoughts,
}

/// The outcome of a run.
pub(super) struct Outcome {
    pub(super) trace: [u8; 32],
    pub(super) fired: Fired,
    /// The virtual time of the run.
    pub(super) took: Duration,
    /// The recording for a reader; `None` unless it was requested.
    pub(super) recording: Option<Recording>,
    pub(super) stands: Vec<EndState>,
}

impl World {
    pub(super) fn new(
        scenario: Scenario,
        seed: u64,
        planted: Option<slipstream_sync::Planted>,
        verbose: bool,
    ) -> Result<World> {
        let due = (scenario == Scenario::Promises).then(|| Due::of(seed)).transpose()?;
        let mut world = World::build(scenario, seed, planted, verbose, None)?;
        world.due = due;
        Ok(world)
    }

    /// Builds the world of a seed. With `pinned`, the nodes have that mode and only honest peers are connected.
    pub(super) fn build(
        scenario: Scenario,
        seed: u64,
        planted: Option<slipstream_sync::Planted>,
        verbose: bool,
        pinned: Option<Mode>,
    ) -> Result<World> {
        let mut rng = super::plan::rng(seed);
        let mut plan = Plan::draw(scenario, &mut rng);
        for node in &mut plan.nodes {
            node.sync.mode = pinned.unwrap_or(node.sync.mode);
        }
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
            cut: servers.iter().map(|server| pinned.is_some() && server.habit != Habit::Honest).collect(),
            servers,
            nodes,
            links,
            sides: None,
            certified: plan.certified,
            due: None,
            is_quiet: false,
            trace: Trace::new(verbose),
            fired: Fired::new(),
            thoughts: Thoughts::default(),
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
        for server in 0..self.servers.len() {
            let at = self.rng.random_range(0..FLOOD_INTERVAL);
            if self.servers[server].habit == Habit::Flooding {
                self.queue.push(at, Event::Flood(server));
            }
            if self.servers[server].renames {
                let key = self.servers[server].id;
                self.queue.push(RENAME_INTERVAL + at, Event::Rename { server, key });
            }
        }
        self.queue.push(self.plan.quiet_at, Event::Quiet);
    }

    /// Returns the engine's notion of now.
    pub(super) fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    /// Returns the name of a participant.
    pub(super) fn id(&self, place: Place) -> PeerId {
        match place.checked_sub(self.servers.len()) {
            None => self.servers[place].id,
            Some(node) => self.nodes[node].plan.id,
        }
    }

    /// Returns a node's index among the participants.
    pub(super) fn place_of(&self, node: usize) -> Place {
        self.servers.len() + node
    }

    /// Returns the index of the participant that has this name, or had it.
    pub(super) fn place(&self, id: &PeerId) -> Result<Place> {
        let places = 0..self.servers.len() + self.nodes.len();
        let was = |place: Place| self.servers.get(place).is_some_and(|server| server.former.contains(id));
        let found = places.into_iter().find(|place| self.id(*place) == *id || was(*place));
        found.context("no participant has this key")
    }

    /// Returns the index of the node at a place; `None` if the participant there is a server.
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

    /// Returns when a message that leaves now arrives.
    pub(super) fn carry(&mut self, from: Place, to: Place, bytes: usize) -> Option<Moment> {
        let lossy = !self.is_quiet;
        let link = self.links.get_mut(&(from, to))?;
        link.carry(self.now, bytes, lossy, &mut self.rng, &mut self.fired)
    }

    /// Runs until the last fault is over and all nodes are caught up.
    ///
    /// # Errors
    /// The fault that an oracle found.
    pub(super) fn run(mut self) -> (Result<()>, Outcome) {
        let end = self.due.map_or(self.plan.quiet_at + CATCH_UP, |due| due.at);
        let done = self.drive(end).and_then(|is_caught_up| match (is_caught_up, self.due) {
            (true, _) => self.check_end(),
            (false, Some(due)) => {
                self.fail(&format!("speed: a node has not reached the head in time: {due}"))
            }
            (false, None) => self.fail(&format!(
                "liveness: {} s after the last fault a node has not caught up with batch {}",
                CATCH_UP / 1_000_000,
                self.certified
            )),
        });
        let took = Duration::from_micros(self.now);
        let is_recorded = self.trace.is_recorded();
        // A reader of a recording sees how the nodes stood; a campaign's error gets their full statuses.
        let done = done.map_err(|error| match self.statuses() {
            text if text.is_empty() || is_recorded => error,
            text => error.context(text),
        });
        let stands = if is_recorded { self.stands() } else { Vec::new() };
        let (trace, recording) = (self.trace.digest(), self.trace.take_recording());
        (done, Outcome { trace, fired: self.fired, took, recording, stands })
    }

    /// Processes events until the last fault is over and all nodes are caught up. Returns false if they are not by
    /// `end`.
    pub(super) fn drive(&mut self, end: Moment) -> Result<bool> {
        let mut at_once = 0;
        while !(self.is_quiet && self.is_caught_up()) {
            let (at, event) =
                self.queue.pop().context("no event is left, but not all nodes have caught up")?;
            at_once = if at == self.now { at_once + 1 } else { 0 };
            ensure!(
                at_once < EVENTS_PER_MOMENT_MAX,
                "the virtual clock does not advance: more than {EVENTS_PER_MOMENT_MAX} events in one moment"
            );
            self.now = at;
            if at >= end {
                return Ok(false);
            }
            let happened = self.happen(event);
            self.think();
            happened?;
        }
        Ok(true)
    }

    fn is_caught_up(&self) -> bool {
        let all_certified = self.certified == self.plan.end;
        all_certified && self.nodes.iter().all(|node| node.is_done(self.certified))
    }

    /// Returns each node's status, for finding out why a run failed.
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

    /// Fails a run, and names the moment.
    pub(super) fn fail<T>(&self, what: &str) -> Result<T> {
        bail!("{what} (at {:.3} s)", self.now as f64 / 1e6)
    }
}
