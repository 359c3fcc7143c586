//! [`Chooser`]: chooses the peers that this node dials on its own initiative, and those that it asks for other peers.
//! It also decides which chosen peers must leave.
//!
//! ```text
//!   outbound places   half kept by age, a quarter by service, a quarter rotates; useless peers keep none
//!   feeler            one more, every two minutes, only to see whether a peer of the book answers
//! ```
//!
//! Chosen peers with public addresses are all in different blocks, so an attacker with a few blocks gets at most as
//! many places. The chooser alone sets the number of attempts; reports of strangers only fill the book.

mod record_sampler;
#[cfg(test)]
mod rig;
mod seats;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use slipstream_types::{CodecError, Digest};
use tokio::time::Instant;

use self::{
    record_sampler::RecordSampler,
    seats::{RecentDials, Seats},
};
use super::{
    AddressBook, Moment, PeerRecord,
    book::{BookPart, HearOutcome},
    draws::Draws,
    status::{Counts, ExchangeEvent, ExchangeStatus},
};
use crate::{PeerAddress, PeerId};

/// Concurrent attempts for places, and the time between two. A starting node fills its places within seconds, and
/// attackers cannot make it dial many hosts at once.
const DIALS_MAX: usize = 2;
const DIAL_EVERY: Duration = Duration::from_millis(500);
/// Wait before the book is searched again after it had no peer to dial.
const DIAL_IDLE: Duration = Duration::from_secs(10);
/// Time between two feelers, as in Bitcoin: some seven hundred addresses are verified per day.
const FEELER_EVERY: Duration = Duration::from_secs(120);
/// How long a feeler waits for an answer.
const FEELER_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two questions to one peer, while this node knows few others and once it knows many.
const ASK_SOON: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_secs(1_800);
/// Wait before a peer that does not take part is asked again.
const ASK_UNWILLING: Duration = Duration::from_secs(3_600);
/// How many known addresses for each place are enough.
const KNOWN_PER_PLACE: usize = 8;
/// Interval at which one of the rotating places changes hands.
const TURN_EVERY: Duration = Duration::from_secs(1_800);
/// A chosen peer that was useless for this long makes room for another.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// A connection that lasted this long was real; a shorter one was a refusal.
const STABLE: Duration = Duration::from_secs(10);
/// How long a peer is not dialled after it refused, or made room, in milliseconds.
const REFUSED_REST_MS: u64 = 600_000;
const ROTATED_REST_MS: u64 = 3_600_000;
/// Time between two searches for outdated entries.
const EXPIRE_EVERY: Duration = Duration::from_secs(600);

/// The rules of the chooser, from the configuration.
#[derive(Clone, Debug)]
pub(crate) struct ChooserRules {
    /// Places for chosen peers.
    pub(crate) outbound: usize,
    /// The configured peers, which are dialled whatever this module chooses.
    pub(crate) configured: BTreeSet<PeerId>,
    /// The addresses that this node advertises.
    pub(crate) advertised: Vec<SocketAddr>,
}

/// A current connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbour {
    pub(crate) id: PeerId,
    pub(crate) address: SocketAddr,
    /// Whether this node dialled.
    pub(crate) is_dialled: bool,
    pub(crate) since: Instant,
    /// When it last asked, answered or reported something.
    pub(crate) used: Option<Instant>,
    /// Bytes of its recent answers to this node.
    pub(crate) served: f64,
}

/// An action for the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Dial a peer, and report the result by [`Chooser::dialled`].
    Dial(PeerAddress),
    /// Ask a peer for other peers, and report the result by [`Chooser::asked`].
    Ask(PeerId),
    /// End the connection to a peer.
    Drop(PeerId),
}

/// The result of an attempt to connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DialOutcome {
    Unreachable,
    WrongKey,
    /// The connection was made, and has ended.
    Ended,
}

/// The result of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AskOutcome {
    /// The peer answered; its records have been [heard](Chooser::hear).
    Answered,
    /// The peer was busy or silent.
    Later,
    /// The peer does not take part, is of another chain, or lied.
    Unwilling,
}

/// A peer that is dialled only to see whether it answers.
#[derive(Clone, Copy, Debug)]
enum Feeler {
    Dialling(PeerAddress),
    Asking { id: PeerId, until: Instant },
}

impl Feeler {
    fn id(&self) -> PeerId {
        match self {
            Feeler::Dialling(peer) => peer.id,
            Feeler::Asking { id, .. } => *id,
        }
    }
}

/// The chooser of peers; see the module.
pub(crate) struct Chooser {
    rules: ChooserRules,
    book: AddressBook,
    draws: Draws,
    seats: Seats,
    feeler: Option<Feeler>,
    recent_dials: RecentDials,
    /// Long-standing neighbours from before the restart that have not been dialled since.
    anchors: Vec<PeerId>,
    /// The neighbours at the last step, each with the time of its connection.
    known: BTreeMap<PeerId, Instant>,
    /// When to ask each peer next; `None` while a question is in flight.
    asks: BTreeMap<PeerId, Option<Instant>>,
    shown: RecordSampler,
    next_dial: Instant,
    next_feeler: Instant,
    next_turn: Instant,
    next_expiry: Instant,
    counts: Counts,
}

impl Chooser {
    pub(crate) fn new(rules: ChooserRules, book: AddressBook, draws: Draws, now: Moment) -> Chooser {
        let now = now.instant;
        Chooser {
            anchors: book.anchors(),
            seats: Seats::new(rules.outbound),
            rules,
            book,
            draws,
            feeler: None,
            recent_dials: RecentDials::default(),
            known: BTreeMap::new(),
            asks: BTreeMap::new(),
            shown: RecordSampler::default(),
            next_dial: now,
            next_feeler: now + FEELER_EVERY,
            next_turn: now + TURN_EVERY,
            next_expiry: now + EXPIRE_EVERY,
            counts: Counts::default(),
        }
    }

    /// Returns the next actions, given these connections. Call it when a connection comes or goes, when a peer reported
    /// something, and at [`Chooser::wake_at`].
    pub(crate) fn step(&mut self, neighbours: &[Neighbour], now: Moment) -> Vec<Action> {
        let mut actions = Vec::new();
        self.observe(neighbours, now);
        self.end_feeler(neighbours, now, &mut actions);
        self.turn(now, &mut actions);
        self.dial(now, &mut actions);
        self.feel(now, &mut actions);
        self.ask(neighbours, now, &mut actions);
        if self.next_expiry <= now.instant {
            self.book.expire(now.ms);
            self.next_expiry = now.instant + EXPIRE_EVERY;
        }
        actions
    }

    /// When the next step is due, if nothing happens before.
    pub(crate) fn wake_at(&self) -> Instant {
        let dials = (self.rules.outbound > 0).then_some(self.next_feeler);
        let places = (self.seats.has_free() && self.seats.dialling() < DIALS_MAX).then_some(self.next_dial);
        let feeler = match self.feeler {
            Some(Feeler::Asking { until, .. }) => Some(until),
            Some(Feeler::Dialling(_)) | None => None,
        };
        let asks = self.asks.iter().filter(|(id, _)| self.known.contains_key(id));
        let asks = asks.filter_map(|(_, at)| *at).min();
        let timers = [dials, places, feeler, asks, Some(self.next_turn), Some(self.next_expiry)];
        timers.into_iter().flatten().min().unwrap_or(self.next_expiry)
    }

    /// The peers that are dialled or connected by choice, which have reserved places.
    pub(crate) fn chosen(&self) -> BTreeSet<PeerId> {
        self.seats.ids().chain(self.feeler.map(|feeler| feeler.id())).collect()
    }

    fn observe(&mut self, neighbours: &[Neighbour], now: Moment) {
        let before = std::mem::take(&mut self.known);
        self.known = neighbours.iter().map(|peer| (peer.id, peer.since)).collect();
        if before.keys().any(|id| !self.known.contains_key(id)) {
            // The lost peer may now be dialled.
            self.next_dial = self.next_dial.min(now.instant + DIAL_EVERY);
        }
        for peer in neighbours.iter().filter(|peer| before.get(&peer.id) != Some(&peer.since)) {
            match peer.is_dialled {
                true => self.book.reached(&peer.id, peer.address, now.ms),
                false => self.book.met(&peer.id, peer.address),
            }
            if self.is_asked(peer) {
                // A peer that reconnects is not asked more often.
                self.asks.entry(peer.id).or_insert(Some(now.instant));
            }
        }
        for lost in self.seats.observe(neighbours) {
            self.counts.add(ExchangeEvent::Lost);
            if now.instant.saturating_duration_since(lost.since) < STABLE {
                self.book.rest(&lost.id, now.ms + REFUSED_REST_MS);
            }
        }
        for _ in 0..self.seats.take_arrived() {
            self.counts.add(ExchangeEvent::Reached);
        }
        self.asks.retain(|id, at| self.known.contains_key(id) || at.is_none_or(|at| at > now.instant));
    }

    /// Whether this node asks a peer for other peers. It does not ask strangers that connected: they would choose the
    /// peers that this node knows.
    fn is_asked(&self, peer: &Neighbour) -> bool {
        let takes_part = self.rules.outbound > 0 || !self.rules.advertised.is_empty();
        takes_part && (peer.is_dialled || self.rules.configured.contains(&peer.id))
    }

    fn end_feeler(&mut self, neighbours: &[Neighbour], now: Moment, actions: &mut Vec<Action>) {
        let Some(feeler) = self.feeler else { return };
        let is_there = neighbours.iter().any(|peer| peer.id == feeler.id());
        match feeler {
            Feeler::Dialling(peer) if is_there => {
                self.counts.add(ExchangeEvent::Reached);
                self.feeler = Some(Feeler::Asking { id: peer.id, until: now.instant + FEELER_PATIENCE });
            }
            Feeler::Asking { id, until } if is_there && until <= now.instant => {
                self.feeler = None;
                actions.push(Action::Drop(id));
            }
            Feeler::Asking { .. } if !is_there => self.feeler = None,
            Feeler::Dialling(_) | Feeler::Asking { .. } => {}
        }
    }

    /// Replaces one chosen peer, if a candidate for its place exists.
    fn turn(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if now.instant < self.next_turn {
            return;
        }
        self.next_turn = now.instant + TURN_EVERY;
        let Some(leaving) = self.seats.leaving(now.instant, TURN_EVERY, IDLE_MAX) else { return };
        let seat = self.seats.release(&leaving);
        self.book.rest(&leaving, now.ms + ROTATED_REST_MS);
        match self.draw_for_place(now) {
            Some(_) => {
                self.counts.add(ExchangeEvent::Rotated);
                self.next_dial = now.instant;
                actions.push(Action::Drop(leaving));
            }
            None => self.seats.put_back(leaving, seat),
        }
    }

    fn dial(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if !self.seats.has_free() || self.seats.dialling() >= DIALS_MAX || now.instant < self.next_dial {
            return;
        }
        let Some(peer) = self.next_anchor(now).or_else(|| self.draw_for_place(now)) else {
            self.next_dial = now.instant + DIAL_IDLE;
            return;
        };
        self.counts.add(ExchangeEvent::Dialled);
        self.seats.dial(peer);
        self.recent_dials.note(peer.address, now.instant);
        self.next_dial = now.instant + DIAL_EVERY;
        actions.push(Action::Dial(peer));
    }

    fn next_anchor(&mut self, now: Moment) -> Option<PeerAddress> {
        while let Some(anchor) = self.anchors.pop() {
            let peer = self.book.candidate(&anchor, now.ms).filter(|peer| self.is_for_place(peer, now));
            if peer.is_some() {
                return peer;
            }
        }
        None
    }

    /// Draws from either part of the book with equal chance, falling back to the other part.
    fn draw_for_place(&mut self, now: Moment) -> Option<PeerAddress> {
        let parts = match self.draws.below(2) {
            0 => [BookPart::Heard, BookPart::Reached],
            _ => [BookPart::Reached, BookPart::Heard],
        };
        parts.into_iter().find_map(|part| self.draw(part, now, |it, peer| it.is_for_place(peer, now)))
    }

    fn draw(
        &mut self,
        part: BookPart,
        now: Moment,
        is_wanted: impl Fn(&Chooser, &PeerAddress) -> bool,
    ) -> Option<PeerAddress> {
        let mut draws = std::mem::replace(&mut self.draws, Draws::new([0; 32]));
        let drawn = self.book.draw(part, &mut draws, now.ms, |peer| is_wanted(self, peer));
        self.draws = draws;
        drawn
    }

    fn is_for_place(&self, peer: &PeerAddress, now: Moment) -> bool {
        self.is_new(peer, now) && !self.seats.has_block_of(peer.address)
    }

    /// Whether a peer is neither connected nor being dialled, and its host was not dialled recently.
    fn is_new(&self, peer: &PeerAddress, now: Moment) -> bool {
        !self.known.contains_key(&peer.id)
            && !self.seats.has(&peer.id)
            && !self.rules.configured.contains(&peer.id)
            && self.feeler.is_none_or(|feeler| feeler.id() != peer.id)
            && !self.recent_dials.is_lately(peer.address, now.instant)
    }

    fn feel(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.rules.outbound == 0 || now.instant < self.next_feeler {
            return;
        }
        let spread = self.draws.below(FEELER_EVERY.as_millis() as usize) as u64;
        self.next_feeler = now.instant + FEELER_EVERY / 2 + Duration::from_millis(spread);
        if self.feeler.is_some() {
            return;
        }
        // A peer that rests, or that is configured anyway, does not hold up the others.
        let contested = self.book.contested().filter_map(|id| self.book.candidate(&id, now.ms));
        let contested: Vec<PeerAddress> = contested.collect();
        if let Some(peer) = contested.iter().find(|peer| self.known.contains_key(&peer.id)) {
            self.book.reached(&peer.id, peer.address, now.ms);
            return;
        }
        let peer = contested
            .into_iter()
            .find(|peer| self.is_new(peer, now))
            .or_else(|| self.draw(BookPart::Heard, now, |it, peer| it.is_new(peer, now)))
            .or_else(|| self.draw(BookPart::Reached, now, |it, peer| it.is_new(peer, now)));
        let Some(peer) = peer else { return };
        self.counts.add(ExchangeEvent::Felt);
        self.recent_dials.note(peer.address, now.instant);
        self.feeler = Some(Feeler::Dialling(peer));
        actions.push(Action::Dial(peer));
    }

    fn ask(&mut self, neighbours: &[Neighbour], now: Moment, actions: &mut Vec<Action>) {
        for peer in neighbours {
            let Some(at) = self.asks.get_mut(&peer.id) else { continue };
            if at.is_some_and(|at| at <= now.instant) {
                *at = None;
                actions.push(Action::Ask(peer.id));
            }
        }
    }
}

mod reports;
