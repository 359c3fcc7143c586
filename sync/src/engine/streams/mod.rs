//! [`Streams`]: the things wanted, the peers asked for each, and when to ask another peer too.
//!
//! A thing wanted stays here until an answer to it passed its checks. Several peers may be asked for it: one after the
//! other as they fail, or another one in addition when an answer takes longer than usual.

mod assign;

use std::{collections::BTreeMap, time::Duration};

use slipstream_network::PeerId;
use slipstream_types::{BatchNumber, Epoch, Path};
use tokio::time::Instant;

use super::{
    effect::{Effect, Effects, RequestId},
    links::{Links, SentRequest},
};
use crate::{
    plan::{Candidate, RangeMode},
    planted::Defences,
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
pub(super) enum Requirement {
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

impl Requirement {
    pub(super) fn fits(self, peer: &Candidate) -> bool {
        match self {
            Requirement::Head(number) => peer.head >= number && peer.keeps_batches(),
            Requirement::Batch(mode, number) => peer.serves(mode, number),
            Requirement::Whole(number) => peer.serves_whole(number),
            Requirement::Snapshot(number) => peer.offers(number),
            Requirement::RangeDelta(from, number) => {
                peer.offers(number) && peer.range_delta_from.is_some_and(|first| first <= from.next())
            }
        }
    }
}

/// One thing wanted, with its requests.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) request: Request,
    pub(super) needs: Requirement,
    /// Expected bytes of the answer.
    pub(super) bytes: u64,
    flights: Vec<RequestId>,
}

/// The subject of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subject {
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
    pub(super) about: Subject,
    pub(super) peer: PeerId,
    pub(super) sent: SentRequest,
    /// The peer's head when it was asked.
    pub(super) head: BatchNumber,
    hedge_at: Instant,
    is_overdue: bool,
}

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
    pub(super) fn want(&mut self, key: Key, request: Request, needs: Requirement, bytes: u64) {
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
        self.wanted.get(key).is_some_and(|wanted| matches!(wanted.needs, Requirement::Whole(_)))
    }

    /// Whether a key is wanted and no peer is asked for it now.
    pub(super) fn is_waiting(&self, key: &Key) -> bool {
        self.wanted.get(key).is_some_and(|wanted| wanted.flights.is_empty())
    }

    /// Whether every peer that is asked for a key is late.
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
            Requirement::Batch(of, _) => of == mode,
            Requirement::Whole(_) => mode == RangeMode::Delta,
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
        about: Subject,
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
        let about_itself =
            |flight: &Flight| matches!(flight.about, Subject::Summary | Subject::Epochs { .. });
        self.flights.values().any(|flight| flight.peer == *peer && about_itself(flight))
    }

    /// Ends a request. Returns `None` if its answer is no longer awaited.
    pub(super) fn land(&mut self, id: RequestId) -> Option<Flight> {
        let flight = self.flights.remove(&id)?;
        self.links.end(&flight.peer, &flight.sent, flight.is_overdue);
        if let Subject::Wanted(key) = flight.about
            && let Some(wanted) = self.wanted.get_mut(&key)
        {
            wanted.flights.retain(|other| *other != id);
        }
        Some(flight)
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
        let can_be = |flight: &&Flight| !flight.is_overdue && matches!(flight.about, Subject::Wanted(_));
        let waiting = self.flights.values().filter(can_be);
        // A late request would have gone to another peer if one had room. Only an answer makes room, and that is an
        // event.
        waiting.map(|flight| flight.hedge_at).filter(|at| *at > now).min()
    }

    /// The most urgent thing that was requested, and when its answer is late.
    pub(super) fn awaited(&self) -> Option<(Key, Instant)> {
        let wanted = self.flights.values().filter_map(|flight| match flight.about {
            Subject::Wanted(key) => Some((key, flight.hedge_at)),
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
