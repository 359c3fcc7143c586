//! [`Rig`]: many meshes with links of one latency, in virtual time, on a chain of certified batches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};
use slipstream_coding::{CodecKind, Parameters, encode};
use slipstream_network::PeerId;
use slipstream_types::{
    Address, BatchHeader, BatchNumber, Blob, BlobKind, Body, Certificate, Digest, PublicKey, SecretKey,
    ValidatorSet, accumulator::Accumulator, batch::content_digest, bounded::BoundedVec,
};
use tokio::time::{Duration, Instant};

use super::*;
use crate::message::SignedPlan;

/// Validators of the chain: four tolerate one failure.
const VALIDATORS: u8 = 4;
/// One-way latency between any two nodes.
pub(super) const LATENCY: Duration = Duration::from_millis(10);

/// A validator's key.
pub(super) fn key(seat: u8) -> SecretKey {
    slipstream_testkit::key(seat + 1)
}

pub(super) fn peer(node: usize) -> PeerId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(node as u64 + 1).to_le_bytes());
    PublicKey(bytes)
}

/// A chain of certified batches with bodies of noise.
pub(super) struct Chain {
    pub(super) set: Arc<ValidatorSet>,
    /// The head after each batch, the genesis first.
    pub(super) heads: Vec<Head>,
    pub(super) batches: Vec<(BatchHeader, Certificate, Blob)>,
    rng: StdRng,
}

impl Chain {
    pub(super) fn new(bodies: &[usize]) -> Chain {
        let keys = slipstream_testkit::keys(1..=VALIDATORS);
        let set = Arc::new(slipstream_testkit::set(0, &keys, Address::ZERO));
        let mut accumulator = Accumulator::default();
        accumulator.append(Digest([9; 32]));
        let genesis = Head {
            number: BatchNumber::GENESIS,
            digest: Digest([9; 32]),
            accumulator,
            set: Arc::clone(&set),
        };
        let mut chain =
            Chain { set, heads: vec![genesis], batches: Vec::new(), rng: StdRng::seed_from_u64(5) };
        bodies.iter().for_each(|bytes| chain.extend(*bytes));
        chain
    }

    fn extend(&mut self, bytes: usize) {
        let head = self.heads.last().unwrap().clone();
        let noise: Vec<Vec<u8>> = (0..bytes.div_ceil(10_000))
            .map(|_| {
                let mut noise = vec![0; bytes.min(10_000)];
                self.rng.fill_bytes(&mut noise);
                noise
            })
            .collect();
        let content = Body::new(noise).unwrap().content().unwrap();
        let header = BatchHeader {
            timestamp_ms: 1,
            transactions_root: content_digest(BlobKind::Body, &content),
            tx_bytes: content.len() as u32,
            ..slipstream_testkit::header(head.number.get() + 1, head.digest)
        };
        let mut accumulator = head.accumulator;
        let keys = slipstream_testkit::keys(1..=VALIDATORS);
        let certificate = slipstream_testkit::certify(&accumulator, &header, None, &keys);
        accumulator.append(header.digest());
        let head =
            Head { number: header.number, digest: header.digest(), accumulator, set: Arc::clone(&self.set) };
        self.heads.push(head);
        self.batches.push((header, certificate, Blob::compress(BlobKind::Body, &content).unwrap()));
    }

    /// A validator's publication of a batch, with `payload` as its body.
    pub(super) fn published(
        &self,
        number: usize,
        kind: CodecKind,
        payload: &[u8],
        seat: u8,
    ) -> (Announced, Vec<Source>) {
        self.published_part(number, (Part::Body, kind), payload, seat)
    }

    /// The same for any part, whatever its bytes are.
    pub(super) fn published_part(
        &self,
        number: usize,
        (part, kind): (Part, CodecKind),
        payload: &[u8],
        seat: u8,
    ) -> (Announced, Vec<Source>) {
        let (header, certificate, _) = &self.batches[number - 1];
        let payload: Arc<[u8]> = payload.into();
        let (plan, codec) = encode(kind, payload.clone(), &Parameters::default_for(payload.len())).unwrap();
        let signed =
            SignedPlan::sign(header, (part, plan), certificate.view, (seat.into(), &key(seat))).unwrap();
        let source = Source { id: signed.id(&header.digest()).unwrap(), part, codec };
        let plans = BoundedVec::new(vec![signed]).unwrap();
        (Announced { header: header.clone(), certificate: certificate.clone(), plans }, vec![source])
    }

    pub(super) fn body(&self, number: usize) -> &Blob {
        &self.batches[number - 1].2
    }
}

/// One node.
pub(super) struct Node {
    pub(super) mesh: Mesh,
    pub(super) links: BTreeSet<usize>,
    /// When each batch was delivered with its body.
    pub(super) complete: BTreeMap<u64, Duration>,
    pub(super) delivered: Vec<Delivery>,
    /// Numbers of batches that it heard of and must fetch, and of those that it gave up.
    pub(super) heard: Vec<u64>,
    pub(super) gave_up: Vec<u64>,
    /// Batches that it was asked to spread, because their leader is silent.
    pub(super) leads: Vec<LeadRequest>,
    pub(super) bans: Vec<(PeerId, String)>,
    /// Whether no message from it or to it arrives.
    pub(super) is_dead: bool,
    pub(super) chunk_bytes_sent: usize,
}

/// See the module.
pub(super) struct Rig {
    pub(super) chain: Arc<Chain>,
    pub(super) nodes: Vec<Node>,
    pub(super) now: Instant,
    start: Instant,
    queue: BTreeMap<(Instant, u64), (usize, usize, Bytes)>,
    sent: u64,
    /// Changes a message that a node sends, or drops it.
    pub(super) change: Box<dyn FnMut(usize, usize, Bytes) -> Option<Bytes>>,
}

impl Rig {
    /// Nodes that want bodies, without links.
    pub(super) fn new(chain: Chain, nodes: usize) -> Rig {
        let start = Instant::now();
        let chain = Arc::new(chain);
        let node = |index: usize| Node {
            mesh: Mesh::new(
                BroadcastConfig::default(),
                Wants { body: true, hints: false },
                chain.heads[0].clone(),
                [index as u8; 32],
            ),
            links: BTreeSet::new(),
            complete: BTreeMap::new(),
            delivered: Vec::new(),
            heard: Vec::new(),
            gave_up: Vec::new(),
            leads: Vec::new(),
            bans: Vec::new(),
            is_dead: false,
            chunk_bytes_sent: 0,
        };
        Rig {
            nodes: (0..nodes).map(node).collect(),
            chain,
            now: start,
            start,
            queue: BTreeMap::new(),
            sent: 0,
            change: Box::new(|_, _, message| Some(message)),
        }
    }

    /// A chain of nodes, each linked with the next.
    pub(super) fn line(chain: Chain, nodes: usize) -> Rig {
        let mut rig = Rig::new(chain, nodes);
        (1..nodes).for_each(|node| rig.link(node - 1, node));
        rig
    }

    /// Each node linked with the next, and with `more` others at random.
    pub(super) fn graph(chain: Chain, nodes: usize, more: usize) -> Rig {
        let mut rig = Rig::line(chain, nodes);
        let mut rng = StdRng::seed_from_u64(11);
        for node in 0..nodes {
            for _ in 0..more {
                let other = rng.random_range(0..nodes);
                if other != node {
                    rig.link(node, other);
                }
            }
        }
        rig
    }

    pub(super) fn link(&mut self, a: usize, b: usize) {
        self.nodes[a].links.insert(b);
        self.nodes[b].links.insert(a);
    }

    /// Tells every node its peers, and lets the notices arrive.
    pub(super) fn connect(mut self) -> Rig {
        for node in 0..self.nodes.len() {
            self.meet(node);
        }
        self.run_for(LATENCY * 3);
        self
    }

    /// Tells a node its peers.
    pub(super) fn meet(&mut self, node: usize) {
        let peers: Vec<_> = self.nodes[node].links.iter().map(|other| peer(*other)).collect();
        self.nodes[node].mesh.handle_peers(&peers, self.now);
        self.act(node);
    }

    /// Makes a node publish a batch as a validator.
    pub(super) fn publish(&mut self, node: usize, number: usize, kind: CodecKind, seat: u8) {
        let body = self.chain.body(number).as_bytes().to_vec();
        let (announced, sources) = self.chain.published(number, kind, &body, seat);
        self.commit(node, number);
        self.nodes[node].mesh.handle_published(announced, sources, self.now);
        self.act(node);
    }

    pub(super) fn commit(&mut self, node: usize, number: usize) {
        let head = self.chain.heads[number].clone();
        self.nodes[node].mesh.handle_head(head, self.now);
        self.act(node);
    }

    /// Sends a message outside of any mesh.
    pub(super) fn inject(&mut self, from: usize, to: usize, message: &Message) {
        self.nodes[to].mesh.handle_message(peer(from), &message.encode().unwrap(), self.now);
        self.act(to);
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let message = self.queue.first_key_value().map(|((at, _), _)| *at);
            let timer = self.nodes.iter().filter_map(|node| node.mesh.poll_timeout()).min();
            let Some(at) = [message, timer].into_iter().flatten().min().filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(at);
            while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (from, to, bytes) = entry.remove();
                if !self.nodes[from].is_dead && !self.nodes[to].is_dead {
                    self.nodes[to].mesh.handle_message(peer(from), &bytes, self.now);
                    self.act(to);
                }
            }
            for node in 0..self.nodes.len() {
                if self.nodes[node].mesh.poll_timeout().is_some_and(|at| at <= self.now) {
                    self.nodes[node].mesh.handle_timeout(self.now);
                    self.act(node);
                }
            }
        }
        self.now = end;
    }

    fn act(&mut self, node: usize) {
        while let Some(effect) = self.nodes[node].mesh.poll_effect() {
            match effect {
                Effect::Send { peer: to, message, .. } => self.send(node, to, message),
                Effect::Run { id, job } => self.nodes[node].mesh.handle_done(id, job.run(), self.now),
                Effect::Expect { .. } | Effect::Credit { .. } => {}
                Effect::Heard { number, .. } => self.nodes[node].heard.push(number.get()),
                Effect::GaveUp(number) => self.nodes[node].gave_up.push(number.get()),
                Effect::Lead(lead) => self.nodes[node].leads.push(*lead),
                Effect::Deliver(delivery) => {
                    let number = delivery.header.number.get();
                    let took = self.now - self.start;
                    let node = &mut self.nodes[node];
                    node.delivered.push(*delivery);
                    node.complete.insert(number, took);
                    let gap = (1..).find(|number| !node.complete.contains_key(number)).unwrap_or(1);
                    let head = self.chain.heads[gap as usize - 1].clone();
                    if head.number > node.mesh.head.number {
                        node.mesh.handle_head(head, self.now);
                    }
                }
                Effect::Ban { peer, reason, .. } => self.nodes[node].bans.push((peer, reason)),
            }
        }
    }

    fn send(&mut self, from: usize, to: PeerId, message: Bytes) {
        let Some(to) = self.nodes[from].links.iter().copied().find(|other| peer(*other) == to) else {
            return;
        };
        let Some(message) = (self.change)(from, to, message) else { return };
        if message.first() == Some(&1) {
            self.nodes[from].chunk_bytes_sent += message.len();
        }
        self.sent += 1;
        self.queue.insert((self.now + LATENCY, self.sent), (from, to, message));
    }

    /// Live nodes without a complete batch of this number.
    pub(super) fn without(&self, number: u64) -> Vec<usize> {
        let alive = (0..self.nodes.len()).filter(|node| !self.nodes[*node].is_dead);
        alive.filter(|node| !self.nodes[*node].complete.contains_key(&number)).collect()
    }

    pub(super) fn blames_nobody(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            assert!(node.bans.is_empty() && node.mesh.status().muted == 0, "{index}: {:?}", node.bans);
        }
    }
}
