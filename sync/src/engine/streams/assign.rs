//! Whom to ask for each thing wanted, and when to ask another peer too.

use std::time::Duration;

use slipstream_network::PeerId;
use tokio::time::Instant;

use super::{Flight, Key, Streams, Subject};
use crate::{
    engine::effect::{Effects, RequestId},
    peers::PeerBook,
    plan::Candidate,
    planted::Planted,
};

/// Maximum number of peers asked for one thing at once.
const FLIGHTS_MAX: usize = 3;
/// Maximum number of peers asked at once for the thing that everything else of its kind waits for. Each peer is late by
/// the time the next is asked, and gets no other request meanwhile. So silent strangers delay the first range only for
/// the time that it takes to ask each of them once.
const URGENT_FLIGHTS_MAX: usize = 16;
/// Least time before a hedge. With a shorter time, every hiccup would double the traffic.
const HEDGE_MIN: Duration = Duration::from_millis(100);
/// An answer is late when it takes this many times as long as its peer is expected to take.
const HEDGE_FACTOR: f64 = 2.0;

impl Streams {
    /// Asks for things that no peer is asked for, and asks another peer if an answer is late. `checking` says whether
    /// an answer came and is being checked. Returns whether any peer was asked.
    pub(in crate::engine) fn assign(
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
            about: Subject::Wanted(key),
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
}
