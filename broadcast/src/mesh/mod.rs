//! [`Mesh`]: how new batches spread, without I/O, threads or clock.
//!
//! Events go in through `handle_…(event, now)`. Effects come out of [`Mesh::poll_effect`], and the time of the next call
//! comes out of [`Mesh::poll_timeout`]. So a simulator runs the same mesh that ships, and the same events give the same
//! decisions.
//!
//! Call order: after every `handle_…` the driver takes and performs effects in order until none is left, and then asks
//! for the timeout. It calls [`Mesh::handle_timeout`] at that time or later. `now` never decreases between calls, but it
//! may stay the same. Without a timeout, only an event can change anything.
//!
//! ```text
//!             ┌ Batch ──▶ certificate, place in the ledger, plans' signatures ──▶ Batch to `degree` peers, later to the rest
//!  a message ─┼ Chunk ──▶ codec: bounds, rank ──▶ Check (a job) ──▶ useful: more chunks to peers that lack them
//!             ├ Have  ──▶ that peer gets no more                └─▶ whole: compared with the header ──▶ Deliver
//!             └ Lack  ──▶ chunks for the peer that asked
//!  a timer ──▶ asks a peer for what is missing; gives up a batch whose body is late
//! ```
//!
//! Invariants:
//! * A node passes on only what it checked against something signed. It checks a header against a certificate and the
//!   ledger before it, a plan against its signer, and a chunk against its plan. A peer whose message fails such a check
//!   made the content up, and is cut off. If signed content is false, its signer is at fault and its relays are not.
//! * Messages of one peer never displace another's.
//! * A node sends a payload unasked at most twice `send_cap` times its size (a payload sent whole: twice `degree`
//!   times). To a peer that asks it sends at most twice the size.

mod batch;
mod effect;
mod hear;
mod payload;
mod peers;
mod plans;
mod repair;
mod spread;
mod status;

#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use rand::{SeedableRng, rngs::StdRng};
use slipstream_coding::Codec;
use slipstream_network::{PeerId, Priority};
use slipstream_types::{BatchNumber, Digest, Epoch, PublicKey, ValidatorSet, accumulator::Accumulator};
use tokio::time::Instant;

use self::{
    batch::Batch,
    peers::{ChargeResult, Departed, Neighbour},
};
pub use self::{
    effect::{Delivery, Done, Effect, Job, JobId, LeadRequest},
    payload::Moved,
    status::{CodecStatus, DECODED_MS, MeshStatus, PayloadStatus},
};
use crate::{
    BroadcastConfig,
    message::{Announced, Message, Part, PayloadId, PeekedMessage, Wants},
};

/// Maximum number of batches ahead of the head that are assembled: a node that is further behind fetches them.
const AHEAD_MAX: u64 = 8;
/// Number of batches up to the head whose payloads are kept for peers that lack something.
const KEPT: u64 = 8;
/// How long this node leaves it to others to announce a batch to the remaining peers, or to spread the batch.
const LAZY: Duration = Duration::from_millis(150);
/// How often peers hear again what this node wants: if the only such message were lost, they would never send anything.
const WANTS_EVERY: Duration = Duration::from_secs(5);
/// Cost of an unreadable message, in useless bytes: a peer of another version sends few.
const UNREADABLE_BYTES: usize = 1 << 20;
/// Maximum number of peers whose useless messages are remembered after they left.
const DEPARTED_MAX: usize = 1_024;
/// How long a peer is banned that sent what no honest node sends.
const BAN: Duration = Duration::from_secs(600);

/// The end of the ledger here, which the next batch follows.
#[derive(Clone, Debug)]
pub struct Head {
    /// Number of the last committed batch.
    pub number: BatchNumber,
    /// The digest of its header.
    pub digest: Digest,
    /// The accumulator of the ledger up to it.
    pub accumulator: Accumulator,
    /// The validators of the batch after it.
    pub set: Arc<ValidatorSet>,
}

/// See the module.
pub struct Mesh {
    config: BroadcastConfig,
    wants: Wants,
    /// Seeded from a secret, so that peers can compute neither this node's choices nor the weights that check chunks.
    rng: StdRng,
    head: Head,
    /// The validators of the epoch before the head's.
    before: Option<Arc<ValidatorSet>>,
    peers: BTreeMap<PeerId, Neighbour>,
    /// Peers that left with useless messages on record: at most [`DEPARTED_MAX`].
    departed: BTreeMap<PeerId, Departed>,
    batches: BTreeMap<BatchNumber, Batch>,
    /// The batch that each payload belongs to.
    places: BTreeMap<PayloadId, BatchNumber>,
    /// Announcements whose place in the ledger cannot be checked until the batch before them is here.
    waiting: BTreeMap<BatchNumber, Vec<(PeerId, Announced)>>,
    /// Bodies that this node has from consensus.
    own: BTreeMap<BatchNumber, Arc<[u8]>>,
    jobs: BTreeMap<JobId, PayloadId>,
    next_job: u64,
    /// Validators of this epoch that signed something false.
    liars: BTreeSet<PublicKey>,
    /// When to tell peers again what this node wants.
    wants_at: Option<Instant>,
    /// Pretended size of a chunk, in bytes; only in simulations.
    chunk_bytes: Option<usize>,
    effects: VecDeque<Effect>,
    /// The last chunk that was sent, and the last other message. Peers that get the same message share its bytes;
    /// otherwise each slow peer would hold a copy.
    sent: [Bytes; 2],
    status: MeshStatus,
}

/// A payload at its source.
#[derive(Debug)]
pub struct Source {
    /// Identifies the payload.
    pub id: PayloadId,
    /// The part of the batch that it carries.
    pub part: Part,
    /// The codec, which has the whole payload.
    pub codec: Box<dyn Codec>,
}

impl Mesh {
    /// A mesh without peers.
    pub fn new(config: BroadcastConfig, wants: Wants, head: Head, seed: [u8; 32]) -> Mesh {
        Mesh {
            config,
            wants,
            rng: StdRng::from_seed(seed),
            head,
            before: None,
            peers: BTreeMap::new(),
            departed: BTreeMap::new(),
            batches: BTreeMap::new(),
            places: BTreeMap::new(),
            waiting: BTreeMap::new(),
            own: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next_job: 0,
            liars: BTreeSet::new(),
            wants_at: None,
            chunk_bytes: None,
            effects: VecDeque::new(),
            sent: Default::default(),
            status: MeshStatus::default(),
        }
    }

    /// For a simulation with small payloads, whose chunks stand for chunks of `bytes` bytes and take as long.
    #[doc(hidden)]
    pub fn set_chunk_bytes(&mut self, bytes: usize) {
        self.chunk_bytes = Some(bytes);
    }

    /// Takes the connected peers. New ones hear what this node wants.
    pub fn handle_peers(&mut self, connected: &[PeerId], now: Instant) {
        let gone: Vec<_> = self.peers.keys().filter(|peer| !connected.contains(peer)).copied().collect();
        for peer in gone {
            let departed = self.peers.remove(&peer).and_then(|neighbour| neighbour.depart(now));
            self.departed.extend(departed.map(|departed| (peer, departed)));
            self.forget(&peer);
        }
        self.forget_departed(now);
        self.wants_at.get_or_insert(now + WANTS_EVERY);
        for peer in connected {
            if !self.peers.contains_key(peer) {
                let neighbour = match self.departed.remove(peer) {
                    Some(departed) => Neighbour::new(now).returned(departed),
                    None => Neighbour::new(now),
                };
                self.peers.insert(*peer, neighbour);
                self.say_wants(*peer, true);
            }
        }
    }

    /// Bounds the records of departed peers, because keys are free. Validators are always remembered.
    fn forget_departed(&mut self, now: Instant) {
        self.departed.retain(|_, departed| !departed.is_over(now));
        while self.departed.len() > DEPARTED_MAX {
            let set = &self.head.set;
            let strangers = self.departed.iter().filter(|(peer, _)| set.index_of(peer).is_none());
            let Some(first) = strangers.min_by_key(|(_, it)| it.left_at).map(|(peer, _)| *peer) else {
                return;
            };
            self.departed.remove(&first);
        }
    }

    /// Forgets the exchanges with a peer.
    fn forget(&mut self, peer: &PeerId) {
        self.batches.values_mut().for_each(|batch| batch.forget(peer));
        self.waiting.values_mut().for_each(|waiting| waiting.retain(|(from, _)| from != peer));
    }

    /// Whether a peer is known. If not, call [`Mesh::handle_peers`] before its messages.
    pub fn knows(&self, peer: &PeerId) -> bool {
        self.peers.contains_key(peer)
    }

    /// Takes the ledger's new head, however it grew: batches assembled up to it are over.
    pub fn handle_head(&mut self, head: Head, now: Instant) {
        let before = std::mem::replace(&mut self.head, head);
        if before.set.epoch != self.head.set.epoch {
            self.liars.clear();
            self.before = Some(before.set);
        }
        let number = self.head.number;
        let oldest = number.before(KEPT);
        self.batches.retain(|number, _| *number > oldest);
        self.places.retain(|_, number| *number > oldest);
        self.own.retain(|number, _| *number > oldest);
        self.waiting = self.waiting.split_off(&number.next());
        let committed: Vec<_> = self.batches.range(..=number).map(|(number, _)| *number).collect();
        for number in committed {
            self.need_no_more(number);
        }
        self.look_again(number.next(), now);
    }

    /// Sets this node's wants, which change when it begins or ceases to validate.
    pub fn handle_wants(&mut self, wants: Wants) {
        if wants != self.wants {
            self.wants = wants;
            let peers: Vec<_> = self.peers.keys().copied().collect();
            peers.into_iter().for_each(|peer| self.say_wants(peer, false));
        }
    }

    /// The validators of an epoch, if it is the epoch of the next batch or the one before that.
    pub(crate) fn set_of(&self, epoch: Epoch) -> Option<Arc<ValidatorSet>> {
        let known = [Some(&self.head.set), self.before.as_ref()].into_iter().flatten();
        known.into_iter().find(|set| set.epoch == epoch).cloned()
    }

    /// Takes a peer's message.
    pub fn handle_message(&mut self, from: PeerId, bytes: &[u8], now: Instant) {
        let Some(peer) = self.peers.get(&from) else { return };
        let peeked = Message::peek(bytes);
        // Notices count even from a muted peer: what it has or wants is worth knowing.
        if peer.is_muted(now) && peeked != PeekedMessage::Notice {
            return;
        }
        let is_known = match peeked {
            // Only subtracts: anybody may have made the number up, and a sum could overflow.
            PeekedMessage::Batch(number) => self.head.number.since(number) < KEPT,
            PeekedMessage::Chunk(id) => self.places.contains_key(&id),
            PeekedMessage::Notice | PeekedMessage::Other => true,
        };
        if !is_known {
            self.status.bytes_useless += bytes.len() as u64;
            return self.charge(from, bytes.len(), now);
        }
        match Message::decode(bytes) {
            Ok(Message::Batch(announced)) => self.hear(from, *announced, now),
            Ok(Message::Plan { number, plan }) if self.batches.contains_key(&number) => {
                self.add_plans(from, number, vec![*plan], now);
            }
            Ok(Message::Plan { .. }) => self.charge(from, bytes.len(), now),
            Ok(Message::Chunk { id, chunk }) => self.take_chunk(from, id, &chunk, now),
            Ok(Message::Have(ids)) => ids.iter().for_each(|id| self.peer_has(from, *id, now)),
            Ok(Message::Lack { id, held }) => self.give(from, id, &held, now),
            Ok(Message::Wants { wants, asks }) => self.peer_wants(from, wants, asks, now),
            Err(_) => self.charge(from, UNREADABLE_BYTES, now),
        }
    }

    /// Takes a peer's wants. With `asks`, the peer asks for this node's wants, because it is new or has lost what it
    /// knew.
    fn peer_wants(&mut self, from: PeerId, wants: Wants, asks: bool, now: Instant) {
        self.peers.entry(from).and_modify(|peer| peer.wants = wants);
        self.charge(from, 0, now);
        if asks && let Some(peer) = self.peers.get_mut(&from).filter(|peer| !peer.is_muted(now)) {
            if peer.may_ask(now) {
                self.batches.values_mut().for_each(|batch| batch.restarted(&from));
            }
            self.say_wants(from, false);
        }
    }

    /// Takes the result of a job.
    pub fn handle_done(&mut self, id: JobId, done: Done, now: Instant) {
        let Some(payload) = self.jobs.remove(&id) else { return };
        match done {
            Done::Checked(checked) => self.checked(payload, checked, now),
            Done::Opened(opened) => self.opened(payload, opened, now),
        }
    }

    /// Call when the time of [`Mesh::poll_timeout`] has come. Does everything that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let numbers: Vec<_> = self.batches.keys().copied().collect();
        for number in numbers {
            self.tell_the_rest(number, now);
            self.repair(number, now);
            self.start_lending(number, now);
            self.lead(number, now);
            self.deliver(number, now);
        }
        if self.wants_at.take_if(|at| *at <= now).is_some() {
            self.wants_at = Some(now + WANTS_EVERY);
            let peers: Vec<_> = self.peers.keys().copied().collect();
            peers.into_iter().for_each(|peer| self.say_wants(peer, false));
        }
    }

    /// Returns the time of the next [`Mesh::handle_timeout`] if no event comes first.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of_batch = |batch: &Batch| {
            let repairs = batch.payloads.iter().filter_map(payload::Payload::due_at).min();
            let own = [batch.tell_at(), batch.lead_at, batch.deliver_at(self.wants)];
            own.into_iter().flatten().chain(repairs).min()
        };
        self.batches.values().filter_map(of_batch).chain(self.wants_at).min()
    }

    /// Returns the next effect, or `None` until another event.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Reports the traffic, and the payloads of the last batches.
    pub fn status(&self) -> MeshStatus {
        let of_batch = |(number, batch): (&BatchNumber, &Batch)| {
            let of = |payload: &payload::Payload| payload.status(*number);
            batch.payloads.iter().map(of).collect::<Vec<_>>()
        };
        MeshStatus { payloads: self.batches.iter().flat_map(of_batch).collect(), ..self.status.clone() }
    }

    fn run(&mut self, payload: PayloadId, job: Job) -> JobId {
        let id = JobId(self.next_job);
        self.next_job += 1;
        self.jobs.insert(id, payload);
        self.effects.push_back(Effect::Run { id, job });
        id
    }

    fn send(&mut self, peer: PeerId, message: &Message, priority: Priority) {
        // The mesh makes messages within their bounds.
        let Ok(bytes) = message.encode() else { return };
        self.status.bytes_sent += bytes.len() as u64;
        let last = &mut self.sent[usize::from(matches!(message, Message::Chunk { .. }))];
        if *last != bytes {
            *last = Bytes::from(bytes);
        }
        self.effects.push_back(Effect::Send { peer, message: last.clone(), priority });
    }

    fn say_wants(&mut self, peer: PeerId, asks: bool) {
        self.send(peer, &Message::Wants { wants: self.wants, asks }, Priority::First);
    }

    fn charge(&mut self, peer: PeerId, bytes: usize, now: Instant) {
        let Some(neighbour) = self.peers.get_mut(&peer).filter(|peer| !peer.is_muted(now)) else { return };
        match neighbour.charge(bytes, now) {
            ChargeResult::Fine => {}
            ChargeResult::Muted => {
                self.status.muted += 1;
                tracing::warn!(peer = %peer.short(), "a peer sends mostly useless messages: ignoring it for a while");
            }
            ChargeResult::CutOff => self.ban(peer, "it repeatedly sent mostly useless messages".into(), now),
        }
    }

    /// Cuts a peer off. A validator is cut off only from the mesh: consensus needs its link.
    fn ban(&mut self, peer: PeerId, reason: String, now: Instant) {
        self.status.banned += 1;
        self.forget(&peer);
        if self.head.set.index_of(&peer).is_some() {
            tracing::error!(validator = %peer, reason, "ignoring a validator's messages about batches for a while");
            self.peers.entry(peer).and_modify(|neighbour| neighbour.mute(BAN, now));
            return;
        }
        self.peers.remove(&peer);
        self.effects.push_back(Effect::Ban { peer, reason, duration: BAN });
    }
}
