//! [`Streams`]: the things wanted, the peers asked for each, and when to ask another peer too.
//!
//! A thing wanted stays here until an answer to it passed its checks. Several peers may be asked for it: one after the
//! other as they fail, or another one in addition when an answer takes longer than usual.

use std::{collections::BTreeMap, time::Duration};

use slipstream_network::PeerId;
use slipstream_types::{BatchNumber, Epoch, Path};
use tokio::time::Instant;

use super::{
    effect::{Effect, Effects, RequestId},
    links::{Links, Sent},
};
use crate::{
    peers::PeerBook,
    plan::{Candidate, RangeMode},
    planted::{Defences, Planted},
    protocol::{RangeRequest, Request},
};

/// Identifies a thing wanted. Things are asked for in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Key {
    /// Headers along the gap, for their totals.
    Survey,
    /// The first part of a snapshot.
    Offer,
    /// The headers up to the snapshot.
    Headers,
    /// Batches from this one on.
    Range(BatchNumber),
    /// The siblings of the range that begins here.
    Siblings(Path),
    /// Rows, or the changes in them, from this path on.
    Chunk(Path),
    /// Contract code by its hashes.
    Codes,
}

/// What a peer must serve to get a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needs {
    /// A certified head as high as this, and batches of any kind.
    Head(BatchNumber),
    /// A batch in a mode.
    Batch(RangeMode, BatchNumber),
    /// A batch's delta with its body and receipts.
    Whole(BatchNumber),
    /// The snapshot of this batch.
    Snapshot(BatchNumber),
    /// The deltas after the first batch, and the snapshot of the second.
    RangeDelta(BatchNumber, BatchNumber),
}

impl Needs {
    pub(super) fn fits(self, peer: &Candidate) -> bool {
        match self {
            Needs::Head(number) => peer.head >= number && peer.keeps_batches(),
            Needs::Batch(mode, number) => peer.serves(mode, number),
            Needs::Whole(number) => peer.serves_whole(number),
            Needs::Snapshot(number) => peer.offers(number),
            Needs::RangeDelta(from, number) => {
                peer.offers(number) && peer.range_delta_from.is_some_and(|first| first <= from.next())
            }
        }
    }
}

/// One thing wanted, with its requests.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) request: Request,
    pub(super) needs: Needs,
    /// Expected bytes of the answer.
    pub(super) bytes: u64,
    flights: Vec<RequestId>,
}

/// The subject of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum About {
    /// A thing wanted: any peer that has it may answer.
    Wanted(Key),
    /// The summary of this peer.
    Summary,
    /// The certificates that lead from the last known epoch to the peer's.
    Epochs {
        /// The first epoch whose end was asked for.
        first: Epoch,
    },
    /// Batches of the backfill.
    Past {
        /// The request that was sent.
        request: RangeRequest,
        /// The peer's head when it was asked.
        head: BatchNumber,
    },
    /// The past states of the backfill.
    States {
        /// The first known state.
        from: BatchNumber,
        /// The batch that the reverse delta leads to.
        to: BatchNumber,
    },
}

/// A request in flight.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) about: About,
    pub(super) peer: PeerId,
    pub(super) sent: Sent,
    /// The peer's head when it was asked.
    pub(super) head: BatchNumber,
    hedge_at: Instant,
    is_overdue: bool,
}

/// Maximum number of peers asked for one thing at once.
const FLIGHTS_MAX: usize = 3;
/// The same for the thing that everything else of its kind waits for. Each peer is late by the time the next is asked,
/// and gets no other request meanwhile. So silent strangers delay the first range only for the time that it takes to
/// ask each of them once.
const URGENT_FLIGHTS_MAX: usize = 16;
/// Least time before a hedge. Sooner, every hiccup would double the traffic.
const HEDGE_MIN: Duration = Duration::from_millis(100);
/// An answer is late when it takes this many times as long as expected of its peer.
const HEDGE_FACTOR: f64 = 2.0;

/// Everything wanted, and all requests in flight.
#[derive(Debug)]
pub(super) struct Streams {
    wanted: BTreeMap<Key, Wanted>,
    flights: BTreeMap<RequestId, Flight>,
    pub(super) links: Links,
    deadline: Duration,
    defences: Defences,
    next: u64,
    hedges: u64,
}

impl Streams {
    /// Begins with nothing wanted. Answers may take `deadline`.
    pub(super) fn new(deadline: Duration, defences: Defences) -> Streams {
        let (wanted, flights, links) = Default::default();
        Streams { wanted, flights, links, deadline, defences, next: 0, hedges: 0 }
    }

    /// Adds a thing wanted; does nothing if it is wanted already.
    pub(super) fn want(&mut self, key: Key, request: Request, needs: Needs, bytes: u64) {
        self.wanted.entry(key).or_insert(Wanted { request, needs, bytes, flights: Vec::new() });
    }

    /// Updates the expected bytes of an answer, as long as no peer was asked for it.
    pub(super) fn estimate(&mut self, key: &Key, bytes: u64) {
        if let Some(wanted) = self.wanted.get_mut(key).filter(|wanted| wanted.flights.is_empty()) {
            wanted.bytes = bytes;
        }
    }

    pub(super) fn is_wanted(&self, key: &Key) -> bool {
        self.wanted.contains_key(key)
    }

    /// The thing wanted under a key.
    pub(super) fn get(&self, key: &Key) -> Option<&Wanted> {
        self.wanted.get(key)
    }

    /// Whether a wanted range must come with all parts that the node keeps.
    pub(super) fn needs_whole(&self, key: &Key) -> bool {
        self.wanted.get(key).is_some_and(|wanted| matches!(wanted.needs, Needs::Whole(_)))
    }

    /// Whether it is wanted and no peer is asked for it now.
    pub(super) fn is_waiting(&self, key: &Key) -> bool {
        self.wanted.get(key).is_some_and(|wanted| wanted.flights.is_empty())
    }

    /// Whether every peer asked for it is late.
    pub(super) fn is_late(&self, key: &Key, now: Instant) -> bool {
        let is_late = |id| self.flights.get(id).is_none_or(|flight: &Flight| flight.hedge_at <= now);
        self.wanted.get(key).is_some_and(|wanted| wanted.flights.iter().all(is_late))
    }

    /// Marks the peers of a late request overdue. Call if no other peer can take the request in its present form.
    pub(super) fn mark_overdue(&mut self, key: &Key) {
        let Some(wanted) = self.wanted.get(key) else { return };
        for id in &wanted.flights {
            if let Some(flight) = self.flights.get_mut(id).filter(|flight| !flight.is_overdue) {
                flight.is_overdue = true;
                self.links.overdue(&flight.peer);
            }
        }
    }

    /// Returns the number of wanted ranges of a mode for which no request is in flight.
    pub(super) fn waiting_ranges(&self, mode: RangeMode) -> usize {
        let is_of = |wanted: &&Wanted| match wanted.needs {
            Needs::Batch(of, _) => of == mode,
            Needs::Whole(_) => mode == RangeMode::Delta,
            _ => false,
        };
        self.wanted.values().filter(is_of).filter(|wanted| wanted.flights.is_empty()).count()
    }

    /// Estimated bytes of the wanted state chunks.
    pub(super) fn chunk_bytes(&self) -> u64 {
        let chunks = self.wanted.iter().filter(|(key, _)| matches!(key, Key::Chunk(_)));
        chunks.map(|(_, wanted)| wanted.bytes).sum()
    }

    /// Number of wanted state chunks.
    pub(super) fn chunks(&self) -> usize {
        self.wanted.keys().filter(|key| matches!(key, Key::Chunk(_))).count()
    }

    /// Removes a thing that came or is no longer wanted, and cancels its open requests. Returns the peers that were
    /// late with it.
    pub(super) fn settle(&mut self, key: &Key, effects: &mut Effects) -> Vec<PeerId> {
        let Some(wanted) = self.wanted.remove(key) else { return Vec::new() };
        let mut late = Vec::new();
        for id in wanted.flights {
            if let Some(flight) = self.flights.remove(&id) {
                self.links.cancel(&flight.peer, &flight.sent, flight.is_overdue);
                effects.push_back(Effect::Cancel { id });
                if flight.is_overdue {
                    late.push(flight.peer);
                }
            }
        }
        late
    }

    /// Drops all matching things; no peer is blamed for them.
    pub(super) fn drop_all(&mut self, matches: impl Fn(&Key) -> bool, effects: &mut Effects) {
        let keys: Vec<Key> = self.wanted.keys().filter(|key| matches(key)).copied().collect();
        for key in keys {
            self.settle(&key, effects);
        }
    }

    /// Asks one given peer at `now`, for an answer of about `bytes` bytes.
    pub(super) fn ask(
        &mut self,
        peer: PeerId,
        about: About,
        request: Request,
        (now, bytes): (Instant, u64),
        effects: &mut Effects,
    ) {
        let flight = Flight {
            about,
            peer,
            sent: self.links.send(peer, now, bytes),
            head: BatchNumber::GENESIS,
            hedge_at: now + self.deadline,
            is_overdue: false,
        };
        self.start(flight, request, effects);
    }

    /// Whether a peer was asked about itself and has not answered.
    pub(super) fn is_asked(&self, peer: &PeerId) -> bool {
        let about_itself = |flight: &Flight| matches!(flight.about, About::Summary | About::Epochs { .. });
        self.flights.values().any(|flight| flight.peer == *peer && about_itself(flight))
    }

    /// Ends a request. Returns `None` if its answer is no longer awaited.
    pub(super) fn land(&mut self, id: RequestId) -> Option<Flight> {
        let flight = self.flights.remove(&id)?;
        self.links.end(&flight.peer, &flight.sent, flight.is_overdue);
        if let About::Wanted(key) = flight.about
            && let Some(wanted) = self.wanted.get_mut(&key)
        {
            wanted.flights.retain(|other| *other != id);
        }
        Some(flight)
    }

    /// Asks for things that no peer is asked for, and asks another peer if an answer is late. `checking` says whether
    /// an answer came and is being checked. Returns whether any peer was asked.
    pub(super) fn assign(
        &mut self,
        now: Instant,
        candidates: &[Candidate],
        book: &mut PeerBook,
        checking: impl Fn(&Key) -> bool,
        effects: &mut Effects,
    ) -> bool {
        let before = self.next;
        let keys: Vec<Key> = self.wanted.keys().copied().collect();
        let mut kinds = Vec::new();
        for key in keys {
            if checking(&key) {
                continue;
            }
            let kind = std::mem::discriminant(&key);
            let is_urgent = !kinds.contains(&kind);
            if is_urgent {
                kinds.push(kind);
            }
            let Some(wanted) = self.wanted.get(&key) else { continue };
            if wanted.flights.len() >= if is_urgent { URGENT_FLIGHTS_MAX } else { FLIGHTS_MAX } {
                continue;
            }
            let flights = wanted.flights.iter().filter_map(|id| self.flights.get(id));
            if flights.clone().any(|flight| now < flight.hedge_at) {
                continue;
            }
            let asked: Vec<PeerId> = flights.map(|flight| flight.peer).collect();
            let hedges = !asked.is_empty();
            let (needs, bytes) = (wanted.needs, wanted.bytes);
            let fits = |peer: &&Candidate| {
                needs.fits(peer) && !asked.contains(&peer.peer) && self.links.has_room(&peer.peer, bytes)
            };
            let mut free: Vec<Candidate> = candidates.iter().filter(fits).cloned().collect();
            // A late request goes to a peer that has delivered, if one has room: all
            // strangers may be keys of one attacker.
            if hedges && free.iter().any(|peer| peer.is_proven) {
                free.retain(|peer| peer.is_proven);
            }
            // Everything else waits for the first request, so it does not explore. A late one does not either.
            let urgent = is_urgent || hedges;
            let Some(peer) = self.choose(now, &free, bytes, urgent, book) else { continue };
            self.mark_overdue(&key);
            self.hedges += u64::from(hedges);
            self.send(key, &peer, now, book, effects);
        }
        self.next > before
    }

    /// Chooses the peer whose answer is expected first, but now and then a little-known one.
    fn choose(
        &self,
        now: Instant,
        free: &[Candidate],
        bytes: u64,
        urgent: bool,
        book: &mut PeerBook,
    ) -> Option<Candidate> {
        let explored = book.choose(now, free, urgent)?;
        if explored.peer != free.first()?.peer {
            return Some(explored);
        }
        let time = |peer: &Candidate| {
            let reliability = book.reliability(&peer.peer, now).max(0.05);
            let expected = self.links.expected(&peer.peer, bytes);
            // A failure costs at least a hedge's time. So a batch at the head, whose answer takes some milliseconds,
            // goes to a peer that has delivered, and not to a nearer stranger.
            let failing = expected.max(HEDGE_MIN).mul_f64(1.0 / reliability - 1.0);
            expected + failing + self.links.lateness(&peer.peer, now)
        };
        free.iter().min_by_key(|peer| time(peer)).cloned()
    }

    fn send(&mut self, key: Key, peer: &Candidate, now: Instant, book: &PeerBook, effects: &mut Effects) {
        let Some(bytes) = self.wanted.get(&key).map(|wanted| wanted.bytes) else { return };
        let usual = self.links.expected(&peer.peer, bytes).mul_f64(HEDGE_FACTOR);
        // The peer's own quantile, scaled to this many MiB.
        let quantile = book.tail(&peer.peer).mul_f64((bytes as f64 / f64::from(1 << 20)).max(1.0));
        let patience = match self.defences.lacks(Planted::LateHedge) {
            true => self.deadline,
            false => usual.max(quantile).clamp(HEDGE_MIN, self.deadline),
        };
        let mut sent = self.links.send(peer.peer, now, bytes);
        self.links.owe(&peer.peer, &mut sent, now);
        let flight = Flight {
            about: About::Wanted(key),
            peer: peer.peer,
            sent,
            head: peer.head,
            hedge_at: now + patience,
            is_overdue: false,
        };
        let Some(wanted) = self.wanted.get_mut(&key) else { return };
        wanted.flights.push(RequestId(self.next));
        let request = wanted.request.clone();
        self.start(flight, request, effects);
    }

    fn start(&mut self, flight: Flight, request: Request, effects: &mut Effects) {
        let id = RequestId(self.next);
        self.next += 1;
        let bytes_max = request.answer_bytes_max();
        let (peer, deadline) = (flight.peer, self.deadline);
        effects.push_back(Effect::Send { id, peer, request, deadline, bytes_max });
        self.flights.insert(id, flight);
    }

    /// When another peer should be asked next.
    pub(super) fn next_hedge(&self, now: Instant) -> Option<Instant> {
        let can_be = |flight: &&Flight| !flight.is_overdue && matches!(flight.about, About::Wanted(_));
        let waiting = self.flights.values().filter(can_be);
        // A late request would have gone to another peer if one had room. Only an answer makes room, and that is an
        // event.
        waiting.map(|flight| flight.hedge_at).filter(|at| *at > now).min()
    }

    /// The most urgent thing that was requested, and when its answer is late.
    pub(super) fn awaited(&self) -> Option<(Key, Instant)> {
        let wanted = self.flights.values().filter_map(|flight| match flight.about {
            About::Wanted(key) => Some((key, flight.hedge_at)),
            _ => None,
        });
        wanted.min()
    }

    /// Number of requests in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Number of requests that were sent because another was late.
    pub(super) fn hedges(&self) -> u64 {
        self.hedges
    }
}
