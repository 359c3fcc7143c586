//! [`World`]: many nodes with the mesh that ships, in virtual time.
//!
//! ```text
//!  mesh ─ Send ─▶ habit (a polluter's twist) ─▶ up-link: peers take turns ─▶ latency ─▶ down-link ─▶ processor ─▶ mesh
//!    └─── Run ──────────────────────────────────────────────────────────────────────────────▶ processor ─┘
//! ```
//!
//! A node has one processor, which handles messages and jobs one at a time and takes the measured costs for them. The
//! codecs are real: they code a small payload that has as many chunks as the real one. Links count the size of the real
//! chunks.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use anyhow::Result;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use slipstream_broadcast::{Effect, Message, Wants};
use slipstream_network::Bytes;
use tokio::time::{Duration, Instant};

use super::{
    chain::{Certified, Chain, small_body},
    costs::Costs,
    habit::{Habit, is_chunk},
    node::{Current, Node, Parcel, Task, Time, index, peer},
    scenario::{Outcome, Scenario},
    topology::Topology,
    uplink::Piece,
};

/// Bytes of a packet's overhead for QUIC, UDP and IP, and of its content.
const PACKET_BYTES: (usize, usize) = (64, 1_350);
/// The longest time that a node waits for the body, in milliseconds.
const END_MS: u64 = 20_000;

fn time_of(us: f64) -> Time {
    (us * 1e3) as Time
}

enum Event {
    /// An up-link has sent a part of a message.
    Sent(usize),
    /// The first bit of a part reaches its receiver.
    Arriving(Piece),
    Arrived(Parcel),
    /// A processor is free.
    Free(usize),
    Timer(usize),
}

/// A network of nodes.
pub(super) struct World<'a> {
    scenario: &'a Scenario,
    costs: &'a Costs,
    nodes: Vec<Node>,
    base: Instant,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64)>>,
    /// By number; events that have happened are `None`.
    pending: Vec<Option<Event>>,
    waiting: usize,
    topology: Topology,
}

impl World<'_> {
    /// Plays one scenario.
    ///
    /// # Errors
    /// If the batch cannot be coded.
    pub(super) fn run(scenario: &Scenario, costs: &Costs) -> Result<Outcome> {
        let body = small_body(scenario.codec, scenario.payload_bytes, costs.chunks_needed)?;
        let chain = Chain::new(scenario.validators, vec![body])?;
        let mut world = World::new(scenario, costs, &chain);
        world.begin(&chain)?;
        world.play();
        Ok(world.outcome())
    }

    fn new<'a>(scenario: &'a Scenario, costs: &'a Costs, chain: &Chain) -> World<'a> {
        let mut rng = StdRng::seed_from_u64(scenario.seed);
        let topology = Topology::draw(scenario);
        let habits = habits(scenario, &mut rng);
        let node = |(index, habit): (usize, Habit)| {
            let wants = Wants { body: index >= scenario.validators, hints: false };
            let node = Node::new(wants, chain, rng.random(), costs.chunk_bytes);
            Node { habit, links: topology.links[index].clone(), ..node }
        };
        let nodes = habits.into_iter().enumerate().map(node).collect();
        World {
            scenario,
            costs,
            nodes,
            base: Instant::now(),
            now: 0,
            events: BinaryHeap::new(),
            pending: Vec::new(),
            waiting: 0,
            topology,
        }
    }

    /// Tells all nodes each other's wants. Then the leader codes, and the other validators learn of the certificate and
    /// lend their up-links.
    fn begin(&mut self, chain: &Chain) -> Result<()> {
        let wants = |index| Wants { body: index >= self.scenario.validators, hints: false };
        let wants: Vec<_> = (0..self.nodes.len()).map(wants).collect();
        for node in 0..self.nodes.len() {
            let links: Vec<_> = self.nodes[node].links.iter().copied().collect();
            let peers: Vec<_> = links.iter().map(|other| peer(*other)).collect();
            let base = self.base;
            let mesh = &mut self.nodes[node].mesh;
            mesh.handle_peers(&peers, base);
            for other in links {
                let says = Message::Wants { wants: wants[other], asks: false };
                mesh.handle_message(peer(other), &says.encode()?, base);
            }
            while mesh.poll_effect().is_some() {}
        }
        let encoded = time_of(self.costs.encode_us);
        let (announced, sources) = chain.published(self.scenario.codec, self.scenario.payload_bytes)?;
        self.now = encoded;
        let at = self.instant();
        self.nodes[0].mesh.handle_published(announced, sources, at);
        self.act(0, None);
        for node in 1..self.scenario.validators {
            self.now = self.latency(0, node).max(encoded);
            let Certified { header, certificate, body } = &chain.batches[0];
            let at = self.instant();
            let body: Arc<[u8]> = body.as_bytes().into();
            self.nodes[node].mesh.handle_lent(header.clone(), certificate.clone(), body, at);
            self.act(node, None);
        }
        let honest = self.nodes[self.scenario.validators..].iter().filter(|node| node.habit == Habit::Honest);
        self.waiting = honest.count();
        Ok(())
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_nanos(self.now)
    }

    fn latency(&self, a: usize, b: usize) -> Time {
        self.topology.latency(a, b).as_nanos() as Time
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.events.push(Reverse((at, self.pending.len() as u64)));
        self.pending.push(Some(event));
    }

    fn play(&mut self) {
        while self.waiting > 0
            && let Some(Reverse((at, number))) = self.events.pop()
            && at < END_MS * 1_000_000
        {
            self.now = at;
            match self.pending[number as usize].take() {
                Some(Event::Sent(node)) => {
                    self.nodes[node].is_sending = false;
                    self.send_next(node);
                }
                Some(Event::Arriving(piece)) => self.receive(piece),
                Some(Event::Arrived(parcel)) => self.arrived(parcel),
                Some(Event::Free(node)) => self.finish(node),
                Some(Event::Timer(node)) if self.nodes[node].timer == Some(at) => {
                    self.nodes[node].timer = None;
                    self.nodes[node].tasks.push_back(Task::Timeout);
                    self.work(node);
                }
                // The event of a timer that was set again.
                Some(Event::Timer(_)) | None => {}
            }
        }
    }

    fn arrived(&mut self, Parcel { from, to, message }: Parcel) {
        let it = &mut self.nodes[to];
        if it.links.contains(&from) && it.habit != Habit::Silent {
            it.tasks.push_back(Task::Message(from, message));
            self.work(to);
        }
    }

    /// Starts the next task of an idle processor.
    fn work(&mut self, node: usize) {
        let at = self.instant();
        let it = &mut self.nodes[node];
        if it.current.is_some() {
            return;
        }
        let Some(task) = it.tasks.pop_front() else { return };
        let is_chunk = match task {
            Task::Job(id, job) => {
                let ends = self.now + time_of(self.costs.job_us(&job));
                it.current = Some(Current::Job(id, job.run()));
                return self.schedule(ends, Event::Free(node));
            }
            Task::Message(from, message) => {
                it.mesh.handle_message(peer(from), &message, at);
                is_chunk(&message)
            }
            Task::Done(id, done) => {
                it.mesh.handle_done(id, done, at);
                false
            }
            Task::Timeout => {
                it.mesh.handle_timeout(at);
                false
            }
        };
        self.act(node, Some(is_chunk));
    }

    /// Carries out a mesh's effects. `handled`, if any, says whether the handled message was a chunk; the processor
    /// then stays busy. Effects that a run does not simulate are ignored.
    fn act(&mut self, node: usize, handled: Option<bool>) {
        let mut sent = Vec::new();
        while let Some(effect) = self.nodes[node].mesh.poll_effect() {
            let it = &mut self.nodes[node];
            match effect {
                Effect::Send { peer, message, priority } => {
                    sent.push((priority, Parcel { from: node, to: index(&peer), message }));
                }
                Effect::Run { id, job } => it.tasks.push_back(Task::Job(id, job)),
                Effect::GaveUp(_) => it.is_incomplete = true,
                Effect::Expect { .. } | Effect::Heard { .. } | Effect::Credit { .. } => {}
                // No stand-in leads, because the leader publishes at once.
                Effect::Lead(_) => {}
                Effect::Deliver(_) => {
                    if it.has_body_at.is_none()
                        && it.habit == Habit::Honest
                        && node >= self.scenario.validators
                    {
                        it.has_body_at = Some(self.now);
                        self.waiting -= 1;
                    }
                }
                Effect::Ban { peer, .. } => self.cut(node, index(&peer)),
            }
        }
        let chunks = sent.iter().filter(|(_, parcel)| is_chunk(&parcel.message)).count();
        let busy_us = handled.map_or(0.0, |is_chunk| self.costs.message_us(is_chunk, chunks));
        let ends = self.now + time_of(busy_us);
        self.nodes[node].current = Some(Current::Handling(sent));
        self.schedule(ends, Event::Free(node));
        self.wind(node);
    }

    /// Ends a processor's work.
    fn finish(&mut self, node: usize) {
        match self.nodes[node].current.take() {
            Some(Current::Handling(sent)) => {
                for (priority, parcel) in sent {
                    if let Some(parcel) = self.nodes[node].twist(parcel) {
                        let bytes = self.weight(&parcel.message);
                        self.nodes[node].up.push(priority, parcel, bytes);
                    }
                }
                self.send_next(node);
            }
            Some(Current::Job(id, done)) => self.nodes[node].tasks.push_front(Task::Done(id, done)),
            None => {}
        }
        self.work(node);
    }

    fn wind(&mut self, node: usize) {
        let due = self.nodes[node].mesh.poll_timeout();
        let due = due.map(|at| at.saturating_duration_since(self.base).as_nanos() as Time);
        if let Some(at) = due.map(|at| at.max(self.now + 1))
            && self.nodes[node].timer.is_none_or(|timer| timer > at || timer <= self.now)
        {
            self.nodes[node].timer = Some(at);
            self.schedule(at, Event::Timer(node));
        }
    }

    /// Returns the bytes that a message takes on a link.
    fn weight(&self, message: &Bytes) -> usize {
        let content = match is_chunk(message) {
            true => self.costs.chunk_bytes + 40,
            false => message.len(),
        };
        content + content.div_ceil(PACKET_BYTES.1) * PACKET_BYTES.0
    }

    fn send_next(&mut self, node: usize) {
        if self.nodes[node].is_sending {
            return;
        }
        let Some(piece) = self.nodes[node].up.next() else { return };
        self.nodes[node].is_sending = true;
        self.nodes[node].bytes_sent += piece.bytes as u64;
        self.schedule(self.now + self.takes(&piece), Event::Sent(node));
        let arrives = self.now + self.latency(node, piece.to);
        self.schedule(arrives, Event::Arriving(piece));
    }

    /// Returns the time that a part of a message takes on an up-link.
    fn takes(&self, piece: &Piece) -> Time {
        piece.bytes as u64 * 8_000_000_000 / self.scenario.uplink_bits_per_second
    }

    /// Receives a part of a message over the down-link, which is twice as fast. The part arrives after its last bit was
    /// sent, and after the parts before it.
    fn receive(&mut self, piece: Piece) {
        let sent = self.takes(&piece);
        let it = &mut self.nodes[piece.to];
        let begins = self.now.max(it.down_free);
        it.down_free = begins + sent / 2;
        let ends = it.down_free.max(self.now + sent);
        if let Some(parcel) = piece.parcel {
            self.schedule(ends, Event::Arrived(parcel));
        }
    }

    /// Disconnects a node that another one bans.
    fn cut(&mut self, node: usize, other: usize) {
        self.nodes[other].was_banned = true;
        for (a, b) in [(node, other), (other, node)] {
            let at = self.instant();
            let it = &mut self.nodes[a];
            it.links.remove(&b);
            let peers: Vec<_> = it.links.iter().map(|link| peer(*link)).collect();
            it.mesh.handle_peers(&peers, at);
        }
    }

    fn outcome(&self) -> Outcome {
        let honest: Vec<_> = self.nodes[self.scenario.validators..]
            .iter()
            .filter(|node| node.habit == Habit::Honest)
            .collect();
        let mut times: Vec<_> =
            honest.iter().map(|node| node.has_body_at.unwrap_or(END_MS * 1_000_000)).collect();
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1e6;
        let count = honest.len() as f64;
        let bytes: u64 = honest.iter().map(|node| node.bytes_sent).sum();
        let pulls: u64 = honest.iter().map(|node| node.mesh.status().pulls).sum();
        let banned = |of: fn(Habit) -> bool| {
            self.nodes.iter().filter(|node| of(node.habit) && node.was_banned).count()
        };
        Outcome {
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            sent_payloads: bytes as f64 / count / self.scenario.payload_bytes as f64,
            fetched: honest.iter().filter(|node| node.is_incomplete || node.has_body_at.is_none()).count(),
            pulls: pulls as f64 / count,
            wronged: banned(|habit| habit == Habit::Honest),
            cut_off: banned(|habit| habit != Habit::Honest),
        }
    }
}

/// Draws the habit of each node; validators are honest.
fn habits(scenario: &Scenario, rng: &mut StdRng) -> Vec<Habit> {
    let fullnodes = scenario.nodes - scenario.validators;
    let share = |share: f64| (share * fullnodes as f64).round() as usize;
    let (silent, polluters) = (share(scenario.silent), share(scenario.polluters));
    let bad = std::iter::repeat_n(Habit::Silent, silent).chain((0..polluters).map(Habit::polluter));
    let mut habits: Vec<_> = bad.chain(std::iter::repeat(Habit::Honest)).take(fullnodes).collect();
    habits.shuffle(rng);
    std::iter::repeat_n(Habit::Honest, scenario.validators).chain(habits).collect()
}
